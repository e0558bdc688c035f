//! Child processes: this test binary started again. A function that runs before `main` does the
//! child's task and ends the process, so that no test is run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockhound::{Error, Guard, Lock, Locker, Loss, Owner};
use tokio::signal::unix::{SignalKind, signal};

use super::history::{Call, Op};
use super::record::{self, Record, Visit};

/// The environment variable with a child's task, in words.
pub const CHILD: &str = "LOCKHOUND_TEST_CHILD";

/// Starts a child for a task of [`run`].
pub fn spawn_child(task: &str, url: &str, keys: &[&str], rounds: usize, out: &Path) -> Child {
    child(task, url, keys, rounds, out).spawn().unwrap()
}

/// Does the same with a pipe for what the child writes to its standard error.
pub fn spawn_piped_child(task: &str, url: &str, keys: &[&str], rounds: usize, out: &Path) -> Child {
    child(task, url, keys, rounds, out)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn child(task: &str, url: &str, keys: &[&str], rounds: usize, out: &Path) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.env(
        CHILD,
        format!("{task} {url} {} {rounds} {}", keys.join(","), out.display()),
    );
    child.stdout(Stdio::null());
    child
}

/// Returns a path in the temporary directory that nothing else uses.
pub fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("lockhound-{name}-{}", uuid::Uuid::new_v4()))
}

/// What a child has to do: its task, the address, the keys, the number of rounds, and where to
/// report.
pub type Errand = [String; 5];

/// Plays a child process with the words of its task, and ends it. Returns if this process is no
/// child.
pub fn play_if_child<const WORDS: usize>(play: impl FnOnce([String; WORDS])) {
    if let Ok(errand) = std::env::var(CHILD) {
        survive_closed_connections();
        let words: Vec<String> = errand.split(' ').map(str::to_owned).collect();
        play(words.try_into().unwrap());
        std::process::exit(0);
    }
}

/// A write to a closed connection ends a process, unless it handles that signal. Rust does so
/// before `main`, which this process does not reach.
fn survive_closed_connections() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let handles = async { signal(SignalKind::pipe()).map(drop) };
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(handles).unwrap();
}

/// Plays one of the tasks below.
pub fn play([task, url, keys, rounds, out]: Errand) {
    let keys: Vec<String> = keys.split(',').map(str::to_owned).collect();
    let rounds = rounds.parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match task.as_str() {
            "visit" => visit(&url, &keys, rounds, out.as_ref()).await,
            "survive" => survive(&url, &keys, rounds, out.as_ref()).await,
            "hold" => hold(&url, &keys[0], out.as_ref()).await,
            "write" => write(&url, &keys[0], rounds, out.as_ref()).await,
            "stall" => stall(&url, &keys, out.as_ref()).await,
            other => panic!("{other}"),
        }
    });
}

/// Eight tasks enter and leave without faults: no lock may be lost.
async fn visit(url: &str, keys: &[String], rounds: usize, out: &Path) {
    let locks = Locker::builder()
        .node(url)
        .lease(Duration::from_secs(10))
        .connect()
        .await
        .unwrap();
    let tasks = (0..8).map(|task| {
        let lock = locks.get(&keys[task % keys.len()]);
        tokio::spawn(async move {
            let mut visits = Vec::new();
            for _ in 0..rounds {
                let guard = lock.lock().await.unwrap();
                let (who, fence, entered) = (
                    guard.owner().to_string(),
                    guard.fence().get(),
                    record::now(),
                );
                tokio::task::yield_now().await;
                guard.check().unwrap();
                let left = record::now();
                visits.push(Visit {
                    key: lock.key().to_string(),
                    who,
                    fence,
                    entered,
                    left,
                });
                guard.unlock().await.unwrap();
            }
            Record::of(visits)
        })
    });
    finish(&locks, tasks.collect(), out).await;
}

