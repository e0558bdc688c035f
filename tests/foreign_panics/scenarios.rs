//! Scenarios in the life of a locker, in each of which some events occur. To make a further event
//! occur, do what leads to it in one of these functions, between the construction of its [`Stage`]
//! and [`Stage::assert_sound`], and wait for it with [`occurs`] if nothing else shows it. A new
//! function also needs a name in [`NAMES`] and a line in [`play`]. Lock names come from
//! [`Stage::key`], so that they are checked at the end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::poll;
use lockhound::{Error, Guard, HoldState, Lock, Locker, LockerBuilder, Owner};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::common::marks::mark;
use crate::common::meddler::Meddler;
use crate::common::proxy::{Mode, Proxy};
use crate::common::several::servers;
use crate::common::{Server, eventually, key, ms};
use crate::sick::{SICK, end_a_router, poison_logger, was_told};

pub(crate) const NAMES: [&str; 19] = [
    "an_ordinary_day",
    "guards_of_a_task_that_unwinds",
    "branches_of_one_task",
    "a_password_changes",
    "a_server_falls_silent",
    "answers_come_late",
    "a_renewal_out_of_turn",
    "a_lease_is_cut",
    "a_leader_without_a_value",
    "capacities_are_missing",
    "a_queue_does_not_move",
    "an_undo_is_refused",
    "a_user_with_few_rights",
    "users_without_lists",
    "one_of_three_servers",
    "replicas_are_away",
    "odd_connections",
    "replies_are_lost",
    "a_server_forgets",
];

/// A scenario in which fred does everything that this crate uses, and may panic meanwhile.
pub(crate) const ALL_OF_FRED: &str = "all_of_fred";

/// A scenario in which a recorder blocks a thread of the program.
#[cfg(feature = "metrics")]
pub(crate) const BLOCKED_RECORDER: &str = "a_recorder_blocks";

pub(crate) async fn play(name: &str) {
    match name {
        ALL_OF_FRED => all_of_fred().await,
        #[cfg(feature = "metrics")]
        BLOCKED_RECORDER => a_recorder_blocks().await,
        "an_ordinary_day" => an_ordinary_day().await,
        "guards_of_a_task_that_unwinds" => guards_of_a_task_that_unwinds().await,
        "branches_of_one_task" => branches_of_one_task().await,
        "a_password_changes" => a_password_changes().await,
        "a_server_falls_silent" => a_server_falls_silent().await,
        "answers_come_late" => answers_come_late().await,
        "a_renewal_out_of_turn" => a_renewal_out_of_turn().await,
        "a_lease_is_cut" => a_lease_is_cut().await,
        "a_leader_without_a_value" => a_leader_without_a_value().await,
        "capacities_are_missing" => capacities_are_missing().await,
        "a_queue_does_not_move" => a_queue_does_not_move().await,
        "an_undo_is_refused" => an_undo_is_refused().await,
        "a_user_with_few_rights" => a_user_with_few_rights().await,
        "users_without_lists" => users_without_lists().await,
        "one_of_three_servers" => one_of_three_servers().await,
        "replicas_are_away" => replicas_are_away().await,
        "odd_connections" => odd_connections().await,
        "replies_are_lost" => replies_are_lost().await,
        "a_server_forgets" => a_server_forgets().await,
        other => panic!("{other}"),
    }
}

/// A waiter without a message polls after this time.
const RECHECK: Duration = Duration::from_millis(1_500);

/// Returns a builder for a locker that renews every 0.6 s and notices silence soon; its holds
/// survive silence for long.
fn builder(urls: impl IntoIterator<Item = String>) -> LockerBuilder {
    let nodes = urls
        .into_iter()
        .fold(Locker::builder(), |builder, url| builder.node(url));
    nodes
        .lease(RECHECK * 6)
        .renewal_attempts(14)
        .command_timeout(ms(250))
        .restart_quarantine(Duration::ZERO)
}

/// The locker under test, a peer that it waits for, and their servers.
struct Stage {
    servers: Vec<Server>,
    locks: Locker,
    peer: Locker,
    keys: Mutex<Vec<String>>,
}

impl Stage {
    async fn over(servers: Vec<Server>, locks: LockerBuilder) -> Self {
        let peer = builder(servers.iter().map(Server::url))
            .connect()
            .await
            .unwrap();
        let locks = locks.connect().await.unwrap();
        Self {
            servers,
            locks,
            peer,
            keys: Mutex::default(),
        }
    }

    async fn with(server: Server, url: String) -> Self {
        Self::over(vec![server], builder([url])).await
    }

    fn server(&self) -> &Server {
        &self.servers[0]
    }

    fn key(&self) -> String {
        let key = key();
        self.keys.lock().unwrap().push(key.clone());
        key
    }

    /// Returns a lock with an owner of its own.
    fn lock(&self, key: &str) -> Lock {
        self.locks.get(key).owned_by(Owner::new())
    }

