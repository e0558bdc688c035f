//! Faults that come together in an order: what one of them breaks is tried while it is broken.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::faults::Net;
use crate::plan::{Plan, up_to};
use crate::worker::Worker;
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
        near.iter().for_each(|&near| net.servers[near].go_on());
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
    near.iter().for_each(|&at| net.servers[at].go_on());
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