/// Eight tasks enter and leave under faults: operations fail, locks are lost, and everything is
/// retried.
async fn survive(url: &str, keys: &[String], rounds: usize, out: &Path) {
    let connect = || {
        let lease = Duration::from_secs(1);
        Locker::builder()
            .node(url)
            .lease(lease)
            .outage_tolerance(Duration::from_secs(30))
            .connect()
    };
    // The faults may have begun already.
    let mut connected = connect().await;
    while connected.is_err() {
        connected = connect().await;
    }
    let locks = connected.unwrap();
    let tasks = (0..8).map(|task| {
        let lock = locks.get(&keys[task % keys.len()]).owned_by(Owner::new());
        tokio::spawn(async move {
            let mut record = Record::default();
            while record.visits.len() < rounds {
                come_and_go(&lock, &mut record).await;
            }
            record
        })
    });
    finish(&locks, tasks.collect(), out).await;
}

/// Takes the lock if it can, stays for a moment, and sometimes re-enters.
async fn come_and_go(lock: &Lock, record: &mut Record) {
    let called = record::now();
    let Ok(guard) = lock.lock().await else { return };
    let mut stay = Stay::begin(lock, &guard, called, record);
    if stay.look(&guard) {
        let called = record::now();
        if fastrand::u8(..) < 32
            && let Ok(nested) = lock.lock().await
        {
            stay.note(
                Op::Lock {
                    fence: nested.fence().get(),
                },
                called,
                Some(record::now()),
            );
            stay.leave(nested).await;
        }
        for _ in 0..fastrand::u8(0..4) {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..800))).await;
            if !stay.look(&guard) {
                break;
            }
        }
    }
    stay.leave(guard).await;
}

/// One visit under way, recorded as it goes.
struct Stay<'a> {
    key: String,
    who: String,
    fence: u64,
    record: &'a mut Record,
    /// The times of the first and the last check that found the lock held.
    visit: Option<(u64, u64)>,
    /// When the lock was last known to be held; before that, when it was asked for.
    held: u64,
    lost: bool,
}

impl<'a> Stay<'a> {
    fn begin(lock: &Lock, guard: &Guard, called: u64, record: &'a mut Record) -> Self {
        let (key, who, fence) = (
            lock.key().to_string(),
            guard.owner().to_string(),
            guard.fence().get(),
        );
        let mut stay = Self {
            key,
            who,
            fence,
            record,
            visit: None,
            held: called,
            lost: false,
        };
        stay.note(Op::Lock { fence }, called, Some(record::now()));
        stay
    }

    fn note(&mut self, op: Op, called: u64, returned: Option<u64>) {
        let (key, who) = (self.key.clone(), self.who.clone());
        self.record.history.calls.push(Call {
            key,
            who,
            op,
            called,
            returned,
        });
    }

    /// Returns whether the lock is still held. The visit lasts until the last check that found it
    /// held; the time is taken before the check.
    fn look(&mut self, guard: &Guard) -> bool {
        let now = record::now();
        let inside = guard.check().is_ok();
        if inside {
            self.visit = Some((self.visit.map_or(now, |(entered, _)| entered), now));
            self.held = now;
        } else {
            self.lose();
        }
        inside
    }

    fn lose(&mut self) {
        if !std::mem::replace(&mut self.lost, true) {
            self.note(Op::Lose, self.held, Some(record::now()));
        }
    }

    async fn leave(&mut self, guard: Guard) {
        let called = record::now();
        match guard.unlock().await {
            Ok(()) => self.note(Op::Unlock, called, Some(record::now())),
            Err(Error::Lost { .. }) => self.lose(),
            // It is unknown whether and when the lock was released.
            Err(_) => self.note(Op::Unlock, called, None),
        }
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let Self {
            key,
            who,
            fence,
            visit,
            ..
        } = self;
        let visit = visit.map(|(entered, left)| Visit {
            key: key.clone(),
            who: who.clone(),
            fence: *fence,
            entered,
            left,
        });
        self.record.visits.extend(visit);
    }
}

async fn finish(locks: &Locker, tasks: Vec<tokio::task::JoinHandle<Record>>, out: &Path) {
    let mut record = Record::default();
    for task in tasks {
        record.extend(task.await.unwrap());
    }
    locks.close().await;
    record.write(out);
}