    /// Starts a task that enters and leaves, and returns when it was inside.
    fn visit(&self, key: &str) -> JoinHandle<Instant> {
        let lock = self.lock(key);
        tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            let inside = Instant::now();
            guard.unlock().await.unwrap();
            inside
        })
    }

    /// Returns a guard, and a task that waits for it and whose line has asked.
    async fn next_in_line(&self, key: &str) -> (Guard, JoinHandle<Result<(), Error>>) {
        let guard = self.lock(key).lock().await.unwrap();
        let next = self.lock(key);
        let waiting = tokio::spawn(async move { next.lock().await.map(drop) });
        eventually(ms(10_000), "it waits", || self.locks.stats().waiters == 1).await;
        self.visit(&self.key()).await.unwrap();
        (guard, waiting)
    }

    /// Waits until every server has a subscriber to the messages of a lock, which has had time for
    /// its attempt after that.
    async fn listens(&self, key: &str) {
        let channel = format!("redisson_lock__channel:{{{key}}}");
        let heard = |server: &Server| {
            let (_, listeners): (String, usize) = server.command(&["PUBSUB", "NUMSUB", &channel]);
            listeners > 0
        };
        eventually(ms(10_000), "a waiter listens", || {
            self.servers.iter().all(heard)
        })
        .await;
        tokio::time::sleep(ms(100)).await;
    }

    /// Asserts that nothing is held, awaited or under way, that every key is free, and that the
    /// locker works as before.
    async fn assert_sound(self) {
        let idle = |locks: &Locker| {
            let stats = locks.stats();
            (stats.holds, stats.waiters, stats.pending) == (0, 0, 0)
        };
        eventually(ms(60_000), "nothing is held, awaited or under way", || {
            idle(&self.locks) && idle(&self.peer)
        })
        .await;
        let stands = |key: &String| self.servers.iter().any(|server| server.exists(key));
        let keys = self.keys.lock().unwrap().clone();
        // The keys were released, and did not run out: a lease is nine seconds.
        eventually(ms(4_000), "every key is free", || !keys.iter().any(stands)).await;
        tokio::join!(self.hears(), self.renews());
        // A command with an unknown outcome is undone once more after a while.
        eventually(ms(10_000), "nothing is under way", || {
            idle(&self.locks) && idle(&self.peer)
        })
        .await;
        for locks in [&self.locks, &self.peer] {
            timeout(ms(10_000), locks.close()).await.expect("it closes");
            assert!(idle(locks), "{:?}", locks.stats());
        }
    }

    /// Asserts that a waiter is woken by the message.
    async fn hears(&self) {
        // On a busy machine it may take so long that a message cannot be told from a poll.
        for _ in 0..5 {
            let key = self.key();
            let held = self.peer.get(&key).lock().await.unwrap();
            let asked = Instant::now();
            let waiting = self.visit(&key);
            self.listens(&key).await;
            held.unlock().await.unwrap();
            let inside = timeout(ms(10_000), waiting)
                .await
                .expect("a waiter is served")
                .unwrap();
            if inside.duration_since(asked) < RECHECK {
                return;
            }
        }
        panic!("no message arrives: waiters have to poll");
    }

    async fn renews(&self) {
        let before = self.locks.stats().renewals;
        let guard = self.lock(&self.key()).lock().await.unwrap();
        eventually(ms(6_000), "it is renewed", || {
            self.locks.stats().renewals > before
        })
        .await;
        guard.unlock().await.unwrap();
    }
}

/// Waits until an event whose text contains this was logged.
async fn occurs(text: &str) {
    eventually(ms(10_000), text, || was_told(text)).await;
}

async fn an_ordinary_day() {
    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    let (locks, foreign) = (
        &stage.locks,
        stage.peer.get(stage.key()).lock().await.unwrap(),
    );
    let taken = stage.lock(foreign.key().as_str());
    assert!(taken.try_lock().await.unwrap().is_none());
    // On a busy machine the answer may not come within so short a time.
    assert!(matches!(
        taken.try_lock_for(ms(50)).await,
        Ok(None) | Err(Error::Unavailable { .. })
    ));
    let given_up = taken.clone();
    let waiting = tokio::spawn(async move { given_up.lock().await.map(drop) });
    stage.listens(taken.key().as_str()).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    // Re-entered, and released in both ways.
    let nested = stage.lock(&stage.key());
    let outer = nested.lock().await.unwrap();
    nested.lock().await.unwrap().unlock().await.unwrap();
    drop(nested.lock().await.unwrap());
    outer.unlock().await.unwrap();
    assert_eq!(
        stage.lock(&stage.key()).run(|_| async { 7 }).await.unwrap(),
        7
    );
    let several = locks
        .multi([stage.key(), stage.key()])
        .owned_by(Owner::new());
    several.lock().await.unwrap().unlock().await.unwrap();
    drop(several.lock().await.unwrap());
    // A grant that is lost before its caller takes it, since its future is not polled.
    let lock = stage.lock(foreign.key().as_str());
    let mut asleep = pin!(lock.lock());
    assert!(poll!(asleep.as_mut()).is_pending());
    stage.listens(taken.key().as_str()).await;
    foreign.unlock().await.unwrap();
    eventually(ms(5_000), "it is granted", || locks.stats().holds == 1).await;
    assert!(locks.get(taken.key().clone()).force_unlock().await.unwrap());
    occurs("no caller claimed the grant").await;
    timeout(ms(10_000), asleep)
        .await
        .expect("it stands in line again")
        .unwrap()
        .unlock()
        .await
        .unwrap();
    // The key is deleted from outside.
    let deleted = stage.lock(&stage.key()).lock().await.unwrap();
    assert!(
        stage
            .server()
            .command::<bool>(&["DEL", deleted.key().as_str()])
    );
    assert!(matches!(deleted.unlock().await, Err(Error::Lost { .. })));
    let forced = stage.lock(&stage.key()).lock().await.unwrap();
    assert!(
        locks
            .get(forced.key().clone())
            .force_unlock()
            .await
            .unwrap()
    );
    timeout(ms(5_000), forced.lost().cancelled())
        .await
        .expect("its token fires");
    drop(forced);
    assert!(!locks.get(stage.key()).is_locked().await.unwrap());
    // A call that is refused before anything is sent.
    let nameless = locks.get("").owned_by(Owner::new());
    assert!(matches!(nameless.lock().await, Err(Error::Config(_))));
    assert!(matches!(
        nameless.try_lock_for(ms(50)).await,
        Err(Error::Config(_))
    ));
    assert!(matches!(
        locks.multi([""]).owned_by(Owner::new()).lock().await,
        Err(Error::Config(_))
    ));
    let kept = stage.lock(&stage.key()).min_hold(ms(500));
    kept.lock().await.unwrap().unlock().await.unwrap();
    stage.assert_sound().await;
}

