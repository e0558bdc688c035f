//! What a lock promises, on every kind of deployment and for every kind of lock: one list of
//! behaviours.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test target uses a part of it"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "testing")]
use lockhound::testing;
use lockhound::{Error, Format, HoldState, Locker, LockerBuilder, Loss, Observer, Owner};
use tokio::time::sleep;

use crate::common::cluster::Cluster;
use crate::common::machine::within;
use crate::common::sentinel::Sentinels;
use crate::common::{self, Server, eventually, key, ms};

/// A server of any kind.
pub enum Place {
    Redis(Arc<Server>),
    #[cfg(feature = "tls")]
    Encrypted(Server, Box<common::tls::Authority>),
    Cluster(Arc<Cluster>),
    Named(Arc<Sentinels>),
    #[cfg(feature = "testing")]
    Memory(testing::Server),
}

impl Place {
    fn add_to(&self, builder: LockerBuilder) -> LockerBuilder {
        match self {
            Self::Redis(server) => builder.node(server.url()),
            #[cfg(feature = "tls")]
            Self::Encrypted(server, ca) => {
                builder.node(server.tls_url("localhost")).tls(ca.trusted())
            }
            Self::Cluster(cluster) => builder.node(cluster.url()),
            Self::Named(group) => builder.node(group.url()),
            #[cfg(feature = "testing")]
            Self::Memory(server) => builder.memory(server),
        }
    }

    fn exists(&self, key: &str) -> bool {
        match self {
            Self::Redis(server) => server.exists(key),
            #[cfg(feature = "tls")]
            Self::Encrypted(server, _) => server.exists(key),
            Self::Cluster(cluster) => cluster.exists(key),
            Self::Named(group) => group.master.exists(key),
            #[cfg(feature = "testing")]
            Self::Memory(server) => server.holder(key).is_some(),
        }
    }

    fn delete(&self, key: &str) {
        match self {
            Self::Redis(server) => server.command::<()>(&["DEL", key]),
            #[cfg(feature = "tls")]
            Self::Encrypted(server, _) => server.command::<()>(&["DEL", key]),
            Self::Cluster(cluster) => cluster.delete(key),
            Self::Named(group) => group.master.command::<()>(&["DEL", key]),
            #[cfg(feature = "testing")]
            Self::Memory(server) => server.delete(key),
        }
    }

    fn kill(&self) {
        match self {
            Self::Redis(server) => server.kill(),
            #[cfg(feature = "tls")]
            Self::Encrypted(server, _) => server.kill(),
            Self::Cluster(_) | Self::Named(_) => {
                panic!("it has no server of whose vote something depends")
            }
            // A server in memory cannot refuse connections: it is stopped for good.
            #[cfg(feature = "testing")]
            Self::Memory(server) => server.stop(),
        }
    }

    fn stop(&self) {
        match self {
            Self::Redis(server) => server.stop(),
            #[cfg(feature = "tls")]
            Self::Encrypted(server, _) => server.stop(),
            Self::Cluster(_) | Self::Named(_) => {
                panic!("it has no server of whose vote something depends")
            }
            #[cfg(feature = "testing")]
            Self::Memory(server) => server.stop(),
        }
    }
}

/// What the locks of a test are.
#[derive(Clone, Copy)]
pub struct Chosen {
    /// Has a locker take such locks.
    pub by: fn(LockerBuilder) -> LockerBuilder,
    /// What stands before the name in the key.
    pub prefix: &'static str,
}

impl From<Format> for Chosen {
    fn from(format: Format) -> Self {
        let by: fn(LockerBuilder) -> LockerBuilder = if format == Format::Plain {
            |builder| builder.format(Format::Plain)
        } else {
            |builder| builder.format(Format::Redisson)
        };
        Self { by, prefix: "" }
    }
}

/// Servers, and the kind and options of the locks on them.
pub struct Deployment {
    servers: Vec<Place>,
    chosen: Chosen,
    /// Whether one server is killed and one is stopped once the lockers are connected.
    down: bool,
}

impl Deployment {
    pub fn on(servers: Vec<Place>, chosen: impl Into<Chosen>) -> Self {
        Self {
            servers,
            chosen: chosen.into(),
            down: false,
        }
    }

    pub fn of(count: usize, chosen: impl Into<Chosen>) -> Self {
        Self::on(
            (0..count)
                .map(|_| Place::Redis(Arc::new(Server::start())))
                .collect(),
            chosen,
        )
    }

