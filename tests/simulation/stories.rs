//! Faults that come together in an order: what one of them breaks is tried while it is broken.
//! Some come about in any program. Those of [`Story`] have servers and lockers of their own, since
//! whole programs seldom meet their order: one is told after each program.

use std::time::Duration;

use lockhound::{Error, Guard, Lock, Owner};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::Program;
use crate::common::ms;
use crate::crowd;
use crate::faults::Net;
use crate::plan::{Plan, up_to};
use crate::worker::{Name, Worker};
use crate::world::World;

/// How many leases after one server forgot the others answer again: after two of them it votes
/// without having asked them.
const LONGEST_SILENCE: f64 = 1.9;

/// A server forgets its vote while the fence is agreed upon. A locker reaches only that server for
/// a while, whose mark counts ahead. It comes to so many of the others that a majority grants a
/// lock, and is cut off from them at once: so they have granted it, and their marks are raised
/// later, when the first has already begun to wait for its next vote. Then they stop, so that the
/// next majority is made without them.
pub async fn forget_a_vote(world: &World, net: &Net, plan: &Plan, keys: &[String], at: usize) {
    let locker = fastrand::usize(..plan.lockers);
    let mut others: Vec<usize> = (0..plan.servers).filter(|&other| other != at).collect();
    fastrand::shuffle(&mut others);
    let near = &others[..plan.servers / 2];
    let late = plan.command_timeout.mul_f64(0.2 + 0.3 * fastrand::f64());
    world.note(format_args!("locker {locker} comes to no server but {at}"));
    net.set_cut(locker, &others, true);
    sleep(plan.command_timeout + up_to(plan.lease)).await;
    world.note(format_args!(
        "servers {near:?} answer after {late:?}, and locker {locker} comes to them again"
    ));
    near.iter()
        .for_each(|&near| net.servers[near].delay(late..=late));
    net.set_cut(locker, near, false);
    if timeout(
        plan.command_timeout * 4,
        all_grant(net, keys, &[near, &[at]].concat(), late / 4),
    )
    .await
    .is_ok()
    {
        world.note(format_args!(
            "locker {locker} is cut off from {near:?}, and server {at} starts anew"
        ));
        net.set_cut(locker, near, true);
        net.servers[at].restart();
        let over = Instant::now() + plan.lease.mul_f64(LONGEST_SILENCE);
        sleep(late + plan.command_timeout.mul_f64(0.2 + 0.5 * fastrand::f64())).await;
        world.note(format_args!(
            "locker {locker} comes to {near:?} again, which stop"
        ));
        net.set_cut(locker, near, false);
        near.iter().for_each(|&near| net.servers[near].stop());
        sleep_until(over - up_to(plan.lease / 2)).await;
        world.note(format_args!("servers {near:?} go on"));
        near.iter().for_each(|&near| net.servers[near].resume());
    }
    world.note(format_args!("locker {locker} comes to all servers again"));
    net.set_cut(locker, &others, false);
    near.iter().for_each(|&near| net.calm(near));
}

