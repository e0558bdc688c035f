//! Threads, `main` and processes that end, or are copied, while locks are held or were just
//! released. This target has a `main` of its own, since the end of `main` is tested: with a
//! program's name in the environment it runs that program; otherwise it runs the tests, which start
//! it that way.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::future::{Future, pending};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::proxy::{Mode, Proxy};
use common::{Server, key, ms};
use futures_util::poll;
use lockhound::{Error, Guard, Locker};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// The environment variable of a program: its name, the server's address, and the name of a lock.
const PROGRAM: &str = "LOCKHOUND_TEST_PROGRAM";

/// How long a program waits at its end at most.
const WAITED: Duration = Duration::from_millis(100);

/// How long a server may take to execute what was written to its socket. The lease is 30 s.
const EXECUTED: Duration = Duration::from_secs(1);

type Body = fn(&str, &str);

/// Programs that end right after they have dropped a guard.
const DROPPED: [(&str, Body); 5] = [
    ("main", |url, key| drop(lock(url, key))),
    ("several locks", |url, key| {
        let locks = Locker::blocking_connect(url).unwrap();
        drop(
            locks
                .multi([key.to_owned(), format!("{key}:other")])
                .blocking_lock()
                .unwrap(),
        );
    }),
    ("current_thread", |url, key| {
        current_thread().block_on(async { drop(lock_async(url, key).await) });
    }),
    ("multi_thread", |url, key| {
        Runtime::new()
            .unwrap()
            .block_on(async { drop(lock_async(url, key).await) });
    }),
    ("a thread that main does not wait for", |url, key| {
        let (locks, guard) = lock(url, key);
        let (told, tell) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(guard);
            told.send(()).unwrap();
            std::thread::park();
        });
        tell.recv().unwrap();
        drop(locks);
    }),
];

/// Programs whose `main` ends while they hold a lock.
const LIVE: [(&str, Body); 8] = [
    ("main", |url, key| {
        let (_locks, _guard) = lock(url, key);
    }),
    ("main that panics", |url, key| {
        let (_locks, _guard) = lock(url, key);
        std::panic::set_hook(Box::new(|_| {}));
        panic!("with a live guard");
    }),
    ("a thread", |url, key| {
        let (url, key) = (url.to_owned(), key.to_owned());
        let thread = std::thread::spawn(move || {
            let (_locks, _guard) = lock(&url, &key);
        });
        thread.join().unwrap();
    }),
    ("current_thread", |url, key| {
        current_thread().block_on(async {
            let (_locks, _guard) = lock_async(url, key).await;
        });
    }),
    ("multi_thread", |url, key| {
        Runtime::new().unwrap().block_on(async {
            let (_locks, _guard) = lock_async(url, key).await;
        });
    }),
    ("a task of current_thread", |url, key| {
        task_that_is_aborted(&current_thread(), url, key);
    }),
    ("a task of multi_thread", |url, key| {
        task_that_is_aborted(&Runtime::new().unwrap(), url, key);
    }),
    ("a runtime that is not waited for", |url, key| {
        let runtime = Runtime::new().unwrap();
        let locks = runtime.block_on(Locker::connect(url)).unwrap();
        let lock = locks.get(key);
        runtime
            .block_on(runtime.spawn(async move { std::mem::drop(lock.lock().await.unwrap()) }))
            .unwrap();
        runtime.shutdown_background();
    }),
];