    /// Starts a server whose connections are encrypted.
    #[cfg(feature = "tls")]
    pub fn encrypted(chosen: impl Into<Chosen>) -> Self {
        let ca = common::tls::Authority::new();
        Self::on(vec![Place::Encrypted(ca.server(), Box::new(ca))], chosen)
    }

    #[cfg(feature = "testing")]
    pub fn in_memory(count: usize, chosen: impl Into<Chosen>) -> Self {
        Self::on(
            (0..count)
                .map(|_| Place::Memory(testing::Server::new()))
                .collect(),
            chosen,
        )
    }

    /// Has one of five servers killed and one stopped.
    pub fn crippled(self) -> Self {
        Self { down: true, ..self }
    }

    async fn locker(&self, lease: Duration) -> Locker {
        let [locker] = self.lockers(lease).await;
        locker
    }

    async fn lockers<const N: usize>(&self, lease: Duration) -> [Locker; N] {
        let mut lockers = Vec::new();
        for _ in 0..N {
            let builder = (self.chosen.by)(common::several::over_urls([], lease));
            let builder = self
                .servers
                .iter()
                .fold(builder, |builder, server| server.add_to(builder));
            lockers.push(builder.connect().await.unwrap());
        }
        if self.down {
            self.servers[1].kill();
            self.servers[3].stop();
        }
        lockers.try_into().unwrap()
    }

    fn up(&self) -> impl Iterator<Item = &Place> {
        self.servers
            .iter()
            .enumerate()
            .filter(|(at, _)| !self.down || ![1, 3].contains(at))
            .map(|(_, server)| server)
    }

    /// Returns the key under which a lock is on the servers.
    fn stored(&self, key: &str) -> String {
        [self.chosen.prefix, key].concat()
    }

    async fn is_free_everywhere(&self, key: &str) {
        let key = self.stored(key);
        eventually(ms(10_000), "free", || {
            self.up().all(|server| !server.exists(&key))
        })
        .await;
    }
}

/// A lease that tests wait for. It is renewed every third of it, and no stall of a busy machine is
/// as long as the rest.
const SHORT: Duration = Duration::from_secs(2);

/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(30);

pub async fn a_lock_excludes_other_owners_and_other_lockers(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    let guard = one.get(&key).lock().await.unwrap();
    assert!(two.get(&key).try_lock().await.unwrap().is_none());
    assert!(
        one.get(&key)
            .owned_by(Owner::new())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        two.get(common::key()).try_lock().await.unwrap().is_some(),
        "another key"
    );
    guard.unlock().await.unwrap();
    on.is_free_everywhere(&key).await;
    two.get(&key)
        .try_lock()
        .await
        .unwrap()
        .expect("free")
        .unlock()
        .await
        .unwrap();
}

pub async fn a_bounded_wait_ends_in_time(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    let guard = one.get(&key).lock().await.unwrap();
    let start = Instant::now();
    assert!(two.get(&key).try_lock_for(ms(150)).await.unwrap().is_none());
    let waited = start.elapsed();
    assert!(waited >= ms(150) && within(waited, ms(400)), "{waited:?}");
    let lock = two.get(&key);
    let waiting = tokio::spawn(async move { lock.try_lock_for(ms(2_000)).await });
    sleep(ms(20)).await;
    guard.unlock().await.unwrap();
    waiting
        .await
        .unwrap()
        .unwrap()
        .expect("free in time")
        .unlock()
        .await
        .unwrap();
}

pub async fn its_owner_enters_again_and_leaves_as_often(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    let lock = one.get(&key);
    let (first, second) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let third = lock.try_lock().await.unwrap().expect("ours");
    assert_eq!((third.hold_count(), first.fence()), (3, third.fence()));
    // In another order, guards of an owner without a name look as if branches of one task were
    // inside together.
    third.unlock().await.unwrap();
    second.unlock().await.unwrap();
    assert_eq!(first.hold_count(), 1);
    assert!(
        two.get(&key).try_lock().await.unwrap().is_none(),
        "held until the last is out"
    );
    first.unlock().await.unwrap();
    on.is_free_everywhere(&key).await;
}

