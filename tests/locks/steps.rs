//! Commands of the same moment travel as one script, and each caller gets its own answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::machine::within;
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, builder, eventually, key, locker, ms};
use futures_util::future::join_all;
use lockhound::{Error, Format, Guard, Locker, Owner, ServerErrorKind};
use tokio::time::timeout;

/// Enough commands that most of them share scripts.
const MANY: usize = 200;

type Answers = Vec<Result<Option<Guard>, Error>>;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|_| key()).collect()
}

/// Tries to take all of these at once, so that they share scripts.
async fn try_at_once(server: &Server, locks: &Locker, names: &[String]) -> Answers {
    let before = scripts(server);
    let tries = names
        .iter()
        .map(|name| locks.get(name).owned_by(Owner::new()));
    let answers = meanwhile_stopped(
        server,
        join_all(tries.map(|lock| async move { lock.try_lock().await })),
    )
    .await;
    let scripts = scripts(server) - before;
    assert!(
        scripts < names.len() as u64 / 2,
        "{scripts} scripts for {} locks",
        names.len()
    );
    answers
}

/// Starts the calls while the server is frozen, so that their commands wait together.
async fn meanwhile_stopped<T>(server: &Server, asking: impl Future<Output = T>) -> T {
    let mut asking = std::pin::pin!(asking);
    server.stop();
    assert!(
        timeout(ms(50), &mut asking).await.is_err(),
        "the server is frozen"
    );
    server.go_on();
    asking.await
}

/// Returns how many scripts the server has run or refused.
fn scripts(server: &Server) -> u64 {
    server.calls("evalsha") + server.calls("eval")
}

#[tokio::test]
async fn many_locks_at_once_share_few_scripts_and_each_is_answered() {
    let server = Server::start();
    for format in [Format::Redisson, Format::Plain] {
        let locks = || {
            Locker::builder()
                .node(server.url())
                .format(format)
                .connect()
        };
        many_locks_of_one_moment(&server, &locks().await.unwrap(), &locks().await.unwrap()).await;
    }
}

async fn many_locks_of_one_moment(server: &Server, locks: &Locker, others: &Locker) {
    let names = names(MANY);
    let guards: Vec<_> = try_at_once(server, locks, &names)
        .await
        .into_iter()
        .map(|answer| answer.unwrap().unwrap())
        .collect();
    for (name, guard) in names.iter().zip(&guards) {
        assert_eq!(guard.key().as_str(), name);
        let owner = locks
            .get(name)
            .holder()
            .await
            .unwrap()
            .unwrap()
            .owner()
            .into_owned();
        assert!(owner.contains(&format!(":{}", guard.owner())), "{owner}");
        let mark = crate::common::marks::mark(name);
        let last: u64 = server.command(&["GET", &mark]);
        let alone = names
            .iter()
            .filter(|name| crate::common::marks::mark(name) == mark)
            .count()
            == 1;
        assert!(
            guard.fence().get() == last || !alone && guard.fence().get() < last,
            "its own fence"
        );
    }
    // Another locker finds each of them held.
    assert!(
        try_at_once(server, others, &names)
            .await
            .into_iter()
            .all(|answer| answer.unwrap().is_none())
    );
    for answer in join_all(guards.into_iter().map(Guard::unlock)).await {
        answer.unwrap();
    }
    assert!(names.iter().all(|name| !server.exists(name)));
}

#[tokio::test]
async fn acquires_and_releases_share_scripts() {
    let server = Server::start();
    let locks = locker(&server).await;
    let (first, second) = (names(50), names(50));
    let lock = |name: &String| {
        let lock = locks.get(name).owned_by(Owner::new());
        async move { lock.lock().await }
    };
    let held: Vec<Guard> = join_all(first.iter().map(lock))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let before = scripts(&server);
    let releases = join_all(held.into_iter().map(Guard::unlock));
    let both = async { tokio::join!(releases, join_all(second.iter().map(lock))) };
    let (released, acquired) = meanwhile_stopped(&server, both).await;
    assert!(released.iter().all(Result::is_ok), "{released:?}");
    assert!(first.iter().all(|name| !server.exists(name)));
    assert!(acquired.iter().all(Result::is_ok) && second.iter().all(|name| server.exists(name)));
    assert!(scripts(&server) - before < 50);
}