/// A guard that is dropped by unwinding must not panic: that would abort the process.
async fn guards_of_a_task_that_unwinds() {
    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    let held = stage.peer.get(stage.key()).lock().await.unwrap();
    let (nested, single, lost) = (
        stage.lock(&stage.key()),
        stage.lock(&stage.key()),
        stage.lock(&stage.key()),
    );
    let (awaited, several) = (
        stage.lock(held.key().as_str()),
        stage.locks.multi([stage.key(), stage.key()]),
    );
    let locks = stage.locks.clone();
    let task = tokio::spawn(async move {
        let _nested = (nested.lock().await.unwrap(), nested.lock().await.unwrap());
        let (_single, _several) = (single.lock().await.unwrap(), several.lock().await.unwrap());
        let lost = lost.lock().await.unwrap();
        locks.get(lost.key().clone()).force_unlock().await.unwrap();
        let mut waiting = pin!(awaited.lock());
        assert!(poll!(waiting.as_mut()).is_pending());
        panic!("{SICK} life");
    });
    assert!(
        timeout(ms(10_000), task)
            .await
            .expect("it ends")
            .unwrap_err()
            .is_panic()
    );
    // The last handle of a locker goes the same way.
    let last = builder([stage.server().url()]).connect().await.unwrap();
    let task = tokio::spawn(async move {
        let _guard = last.get(key()).lock().await.unwrap();
        let _last = last;
        panic!("{SICK} life");
    });
    assert!(
        timeout(ms(10_000), task)
            .await
            .expect("it ends")
            .unwrap_err()
            .is_panic()
    );
    held.unlock().await.unwrap();
    stage.assert_sound().await;
}

async fn branches_of_one_task() {
    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    let lock = stage.locks.get(stage.key());
    let (older, newer) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    older.unlock().await.unwrap();
    tokio::time::sleep(ms(5)).await;
    newer.unlock().await.unwrap();
    occurs("a guard was released before a newer one").await;
    // A call that may wait for itself, and one that waits for a holder whose lease never ends.
    let guard = lock.lock().await.unwrap();
    let itself = lock.clone().non_reentrant();
    assert!(
        itself
            .try_lock_for(RECHECK + RECHECK)
            .await
            .unwrap()
            .is_none()
    );
    occurs("waits for a lock that was taken in its own task").await;
    guard.unlock().await.unwrap();
    let endless = stage.key();
    stage.server().command::<()>(&[
        "HSET",
        &endless,
        "5cb1f0b5-0000-4000-8000-000000000000:1",
        "1",
    ]);
    let waiting = stage.visit(&endless);
    occurs("no lease").await;
    assert!(stage.peer.get(&endless).force_unlock().await.unwrap());
    timeout(ms(10_000), waiting)
        .await
        .expect("a waiter is served")
        .unwrap();
    // And one that waits for a holder whose lease lasts for months.
    let long = stage.key();
    stage
        .server()
        .command::<()>(&["HSET", &long, "5cb1f0b5-0000-4000-8000-000000000000:1", "1"]);
    stage
        .server()
        .command::<()>(&["PEXPIRE", &long, "5184000000"]);
    let waiting = stage.visit(&long);
    occurs("exceeds every lease").await;
    assert!(stage.peer.get(&long).force_unlock().await.unwrap());
    timeout(ms(10_000), waiting)
        .await
        .expect("a waiter is served")
        .unwrap();
    stage.assert_sound().await;
}

async fn a_password_changes() {
    let server = Server::start_with(&["--user", "rotated", "on", ">old", "~*", "&*", "+@all"]);
    let url = format!("redis://rotated:old@127.0.0.1:{}", server.port());
    let stage = Stage::over(vec![server], builder([url])).await;
    let guard = stage.lock(&stage.key()).lock().await.unwrap();
    let change = |password: &str| {
        stage.server().command::<()>(&[
            "ACL",
            "SETUSER",
            "rotated",
            "resetpass",
            &format!(">{password}"),
        ]);
        stage
            .server()
            .command::<u64>(&["CLIENT", "KILL", "USER", "rotated"]);
    };
    change("new");
    occurs("refuses the credentials").await;
    change("old");
    occurs("accepts the credentials again").await;
    stage
        .server()
        .command::<()>(&["ACL", "SETUSER", "rotated", "-evalsha", "-eval"]);
    assert!(stage.lock(&stage.key()).try_lock().await.is_err());
    occurs("this user lacks a right on this server").await;
    stage
        .server()
        .command::<()>(&["ACL", "SETUSER", "rotated", "+@all"]);
    guard.unlock().await.unwrap();
    stage.assert_sound().await;
}