/// A change of a server's memory comes late, when the server has forgotten again. Two lockers know
/// that its wait is over. One is cut off from it for moments, so that its change comes late. As
/// soon as the other has let the server vote, it is cut off from so many others that what it takes
/// then is on no more than a majority, and takes a lock. At once the server is flushed, the late
/// change comes, and the first locker wants that lock.
pub async fn change_too_late(world: &World, net: &Net, plan: &Plan, [late, other]: [Worker; 2]) {
    let key = fastrand::usize(..plan.keys);
    let mut others: Vec<usize> = (0..plan.servers).collect();
    fastrand::shuffle(&mut others);
    let at = others.pop().unwrap();
    let far = &others[plan.servers / 2..];
    let moment = plan.command_timeout / 10;
    world.note(format_args!("server {at} is flushed"));
    net.servers[at].flush();
    drop(late.ask().await);
    drop(other.ask().await);
    sleep(plan.lease).await;
    let (waits_no_longer, mut votes) = (Instant::now() + plan.lease, false);
    while !votes && Instant::now() < waits_no_longer {
        net.set_cut(late.at, &[at], false);
        sleep(moment / 2).await;
        net.set_cut(late.at, &[at], true);
        for _ in 0..5 {
            sleep(moment).await;
            let asked = other.ask().await;
            votes =
                asked.is_some_and(|guard| net.servers[at].holder(guard.key().as_str()).is_some());
            if votes {
                break;
            }
        }
    }
    world.note(format_args!(
        "locker {} is cut off from server {at}, and {} from {far:?}",
        late.at, other.at
    ));
    net.set_cut(other.at, far, true);
    let inside = tokio::spawn(async move { other.come(key).await });
    sleep(moment / 2).await;
    world.note(format_args!("server {at} is flushed again"));
    net.servers[at].flush();
    sleep(up_to(moment * 4)).await;
    world.note(format_args!(
        "locker {} comes to server {at} again",
        late.at
    ));
    net.set_cut(late.at, &[at], false);
    let next = tokio::spawn(async move { late.come(key).await });
    sleep(up_to(plan.lease)).await;
    world.note("all lockers come to all servers again");
    (0..plan.lockers).for_each(|locker| net.set_cut(locker, far, false));
    inside.await.unwrap();
    next.await.unwrap();
}

/// A server grants a lock and restarts before the others that make a majority with it are heard:
/// the fence that they are given then is one that it has forgotten. Later they stop, and another
/// locker asks those that are left.
pub async fn forget_a_grant(world: &World, net: &Net, plan: &Plan, [first, next]: [Worker; 2]) {
    let (locker, key) = (first.at, fastrand::usize(..plan.keys));
    let mut others: Vec<usize> = (0..plan.servers).collect();
    fastrand::shuffle(&mut others);
    let at = others.pop().unwrap();
    let (near, far) = others.split_at(plan.servers / 2);
    let late = plan.command_timeout.mul_f64(0.5 + 0.4 * fastrand::f64());
    world.note(format_args!(
        "locker {locker} is cut off from {far:?}, and {near:?} answer after {late:?}"
    ));
    net.set_cut(locker, far, true);
    near.iter()
        .for_each(|&at| net.servers[at].delay(late..=late));
    let first = tokio::spawn(async move { first.come(key).await });
    sleep(up_to(plan.command_timeout.mul_f64(0.3))).await;
    world.note(format_args!(
        "server {at} starts anew, and {near:?} answer at once"
    ));
    near.iter()
        .for_each(|&at| net.servers[at].delay(Duration::ZERO..=Duration::ZERO));
    net.servers[at].restart();
    let over = Instant::now() + plan.lease.mul_f64(LONGEST_SILENCE);
    sleep(plan.command_timeout + up_to(plan.command_timeout)).await;
    world.note(format_args!("servers {near:?} stop"));
    near.iter().for_each(|&at| net.servers[at].stop());
    sleep_until(over - plan.lease.mul_f64(0.5 + 0.35 * fastrand::f64())).await;
    let next = tokio::spawn(async move { next.come(key).await });
    sleep_until(over).await;
    world.note(format_args!(
        "servers {near:?} go on, and locker {locker} comes to {far:?} again"
    ));
    near.iter().for_each(|&at| net.servers[at].resume());
    net.set_cut(locker, far, false);
    first.await.unwrap();
    next.await.unwrap();
}

/// Waits until all of these servers, which are checked this often, have granted a lock to one
/// holder.
async fn all_grant(net: &Net, keys: &[String], servers: &[usize], pause: Duration) {
    let is_granted = |key: &String| {
        let holder = |&at: &usize| net.servers[at].holder(key);
        holder(&servers[0])
            .is_some_and(|first| servers.iter().all(|at| holder(at).as_ref() == Some(&first)))
    };
    while !keys.iter().any(is_granted) {
        sleep(pause).await;
    }
}

