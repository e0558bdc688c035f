//! What a recipe does at a SIGTERM: it ends with success, and its lock is free at once, not after a
//! lease.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use lockhound::Locker;
use redis::Redis;

#[path = "../src/redis.rs"]
mod redis;

/// Longer than any step of these programs takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A recipe that runs. It ends with the test.
struct Recipe {
    process: Child,
    lines: Receiver<(Instant, String)>,
}

impl Recipe {
    fn start(name: &str, redis: &Redis) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_lockhound-recipes"))
            .arg(name)
            .envs([("REDIS_URL", &*redis.url()), ("PORT", "0")])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was built");
        let (sender, lines) = channel();
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        thread::spawn(move || {
            // Ends with the program, or with the test.
            for line in output.lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        Self { process, lines }
    }

    /// Waits for a line with these words. Returns when it came, and the line.
    fn line(&self, words: &str) -> (Instant, String) {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (at, line) = self
                .lines
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("no line with {words:?}"));
            if line.contains(words) {
                return (at, line);
            }
        }
    }

    fn terminate(&self) {
        let pid = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .expect("there is kill")
                .success()
        );
    }

    /// Waits until the program has ended.
    fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("it was started") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it goes on");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Recipe {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Asks whether somebody holds a lock.
fn is_locked(redis: &Redis, name: &str) -> bool {
    let locks = Locker::blocking_connect(redis.url()).expect("connected");
    // A guard that is dropped at once.
    let locked = locks
        .get(name)
        .blocking_try_lock()
        .expect("answered")
        .is_none();
    locks.blocking_close();
    locked
}

/// Waits until a program stands in the list of those that wait for a lock.
fn await_waiter(redis: &Redis, name: &str) {
    let address = redis.url().trim_start_matches("redis://").to_owned();
    let start = Instant::now();
    loop {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        write!(stream, "EXISTS lockhound_waiting:{{{name}}}\r\n").expect("sent");
        let mut reply = [0; 4];
        stream.read_exact(&mut reply).expect("answered");
        if reply == *b":1\r\n" {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "nobody waits for {name}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Under load a single hand-over may take longer, but not all of them.
#[test]
fn a_leader_hands_over_within_100_ms() {
    let redis = Redis::start();
    let mut leader = Recipe::start("leader", &redis);
    leader.line("leading, fence");
    let mut fastest = PATIENCE;
    for _ in 0..20 {
        let next = Recipe::start("leader", &redis);
        next.line("waiting to lead");
        await_waiter(&redis, "recipes:leader");
        let sent = Instant::now();
        leader.terminate();
        let (elected, _) = next.line("leading, fence");
        assert!(leader.end().success());
        fastest = fastest.min(elected - sent);
        if fastest < Duration::from_millis(100) {
            return;
        }
        leader = next;
    }
    panic!("the fastest hand-over took {fastest:?}");
}

#[test]
fn a_timer_stops_at_once() {
    let redis = Redis::start();
    let mut cron = Recipe::start("cron", &redis);
    cron.line("each full minute");
    cron.terminate();
    assert!(cron.end().success());
}

#[test]
fn a_consumer_finishes_its_jobs_and_takes_no_more() {
    let redis = Redis::start();
    let mut queue = Recipe::start("queue", &redis);
    queue.line("job 0 of customer 0");
    queue.terminate();
    assert!(queue.end().success());
    assert!((0..5).all(|customer| !is_locked(&redis, &format!("customer:{customer}"))));
    let later = queue
        .lines
        .iter()
        .filter(|(_, line)| line.contains("job "))
        .count();
    assert!(later < 39, "it took all of the forty jobs");
}

#[test]
fn threads_that_wait_for_a_lock_stop() {
    let redis = Redis::start();
    let locks = Locker::blocking_connect(redis.url()).expect("connected");
    let guard = locks.get("recipes:threads").blocking_lock().expect("free");
    let mut threads = Recipe::start("threads", &redis);
    threads.line("counting");
    threads.terminate();
    assert!(threads.end().success());
    guard.check().expect("it is kept");
    guard.blocking_unlock().expect("ours");
    assert!(!is_locked(&redis, "recipes:threads"));
    locks.blocking_close();
}

#[test]
fn a_web_service_answers_its_requests_and_keeps_no_lock() {
    let redis = Redis::start();
    let mut service = Recipe::start("web_service", &redis);
    let (_, line) = service.line("listening on http://");
    let address = line.rsplit('/').next().expect("an address").to_owned();
    // The request waits for this lock while the signal comes.
    let locks = Locker::blocking_connect(redis.url()).expect("connected");
    let guard = locks.get("order:42").blocking_lock().expect("free");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .write_all(b"POST /orders/42/pay HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n")
        .expect("sent");
    await_waiter(&redis, "order:42");
    service.terminate();
    guard.blocking_unlock().expect("ours");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(service.end().success());
    assert!(!is_locked(&redis, "order:42"));
    locks.blocking_close();
}