async fn a_server_falls_silent() {
    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    let renewed = stage.lock(&stage.key()).lock().await.unwrap();
    // It is not renewed, and so never in jeopardy.
    let nested = stage.lock(&stage.key()).fixed_lease(RECHECK * 6);
    let (outer, inner) = (nested.lock().await.unwrap(), nested.lock().await.unwrap());
    let (begun, begin) = tokio::sync::oneshot::channel::<()>();
    let (section, silent) = (
        stage.lock(&stage.key()),
        tokio::sync::oneshot::channel::<()>(),
    );
    // One that is done, and whose lock is gone.
    let deleted = stage.key();
    let gone = stage
        .lock(&deleted)
        .run(|_| async { stage.server().command::<()>(&["DEL", &deleted]) })
        .await;
    assert!(matches!(gone, Err(Error::Lost { .. })), "{gone:?}");
    let section = tokio::spawn(async move {
        section
            .run(|_| async {
                begun.send(()).unwrap();
                silent.1.await.unwrap();
            })
            .await
    });
    begin.await.unwrap();
    // So many that they share lines of the log.
    let mut crowd = Vec::new();
    for _ in 0..20 {
        crowd.push(stage.lock(&stage.key()).lock().await.unwrap());
    }
    stage.server().stop();
    // Its acquire is in flight when the server falls silent, and has to be undone.
    let asked = stage.lock(&stage.key());
    let asked = tokio::spawn(async move { asked.try_lock().await });
    silent.0.send(()).unwrap();
    inner.unlock().await.unwrap();
    let inner = nested.lock().await.expect("the lock is safe");
    assert!(matches!(
        asked.await.unwrap(),
        Err(Error::Unavailable { .. })
    ));
    timeout(ms(5_000), section)
        .await
        .expect("a section ends")
        .unwrap()
        .unwrap();
    for text in [
        "two silent heartbeats",
        "these locks are in jeopardy",
        "one of these is in jeopardy",
        "a renewal has no answer",
        "an undo has no answer",
    ] {
        occurs(text).await;
    }
    let shaken = |guard: &Guard| guard.state() == HoldState::Jeopardy;
    eventually(ms(5_000), "all are in jeopardy", || {
        crowd.iter().all(shaken)
    })
    .await;
    stage.server().go_on();
    occurs("renewed again").await;
    occurs("message=undone").await;
    for text in ["these locks are safe", "one of these is safe"] {
        occurs(text).await;
    }
    let keys: Vec<&str> = crowd.iter().map(|guard| guard.key().as_str()).collect();
    stage
        .server()
        .command::<()>(&[&["DEL"], &keys[..]].concat());
    for guard in &crowd {
        timeout(ms(5_000), guard.lost().cancelled())
            .await
            .expect("the next renewal finds out");
    }
    occurs("more locks lost").await;
    occurs("one of these is lost").await;
    drop(crowd);
    for guard in [renewed, inner, outer] {
        guard.unlock().await.unwrap();
    }
    // A lock that is alone.
    let alone = stage.lock(&stage.key()).lock().await.unwrap();
    stage.server().stop();
    // The first of the crowd may have had such a line, too.
    eventually(ms(10_000), "it is in jeopardy", || shaken(&alone)).await;
    occurs("a renewal failed: the lock is in jeopardy").await;
    stage.server().go_on();
    occurs("renewed again: the lock is safe").await;
    alone.unlock().await.unwrap();
    stage.assert_sound().await;
}

/// A grant is deleted while its answer is on its way: then there is no key to write the count of
/// the second branch to.
async fn answers_come_late() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let stage = Stage::with(server, proxy.url()).await;
    let mut deleted = false;
    while !deleted {
        let (held, owner) = (
            stage.peer.get(stage.key()).lock().await.unwrap(),
            Owner::new(),
        );
        let branch = || {
            let lock = stage.locks.get(held.key().clone()).owned_by(owner.clone());
            tokio::spawn(async move { lock.lock().await.map(drop) })
        };
        let branches = [branch(), branch()];
        stage.listens(held.key().as_str()).await;
        proxy.set(Mode::Delay(ms(120)));
        let (key, of_peer) = (
            held.key().clone(),
            stage.server().fields(held.key().as_str()),
        );
        held.unlock().await.unwrap();
        let granted = || {
            stage.server().exists(key.as_str()) && stage.server().fields(key.as_str()) != of_peer
        };
        eventually(ms(5_000), "it is granted", granted).await;
        deleted = stage.server().command(&["DEL", key.as_str()]);
        // On a busy machine the answer may have been faster.
        deleted &= timeout(ms(1_000), occurs("could not be written"))
            .await
            .is_ok();
        proxy.set(Mode::Pass);
        for branch in branches {
            timeout(ms(10_000), branch)
                .await
                .expect("every waiter returns")
                .unwrap()
                .unwrap();
        }
    }
    stage.assert_sound().await;
}