/// A story of its own: nothing goes wrong but what it tells.
#[derive(Debug, Clone, Copy)]
pub enum Story {
    GrantedToNobody,
    RetakenForNobody,
    GoneFromTheList,
    FirstIsCutOff,
    ForcedWhileRenewed,
    AnsweredTwice,
    ReadersAcrossACut,
    WriteLostAroundARead,
    NextIsCutOff,
}

impl Story {
    pub fn any() -> Self {
        match fastrand::u8(0..9) {
            0 => Self::GrantedToNobody,
            1 => Self::RetakenForNobody,
            2 => Self::GoneFromTheList,
            3 => Self::FirstIsCutOff,
            4 => Self::ForcedWhileRenewed,
            5 => Self::AnsweredTwice,
            6 => Self::ReadersAcrossACut,
            7 => Self::WriteLostAroundARead,
            _ => Self::NextIsCutOff,
        }
    }

    pub fn plan(self) -> Plan {
        let (servers, lockers) = match self {
            Self::GrantedToNobody => (3, 2),
            Self::RetakenForNobody | Self::ForcedWhileRenewed => (3, 1),
            Self::GoneFromTheList | Self::FirstIsCutOff => (1, 4),
            Self::AnsweredTwice | Self::WriteLostAroundARead => (1, 2),
            Self::ReadersAcrossACut | Self::NextIsCutOff => (1, 3),
        };
        Plan {
            servers,
            lockers,
            keys: 2,
            read_write: match self {
                Self::ReadersAcrossACut | Self::WriteLostAroundARead => 1,
                _ => 0,
            },
            usual: Duration::ZERO,
            ..crowd::plan()
        }
    }

    /// Lets it happen.
    pub async fn happen(self, program: &Program) {
        match self {
            Self::GrantedToNobody => granted_to_nobody(program).await,
            Self::RetakenForNobody => retaken_for_nobody(program).await,
            Self::GoneFromTheList => gone_from_the_list(program).await,
            Self::FirstIsCutOff => first_is_cut_off(program).await,
            Self::ForcedWhileRenewed => forced_while_renewed(program).await,
            Self::AnsweredTwice => answered_twice(program).await,
            Self::ReadersAcrossACut => readers_across_a_cut(program).await,
            Self::WriteLostAroundARead => write_lost_around_a_read(program).await,
            Self::NextIsCutOff => next_is_cut_off(program).await,
        }
    }
}

/// Returns a handle of a new owner for this lock, by this locker.
fn lock_of(program: &Program, locker: usize, key: usize) -> Lock {
    program.lockers[locker]
        .get(&*program.keys[key])
        .owned_by(Owner::new())
}

/// Returns all of so many in a random order.
fn shuffled(count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    fastrand::shuffle(&mut all);
    all
}

/// Waits until this locker has sent a renewal.
async fn renewal(program: &Program, locker: usize) {
    let sent = || program.lockers[locker].stats().renewal_batches.count;
    let (before, began) = (sent(), Instant::now());
    while sent() == before {
        assert!(began.elapsed() < program.plan.lease, "nothing is renewed");
        sleep(program.plan.lease / 1_000).await;
    }
}

/// A locker asks for a lock while one server is silent, and holds back what it would send there.
/// The others say that the lock is held, so the attempt has failed by then. The lock is released,
/// the server goes on, and only now it is asked: what it grants is for nobody, and is undone.
async fn granted_to_nobody(program: &Program) {
    let Program {
        world, net, plan, ..
    } = program;
    let (at, moment) = (fastrand::usize(..plan.servers), plan.command_timeout / 5);
    let lockers = shuffled(plan.lockers);
    let guard = lock_of(program, lockers[0], 0).lock().await.unwrap();
    world.note(format_args!("server {at} stops"));
    net.servers[at].stop();
    drop(lock_of(program, lockers[1], 1).lock().await.unwrap());
    sleep(plan.command_timeout + ms(1) + up_to(plan.command_timeout)).await;
    world.note(format_args!("locker {} asks for a held lock", lockers[1]));
    let refused = lock_of(program, lockers[1], 0).try_lock().await.unwrap();
    assert!(refused.is_none(), "{refused:?} is held");
    sleep(up_to(moment)).await;
    guard.unlock().await.unwrap();
    sleep(up_to(moment)).await;
    world.note(format_args!("it is released, and server {at} goes on"));
    net.servers[at].resume();
}