/// A server checks the keys of a script before it runs it, and refuses the whole script.
#[tokio::test]
async fn a_forbidden_key_is_an_error_of_its_own_lock_only() {
    let server = Server::start();
    let () = server.command(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">secret",
        "+@all",
        "~test:*",
        "~lockhound_fence:*",
        "&*",
    ]);
    let url = server.url().replace("redis://", "redis://app:secret@");
    let locks = Locker::connect(url).await.unwrap();
    let mut names = names(40);
    names[20] = "forbidden".to_owned();
    let tries = names
        .iter()
        .map(|name| locks.get(name).owned_by(Owner::new()));
    let answers = meanwhile_stopped(
        &server,
        join_all(tries.map(|lock| async move { lock.try_lock().await })),
    )
    .await;
    for (at, answer) in answers.into_iter().enumerate() {
        match answer {
            Err(Error::Server {
                kind: ServerErrorKind::NoPermission,
                ..
            }) => assert_eq!(at, 20),
            answer => assert!(at != 20 && answer.unwrap().is_some(), "{at}"),
        }
    }
}

#[tokio::test]
async fn without_memory_each_lock_is_refused_and_none_is_taken() {
    let server = Server::start();
    let locks = locker(&server).await;
    let names = names(40);
    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for answer in try_at_once(&server, &locks, &names).await {
        assert!(
            matches!(
                answer,
                Err(Error::Server {
                    kind: ServerErrorKind::OutOfMemory,
                    ..
                })
            ),
            "{answer:?}"
        );
    }
    assert!(names.iter().all(|name| !server.exists(name)));
    let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(
        try_at_once(&server, &locks, &names)
            .await
            .into_iter()
            .all(|answer| answer.unwrap().is_some())
    );
}

#[tokio::test]
async fn a_replica_refuses_each_lock_with_readonly() {
    let server = Server::start();
    let master = Server::start();
    let locks = locker(&server).await;
    let names = names(40);
    let () = server.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    for answer in try_at_once(&server, &locks, &names).await {
        let Err(Error::Unavailable { nodes, .. }) = answer else {
            panic!("{answer:?}")
        };
        assert!(
            nodes
                .iter()
                .all(|failure| failure.to_string().contains("READONLY")),
            "{nodes:?}"
        );
    }
}