/// A message about a held lock has it renewed at once.
async fn a_renewal_out_of_turn() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // The next tick is three seconds away.
    let stage = Stage::over(vec![server], builder([proxy.url()]).renewal_attempts(2)).await;
    let key = stage.key();
    let held = stage.peer.get(&key).lock().await.unwrap();
    let lock = stage.lock(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    stage.listens(&key).await;
    held.unlock().await.unwrap();
    let guard = timeout(ms(10_000), waiting)
        .await
        .expect("a waiter is served")
        .unwrap()
        .unwrap();
    // Its line listens while a caller is in it.
    let waiting = stage.visit(&key);
    tokio::time::sleep(ms(300)).await;
    proxy.set(Mode::Hold(b"EVALSHA".to_vec()));
    let told: usize =
        stage
            .server()
            .command(&["PUBLISH", &format!("redisson_lock__channel:{{{key}}}"), "0"]);
    assert_eq!(told, 1);
    occurs("an early renewal failed").await;
    proxy.set(Mode::Pass);
    guard.unlock().await.unwrap();
    timeout(ms(10_000), waiting)
        .await
        .expect("a waiter is served")
        .unwrap();
    stage.assert_sound().await;
}

async fn a_lease_is_cut() {
    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    let key = stage.key();
    let read = stage.locks.rw(&*key).read().lock().await.unwrap();
    // What a reader of Redisson with a shorter lease does at its renewals.
    let lease: bool = stage.server().command(&["PEXPIRE", &key, "5000"]);
    assert!(lease);
    occurs("another client with a shorter lease").await;
    read.unlock().await.unwrap();
    stage.assert_sound().await;
}

async fn a_leader_without_a_value() {
    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    let key = stage.key();
    let value = format!("lockhound_leader:{{{key}}}");
    stage.server().command::<()>(&["SET", &value, "no hash"]);
    let leadership = stage.locks.election(&*key).campaign("a").await.unwrap();
    occurs("a leader could not write its value").await;
    leadership.resign().await.unwrap();
    stage.assert_sound().await;
}

async fn capacities_are_missing() {
    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    // Its counter stays.
    let semaphore = stage.locks.permits(key());
    let waits = semaphore.clone();
    let waiting = tokio::spawn(async move { waits.acquire().await });
    occurs("this semaphore has no capacity").await;
    semaphore.set_capacity(2).await.unwrap();
    let permit = waiting.await.unwrap().unwrap();
    let three = semaphore.clone().capacity(3);
    let more = timeout(Duration::from_millis(300), three.acquire_many(2)).await;
    assert!(more.is_err(), "there are two");
    occurs("this semaphore has another capacity").await;
    permit.release().await.unwrap();
    stage.assert_sound().await;
}

async fn a_queue_does_not_move() {
    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    let key = stage.key();
    let lock = stage.locks.fair(&*key);
    let held = lock.lock().await.unwrap();
    let queue = format!("redisson_lock_queue:{{{key}}}");
    stage
        .server()
        .command::<()>(&["RPUSH", &queue, "somebody:else"]);
    let owner = Owner::new();
    let waits = lock.clone().owned_by(owner);
    let waiting = tokio::spawn(async move { waits.lock().await });
    occurs("waiting in the queue").await;
    let gives_up = lock.clone().owned_by(Owner::new());
    let gave_up = gives_up.try_lock_for(ms(200)).await.unwrap();
    assert!(gave_up.is_none());
    occurs("left the queue").await;
    held.unlock().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    occurs("did not claim it in time").await;
    let held = stage.peer.fair(&*key).lock().await.unwrap();
    stage
        .server()
        .command::<()>(&["ACL", "SETUSER", "default", "-lrange"]);
    assert!(lock.force_unlock().await.unwrap());
    occurs("could not notify the next waiter").await;
    drop(held);
    stage
        .server()
        .command::<()>(&["ACL", "SETUSER", "default", "+@all"]);
    stage.assert_sound().await;
}