/// Programs that print "ready", and go on once they are told to.
const TOLD: [(&str, Body); 7] = [
    ("several", |urls, key| {
        let builder = urls
            .split(',')
            .fold(Locker::builder(), |builder, url| builder.node(url));
        let locks = builder
            .restart_quarantine(Duration::ZERO)
            .blocking_connect()
            .unwrap();
        let _guard = locks.get(key).blocking_lock().unwrap();
        wait_to_be_told();
    }),
    ("drop", |url, key| {
        let (_locks, _guard) = lock_again(url, key);
        wait_to_be_told();
    }),
    ("threads", |url, key| {
        let (locks, guard) = lock_again(url, key);
        let names = || (0..50).map(|n| format!("{key}:{n}"));
        // More releases than scripts can be under way: the server now knows the script of several,
        // too.
        locks
            .multi(names())
            .blocking_lock()
            .unwrap()
            .blocking_unlock()
            .unwrap();
        let guards: Vec<Guard> = names()
            .map(|name| locks.get(name).blocking_lock().unwrap())
            .collect();
        let other = Locker::blocking_connect(url).unwrap();
        let others = other.get(format!("{key}:other")).blocking_lock().unwrap();
        wait_to_be_told();
        drop((guard, others));
        // One after the other they would take 5 s.
        let threads: Vec<_> = guards
            .into_iter()
            .map(|guard| std::thread::spawn(move || drop(guard)))
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }),
    ("closed", |url, key| {
        let (locks, _guard) = lock_again(url, key);
        wait_to_be_told();
        Runtime::new().unwrap().block_on(async {
            let closing = locks.clone();
            tokio::spawn(async move { closing.close().await });
            tokio::time::sleep(ms(1)).await;
        });
    }),
    ("lock", |url, key| {
        let (locks, runtime) = (lock_again(url, &common::key()).0, current_thread());
        let lock = locks.get(key);
        runtime.block_on(ask_and_go(async { lock.lock().await.map(drop) }));
    }),
    ("try_lock", |url, key| {
        let (locks, runtime) = (lock_again(url, &common::key()).0, current_thread());
        let lock = locks.get(key);
        runtime.block_on(ask_and_go(async { lock.try_lock().await.map(drop) }));
    }),
    #[cfg(unix)]
    ("fork", forked::parent),
    #[cfg(not(unix))]
    ("fork", |_, _| wait_to_be_told()),
];

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn lock(url: &str, key: &str) -> (Locker, Guard) {
    let locks = Locker::blocking_connect(url).unwrap();
    let guard = locks.get(key).blocking_lock().unwrap();
    (locks, guard)
}

async fn lock_async(url: &str, key: &str) -> (Locker, Guard) {
    let locks = Locker::connect(url).await.unwrap();
    let guard = locks.get(key).lock().await.unwrap();
    (locks, guard)
}

/// All calls are made in the task: `main` itself never calls the library.
fn task_that_is_aborted(runtime: &Runtime, url: &str, key: &str) {
    let (url, key) = (url.to_owned(), key.to_owned());
    runtime.block_on(async {
        let (told, tell) = oneshot::channel();
        tokio::spawn(async move {
            let (_locks, _guard) = lock_async(&url, &key).await;
            told.send(()).unwrap();
            pending::<()>().await;
        });
        tell.await.unwrap();
    });
}

/// Like [`lock`], on a server that knows the script of a release: otherwise it has to answer before
/// the script is sent as text.
fn lock_again(url: &str, key: &str) -> (Locker, Guard) {
    let (locks, guard) = lock(url, key);
    guard.blocking_unlock().unwrap();
    let guard = locks.get(key).blocking_lock().unwrap();
    (locks, guard)
}

/// Polls a future once, and ends when told to.
async fn ask_and_go(asking: impl Future<Output = Result<(), Error>>) {
    wait_to_be_told();
    let mut asking = Box::pin(asking);
    assert!(poll!(asking.as_mut()).is_pending());
    wait_to_be_told();
    drop(asking);
    println!("ready");
}