#[tokio::test]
async fn calls_to_a_silent_server_fail_in_time_and_are_undone() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(10_000))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let names = names(100);
    server.stop();
    let started = Instant::now();
    let tries = names
        .iter()
        .map(|name| locks.get(name).owned_by(Owner::new()));
    let answers = join_all(tries.map(|lock| async move { lock.try_lock().await })).await;
    assert!(
        within(started.elapsed(), ms(900)),
        "{:?}",
        started.elapsed()
    );
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(Error::Unavailable { .. }))),
        "{answers:?}"
    );
    server.go_on();
    eventually(ms(5_000), "undone", || locks.stats().pending_undos == 0).await;
    assert_eq!(names.iter().filter(|name| server.exists(name)).count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_callers_gets_its_own_answer() {
    for format in [Format::Redisson, Format::Plain] {
        let server = Server::start();
        let locks = builder(&server.url(), ms(10_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        let other = builder(&server.url(), ms(10_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        let names: Vec<_> = (0..MANY).map(|_| key()).collect();
        let mut held = Vec::new();
        for (i, name) in names.iter().enumerate() {
            match i % 4 {
                1 => server.command(&["RPUSH", name, "x"]),
                2 => held.push(other.get(name).owned_by(Owner::new()).lock().await.unwrap()),
                _ => {}
            }
        }
        let before = server.calls("evalsha");
        let answers = join_all(names.iter().map(|name| {
            let lock = locks.get(name).owned_by(Owner::new());
            async move { lock.try_lock().await }
        }))
        .await;
        let scripts = server.calls("evalsha") - before;
        assert!(scripts < MANY as u64 / 3, "{scripts}");
        let mut guards = Vec::new();
        for (i, answer) in answers.into_iter().enumerate() {
            match (i % 4, answer) {
                (0 | 3, Ok(Some(guard))) => guards.push((i, guard)),
                (
                    1,
                    Err(Error::Server {
                        kind: ServerErrorKind::WrongType,
                        ..
                    }),
                )
                | (2, Ok(None)) => {}
                (1, Ok(None)) if format == Format::Plain => {}
                (_, answer) => panic!("{i}: {answer:?}"),
            }
        }
        for (i, _) in guards.iter() {
            assert!(server.exists(&names[*i]));
        }
        // Some of what is released is gone, and some is no lock any more.
        for (i, _) in guards.iter() {
            match i % 12 {
                0 => server.command(&["DEL", &names[*i]]),
                3 => {
                    server.command::<()>(&["DEL", &names[*i]]);
                    server.command::<()>(&["RPUSH", &names[*i], "x"]);
                }
                _ => {}
            }
        }
        let before = server.calls("evalsha");
        let answers = join_all(
            guards
                .into_iter()
                .map(|(i, guard)| async move { (i, guard.unlock().await) }),
        )
        .await;
        let scripts = server.calls("evalsha") - before;
        assert!(scripts < MANY as u64 / 6, "{scripts}");
        for (i, answer) in answers {
            match (i % 12, &answer) {
                (0, Err(Error::Lost { .. })) | (4.., Ok(())) => {}
                (
                    3,
                    Err(
                        Error::Lost { .. }
                        | Error::Server {
                            kind: ServerErrorKind::WrongType,
                            ..
                        },
                    ),
                ) => {}
                _ => panic!("{i}: {answer:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_waits_equally_long_for_a_connection() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(10_000))
        .command_timeout(ms(1_000))
        .connect()
        .await
        .unwrap();
    locks
        .get(key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    server.kill();
    // This call notices the loss of the connection.
    assert!(
        locks
            .get(key())
            .owned_by(Owner::new())
            .try_lock()
            .await
            .is_err()
    );
    let asked = (0..20).map(|i| {
        let lock = locks.get(key()).owned_by(Owner::new());
        async move {
            tokio::time::sleep(ms(40) * i).await;
            let since = Instant::now();
            assert!(matches!(
                lock.try_lock().await,
                Err(Error::Unavailable { .. })
            ));
            since.elapsed()
        }
    });
    let waited: Vec<Duration> = join_all(asked).await;
    // A command that was sent before the loss was noticed may take a command timeout.
    assert!(
        waited
            .iter()
            .all(|waited| (ms(490)..ms(1_300)).contains(waited)),
        "{waited:?}"
    );
}

/// The server knows the script of the acquire and not that of the release, which has to be sent
/// again.
#[tokio::test]
async fn a_release_with_an_unknown_script_is_not_overtaken() {
    for format in [Format::Redisson, Format::Plain] {
        let server = Server::start();
        let locks = builder(&server.url(), ms(60_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        let (lock, other) = (locks.get(key()), locks.get(key()).owned_by(Owner::new()));
        for round in 0..20 {
            let guard = lock.try_lock().await.unwrap().expect("free");
            let () = server.command(&["SCRIPT", "FLUSH", "SYNC"]);
            // The server learns the acquire again, and only that.
            let kept = other.try_lock().await.unwrap().expect("free");
            drop(guard);
            let again = lock.try_lock().await.unwrap();
            drop(again.unwrap_or_else(|| panic!("round {round}: there is no other client")));
            kept.unlock().await.unwrap();
        }
    }
}

/// The same after a restart. Commands in flight then had no answer, and are undone before later
/// commands are sent.
#[tokio::test]
async fn after_a_restart_a_release_is_not_overtaken_by_an_acquire() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(60_000)).connect().await.unwrap();
    let (lock, other) = (locks.get(key()), locks.get(key()).owned_by(Owner::new()));
    for round in 0..5 {
        server.kill();
        server.restart();
        // The server learns the acquire, and not the release yet.
        let kept = other.lock().await.unwrap();
        drop(lock.try_lock().await.unwrap().expect("free"));
        assert!(
            lock.try_lock().await.unwrap().is_some(),
            "round {round}: there is no other client"
        );
        kept.unlock().await.unwrap();
    }
}

/// How long something is tried: for a time, and on a busy machine until it was tried often enough.
#[derive(Clone)]
struct Trial {
    ended: Instant,
    latest: Instant,
    /// How many rounds are wanted, and how often the server has to forget its scripts.
    wanted: (u32, u32),
    rounds: Arc<AtomicU32>,
    flushes: Arc<AtomicU32>,
}

impl Trial {
    fn new(time: Duration, wanted: (u32, u32)) -> Self {
        let ended = Instant::now() + time;
        let (rounds, flushes) = Default::default();
        Self {
            ended,
            latest: ended + ms(30_000),
            wanted,
            rounds,
            flushes,
        }
    }

    fn rounds(&self) -> u32 {
        self.rounds.load(Ordering::Relaxed)
    }

    fn flushes(&self) -> u32 {
        self.flushes.load(Ordering::Relaxed)
    }

    fn often_enough(&self) -> bool {
        self.rounds() >= self.wanted.0 && self.flushes() >= self.wanted.1
    }

    fn goes_on(&self) -> bool {
        let now = Instant::now();
        now < self.ended || (now < self.latest && !self.often_enough())
    }

    /// Makes the server forget all scripts at random moments during the trial.
    fn forget_scripts(&self, server: &Server) -> impl Future<Output = ()> + use<> {
        let (mut connection, trial) = (server.connection().unwrap(), self.clone());
        let forgetting = tokio::task::spawn_blocking(move || {
            while trial.goes_on() {
                let () = redis::cmd("SCRIPT")
                    .arg("FLUSH")
                    .arg("SYNC")
                    .query(&mut connection)
                    .unwrap();
                trial.flushes.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(fastrand::u64(0..6_000)));
            }
        });
        async move { forgetting.await.unwrap() }
    }

    /// Takes and drops locks in many tasks. Each task has locks of its own, which must always be
    /// free.
    async fn drop_and_try_again(&self, locks: &Locker, tasks: usize) {
        let tasks = (0..tasks).map(|task| {
            let (lock, pair, trial) = (locks.get(key()), [key(), key()], self.clone());
            let all = locks.multi(&pair);
            tokio::spawn(async move {
                let mut round = 0;
                while trial.goes_on() {
                    if task % 8 == 7 {
                        drop(
                            all.try_lock()
                                .await
                                .unwrap()
                                .unwrap_or_else(|| panic!("both are free: round {round}")),
                        );
                    } else {
                        drop(
                            lock.try_lock()
                                .await
                                .unwrap()
                                .unwrap_or_else(|| panic!("it is free: round {round}")),
                        );
                    }
                    round += 1;
                    trial.rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        join_all(tasks).await.into_iter().for_each(Result::unwrap);
    }

    fn assert_often_enough(&self) {
        assert!(
            self.often_enough(),
            "{} flushes, {} rounds",
            self.flushes(),
            self.rounds()
        );
    }
}

/// An acquire or a release may still be under way, which `Stats::pending` does not count. Leases
/// are longer than the wait.
async fn nothing_is_left(server: &Server, locks: &Locker) {
    eventually(
        ms(5_000),
        "nothing is under way, and nothing is left",
        || {
            locks.stats().pending == 0
                && server
                    .command::<Vec<String>>(&["KEYS", "test:*"])
                    .is_empty()
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tasks_commands_keep_their_order_if_scripts_are_forgotten() {
    let server = Server::start();
    let locks = builder(&server.url(), ms(60_000)).connect().await.unwrap();
    let trial = Trial::new(ms(2_000), (200, 50));
    tokio::join!(
        trial.forget_scripts(&server),
        trial.drop_and_try_again(&locks, 1)
    );
    trial.assert_often_enough();
    nothing_is_left(&server, &locks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batched_commands_keep_their_order_when_scripts_are_forgotten() {
    let server = Server::start();
    for format in [Format::Redisson, Format::Plain] {
        let locks = builder(&server.url(), ms(60_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        let trial = Trial::new(ms(2_000), (640, 50));
        tokio::join!(
            trial.forget_scripts(&server),
            trial.drop_and_try_again(&locks, 64)
        );
        trial.assert_often_enough();
        nothing_is_left(&server, &locks).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_keep_order_if_scripts_are_forgotten_and_told_late() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(60_000)).connect().await.unwrap();
    proxy.set(Mode::Delay(ms(3)));
    for tasks in [1, 2, 64] {
        let trial = Trial::new(ms(1_500), (20, 50));
        tokio::join!(
            trial.forget_scripts(&server),
            trial.drop_and_try_again(&locks, tasks)
        );
        trial.assert_often_enough();
    }
    nothing_is_left(&server, &locks).await;
}

/// An undo is executed after its acquire, whatever scripts have to be sent again in between.
#[tokio::test(flavor = "multi_thread")]
async fn abandoned_acquires_are_undone_when_scripts_are_forgotten() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(60_000))
        .command_timeout(ms(150))
        .connect()
        .await
        .unwrap();
    proxy.set(Mode::Delay(ms(2)));
    let names: Vec<String> = names(16);
    let ended = Instant::now() + ms(3_000);
    let tasks = (0..64).map(|task: usize| {
        let lock = locks.get(&names[task % names.len()]).owned_by(Owner::new());
        tokio::spawn(async move {
            while Instant::now() < ended {
                drop(timeout(Duration::from_micros(fastrand::u64(0..20_000)), lock.lock()).await);
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    // Some commands get no answer within the command timeout.
    let silence = async {
        while Instant::now() < ended {
            tokio::time::sleep(ms(fastrand::u64(50..300))).await;
            server.stop();
            tokio::time::sleep(ms(fastrand::u64(50..250))).await;
            server.go_on();
        }
    };
    let (_, _, tasks) = tokio::join!(
        Trial::new(ms(3_000), (0, 50)).forget_scripts(&server),
        silence,
        join_all(tasks)
    );
    assert!(tasks.iter().all(Result::is_ok), "{tasks:?}");
    assert!(locks.stats().undone_acquires > 0, "{:?}", locks.stats());
    nothing_is_left(&server, &locks).await;
}

/// Commands that travelled with a refused key are sent again, before those that came after them.
#[tokio::test(flavor = "multi_thread")]
async fn commands_sent_again_for_a_refused_key_are_not_overtaken() {
    let server = Server::start();
    let () = server.command(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">secret",
        "+@all",
        "~test:*",
        "~lockhound_fence:*",
        "&*",
    ]);
    // Scripts get the channel as a key.
    let () = server.command(&["ACL", "SETUSER", "app", "~redisson_lock__channel:*"]);
    let url = server.url().replace("redis://", "redis://app:secret@");
    let locks = builder(&url, ms(60_000)).connect().await.unwrap();
    let trial = Trial::new(ms(4_000), (640, 0));
    let forbidden = (0..8).map(|name| {
        let (lock, trial) = (
            locks
                .get(format!("forbidden:{name}"))
                .owned_by(Owner::new()),
            trial.clone(),
        );
        tokio::spawn(async move {
            let mut refused = 0;
            while trial.goes_on() {
                let answer = lock.try_lock().await;
                assert!(
                    matches!(
                        answer,
                        Err(Error::Server {
                            kind: ServerErrorKind::NoPermission,
                            ..
                        })
                    ),
                    "{answer:?}"
                );
                refused += 1;
            }
            refused
        })
    });
    let forbidden: Vec<_> = forbidden.collect();
    trial.drop_and_try_again(&locks, 64).await;
    let refused: Vec<u32> = join_all(forbidden)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert!(
        trial.rounds() > 640 && refused.iter().sum::<u32>() > 80,
        "{} rounds, {refused:?}",
        trial.rounds()
    );
    nothing_is_left(&server, &locks).await;
}

/// Commands are always under way. One that has to be sent again does not wait until there are none.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_sent_again_does_not_wait_for_others_answers() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(60_000)).connect().await.unwrap();
    proxy.set(Mode::Delay(ms(20)));
    let mut every = tokio::time::interval(ms(1));
    let mut asked = Vec::new();
    for at in 0..2_000 {
        every.tick().await;
        if at == 200 {
            let () = server.command(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        let lock = locks.get(key()).owned_by(Owner::new());
        asked.push(tokio::spawn(async move {
            let since = Instant::now();
            lock.try_lock()
                .await
                .unwrap()
                .expect("it is free")
                .unlock()
                .await
                .unwrap();
            since.elapsed()
        }));
    }
    let waited: Vec<Duration> = join_all(asked)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let longest = waited.iter().max().unwrap();
    assert!(within(*longest, ms(1_000)), "{longest:?}");
    nothing_is_left(&server, &locks).await;
}

/// Each command gets an acknowledgement of its own, also when it is sent twice.
#[tokio::test(flavor = "multi_thread")]
async fn commands_that_are_sent_again_are_acknowledged_by_replicas() {
    let server = Server::start();
    let replica = server.replica();
    eventually(ms(10_000), "in step", || server.has_replicas(1)).await;
    let locks = builder(&server.url(), ms(60_000))
        .replica_acks(1, ms(1_000))
        .connect()
        .await
        .unwrap();
    let trial = Trial::new(ms(2_000), (128, 50));
    let tasks = (0..64).map(|_| {
        let (lock, trial) = (locks.get(key()).owned_by(Owner::new()), trial.clone());
        tokio::spawn(async move {
            while trial.goes_on() {
                lock.try_lock()
                    .await
                    .unwrap()
                    .expect("it is free")
                    .unlock()
                    .await
                    .unwrap();
                trial.rounds.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let ((), tasks) = tokio::join!(trial.forget_scripts(&server), join_all(tasks));
    tasks.into_iter().for_each(Result::unwrap);
    trial.assert_often_enough();
    nothing_is_left(&server, &locks).await;
    drop(replica);
}