pub async fn an_owner_is_the_same_in_every_task(on: Deployment) {
    let (locks, key, owner) = (on.locker(LONG).await, key(), Owner::new());
    let lock = locks.get(&key).owned_by(owner.clone());
    let guard = lock.lock().await.unwrap();
    let (again, name) = (locks.get(&key), key.clone());
    let nested = tokio::spawn(owner.scope(async move { again.try_lock().await }))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(nested.expect("the same owner").hold_count(), 2);
    drop(guard);
    on.is_free_everywhere(&name).await;
}

pub async fn a_waiter_is_woken_by_the_release(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    let guard = one.get(&key).lock().await.unwrap();
    let (near, far) = (one.get(&key).owned_by(Owner::new()), two.get(&key));
    let waiting = tokio::spawn(async move {
        let (near, far) =
            tokio::join!(async { near.lock().await.unwrap().unlock().await }, async {
                far.lock().await.unwrap().unlock().await
            });
        near.and(far)
    });
    common::they_wait(&one, 1).await;
    common::they_wait(&two, 1).await;
    assert!(!waiting.is_finished());
    guard.unlock().await.unwrap();
    // Without messages waiters poll every five seconds.
    common::soon(ms(1_000), waiting)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
}

pub async fn fences_grow(on: Deployment) {
    let (lockers, key): ([Locker; 2], _) = (on.lockers(LONG).await, key());
    let mut last = None;
    for round in 0..10 {
        let guard = lockers[round % 2].get(&key).lock().await.unwrap();
        assert!(Some(guard.fence()) > last);
        last = Some(guard.fence());
        guard.unlock().await.unwrap();
    }
}

pub async fn the_watchdog_renews_beyond_the_lease(on: Deployment) {
    let ([one, two], key) = (on.lockers(SHORT).await, key());
    let guard = one.get(&key).lock().await.unwrap();
    sleep(SHORT * 3 / 2).await;
    guard.check().unwrap();
    assert!(two.get(&key).try_lock().await.unwrap().is_none());
    eventually(SHORT, "the last renewal succeeded", || {
        guard.state() == HoldState::Safe
    })
    .await;
    guard.unlock().await.unwrap();
}

pub async fn a_deletion_is_told_at_the_next_renewal(on: Deployment) {
    let (locks, key) = (on.locker(SHORT).await, key());
    let guard = locks.get(&key).lock().await.unwrap();
    let lost = guard.lost();
    // A late vote, or a renewal between the deletions on several servers, may write the key again.
    let deleting = async {
        while !lost.is_cancelled() {
            on.up().for_each(|server| server.delete(&on.stored(&key)));
            sleep(ms(50)).await;
        }
    };
    common::soon(SHORT, deleting).await.expect("told");
    assert_eq!(
        guard.loss(),
        Some(Loss::NotOwner),
        "by a renewal, and not by the end of the lease"
    );
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    locks
        .get(&key)
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

pub async fn a_forced_unlock_is_told_and_lets_others_in(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    let guard = one.get(&key).lock().await.unwrap();
    assert!(one.get(&key).force_unlock().await.unwrap());
    assert_eq!(guard.loss(), Some(Loss::ForceUnlocked));
    drop(guard);
    let theirs = two.get(&key).lock().await.unwrap();
    assert!(one.get(&key).force_unlock().await.unwrap());
    on.is_free_everywhere(&key).await;
    assert!(!one.get(&key).force_unlock().await.unwrap(), "it is free");
    drop(theirs);
}

pub async fn everybody_sees_who_holds_it(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    assert!(!two.get(&key).is_locked().await.unwrap());
    let guard = one.get(&key).lock().await.unwrap();
    let holder = two.get(&key).holder().await.unwrap().expect("held");
    assert!(
        holder
            .owner()
            .starts_with(&format!("{}:{}:", one.id(), guard.owner())),
        "{holder:?}"
    );
    assert_eq!(holder.hold_count(), 1);
    assert!(holder.remaining().unwrap() > ms(29_000));
    guard.unlock().await.unwrap();
    assert!(!two.get(&key).is_locked().await.unwrap());
}

pub async fn a_fixed_lease_runs_out(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    let guard = one.get(&key).fixed_lease(ms(250)).lock().await.unwrap();
    let next = two.get(&key).lock().await.unwrap();
    assert!(
        guard.lost().is_cancelled(),
        "told before the next one was in"
    );
    assert_eq!(guard.loss(), Some(Loss::Expired));
    next.unlock().await.unwrap();
}

pub async fn a_hold_ends_with_its_longest_time(on: Deployment) {
    let (locks, key) = (on.locker(LONG).await, key());
    let start = Instant::now();
    let guard = locks.get(&key).max_hold(ms(200)).lock().await.unwrap();
    common::soon(ms(400), guard.lost().cancelled())
        .await
        .expect("told");
    assert!(start.elapsed() > ms(180), "{:?}", start.elapsed());
    assert_eq!(guard.loss(), Some(Loss::MaxHold));
    drop(guard);
    on.is_free_everywhere(&key).await;
}

pub async fn a_lock_stays_for_its_shortest_time_and_then_a_waiter_has_it(on: Deployment) {
    let ([one, two], key, start) = (on.lockers(LONG).await, key(), Instant::now());
    let lock = one.get(&key).min_hold(ms(1_000));
    lock.lock().await.unwrap().unlock().await.unwrap();
    // The clock is read after the attempt, so that it shows whether the time was over.
    let again = lock.try_lock().await.unwrap();
    assert!(
        again.is_none() || start.elapsed() >= ms(1_000),
        "its owner is in after {:?}",
        start.elapsed()
    );
    drop(again);
    let next = two.get(&key).lock().await.unwrap();
    let waited = start.elapsed();
    assert!(
        waited >= ms(1_000) && within(waited, ms(3_000)),
        "{waited:?}"
    );
    next.unlock().await.unwrap();
    on.is_free_everywhere(&key).await;
}

pub async fn closing_ends_waiters_and_tells_holders(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    let theirs = two.get(&key).lock().await.unwrap();
    let held = one.get(common::key()).lock().await.unwrap();
    let name = held.key().to_string();
    let lock = one.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    common::they_wait(&one, 1).await;
    let closing = tokio::spawn({
        let one = one.clone();
        async move { one.close().await }
    });
    held.lost().cancelled().await;
    assert_eq!(held.loss(), Some(Loss::Closed));
    drop(held);
    common::soon(ms(1_500), closing)
        .await
        .expect("bounded")
        .unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(one.get(&key).try_lock().await, Err(Error::Closed)));
    on.is_free_everywhere(&name).await;
    theirs.unlock().await.unwrap();
}

