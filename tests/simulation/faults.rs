//! What goes wrong: in the network and in the servers' answers, wherever and whenever. A server
//! forgets, or its address leads elsewhere, only where it is one of the act's victims: fewer than
//! half of all, as it is promised.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockhound::testing::{Server, Snapshot};
use tokio::time::{sleep, timeout};

use crate::plan::{Plan, one_in, up_to};
use crate::stories::forget_a_vote;
use crate::world::World;

/// The servers, and how they are reached.
pub struct Net {
    pub servers: Vec<Server>,
    /// By locker and server.
    pub routes: Vec<Vec<Server>>,
    /// How long answers take at most while nothing is wrong.
    usual: Duration,
    /// Whether a server has restarted with a snapshot: locks that were released since are on it
    /// until they run out.
    restored: AtomicBool,
}

impl Net {
    pub fn new(plan: &Plan) -> Arc<Self> {
        let servers: Vec<Server> = (0..plan.servers).map(|_| Server::new()).collect();
        let routes = (0..plan.lockers)
            .map(|_| servers.iter().map(Server::route).collect())
            .collect();
        Arc::new(Self {
            servers,
            routes,
            usual: plan.usual,
            restored: AtomicBool::new(false),
        })
    }

    /// The clocks of servers are wrong, each by something else, for an act: none jumps while locks
    /// stand.
    pub fn set_clocks(&self, world: &World) {
        for (at, server) in self.servers.iter().enumerate() {
            let offset = if fastrand::bool() {
                fastrand::i64(-600_000..600_000)
            } else {
                0
            };
            world.note(format_args!(
                "the clock of server {at} is {offset} ms ahead"
            ));
            server.set_clock_offset(offset);
        }
    }

    /// A server's answers take as long as they usually do.
    pub fn calm(&self, at: usize) {
        self.servers[at].delay(Duration::ZERO..=self.usual);
    }

    /// A locker is cut off from some of the servers, or comes to them again.
    pub fn set_cut(&self, locker: usize, servers: &[usize], is_cut: bool) {
        for &at in servers {
            let route = &self.routes[locker][at];
            if is_cut {
                route.disconnect();
            } else {
                route.reconnect();
            }
        }
    }

    fn restore(&self, at: usize, snapshot: &Snapshot) {
        self.servers[at].restore(snapshot);
        self.restored.store(true, Ordering::Relaxed);
    }

    /// Returns whether a server has restarted with a snapshot since the last call.
    pub fn takes_restored(&self) -> bool {
        self.restored.swap(false, Ordering::Relaxed)
    }

    /// All faults end.
    pub fn heal(&self) {
        for (at, server) in self.servers.iter().enumerate() {
            server.resume();
            server.lose_replies(0);
            server.delay(Duration::ZERO..=Duration::ZERO);
            for routes in &self.routes {
                routes[at].reconnect();
            }
        }
    }
}

/// The servers that may forget in an act, or be reached under a wrong address.
pub fn victims(plan: &Plan) -> Arc<[usize]> {
    let mut all: Vec<usize> = (0..plan.servers).collect();
    fastrand::shuffle(&mut all);
    all.truncate(if plan.servers == 1 {
        1
    } else {
        fastrand::usize(0..=(plan.servers - 1) / 2)
    });
    all.into()
}

/// One fault of the network or of the answers after the other.
pub async fn trouble(world: Arc<World>, net: Arc<Net>, plan: Plan, victims: Arc<[usize]>) {
    for _ in 0..plan.faults {
        sleep(up_to(plan.lease * if one_in(3) { 3 } else { 1 })).await;
        match fastrand::choice(&*victims) {
            Some(&victim) if plan.mislead && one_in(2) => {
                mislead(&world, &net, &plan, victim).await;
            }
            _ if one_in(4) => part(&world, &net, &plan).await,
            _ => one_trouble(&world, &net, &plan).await,
        }
    }
}

async fn one_trouble(world: &World, net: &Net, plan: &Plan) {
    let (at, locker) = (
        fastrand::usize(..plan.servers),
        fastrand::usize(..plan.lockers),
    );
    let (server, route) = (&net.servers[at], &net.routes[locker][at]);
    // Often just long enough for a server to be found silent.
    let lasts = if one_in(2) {
        plan.command_timeout.mul_f64(1.0 + fastrand::f64())
    } else {
        up_to(plan.longest_silence())
    };
    match fastrand::u8(0..8) {
        0 => {
            world.note(format_args!("server {at} stops"));
            server.stop();
            sleep(lasts).await;
            world.note(format_args!("server {at} goes on"));
            server.resume();
        }
        1 => {
            let lost = fastrand::u32(1..4);
            world.note(format_args!("server {at} loses {lost} answers"));
            server.lose_replies(lost);
        }
        2 => {
            // Where answers take long, the copy comes in the place of one that says something else.
            let (twice, most) = (fastrand::u8(1..9), up_to(plan.command_timeout.mul_f64(0.5)));
            world.note(format_args!(
                "server {at} answers within {most:?}, and gives {twice} answers twice"
            ));
            server.delay(most / 2..=most);
            for _ in 0..twice {
                server.duplicate_reply();
                sleep(up_to(plan.lease / 4)).await;
            }
            world.note(format_args!("server {at} answers as usual"));
            net.calm(at);
        }
        3 | 4 => {
            // Some come too late.
            let most = up_to(plan.command_timeout.mul_f64(1.2));
            world.note(format_args!("server {at} answers within {most:?}"));
            server.delay(Duration::ZERO..=most);
            sleep(lasts * 2).await;
            world.note(format_args!("server {at} answers as usual"));
            net.calm(at);
        }
        _ => {
            world.note(format_args!("locker {locker} is cut off from server {at}"));
            route.disconnect();
            sleep(lasts).await;
            world.note(format_args!("locker {locker} comes to server {at} again"));
            route.reconnect();
        }
    }
}