fn wait_to_be_told() {
    println!("ready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

#[cfg(unix)]
mod forked {
    use super::*;
    use fork::{Fork, fork, waitpid};
    use lockhound::{
        Election, Guard, HoldState, Latch, Leadership, Loss, Observer, Permit, Semaphore,
    };

    /// Holds a lock while a forked copy of this process checks what it can still do with it.
    pub(crate) fn parent(url: &str, key: &str) {
        let (locks, guard) = lock(url, key);
        let joint = locks
            .multi([format!("{key}:a"), format!("{key}:b")])
            .blocking_lock()
            .unwrap();
        let others = Others::new(&locks, key);
        wait_to_be_told();
        match fork().unwrap() {
            Fork::Child => {
                // Fails if something hangs.
                std::thread::spawn(|| {
                    std::thread::sleep(Duration::from_secs(20));
                    std::process::exit(9);
                });
                others.in_child();
                child(url, key, locks, guard, joint);
            }
            Fork::Parent(child) => {
                let status = waitpid(child).unwrap();
                assert_eq!(status, 0, "the forked process");
                guard.check().unwrap();
                joint.check().unwrap();
                guard.blocking_unlock().unwrap();
                joint.blocking_unlock().unwrap();
                others.in_parent();
                locks.blocking_close();
            }
        }
    }

    /// What the other kinds have in the parent.
    struct Others {
        runtime: tokio::runtime::Runtime,
        permits: Semaphore,
        permit: Permit,
        election: Election,
        leadership: Leadership,
        observer: Observer,
        latch: Latch,
        fair: Guard,
    }

    impl Others {
        fn new(locks: &Locker, key: &str) -> Self {
            let runtime = current_thread();
            let permits = locks.permits(format!("{key}:permits")).capacity(2);
            let permit = permits.blocking_acquire().unwrap();
            let election = locks.election(format!("{key}:election"));
            let leadership = runtime.block_on(election.campaign("parent")).unwrap();
            let observer = runtime.block_on(election.observe()).unwrap();
            let latch = locks.latch(format!("{key}:latch"));
            assert!(runtime.block_on(latch.try_set(2)).unwrap());
            let fair = locks.fair(format!("{key}:fair")).blocking_lock().unwrap();
            Self {
                runtime,
                permits,
                permit,
                election,
                leadership,
                observer,
                latch,
                fair,
            }
        }

        /// Nothing of it is the child's, and no call hangs.
        fn in_child(mut self) {
            let is_lost = |answer: Result<(), Error>| {
                let loss = matches!(
                    answer,
                    Err(Error::Lost {
                        loss: Loss::Forked,
                        ..
                    })
                );
                assert!(loss, "{answer:?}");
            };
            is_lost(self.permit.check());
            is_lost(self.leadership.check());
            is_lost(self.fair.check());
            assert!(self.permit.lost().is_cancelled() && self.leadership.lost().is_cancelled());
            let forked = |answer: Result<(), Error>| {
                assert!(matches!(answer, Err(Error::Forked)), "{answer:?}");
            };
            // Another runtime: threads that the fork did not copy may hold the mutexes of this one.
            let runtime = current_thread();
            forked(runtime.block_on(self.permits.acquire()).map(drop));
            forked(runtime.block_on(self.permits.usage()).map(drop));
            forked(runtime.block_on(self.permits.set_capacity(3)));
            forked(self.permits.blocking_acquire().map(drop));
            forked(runtime.block_on(self.election.campaign("child")).map(drop));
            forked(runtime.block_on(self.election.leader()).map(drop));
            forked(runtime.block_on(self.election.observe()).map(drop));
            forked(runtime.block_on(self.leadership.proclaim("child")));
            forked(runtime.block_on(self.observer.changed()).map(drop));
            forked(runtime.block_on(self.latch.count_down()).map(drop));
            forked(runtime.block_on(self.latch.wait()));
            forked(self.fair.blocking_unlock());
            forked(self.permit.blocking_release());
            std::mem::forget(self.runtime);
        }

        /// All of it is still the parent's.
        fn in_parent(self) {
            self.permit.check().unwrap();
            self.leadership.check().unwrap();
            let taken = self.runtime.block_on(self.permits.usage()).unwrap().taken();
            assert_eq!(taken, 1);
            let leader = self.runtime.block_on(self.election.leader()).unwrap();
            assert_eq!(leader.unwrap().value(), Some("parent"));
            self.permit.blocking_release().unwrap();
            self.runtime.block_on(self.leadership.resign()).unwrap();
            drop(self.observer);
            let left = self.runtime.block_on(self.latch.count_down()).unwrap();
            assert_eq!(left, 1, "the child counted nothing");
            self.fair.check().unwrap();
            self.fair.blocking_unlock().unwrap();
        }
    }

    fn child(url: &str, key: &str, locks: Locker, guard: Guard, joint: lockhound::MultiGuard) {
        // The parent's holds are lost for this process.
        assert!(matches!(
            guard.check(),
            Err(Error::Lost {
                loss: Loss::Forked,
                ..
            })
        ));
        assert_eq!(
            (guard.state(), guard.remaining()),
            (HoldState::Lost(Loss::Forked), Duration::ZERO)
        );
        assert!(
            guard.lost().is_cancelled() && joint.lost().is_cancelled() && joint.check().is_err()
        );

        // No call waits for a thread that the fork did not copy.
        let forked =
            |answer: Result<(), Error>| assert!(matches!(answer, Err(Error::Forked)), "{answer:?}");
        for name in [key.to_owned(), common::key()] {
            let lock = locks.get(name);
            forked(lock.blocking_lock().map(drop));
            forked(lock.blocking_try_lock().map(drop));
            forked(lock.blocking_try_lock_for(ms(50)).map(drop));
            let runtime = current_thread();
            forked(runtime.block_on(lock.lock()).map(drop));
            forked(runtime.block_on(lock.try_lock()).map(drop));
            forked(runtime.block_on(lock.is_locked()).map(drop));
            forked(runtime.block_on(lock.force_unlock()).map(drop));
            forked(runtime.block_on(lock.run(|_| async {})));
            let latch = locks.latch(lock.key());
            forked(runtime.block_on(latch.try_set(1)).map(drop));
            forked(runtime.block_on(latch.count_down()).map(drop));
            forked(runtime.block_on(latch.wait()));
            forked(
                runtime
                    .block_on(locks.multi([lock.key().clone()]).lock())
                    .map(drop),
            );
        }
        assert_eq!(locks.stats().holds, 0);
        forked(joint.blocking_unlock());
        drop(guard);
        locks.blocking_close();
        drop(locks);

        // The child connects for itself, and finds the parent's locks held.
        let locks = Locker::blocking_connect(url).unwrap();
        for name in [key.to_owned(), format!("{key}:a")] {
            assert!(locks.get(name).blocking_try_lock().unwrap().is_none());
        }
        // Its own lock is released when it ends.
        let _guard = locks.get(format!("{key}:child")).blocking_lock().unwrap();
    }
}

// ---- The tests ----

/// Runs each of these programs many times, and asserts that none leaves a key.
fn leave_nothing(programs: &[(&str, Body)], kind: &str, times: usize) {
    let server = Server::start();
    let mut left = Vec::new();
    for _ in 0..times {
        for (name, _) in programs {
            let lock = key();
            let mut child = start(&format!("{kind}/{name}"), &server.url(), &lock);
            finish(&mut child, name);
            if !gone(&server, &lock) {
                left.push(*name);
            }
        }
    }
    assert!(
        left.is_empty(),
        "{} of {} programs left their lock: {left:?}",
        left.len(),
        times * programs.len()
    );
}

fn a_program_that_ends_after_a_drop_leaves_no_lock() {
    leave_nothing(&DROPPED, "dropped", 20);
}

fn a_program_that_ends_with_a_live_guard_leaves_no_lock() {
    leave_nothing(&LIVE, "live", 13);
}

fn a_program_that_ends_leaves_no_lock_on_a_slower_server() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let proxy = Proxy::start(servers[2].port());
    proxy.set(Mode::Delay(ms(5)));
    let urls = [servers[0].url(), servers[1].url(), proxy.url()].join(",");
    let mut rounds = 0;
    for round in 0..100 {
        let lock = key();
        let mut child = start("told/several", &urls, &lock);
        ready(&mut child);
        let start = Instant::now();
        while !servers.iter().all(|server| server.exists(&lock)) {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "round {round}: a server has no lock"
            );
            std::thread::sleep(ms(1));
        }
        // By now the acquire is answered; its answer would be waited for too.
        std::thread::sleep(ms(100));
        // An unknown script has to be sent twice.
        servers
            .iter()
            .for_each(|server| server.command(&["SCRIPT", "FLUSH"]));
        let told = Instant::now();
        tell(&mut child);
        finish(&mut child, "several");
        let took = told.elapsed();
        let left = servers.iter().filter(|server| !gone(server, &lock)).count();
        // On a busy machine the wait at the end of a program may be too short. A program that ended
        // sooner did not wait.
        assert!(
            left == 0 || took >= WAITED,
            "round {round}: {left} servers still have the lock after {took:?}"
        );
        rounds += usize::from(left == 0);
        if rounds == 5 {
            return;
        }
    }
    panic!("only {rounds} programs left no lock");
}