pub async fn a_section_runs_with_the_lock_and_ends_with_its_loss(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    let (lock, taken) = (one.get(&key), two.get(&key));
    let done = lock.run(|section| async move {
        section.check().unwrap();
        (taken.try_lock().await.unwrap().is_none(), section.fence())
    });
    assert!(done.await.unwrap().0);
    on.is_free_everywhere(&key).await;
    let lock = one.get(&key).max_hold(ms(100));
    let cut: Result<(), Error> = lock.run(|_| std::future::pending()).await;
    assert!(
        matches!(
            cut,
            Err(Error::Lost {
                loss: Loss::MaxHold,
                ..
            })
        ),
        "{cut:?}"
    );
}

pub async fn a_detached_hold_is_no_longer_its_task_s(on: Deployment) {
    let (locks, key) = (on.locker(LONG).await, key());
    let guard = locks.get(&key).lock().await.unwrap().detach();
    assert!(locks.get(&key).try_lock().await.unwrap().is_none());
    tokio::spawn(async move { guard.unlock().await })
        .await
        .unwrap()
        .unwrap();
    locks
        .get(&key)
        .try_lock()
        .await
        .unwrap()
        .expect("free")
        .unlock()
        .await
        .unwrap();
}

pub async fn a_dropped_guard_releases(on: Deployment) {
    let ([one, two], key) = (on.lockers(LONG).await, key());
    let guard = one.get(&key).lock().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    common::soon(ms(1_000), two.get(&key).lock())
        .await
        .expect("released")
        .unwrap()
        .unlock()
        .await
        .unwrap();
    on.is_free_everywhere(&key).await;
}

/// Returns what a refusal names of a kind that is on one server, where there is no such kind.
fn why_refused(on: &Deployment, locks: &Locker) -> Option<&'static str> {
    if locks.settings().format() == Format::Plain {
        return Some("Format::Plain");
    }
    (on.servers.len() > 1).then_some("independent")
}