/// The address of a server leads a locker to another one of them for a while.
async fn mislead(world: &World, net: &Net, plan: &Plan, at: usize) {
    let locker = fastrand::usize(..plan.lockers);
    let there = (at + fastrand::usize(1..plan.servers)) % plan.servers;
    world.note(format_args!(
        "locker {locker} comes to server {there} in the place of {at}"
    ));
    lead_to(world, net, plan, (locker, at), there).await;
}

/// Some servers, fewer than half, answer almost too late. When somebody has come in, its locker is
/// cut off from them, and from as many others as make a majority with them: what it was told last
/// was true for longer than it is.
async fn part(world: &World, net: &Net, plan: &Plan) {
    let locker = fastrand::usize(..plan.lockers);
    let mut far: Vec<usize> = (0..plan.servers).collect();
    fastrand::shuffle(&mut far);
    far.truncate(plan.servers / 2 + 1);
    let late = plan.command_timeout.mul_f64(0.6 + 0.35 * fastrand::f64());
    let slow = far[..plan.servers.div_ceil(2).saturating_sub(1).max(1)].to_vec();
    world.note(format_args!("servers {slow:?} answer after {late:?}"));
    slow.iter()
        .for_each(|&at| net.servers[at].delay(late..=late));
    let _: Result<_, _> = timeout(plan.lease * 2, world.next_entry(locker)).await;
    sleep(
        late + up_to(if fastrand::bool() {
            plan.lease / 4
        } else {
            plan.lease * 2
        }),
    )
    .await;
    world.note(format_args!("locker {locker} is cut off from {far:?}"));
    net.set_cut(locker, &far, true);
    slow.iter().for_each(|&at| net.calm(at));
    sleep(plan.lease + up_to(plan.lease)).await;
    world.note(format_args!("locker {locker} comes to {far:?} again"));
    net.set_cut(locker, &far, false);
}

/// An address leads elsewhere. Meanwhile its locker may be cut off from fewer than half, so that
/// what is left is one server, twice; and others from those that it reaches, so that nobody sees
/// all that there is.
async fn lead_to(
    world: &World,
    net: &Net,
    plan: &Plan,
    (locker, at): (usize, usize),
    there: usize,
) {
    let mut others: Vec<usize> = (0..plan.servers)
        .filter(|&other| other != at && other != there)
        .collect();
    fastrand::shuffle(&mut others);
    let (far, near) = others.split_at(((plan.servers - 1) / 2).min(others.len()));
    let far = if fastrand::bool() { far } else { &[] };
    let (apart, strangers) = (
        fastrand::bool(),
        (0..plan.lockers).filter(|&other| other != locker),
    );
    net.routes[locker][at].redirect_to(&net.servers[there]);
    match fastrand::u8(0..4) {
        0 | 1 => {}
        2 => sleep(up_to(plan.lease / 2)).await,
        _ => sleep(up_to(plan.lease * 3)).await,
    }
    world.note(format_args!("locker {locker} is cut off from {far:?}"));
    net.set_cut(locker, far, true);
    if apart {
        world.note(format_args!("the other lockers are cut off from {near:?}"));
        strangers
            .clone()
            .for_each(|other| net.set_cut(other, near, true));
    }
    sleep(plan.lease / 2 + up_to(plan.lease * 2)).await;
    world.note(format_args!("locker {locker} comes to {far:?} again"));
    net.set_cut(locker, far, false);
    sleep(up_to(plan.lease)).await;
    world.note("all lockers come to all servers again");
    net.routes[locker][at].redirect_to(&net.servers[at]);
    if apart {
        strangers.for_each(|other| net.set_cut(other, near, false));
    }
}

/// Makes servers forget something: what the others remember has to do.
pub async fn oblivion(
    world: Arc<World>,
    net: Arc<Net>,
    plan: Plan,
    keys: Arc<[String]>,
    victims: Arc<[usize]>,
) {
    for _ in 0..plan.faults {
        sleep(up_to(plan.lease * 3)).await;
        let Some(&at) = fastrand::choice(&*victims) else {
            return;
        };
        if plan.remember && plan.servers > 1 && one_in(4) {
            forget_a_vote(&world, &net, &plan, &keys, at).await;
        } else if plan.remember && one_in(2) {
            forget(&world, &net, &plan, at).await;
        } else if plan.delete {
            let key = &keys[fastrand::usize(..keys.len())];
            let was_held = net.servers[at].holder(key).is_some();
            net.servers[at].delete(key);
            world.deleted(key, was_held && plan.servers == 1);
            world.note(format_args!("server {at}: {key} is deleted"));
        }
    }
}

/// A server loses its data, or what it has written since a snapshot.
async fn forget(world: &World, net: &Net, plan: &Plan, at: usize) {
    match fastrand::u8(0..4) {
        0 => {
            let snapshot = net.servers[at].snapshot();
            sleep(up_to(plan.lease * 2)).await;
            world.note(format_args!("server {at} starts with its last snapshot"));
            net.restore(at, &snapshot);
        }
        1 => {
            world.note(format_args!("server {at} is flushed"));
            net.servers[at].flush();
        }
        _ => {
            world.note(format_args!("server {at} starts anew"));
            net.servers[at].restart();
        }
    }
}