/// A lock is deleted on one server, and a renewal finds that. The server stops before it is asked
/// to grant the lock again, and executes that when it goes on. By then the hold is lost, and its
/// guard is gone: what the server has granted is undone.
async fn retaken_for_nobody(program: &Program) {
    let Program {
        world,
        net,
        plan,
        keys,
        ..
    } = program;
    let at = fastrand::usize(..plan.servers);
    // Between the first renewal and the second one.
    let most = plan.lease.mul_f64(0.4 + 0.2 * fastrand::f64());
    let lock = lock_of(program, 0, 0).max_hold(most);
    let guard = lock.lock().await.unwrap();
    let late = plan.command_timeout.mul_f64(0.2 + 0.6 * fastrand::f64());
    world.note(format_args!(
        "{} is deleted on server {at}, which answers after {late:?}",
        keys[0]
    ));
    net.servers[at].delete(&keys[0]);
    net.servers[at].delay(late..=late);
    renewal(program, 0).await;
    world.note(format_args!("it is renewed, and server {at} stops"));
    net.servers[at].stop();
    let lost = timeout(plan.lease, guard.lost().cancelled_owned());
    lost.await.expect("its time is over");
    sleep(up_to(plan.command_timeout)).await;
    drop(guard);
    sleep(up_to(plan.command_timeout)).await;
    world.note(format_args!("it is lost, and server {at} goes on"));
    net.servers[at].resume();
    net.calm(at);
}

/// A caller that waits for a lock.
struct Waits {
    locker: usize,
    task: JoinHandle<Result<Guard, Error>>,
}

/// Returns the guard of a lock for which callers of three other lockers wait, in this order.
async fn wait_in_turn(program: &Program) -> (Guard, [Waits; 3]) {
    let lockers = shuffled(program.plan.lockers);
    let guard = lock_of(program, lockers[0], 0).lock().await.unwrap();
    let mut waits = Vec::new();
    for &locker in &lockers[1..] {
        let lock = lock_of(program, locker, 0);
        let task = tokio::spawn(async move { lock.lock().await });
        waits.push(Waits { locker, task });
        // It is in the list then.
        sleep(ms(5) + up_to(ms(10))).await;
    }
    let lockers = &lockers[1..];
    program
        .world
        .note(format_args!("lockers {lockers:?} wait in this order"));
    (guard, waits.try_into().ok().unwrap())
}

/// Asserts that a caller gets a lock that is free now without waiting for its re-check, and gives
/// it back.
async fn gets_it_soon(program: &Program, Waits { locker, task }: Waits) {
    let soon = crowd::waking(&program.plan);
    let guard = timeout(soon, task).await;
    let guard = guard.unwrap_or_else(|_| panic!("locker {locker} waits for a lock that is free"));
    program.world.note(format_args!("locker {locker} gets it"));
    guard.unwrap().unwrap().unlock().await.unwrap();
}

/// Callers of three lockers wait for a lock, and those of the first two give up: the locker that
/// would be woken, and the one that would watch it. The release wakes the third.
async fn gone_from_the_list(program: &Program) {
    let (guard, [first, second, third]) = wait_in_turn(program).await;
    let mut leave = [first, second];
    fastrand::shuffle(&mut leave);
    for waits in leave {
        program.world.note(format_args!(
            "the caller of locker {} gives up",
            waits.locker
        ));
        waits.task.abort();
        sleep(up_to(ms(10))).await;
    }
    guard.unlock().await.unwrap();
    gets_it_soon(program, third).await;
}