/// Asserts that each of these calls was refused for this reason.
fn assert_refused<const N: usize>(refusals: [Option<Error>; N], reason: &str) {
    for error in refusals {
        let error = error.expect("refused");
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

/// Returns two lockers and a name for a read-write lock, where there are such locks. Elsewhere
/// every call is refused, with the reason.
async fn read_write(on: &Deployment, lease: Duration) -> Option<([Locker; 2], String)> {
    let (lockers, key) = (on.lockers(lease).await, key());
    let Some(reason) = why_refused(on, &lockers[0]) else {
        return Some((lockers, key));
    };
    let lock = lockers[0].rw(&*key);
    let refusals = [
        lock.read().lock().await.err(),
        lock.write().try_lock().await.err(),
        lock.holders().await.err(),
    ];
    assert_refused(refusals, reason);
    None
}

pub async fn readers_are_inside_together_and_a_writer_alone(on: Deployment) {
    let Some(([one, two], key)) = read_write(&on, LONG).await else {
        return;
    };
    let [here, there] = [&one, &two].map(|locks| locks.rw(&*key));
    let (first, second) = (here.read().lock().await, there.read().lock().await);
    let (first, second) = (first.unwrap(), second.unwrap());
    let writer = there.write().owned_by(Owner::new());
    assert!(writer.try_lock().await.unwrap().is_none());
    let refused = here.write().lock().await;
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    assert_eq!(here.holders().await.unwrap().readers().len(), 2);
    drop((first, second));
    let write = common::soon(ms(5_000), writer.lock())
        .await
        .expect("free")
        .unwrap();
    assert!(
        here.read()
            .owned_by(Owner::new())
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert!(there.holders().await.unwrap().writer().is_some());
    let fence = write.fence();
    let read = write.downgrade().await.unwrap();
    assert!(read.fence() > fence);
    let beside = here.read().owned_by(Owner::new());
    beside
        .try_lock()
        .await
        .unwrap()
        .expect("beside")
        .unlock()
        .await
        .unwrap();
    assert!(one.rw(&*key).force_unlock().await.unwrap());
    on.is_free_everywhere(&key).await;
    drop(read);
}

pub async fn readers_and_writers_are_woken_by_releases(on: Deployment) {
    let Some(([one, two], key)) = read_write(&on, LONG).await else {
        return;
    };
    let [here, there] = [&one, &two].map(|locks| locks.rw(&*key));
    for _ in 0..2 {
        let write = here.write().owned_by(Owner::new()).lock().await.unwrap();
        let reads = there.read().owned_by(Owner::new());
        let waiting = tokio::spawn(async move { reads.lock().await });
        eventually(ms(5_000), "it waits", || two.stats().waiters == 1).await;
        sleep(ms(100)).await;
        write.unlock().await.unwrap();
        // Without messages waiters poll every five seconds.
        let read = common::soon(ms(1_000), waiting)
            .await
            .expect("woken")
            .unwrap()
            .unwrap();
        let writes = here.write().owned_by(Owner::new());
        let waiting = tokio::spawn(async move { writes.lock().await });
        eventually(ms(5_000), "it waits", || one.stats().waiters == 1).await;
        sleep(ms(100)).await;
        read.unlock().await.unwrap();
        let write = common::soon(ms(1_000), waiting)
            .await
            .expect("woken")
            .unwrap()
            .unwrap();
        write.unlock().await.unwrap();
    }
    on.is_free_everywhere(&key).await;
}

pub async fn readers_and_writers_outlive_their_lease_and_learn_of_a_loss(on: Deployment) {
    let Some(([one, two], key)) = read_write(&on, SHORT).await else {
        return;
    };
    let other = common::key();
    let read = one.rw(&*key).read().lock().await.unwrap();
    let write = one.rw(&*other).write().lock().await.unwrap();
    sleep(SHORT * 3 / 2).await;
    read.check().unwrap();
    write.check().unwrap();
    assert!(two.rw(&*key).write().try_lock().await.unwrap().is_none());
    assert!(two.rw(&*other).read().try_lock().await.unwrap().is_none());
    for key in [&key, &other] {
        on.up().for_each(|server| server.delete(key));
    }
    for lost in [read.lost(), write.lost()] {
        common::soon(SHORT, lost.cancelled()).await.expect("told");
    }
    assert_eq!(
        (read.loss(), write.loss()),
        (Some(Loss::NotOwner), Some(Loss::NotOwner))
    );
}

/// Returns two lockers and a name for a semaphore, where there are any. Elsewhere every call is
/// refused, with the reason.
async fn permits(on: &Deployment, lease: Duration) -> Option<([Locker; 2], String)> {
    let (lockers, key) = (on.lockers(lease).await, key());
    let Some(reason) = why_refused(on, &lockers[0]) else {
        return Some((lockers, key));
    };
    let semaphore = lockers[0].permits(&*key).capacity(2);
    let refusals = [
        semaphore.acquire().await.err(),
        semaphore.try_acquire().await.err(),
        semaphore.usage().await.err(),
        semaphore.set_capacity(3).await.err(),
    ];
    assert_refused(refusals, reason);
    None
}

pub async fn no_more_permits_are_taken_than_there_are(on: Deployment) {
    let Some(([one, two], key)) = permits(&on, LONG).await else {
        return;
    };
    for semaphores in [
        [&one, &two].map(|locks| locks.permits(&*key).capacity(3)),
        [&one, &two].map(|locks| locks.semaphore(format!("{key}:counter")).capacity(3)),
    ] {
        let [here, there] = semaphores;
        let both = here.acquire_many(2).await.unwrap();
        let last = there.acquire().await.unwrap();
        assert!(here.try_acquire().await.unwrap().is_none());
        let usage = there.usage().await.unwrap();
        assert_eq!((usage.free(), usage.taken()), (0, 3));
        assert_eq!(usage.holders().len(), 2);
        let waits = there.clone();
        let waiting = tokio::spawn(async move { waits.acquire_many(2).await });
        eventually(ms(5_000), "it waits", || two.stats().waiters == 1).await;
        sleep(ms(100)).await;
        both.release().await.unwrap();
        // Without messages waiters poll every five seconds.
        let woken = common::soon(ms(1_500), waiting).await.expect("woken");
        drop((last, woken.unwrap().unwrap()));
        let all = common::soon(ms(5_000), here.acquire_many(3)).await;
        all.expect("free").unwrap().release().await.unwrap();
    }
}

pub async fn permits_outlive_their_lease_and_are_told_of_a_loss(on: Deployment) {
    let Some(([one, two], key)) = permits(&on, SHORT).await else {
        return;
    };
    let here = one.permits(&*key).capacity(1);
    let permit = here.acquire().await.unwrap();
    sleep(SHORT * 3 / 2).await;
    permit.check().unwrap();
    let there = two.permits(&*key);
    assert!(there.try_acquire().await.unwrap().is_none());
    let usage = there.usage().await.unwrap();
    assert!(there.force_release(&usage.holders()[0]).await.unwrap());
    let other = there.acquire().await.unwrap();
    let lost = common::soon(SHORT, permit.lost().cancelled()).await;
    lost.expect("told");
    assert_eq!(permit.loss(), Some(Loss::NotOwner));
    assert!(matches!(permit.release().await, Err(Error::Lost { .. })));
    other.check().unwrap();
}

/// Returns two lockers and a name for a fair lock, where there are fair locks. Elsewhere every call
/// is refused, with the reason.
async fn fair(on: &Deployment, lease: Duration) -> Option<([Locker; 2], String)> {
    let (lockers, key) = (on.lockers(lease).await, key());
    let Some(reason) = why_refused(on, &lockers[0]) else {
        return Some((lockers, key));
    };
    let lock = lockers[0].fair(&*key);
    let refusals = [
        lock.lock().await.err(),
        lock.try_lock().await.err(),
        lock.try_lock_for(ms(100)).await.err(),
        lock.run(|_| async {}).await.err(),
    ];
    assert_refused(refusals, reason);
    None
}

pub async fn fair_callers_are_served_in_the_order_in_which_they_came(on: Deployment) {
    let Some(([one, two], key)) = fair(&on, LONG).await else {
        return;
    };
    let held = one.fair(&*key).lock().await.unwrap();
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for n in 0..6 {
        let lock = [&two, &one, &one][n % 3].fair(&*key);
        let served = Arc::clone(&served);
        waiting.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            served.lock().unwrap().push(n);
            guard.unlock().await.unwrap();
        }));
        eventually(ms(5_000), "it waits", || {
            one.stats().waiters + two.stats().waiters == n + 1
        })
        .await;
        // Its place is confirmed a round trip later.
        sleep(ms(200)).await;
    }
    assert!(two.fair(&*key).try_lock().await.unwrap().is_none());
    held.unlock().await.unwrap();
    for caller in waiting {
        // Without messages each would wait for a look.
        let told = common::soon(ms(3_000), caller).await;
        told.expect("told").unwrap();
    }
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
}