/// A release that was written to the socket of a silent server is executed when the server goes on,
/// though the program has ended.
fn a_silent_server_holds_no_program_up() {
    let server = Server::start();
    for program in ["drop", "threads", "closed"] {
        // On a busy machine the wait at the end of a program may be too short.
        let written = (0..3).any(|_| {
            let lock = key();
            let mut child = start(&format!("told/{program}"), &server.url(), &lock);
            ready(&mut child);
            server.stop();
            let told = Instant::now();
            tell(&mut child);
            finish(&mut child, program);
            let took = told.elapsed();
            server.go_on();
            assert!(
                took < Duration::from_secs(2),
                "{program}: it took {took:?} to end"
            );
            gone(&server, &lock)
        });
        assert!(written, "{program}: the release was not written");
    }
}

/// The acquire is on its way when its caller and `main` end: it is executed after that, and undone
/// nevertheless.
fn a_dropped_futures_acquire_is_undone_before_the_program_ends() {
    let server = Server::start();
    for program in ["lock", "try_lock"] {
        let (lock, proxy) = (key(), Proxy::start(server.port()));
        let mut child = start(&format!("told/{program}"), &proxy.url(), &lock);
        ready(&mut child);
        proxy.set(Mode::Hold(lock.clone().into_bytes()));
        let fence = common::marks::mark(&lock);
        server.command::<u64>(&["DEL", &fence]);
        tell(&mut child);
        ready(&mut child);
        let start = Instant::now();
        while proxy.held() == 0 {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{program}: nothing is sent"
            );
            std::thread::sleep(ms(1));
        }
        tell(&mut child);
        ready(&mut child);
        proxy.set(Mode::Pass);
        finish(&mut child, program);
        // The fence shows that the acquire was executed.
        let start = Instant::now();
        while !server.exists(&fence) {
            assert!(
                start.elapsed() < EXECUTED,
                "{program}: the acquire was not executed"
            );
            std::thread::sleep(ms(2));
        }
        assert!(
            gone(&server, &lock),
            "{program}: its acquire was not undone"
        );
    }
}