async fn an_undo_is_refused() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let stage = Stage::with(server, proxy.url()).await;
    proxy.set(Mode::Hold(b"EVALSHA".to_vec()));
    assert!(matches!(
        stage.lock(&stage.key()).try_lock().await,
        Err(Error::Unavailable { .. })
    ));
    stage
        .server()
        .command::<()>(&["ACL", "SETUSER", "default", "-evalsha"]);
    proxy.set(Mode::Pass);
    occurs("an undo was refused").await;
    stage
        .server()
        .command::<()>(&["ACL", "SETUSER", "default", "+@all"]);
    // Nor is a release, whose key is deleted here.
    let guard = stage.lock(&stage.key()).lock().await.unwrap();
    stage
        .server()
        .command::<()>(&["ACL", "SETUSER", "default", "-evalsha"]);
    let key = guard.key().to_string();
    assert!(matches!(guard.unlock().await, Err(Error::Server { .. })));
    occurs("the release was refused").await;
    stage.server().command::<()>(&["DEL", &key]);
    stage
        .server()
        .command::<()>(&["ACL", "SETUSER", "default", "+@all"]);
    // A lock cannot be handed over by a server that refuses writes for now, ..
    let (guard, waiting) = stage.next_in_line(&stage.key()).await;
    let replicas = |number: &str| {
        stage
            .server()
            .command::<()>(&["CONFIG", "SET", "min-replicas-to-write", number]);
    };
    replicas("1");
    let released = tokio::spawn(guard.unlock());
    occurs("not handed over").await;
    replicas("0");
    released.await.unwrap().unwrap();
    timeout(ms(20_000), waiting)
        .await
        .expect("it is served")
        .unwrap()
        .unwrap();
    // .. or does not answer, ..
    let (guard, waiting) = stage.next_in_line(&stage.key()).await;
    proxy.set(Mode::Hold(b"EVALSHA".to_vec()));
    let released = tokio::spawn(guard.unlock());
    occurs("the outcome of the hand-over is unknown").await;
    proxy.set(Mode::Pass);
    assert!(matches!(
        released.await.unwrap(),
        Ok(()) | Err(Error::Unavailable { .. })
    ));
    timeout(ms(20_000), waiting)
        .await
        .expect("it is served")
        .unwrap()
        .unwrap();
    // .. or one whose mark makes no fence.
    let key = stage.key();
    let (guard, waiting) = stage.next_in_line(&key).await;
    let counter = mark(&key);
    stage.server().command::<()>(&["DEL", &counter]);
    stage
        .server()
        .command::<()>(&["LPUSH", &counter, "no number"]);
    guard.unlock().await.unwrap();
    occurs("the hand-over was refused").await;
    let refused = timeout(ms(20_000), waiting)
        .await
        .expect("it is told")
        .unwrap();
    assert!(refused.is_err(), "there was a fence");
    stage.server().command::<()>(&["DEL", &counter]);
    stage.assert_sound().await;
}

/// Two servers, which are one too few or too many, with a user that may do no more than it has to.
async fn a_user_with_few_rights() {
    let rights = [
        "--maxmemory-policy",
        "allkeys-lru",
        "--user",
        "poor",
        "on",
        ">pw",
        "~*",
        "&*",
        "+@all",
    ];
    let forbidden = ["-multi", "-info", "-client|setname"];
    let deaf = [
        "--user",
        "deaf",
        "on",
        ">pw",
        "~*",
        "resetchannels",
        "+@all",
    ];
    let arguments = [&rights[..], &forbidden[..], &deaf[..]].concat();
    let servers = vec![
        Server::start_with(&arguments),
        Server::start_with(&arguments),
    ];
    // Every user may send HELLO, so a command that is refused is sent instead.
    let hello = ["HELLO", "MULTI"].map(|name| format!("*1\r\n$5\r\n{name}"));
    let ports = [servers[0].port(), rewriting(&servers[1], Some(hello), None)];
    let urls = ports.map(|port| format!("redis://poor:pw@127.0.0.1:{port}"));
    let stage = Stage::over(servers, builder(urls)).await;
    stage.visit(&stage.key()).await.unwrap();
    let urls: Vec<_> = stage
        .servers
        .iter()
        .map(|server| format!("redis://deaf:pw@127.0.0.1:{}", server.port()))
        .collect();
    let deaf = builder(urls).connect().await.unwrap();
    let held = stage.peer.get(stage.key()).lock().await.unwrap();
    let lock = deaf.get(held.key().clone());
    let waiting = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
    occurs("cannot subscribe to unlock messages").await;
    held.unlock().await.unwrap();
    timeout(ms(10_000), waiting)
        .await
        .expect("it looks for itself")
        .unwrap()
        .unwrap();
    deaf.close().await;
    stage.assert_sound().await;
}

/// Users that lack a right to the lists of waiting lockers: from the beginning, or when a locker
/// has to be taken off.
async fn users_without_lists() {
    let mute = [
        "--user",
        "mute",
        "on",
        ">pw",
        "~*",
        "resetchannels",
        "&redisson_lock__channel:*",
        "+@all",
    ];
    let listless = [
        "--user", "listless", "on", ">pw", "~*", "&*", "+@all", "-zadd",
    ];
    let third = ["--user", "third", "on", ">pw", "~*", "&*", "+@all"];
    let server = Server::start_with(&[&mute[..], &listless, &third].concat());
    let url = |user: &str| format!("redis://{user}:pw@127.0.0.1:{}", server.port());
    let [mute, listless, third] = ["mute", "listless", "third"].map(url);
    let stage = Stage::with(server, mute).await;
    let held = stage.peer.get(stage.key()).lock().await.unwrap();
    let waiting = stage.visit(held.key().as_str());
    occurs("wake-up channel").await;
    held.unlock().await.unwrap();
    timeout(ms(10_000), waiting)
        .await
        .expect("broadcasts wake it")
        .unwrap();
    let listless = builder([listless]).connect().await.unwrap();
    let held = stage.peer.get(stage.key()).lock().await.unwrap();
    let lock = listless.get(held.key().clone());
    let waiting = tokio::spawn(async move { lock.lock().await.unwrap().unlock().await });
    occurs("cannot use the lists of waiting lockers").await;
    held.unlock().await.unwrap();
    timeout(ms(10_000), waiting)
        .await
        .expect("broadcasts wake it")
        .unwrap()
        .unwrap();
    listless.close().await;
    let third = builder([third]).connect().await.unwrap();
    let held = stage.peer.get(stage.key()).lock().await.unwrap();
    let lock = third.get(held.key().clone());
    let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
    let list = format!("lockhound_waiting:{{{}}}", held.key());
    eventually(ms(10_000), "it is in the list", || {
        stage.server().exists(&list)
    })
    .await;
    tokio::time::sleep(ms(100)).await;
    stage
        .server()
        .command::<()>(&["ACL", "SETUSER", "third", "-evalsha", "-eval"]);
    waiting.abort();
    occurs("could not be taken off the list").await;
    held.unlock().await.unwrap();
    third.close().await;
    stage.assert_sound().await;
}