pub async fn a_fair_lock_is_passed_on_by_those_that_give_up_or_lose_it(on: Deployment) {
    let Some(([one, two], key)) = fair(&on, SHORT).await else {
        return;
    };
    let held = one.fair(&*key).lock().await.unwrap();
    sleep(SHORT * 3 / 2).await;
    held.check().unwrap();
    let gives_up = two.fair(&*key).try_lock_for(ms(200)).await;
    assert!(gives_up.unwrap().is_none());
    let lock = two.fair(&*key);
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually(ms(5_000), "it waits", || two.stats().waiters == 1).await;
    assert!(one.fair(&*key).force_unlock().await.unwrap());
    let next = common::soon(ms(5_000), waiting).await.expect("next");
    let lost = common::soon(SHORT, held.lost().cancelled()).await;
    lost.expect("told");
    next.unwrap().unwrap().unlock().await.unwrap();
}

/// Returns two lockers and a name for an election, where there are elections. Elsewhere every call
/// is refused, with the reason.
async fn election(on: &Deployment, lease: Duration) -> Option<([Locker; 2], String)> {
    // An election is a lock of Redisson's, whatever other kinds its locker has.
    if !on.chosen.prefix.is_empty() {
        return None;
    }
    let (lockers, key) = (on.lockers(lease).await, key());
    if lockers[0].settings().format() != Format::Plain {
        return Some((lockers, key));
    }
    let election = lockers[0].election(&*key);
    let refusals = [
        election.campaign("a").await.err(),
        election.try_campaign("a").await.err(),
        election.run("a", |_| async {}).await.err(),
        election.leader().await.err(),
        election.observe().await.err(),
    ];
    for error in refusals {
        let error = error.expect("refused");
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        assert!(error.to_string().contains("Format::Plain"), "{error}");
    }
    None
}