/// Takes the lock, reports that, and holds it until this process is killed.
async fn hold(url: &str, key: &str, out: &Path) {
    let locks = Locker::builder()
        .node(url)
        .lease(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let guard = locks.get(key).lock().await.unwrap();
    std::fs::write(out, "held").unwrap();
    guard.lost().cancelled().await;
}

/// The lease of the locks in [`write`].
pub const WRITTEN_LEASE: Duration = Duration::from_millis(3_000);

/// Holds many locks for three leases, and writes each event of the locker to the standard error.
/// Reports when it holds all of them, and at the end how many of them it has lost, and how many
/// events were dropped.
async fn write(urls: &str, key: &str, locks: usize, out: &Path) {
    let level = tracing_subscriber::filter::LevelFilter::TRACE;
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let builder = urls
        .split(',')
        .fold(Locker::builder(), |builder, url| builder.node(url));
    let builder = builder
        .restart_quarantine(Duration::ZERO)
        .command_timeout(WRITTEN_LEASE / 4);
    let locker = builder.lease(WRITTEN_LEASE).connect().await.unwrap();
    let taking: Vec<_> = (0..locks)
        .map(|number| {
            let lock = locker.get(format!("{key}:{number}"));
            tokio::spawn(async move { lock.lock().await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for taking in taking {
        guards.push(taking.await.unwrap());
    }
    std::fs::write(out, "held").unwrap();
    tokio::time::sleep(3 * WRITTEN_LEASE).await;
    let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
    let stats = locker.stats();
    assert!(stats.renewals >= u64::try_from(locks).unwrap(), "{stats:?}");
    std::fs::write(
        out,
        format!("{lost} lost, {} dropped", stats.dropped_events),
    )
    .unwrap();
    drop(guards);
    locker.close().await;
}

/// The lease of the locks in [`stall`].
pub const STALLED_LEASE: Duration = Duration::from_millis(1_500);

/// The exit code of [`stall`] if a lock was lost although the process had its CPU.
pub const LOST_AWAKE: i32 = 3;

/// Holds two locks with [`STALLED_LEASE`] until the process gets no CPU for longer than that. A
/// thread calls `check()` on the first lock all the time; nothing asks for the second. Reports how
/// much later than the first `check()` that failed the token of the second lock fired, in
/// microseconds.
async fn stall(url: &str, keys: &[String], out: &Path) {
    // Nearly a tick: on a busy machine an answer may take long.
    let locks = Locker::builder()
        .node(url)
        .lease(STALLED_LEASE)
        .command_timeout(STALLED_LEASE * 3 / 10);
    let locks = locks.connect().await.unwrap();
    let (asked, watched) = (
        locks.get(&keys[0]).lock().await.unwrap(),
        locks.get(&keys[1]).lock().await.unwrap(),
    );
    let (token, asked_of) = (watched.lost(), locks.clone());
    let asking = std::thread::spawn(move || {
        let (begun, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
        loop {
            let (before, answer) = (Instant::now(), asked.check());
            let slept = before.duration_since(last) > STALLED_LEASE;
            match answer {
                Ok(()) => assert!(!slept, "check() accepts a lock that has run out"),
                Err(Error::Lost {
                    loss: Loss::Expired,
                    ..
                }) if slept => return before,
                // The process was stopped between the look at the clock and the check.
                Err(Error::Lost {
                    loss: Loss::Expired,
                    ..
                }) if before.elapsed() > STALLED_LEASE => {
                    return Instant::now();
                }
                Err(Error::Lost {
                    loss: Loss::Expired,
                    ..
                }) => {
                    let (held, stats) = (begun.elapsed(), asked_of.stats());
                    eprintln!(
                        "lost awake after {held:?}; the longest time without a look: {longest:?}; {stats:#?}"
                    );
                    std::process::exit(LOST_AWAKE)
                }
                Err(error) => panic!("{error}"),
            }
            longest = longest.max(before.duration_since(last));
            last = before;
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    std::fs::write(out, "held").unwrap();
    token.cancelled().await;
    let fired = Instant::now();
    let awake = asking.join().unwrap();
    let late = fired.saturating_duration_since(awake);
    std::fs::write(out, format!("{}", late.as_micros())).unwrap();
    assert!(matches!(
        watched.unlock().await,
        Err(Error::Lost {
            loss: Loss::Expired | Loss::RenewalFailed,
            ..
        })
    ));
}