async fn one_of_three_servers() {
    let servers = servers(3);
    servers[2].kill();
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let stage = Stage::over(servers, builder(urls)).await;
    stage.servers[2].restart();
    // Deleted on one server, the lock is held by the others.
    let guard = stage.lock(&stage.key()).lock().await.unwrap();
    let votes = || {
        stage
            .servers
            .iter()
            .filter(|server| server.exists(guard.key().as_str()))
            .count()
    };
    eventually(ms(10_000), "the one that was away votes too", || {
        votes() == 3
    })
    .await;
    assert!(stage.servers[0].command::<bool>(&["DEL", guard.key().as_str()]));
    occurs("the fence counter is raised again").await;
    guard.unlock().await.unwrap();
    // A replica has no vote.
    let master = stage.servers[0].port().to_string();
    stage.servers[1].command::<()>(&["REPLICAOF", "127.0.0.1", &master]);
    stage.servers[1].cut_connections();
    occurs("the vote of this server does not count").await;
    stage.visit(&stage.key()).await.unwrap();
    stage.servers[1].command::<()>(&["REPLICAOF", "NO", "ONE"]);
    stage.assert_sound().await;
}

async fn replicas_are_away() {
    let server = Server::start();
    let (proxy, replica, url) = (Proxy::start(server.port()), server.replica(), server.url());
    eventually(ms(20_000), "the replica is in step", || {
        server.has_replicas(1)
    })
    .await;
    let acknowledged = |url| {
        builder([url])
            .command_timeout(ms(550))
            .replica_acks(1, ms(200))
    };
    replica.stop();
    // It has acknowledged all that was written before.
    server.command::<()>(&["SET", &key(), "1"]);
    let stage = Stage::over(vec![server], acknowledged(url)).await;
    replica.go_on();
    stage.visit(&stage.key()).await.unwrap();
    proxy.set(Mode::Hold(b"WAIT".to_vec()));
    let other = acknowledged(proxy.url()).connect().await.unwrap();
    proxy.set(Mode::Pass);
    other
        .get(stage.key())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    other.close().await;
    stage.assert_sound().await;
}

/// A server with an unknown version, and a router that is stuck.
async fn odd_connections() {
    let server = Server::start();
    let info: String = server.command(&["INFO", "server"]);
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .unwrap()
        .trim();
    let odd = rewriting(
        &server,
        None,
        Some([version.to_owned(), "?".repeat(version.len())]),
    );
    let url = server.url();
    let stage = Stage::with(server, url).await;
    builder([format!("redis://127.0.0.1:{odd}")])
        .connect()
        .await
        .unwrap()
        .close()
        .await;
    // The command that was under way has no answer.
    end_a_router();
    let _: Result<_, _> = timeout(ms(20_000), stage.lock(&stage.key()).try_lock())
        .await
        .expect("it is answered");
    occurs("the client is replaced").await;
    let cluster = Server::start_with(&["--cluster-enabled", "yes"]);
    let lazy = builder([cluster.url()]).connect_lazy().unwrap();
    occurs("this server cannot be used").await;
    lazy.close().await;
    stage.assert_sound().await;
}

/// The answer to one command comes to another.
async fn replies_are_lost() {
    let server = Server::start();
    let meddler = Meddler::start(server.port(), 7);
    let stage = Stage::with(server, meddler.url()).await;
    meddler.spoil_one_in(3);
    let lock = stage.lock(&stage.key());
    let found = async {
        while stage.locks.stats().mismatched_replies == 0 {
            drop(lock.try_lock().await);
        }
    };
    timeout(ms(20_000), found)
        .await
        .expect("one is found in time");
    meddler.spoil_one_in(0);
    occurs("a reply belongs to another command: it is ignored, and the connection is closed").await;
    stage.assert_sound().await;
}

async fn a_server_forgets() {
    let servers = servers(3);
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let lease = ms(1_500);
    let cautious = |urls: Vec<String>| {
        builder(urls)
            .lease(lease)
            .renewal_attempts(2)
            .restart_quarantine(lease)
    };
    let locks = cautious(urls.clone()).connect().await.unwrap();
    let peer = cautious(urls).connect().await.unwrap();
    let stage = Stage {
        servers,
        locks,
        peer,
        keys: Mutex::default(),
    };
    occurs("this server abstains for a while").await;
    // Two are enough for a visit. The third one needs them to begin.
    let vote = |locks: &Locker| locks.stats().nodes.iter().all(|node| node.votes);
    eventually(ms(20_000), "all vote", || {
        vote(&stage.locks) && vote(&stage.peer)
    })
    .await;
    stage.visit(&stage.key()).await.unwrap();
    // No server can report its highest mark.
    let may = |right: &str| {
        stage
            .servers
            .iter()
            .for_each(|s| s.command::<()>(&["ACL", "SETUSER", "default", right]));
    };
    may("-mget");
    stage.servers[1].command::<()>(&["FLUSHALL"]);
    // The next attempt finds out that the server forgot.
    stage.visit(&stage.key()).await.unwrap();
    occurs("a server could not be asked what another one may have forgotten").await;
    // Nor can it take over that of the others.
    may("-set");
    may("+mget");
    occurs("a server could not be opened").await;
    may("+set");
    occurs("the vote of this server counts again").await;
    stage.visit(&stage.key()).await.unwrap();
    stage.assert_sound().await;
}