/// Waits until an observer sees a leader with this value, or none.
async fn sees(observer: &mut Observer, value: Option<&str>) {
    let changes = async {
        while observer
            .changed()
            .await
            .unwrap()
            .as_ref()
            .map(|leader| leader.value())
            != value.map(Some)
        {}
    };
    // Without messages it would look in ten seconds.
    let seen = common::soon(ms(5_000), changes).await;
    seen.unwrap_or_else(|| panic!("it does not see {value:?}"));
}

pub async fn a_leader_leads_alone_and_observers_see_it(on: Deployment) {
    let Some(([one, two], key)) = election(&on, LONG).await else {
        return;
    };
    let [here, there] = [&one, &two].map(|locks| locks.election(&*key));
    let mut observer = there.observe().await.unwrap();
    assert_eq!(observer.changed().await.unwrap(), None);
    let leadership = here.campaign("first").await.unwrap();
    for candidate in [&here, &there] {
        assert!(candidate.try_campaign("other").await.unwrap().is_none());
    }
    sees(&mut observer, Some("first")).await;
    leadership.proclaim("again").await.unwrap();
    sees(&mut observer, Some("again")).await;
    let leader = here.leader().await.unwrap().expect("it leads");
    assert_eq!(
        (leader.term(), leader.value()),
        (Some(leadership.term()), Some("again"))
    );
    assert!(leader.owner().starts_with(one.id()), "{leader:?}");
    let term = leadership.term();
    let waiting = tokio::spawn(async move { there.campaign("second").await });
    eventually(ms(5_000), "it waits", || two.stats().waiters == 1).await;
    sleep(ms(100)).await;
    leadership.resign().await.unwrap();
    let next = common::soon(ms(1_000), waiting).await.expect("at once");
    let next = next.unwrap().unwrap();
    assert!(next.term() > term);
    sees(&mut observer, Some("second")).await;
    next.resign().await.unwrap();
    sees(&mut observer, None).await;
    assert_eq!(here.leader().await.unwrap(), None);
    on.is_free_everywhere(&key).await;
}

pub async fn a_leader_outlives_its_lease_and_leads_again_after_a_loss(on: Deployment) {
    let Some(([one, two], key)) = election(&on, SHORT).await else {
        return;
    };
    let mut observer = two.election(&*key).observe().await.unwrap();
    let terms = Arc::new(std::sync::Mutex::new(Vec::new()));
    let leads = {
        let (election, terms) = (one.election(&*key), Arc::clone(&terms));
        tokio::spawn(async move {
            let lead = |term: lockhound::Section| {
                terms.lock().unwrap().push(term.fence());
                let is_first = terms.lock().unwrap().len() == 1;
                async move {
                    if is_first {
                        std::future::pending::<()>().await;
                    }
                }
            };
            election.run("a", lead).await
        })
    };
    sees(&mut observer, Some("a")).await;
    sleep(SHORT * 3 / 2).await;
    let leader = two.election(&*key).leader().await.unwrap();
    let leader = leader.expect("it leads");
    assert_eq!(leader.term(), terms.lock().unwrap().first().copied());
    on.up().for_each(|server| server.delete(&key));
    let done = common::soon(SHORT * 3, leads).await.expect("it is told");
    done.unwrap().unwrap();
    let terms = terms.lock().unwrap().clone();
    assert!(terms.len() == 2 && terms.is_sorted(), "{terms:?}");
    sees(&mut observer, None).await;
}