/// Callers of three lockers wait for a lock, and the first locker is cut off. A `force_unlock`
/// wakes no locker by name, but notifies all: the second does not leave the lock to the first for
/// long.
async fn first_is_cut_off(program: &Program) {
    let Program {
        world,
        net,
        keys,
        lockers,
        ..
    } = program;
    let (guard, [first, second, third]) = wait_in_turn(program).await;
    world.note("the first is cut off, and the lock is forced");
    net.set_cut(first.locker, &[0], true);
    sleep(up_to(ms(10))).await;
    let forced = lockers[third.locker].get(&*keys[0]).force_unlock().await;
    assert!(forced.unwrap(), "it was held");
    gets_it_soon(program, second).await;
    gets_it_soon(program, third).await;
    net.set_cut(first.locker, &[0], false);
    drop(guard);
    // It may have found the server silent.
    drop(first.task.await.unwrap());
}

/// A lock is forced right after a renewal, to which one server answers slowly. That answer comes
/// when the hold is lost, and does not bring it back.
async fn forced_while_renewed(program: &Program) {
    let Program {
        world,
        net,
        plan,
        keys,
        lockers,
        ..
    } = program;
    let at = fastrand::usize(..plan.servers);
    let guard = lock_of(program, 0, 0).lock().await.unwrap();
    let late = plan.command_timeout.mul_f64(0.3 + 0.6 * fastrand::f64());
    world.note(format_args!("server {at} answers after {late:?}"));
    net.servers[at].delay(late..=late);
    renewal(program, 0).await;
    world.note("it is renewed, and forced");
    _ = lockers[0].get(&*keys[0]).force_unlock().await.unwrap();
    for _ in 0..4 {
        let is_lost = guard.check().is_err() && guard.lost().is_cancelled();
        assert!(is_lost, "{guard:?} is held again, which was lost");
        sleep(plan.command_timeout / 3).await;
    }
    net.calm(at);
}

/// A locker asks for a free lock, and then for one that is held elsewhere. The grant of the first
/// is sent twice, and the copy comes in place of the answer about the second.
async fn answered_twice(program: &Program) {
    let Program { world, net, .. } = program;
    let lockers = shuffled(2);
    let guard = lock_of(program, lockers[0], 1).lock().await.unwrap();
    let late = ms(5) + up_to(ms(50));
    world.note(format_args!(
        "answers take {late:?}, and the next one comes twice"
    ));
    net.servers[0].delay(late..=late);
    net.servers[0].duplicate_reply();
    let lock = lock_of(program, lockers[1], 0);
    let free = tokio::spawn(async move { lock.try_lock().await });
    sleep(ms(1) + up_to(late / 2)).await;
    let held = lock_of(program, lockers[1], 1).try_lock().await;
    assert!(
        !matches!(held, Ok(Some(_))),
        "{held:?} beside {guard:?}: it was given the answer to another command"
    );
    drop(free.await.unwrap());
    net.calm(0);
}