fn a_forked_process_is_told_so_and_releases_nothing() {
    let server = Server::start();
    for _ in 0..5 {
        let lock = key();
        let mut child = start("told/fork", &server.url(), &lock);
        ready(&mut child);
        tell(&mut child);
        assert!(finish(&mut child, "fork").success(), "its output is above");
        assert!(!server.exists(&lock) && !server.exists(&format!("{lock}:a")));
        assert!(
            gone(&server, &format!("{lock}:child")),
            "the forked process's own lock"
        );
    }
}

/// The calls for threads without async code refuse to block async code.
fn async_code_is_not_blocked() {
    let server = Server::start();
    let url = server.url();
    std::panic::set_hook(Box::new(|_| {}));
    let connected = current_thread().block_on(async {
        let url = url.clone();
        tokio::spawn(async move { Locker::blocking_connect(url).map(drop) }).await
    });
    let closed = current_thread().block_on(async {
        let locks = Locker::connect(&url).await.unwrap();
        tokio::spawn(async move { locks.blocking_close() }).await
    });
    drop(std::panic::take_hook());
    assert!(connected.unwrap_err().is_panic() && closed.unwrap_err().is_panic());
    assert!(matches!(
        Locker::blocking_connect("redis://127.0.0.1:1"),
        Err(Error::Unavailable { .. })
    ));
    assert!(matches!(
        Locker::builder().blocking_connect(),
        Err(Error::Config(_))
    ));
    let locks = Locker::blocking_connect(&url).unwrap();
    locks.blocking_close();
    assert!(matches!(
        locks.get(key()).blocking_lock(),
        Err(Error::Closed)
    ));
}