/// Returns two lockers and a name for a latch, where there are any. Elsewhere every call is
/// refused, with the reason.
async fn latch(on: &Deployment, lease: Duration) -> Option<([Locker; 2], String)> {
    let (lockers, key) = (on.lockers(lease).await, key());
    let Some(reason) = why_refused(on, &lockers[0]) else {
        return Some((lockers, key));
    };
    let latch = lockers[0].latch(&*key);
    let refusals = [
        latch.try_set(1).await.err(),
        latch.count_down().await.err(),
        latch.count().await.err(),
        latch.wait().await.err(),
    ];
    assert_refused(refusals, reason);
    None
}

pub async fn a_latch_opens_with_its_last_count_for_those_that_wait(on: Deployment) {
    let Some(([one, two], key)) = latch(&on, LONG).await else {
        return;
    };
    for name in [key.clone(), format!("{{{key}}}:done")] {
        let [here, there] = [&one, &two].map(|locks| locks.latch(&*name));
        for _ in 0..2 {
            assert!(here.try_set(2).await.unwrap());
            assert!(!there.try_set(3).await.unwrap());
            let waits = there.clone();
            let waiting = tokio::spawn(async move { waits.wait().await });
            eventually(ms(5_000), "it waits", || two.stats().latch_waiters == 1).await;
            assert_eq!(there.count_down().await.unwrap(), 1);
            assert!(!there.wait_for(ms(100)).await.unwrap());
            assert_eq!(here.count_down().await.unwrap(), 0);
            // Without messages it would look in ten seconds.
            let opened = common::soon(ms(5_000), waiting).await;
            opened.expect("it opens").unwrap().unwrap();
            assert_eq!(there.count_down().await.unwrap(), 0);
        }
    }
}

/// Passes the list of behaviours to a macro, behind other words.
macro_rules! with_every_behaviour {
    ($macro:ident! $($before:tt)*) => {
        $macro! {
            $($before)*
            a_lock_excludes_other_owners_and_other_lockers
            a_bounded_wait_ends_in_time
            its_owner_enters_again_and_leaves_as_often
            an_owner_is_the_same_in_every_task
            a_waiter_is_woken_by_the_release
            fences_grow
            the_watchdog_renews_beyond_the_lease
            a_deletion_is_told_at_the_next_renewal
            a_forced_unlock_is_told_and_lets_others_in
            everybody_sees_who_holds_it
            a_fixed_lease_runs_out
            a_hold_ends_with_its_longest_time
            a_lock_stays_for_its_shortest_time_and_then_a_waiter_has_it
            closing_ends_waiters_and_tells_holders
            a_section_runs_with_the_lock_and_ends_with_its_loss
            a_detached_hold_is_no_longer_its_task_s
            a_dropped_guard_releases
            readers_are_inside_together_and_a_writer_alone
            readers_and_writers_are_woken_by_releases
            readers_and_writers_outlive_their_lease_and_learn_of_a_loss
            a_leader_leads_alone_and_observers_see_it
            a_leader_outlives_its_lease_and_leads_again_after_a_loss
            fair_callers_are_served_in_the_order_in_which_they_came
            a_fair_lock_is_passed_on_by_those_that_give_up_or_lose_it
            no_more_permits_are_taken_than_there_are
            permits_outlive_their_lease_and_are_told_of_a_loss
            a_latch_opens_with_its_last_count_for_those_that_wait
        }
    };
}
pub(crate) use with_every_behaviour;

/// A test for each behaviour, on a deployment of its own.
macro_rules! on_each {
    ($deployment:expr; $($behaviour:ident)*) => {
        $(#[tokio::test]
        async fn $behaviour() {
            $crate::behaviours::$behaviour($deployment).await;
        })*
    };
}
pub(crate) use on_each;