/// Wherever fred panics, each call returns, and broken connections are replaced.
async fn all_of_fred() {
    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    let visit = |lock: Lock| async move {
        let _: Result<_, _> = timeout(ms(20_000), lock.run(|_| async {}))
            .await
            .expect("a call returns");
    };
    let hand_over = async || {
        let Ok(held) = timeout(ms(20_000), stage.peer.get(stage.key()).lock())
            .await
            .expect("a call returns")
        else {
            return;
        };
        let waiting = tokio::spawn(visit(stage.lock(held.key().as_str())));
        tokio::time::sleep(ms(100)).await;
        let _: Result<_, _> = timeout(ms(20_000), held.unlock())
            .await
            .expect("a call returns");
        waiting.await.unwrap();
    };
    let held = stage.lock(&stage.key()).lock().await.unwrap();
    hand_over().await;
    poison_logger(6);
    hand_over().await;
    poison_logger(6);
    tokio::time::sleep(ms(700)).await;
    visit(stage.lock(&stage.key())).await;
    poison_logger(6);
    stage.server().cut_connections();
    stage
        .server()
        .command::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    hand_over().await;
    poison_logger(6);
    stage.server().stop();
    let visiting = tokio::spawn(visit(stage.lock(&stage.key())));
    // Two heartbeats are not answered.
    tokio::time::sleep(ms(1_200)).await;
    stage.server().go_on();
    visiting.await.unwrap();
    hand_over().await;
    poison_logger(0);
    held.check().expect("it was renewed all the time");
    let _: Result<_, _> = timeout(ms(20_000), held.unlock())
        .await
        .expect("a call returns");
    for drops in [true, false] {
        let another = builder([stage.server().url()]).connect().await.unwrap();
        let id = another.id().to_string();
        poison_logger(6);
        if drops {
            drop(another);
        } else {
            timeout(ms(10_000), another.close())
                .await
                .expect("it closes");
        }
        let connected = || {
            stage
                .server()
                .command::<String>(&["CLIENT", "LIST"])
                .contains(&id)
        };
        eventually(ms(5_000), "its thread has ended", || !connected()).await;
        poison_logger(1);
        let refused = timeout(ms(20_000), builder([stage.server().url()]).connect())
            .await
            .expect("it is told in time");
        poison_logger(0);
        drop(refused);
    }
    stage.assert_sound().await;
}

/// A recorder may block the thread that calls it, and nothing else.
#[cfg(feature = "metrics")]
async fn a_recorder_blocks() {
    use crate::sick::{BLOCKS, go_on, happened};

    let server = Server::start();
    let url = server.url();
    let stage = Stage::with(server, url).await;
    let guard = stage.lock(&stage.key()).lock().await.unwrap();
    let before = stage.locks.stats().hold_time.count;
    let blocked = std::thread::Builder::new()
        .name(BLOCKS.to_owned())
        .spawn(move || drop(guard))
        .unwrap();
    eventually(ms(5_000), "it blocks", || happened().contains(BLOCKS)).await;
    // In a thread of its own, since blocking it would block the test.
    let locks = stage.locks.clone();
    let stats = tokio::task::spawn_blocking(move || locks.stats());
    let stats = timeout(ms(5_000), stats)
        .await
        .expect("no mutex is held meanwhile")
        .unwrap();
    assert_eq!(stats.hold_time.count, before + 1);
    timeout(ms(5_000), stage.visit(&stage.key()))
        .await
        .expect("nor here")
        .unwrap();
    stage.renews().await;
    assert!(!blocked.is_finished());
    go_on();
    blocked.join().unwrap();
    stage.assert_sound().await;
}

/// Opens a proxy to a server, and returns its port. In each piece that it passes on, it replaces
/// one word by another of the same length, in the requests or in the replies.
fn rewriting(server: &Server, requests: Option<[String; 2]>, replies: Option<[String; 2]>) -> u16 {
    let (listener, to) = (TcpListener::bind(("127.0.0.1", 0)).unwrap(), server.port());
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (
                client.unwrap(),
                TcpStream::connect(("127.0.0.1", to)).unwrap(),
            );
            let (from, into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (requests, replies) = (requests.clone(), replies.clone());
            std::thread::spawn(move || pass(from, into, requests.as_ref()));
            std::thread::spawn(move || pass(server, client, replies.as_ref()));
        }
    });
    port
}

fn pass(mut from: TcpStream, mut into: TcpStream, words: Option<&[String; 2]>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let place = |word: &str| {
            buffer[..n]
                .windows(word.len())
                .position(|seen| seen == word.as_bytes())
        };
        if let Some([word, other]) = words
            && let Some(at) = place(word)
        {
            buffer[at..at + word.len()].copy_from_slice(other.as_bytes());
        }
        if into.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    drop(into.shutdown(Shutdown::Both));
}