/// Owners of three lockers read and write one lock, and ask for it again and again. Meanwhile a
/// locker is cut off from the server, or the server stops, for up to two leases.
async fn readers_across_a_cut(program: &Program) {
    let Program {
        world, net, plan, ..
    } = program;
    let mut tasks = JoinSet::new();
    for task in 0..plan.lockers * 2 {
        let at = task % plan.lockers;
        let worker = program.worker(at, format!("{at}.{task} reads"), Name::Owner(Owner::new()));
        tasks.spawn(async move {
            for _ in 0..3 {
                sleep(up_to(ms(500))).await;
                worker.read_or_write().await;
            }
        });
    }
    sleep(up_to(plan.lease)).await;
    let (locker, lasts) = (fastrand::usize(..plan.lockers), up_to(plan.lease * 2));
    if fastrand::bool() {
        world.note(format_args!("locker {locker} is cut off for {lasts:?}"));
        net.set_cut(locker, &[0], true);
        sleep(lasts).await;
        world.note(format_args!("locker {locker} comes to the server again"));
        net.set_cut(locker, &[0], false);
    } else {
        world.note(format_args!("the server stops for {lasts:?}"));
        net.servers[0].stop();
        sleep(lasts).await;
        world.note("the server goes on");
        net.servers[0].resume();
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

/// A caller of a fair lock is next, and its locker is cut off when the lock is released. The one
/// behind it passes it, and it comes back to the queue.
async fn next_is_cut_off(program: &Program) {
    let Program {
        world,
        net,
        plan,
        lockers,
        keys,
        ..
    } = program;
    let at = shuffled(plan.lockers);
    let lock_of = |at: usize| lockers[at].fair(&*keys[0]).owned_by(Owner::new());
    let held = lock_of(at[0]).lock().await.unwrap();
    let mut waiting = Vec::new();
    for &at in &at[1..] {
        let lock = lock_of(at);
        waiting.push(tokio::spawn(async move { lock.lock().await }));
        // It has its place before the next one comes.
        sleep(plan.command_timeout).await;
    }
    world.note(format_args!("locker {}, which is next, is cut off", at[1]));
    net.set_cut(at[1], &[0], true);
    sleep(up_to(plan.command_timeout)).await;
    held.unlock().await.unwrap();
    // A look that finds the lock free, and two more; each is answered in time.
    let bound = plan.lease / 2 + plan.command_timeout * 3;
    let behind = waiting.pop().expect("two wait");
    let guard = timeout(bound, behind).await.expect("it passes the other");
    let guard = guard.unwrap().unwrap();
    world.note(format_args!(
        "locker {} has passed it, which comes again",
        at[2]
    ));
    net.set_cut(at[1], &[0], false);
    sleep(up_to(plan.lease / 2)).await;
    guard.unlock().await.unwrap();
    let cut_off = waiting.pop().expect("one waits");
    let served = timeout(plan.lease * 2, cut_off)
        .await
        .expect("it is served");
    match served.unwrap() {
        Ok(guard) => guard.unlock().await.unwrap(),
        // It did not wait for so long.
        Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error:?}"),
    }
}

/// An owner reads inside its write, which is lost. Its guard stays, and the read lives on: a reader
/// of another locker comes in beside it, or a writer after it.
async fn write_lost_around_a_read(program: &Program) {
    let Program {
        world,
        net,
        plan,
        lockers,
        read_write,
        ..
    } = program;
    let at = shuffled(plan.lockers);
    let [rw, other] = [at[0], at[1]].map(|at| lockers[at].rw(&*read_write[0]));
    let (owner, most) = (Owner::new(), ms(100) + up_to(plan.lease / 2));
    let write = rw.write().owned_by(owner.clone()).max_hold(most);
    let write = write.lock().await.unwrap();
    let read = rw.read().owned_by(owner).lock().await.unwrap();
    world.note(format_args!("locker {} reads inside its write", at[0]));
    let reads = fastrand::bool();
    let comes = tokio::spawn(async move {
        if reads {
            other.read().owned_by(Owner::new()).lock().await.map(drop)
        } else {
            other.write().owned_by(Owner::new()).lock().await.map(drop)
        }
    });
    // Each command is answered in time.
    let most_late = plan.command_timeout / 2;
    if fastrand::bool() {
        sleep(most.saturating_sub(up_to(most_late))).await;
        world.note("the server stops");
        net.servers[0].stop();
    }
    let lost = timeout(plan.lease, write.lost().cancelled_owned());
    lost.await.expect("its time is over");
    sleep(up_to(most_late)).await;
    world.note("the write is lost, and the server goes on");
    net.servers[0].resume();
    if reads {
        comes_soon(program, comes).await;
        read.check().unwrap();
        read.unlock().await.unwrap();
    } else {
        sleep(up_to(plan.lease)).await;
        assert!(!comes.is_finished(), "it writes beside {read:?}");
        read.unlock().await.unwrap();
        comes_soon(program, comes).await;
    }
    drop(write);
}

/// Asserts that a caller gets what is free for it now without waiting for its re-check.
async fn comes_soon(program: &Program, comes: JoinHandle<Result<(), Error>>) {
    let came = timeout(crowd::waking(&program.plan), comes).await;
    came.expect("nothing keeps it out").unwrap().unwrap();
    program.world.note("it comes in");
}