fn start(program: &str, url: &str, lock: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .env(PROGRAM, format!("{program}|{url}|{lock}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ready(child: &mut Child) {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
}

fn tell(child: &mut Child) {
    child.stdin.as_mut().unwrap().write_all(b"!").unwrap();
}

/// Waits for the end of a program, with far more time than it needs.
fn finish(child: &mut Child, name: &str) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > Duration::from_secs(25) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{name} does not end");
        }
        std::thread::sleep(ms(1));
    }
}

fn gone(server: &Server, lock: &str) -> bool {
    let start = Instant::now();
    while server.exists(lock) {
        if start.elapsed() > EXECUTED {
            return false;
        }
        std::thread::sleep(ms(2));
    }
    true
}

fn main() {
    if let Ok(told) = std::env::var(PROGRAM) {
        let words: Vec<&str> = told.split('|').collect();
        let [program, url, key] = words[..] else {
            panic!("{told}")
        };
        let (kind, name) = program.split_once('/').unwrap();
        let programs: &[(&str, Body)] = match kind {
            "dropped" => &DROPPED,
            "live" => &LIVE,
            _ => &TOLD,
        };
        let (_, body) = programs.iter().find(|(known, _)| *known == name).unwrap();
        return body(url, key);
    }
    let tests: [(&str, fn()); 7] = [
        (
            "a_program_that_ends_leaves_no_lock_on_a_slower_server",
            a_program_that_ends_leaves_no_lock_on_a_slower_server,
        ),
        (
            "a_program_that_ends_after_a_drop_leaves_no_lock",
            a_program_that_ends_after_a_drop_leaves_no_lock,
        ),
        (
            "a_program_that_ends_with_a_live_guard_leaves_no_lock",
            a_program_that_ends_with_a_live_guard_leaves_no_lock,
        ),
        (
            "a_silent_server_holds_no_program_up",
            a_silent_server_holds_no_program_up,
        ),
        (
            "a_dropped_futures_acquire_is_undone_before_the_program_ends",
            a_dropped_futures_acquire_is_undone_before_the_program_ends,
        ),
        (
            "a_forked_process_is_told_so_and_releases_nothing",
            a_forked_process_is_told_so_and_releases_nothing,
        ),
        ("async_code_is_not_blocked", async_code_is_not_blocked),
    ];
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let list = arguments.iter().any(|argument| argument == "--list");
    // Options of the usual harness are ignored; other arguments choose tests, as usual.
    let words: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    for (name, test) in tests {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        if list {
            println!("{name}: test");
            continue;
        }
        let start = Instant::now();
        test();
        println!("test {name} ... ok ({:.1?})", start.elapsed());
    }
}
