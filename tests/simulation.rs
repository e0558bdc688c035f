//! Whole programs under a seed, in virtual time, over servers in memory: tasks of several lockers take locks, enter
//! again, give up and let go, while servers stop, forget, lose answers and have wrong clocks. Whatever happens, nobody
//! believes in a lock beside another, fences grow, everybody returns, and nothing is left.
//!
//! A seed that fails is printed; `SIMULATION_SEED=7 cargo test --features testing --test simulation -- --nocapture`
//! runs it alone, and shows what happened. `./dev soak simulation` runs seeds for minutes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are for whoever runs it")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::history::{Call, History, Model, Op};
use common::ms;
use lockhound::testing::Server;
use lockhound::{CancellationToken, Error, Guard, Lock, Locker, LockerBuilder, Owner};
use tokio::time::{Instant, sleep, timeout};

/// How many seeds the suite runs.
const SEEDS: u64 = 200;
/// In virtual time: whoever has not returned by then never will.
const LONG: Duration = Duration::from_secs(24 * 3_600);

/// A random time up to this.
fn up_to(most: Duration) -> Duration {
    Duration::from_micros(fastrand::u64(0..=u64::try_from(most.as_micros()).unwrap()))
}

/// What a seed makes of everything.
#[derive(Debug, Clone, Copy)]
struct Plan {
    servers: usize,
    lockers: usize,
    /// Of each locker.
    tasks: usize,
    keys: usize,
    rounds: usize,
    faults: usize,
    lease: Duration,
    /// Whether servers have memories, so that one may forget.
    remember: bool,
}

impl Plan {
    fn of_seed() -> Self {
        Self {
            servers: [1, 3, 3, 5][fastrand::usize(..4)],
            lockers: fastrand::usize(1..=3),
            tasks: fastrand::usize(1..=3),
            keys: fastrand::usize(1..=2),
            rounds: fastrand::usize(5..=20),
            faults: fastrand::usize(0..=8),
            lease: ms(fastrand::u64(500..=10_000)),
            remember: fastrand::bool(),
        }
    }
}

/// Who is inside by their own belief, and what happened.
struct World {
    start: Instant,
    /// By lock and owner: the token of what it holds.
    inside: Mutex<BTreeMap<(String, String), CancellationToken>>,
    /// By lock: the highest fence.
    fences: Mutex<BTreeMap<String, u64>>,
    history: Mutex<History>,
    trace: Mutex<Vec<String>>,
    /// Whether everything is shown when it happens.
    aloud: bool,
}

impl World {
    /// In nanoseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    /// Notes what happened, and looks at who believes to be inside.
    fn note(&self, what: impl std::fmt::Display) {
        let line = format!("{:>12} us  {what}", self.start.elapsed().as_micros());
        if self.aloud {
            println!("{line}");
        }
        self.trace.lock().unwrap().push(line);
        let inside = self.inside.lock().unwrap();
        let mut believers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for ((key, who), _) in inside.iter().filter(|(_, token)| !token.is_cancelled()) {
            believers.entry(key).or_default().push(who);
        }
        for (key, who) in believers {
            assert!(who.len() == 1, "{who:?} believe in {key} at once");
        }
    }

    fn call(&self, key: &str, who: &str, op: Op, called: u64, returned: Option<u64>) {
        let call = Call { key: key.into(), who: who.into(), op, called, returned };
        self.history.lock().unwrap().calls.push(call);
    }
}

/// One owner, who takes locks and lets go.
struct Worker {
    world: Arc<World>,
    who: String,
    plan: Plan,
}

impl Worker {
    async fn work(self, locks: Vec<Lock>) {
        for _ in 0..self.plan.rounds {
            sleep(up_to(self.plan.lease)).await;
            let mut lock = locks[fastrand::usize(..locks.len())].clone();
            if fastrand::u8(0..3) == 0 {
                lock = lock.fixed_lease(self.plan.lease);
            }
            if let Some(stay) = self.come_in(&lock).await {
                self.stay(&lock, stay).await;
            }
        }
    }

    /// Tries to get in, in one of several ways.
    async fn come_in(&self, lock: &Lock) -> Option<Stay> {
        let (called, patience) = (self.world.now(), up_to(self.plan.lease * 3));
        let (how, answer) = match fastrand::u8(0..5) {
            0 => ("tries", lock.try_lock().await),
            1 => ("tries for a while", lock.try_lock_for(patience).await),
            // The future is dropped wherever it is.
            2 => ("gives up", timeout(patience, lock.lock()).await.map_or(Ok(None), |answer| answer.map(Some))),
            _ => ("waits", lock.lock().await.map(Some)),
        };
        let (key, who) = (lock.key().to_string(), &self.who);
        match answer {
            Ok(Some(guard)) => {
                let fence = guard.fence().get();
                let highest = self.world.fences.lock().unwrap().insert(key.clone(), fence);
                self.world.inside.lock().unwrap().insert((key.clone(), who.clone()), guard.lost());
                self.world
                    .note(format_args!("{who} {how} for {key}: in, fence {}", fence - highest.unwrap_or(fence - 1)));
                assert!(highest.is_none_or(|highest| fence > highest), "the fence of {key} fell: {highest:?}, {fence}");
                self.world.call(&key, who, Op::Lock { fence }, called, Some(self.world.now()));
                Some(Stay { guards: vec![guard], held: called })
            }
            Ok(None) => {
                self.world.note(format_args!("{who} {how} for {key}: no"));
                None
            }
            Err(Error::Unavailable { .. }) => {
                self.world.note(format_args!("{who} {how} for {key}: unavailable"));
                None
            }
            Err(other) => panic!("{who} {how} for {key}: {other}"),
        }
    }

    async fn stay(&self, lock: &Lock, mut stay: Stay) {
        let (world, key) = (&self.world, lock.key().to_string());
        for _ in 0..fastrand::u8(0..6) {
            sleep(up_to(self.plan.lease)).await;
            let now = world.now();
            if stay.guards[0].check().is_err() {
                break;
            }
            stay.held = now;
            if stay.guards.len() < 3 && fastrand::u8(0..4) == 0 {
                let called = world.now();
                // The count may not be written, or the lock be lost meanwhile.
                if let Ok(guard) = lock.lock().await {
                    let fence = guard.fence().get();
                    assert_eq!(fence, stay.guards[0].fence().get(), "a re-entry has the fence of its hold");
                    world.call(&key, &self.who, Op::Lock { fence }, called, Some(world.now()));
                    stay.guards.push(guard);
                    world.note(format_args!("{} is in {key} again", self.who));
                }
            }
        }
        let mut is_lost = false;
        while let Some(guard) = stay.guards.pop() {
            let called = world.now();
            if stay.guards.is_empty() {
                world.inside.lock().unwrap().remove(&(key.clone(), self.who.clone()));
            }
            match self.leave(guard).await {
                Left::Released => world.call(&key, &self.who, Op::Unlock, called, Some(world.now())),
                Left::Unknown => world.call(&key, &self.who, Op::Unlock, called, None),
                Left::Lost if is_lost => {}
                Left::Lost => {
                    is_lost = true;
                    world.call(&key, &self.who, Op::Lose, stay.held, Some(world.now()));
                }
            }
        }
        world.note(format_args!("{} is out of {key}{}", self.who, if is_lost { ": lost" } else { "" }));
    }

    async fn leave(&self, guard: Guard) -> Left {
        if fastrand::bool() {
            let lost = guard.check().is_err();
            drop(guard);
            return if lost { Left::Lost } else { Left::Unknown };
        }
        match guard.unlock().await {
            Ok(()) => Left::Released,
            Err(Error::Lost(_)) => Left::Lost,
            Err(_) => Left::Unknown,
        }
    }
}

/// Someone inside, with all guards, and when it was certainly held.
struct Stay {
    guards: Vec<Guard>,
    held: u64,
}

enum Left {
    Released,
    /// Nobody knows when.
    Unknown,
    Lost,
}

/// Does harm to one server after the other. What makes one forget something is over before the next one does.
async fn harm(world: Arc<World>, servers: Vec<Server>, keys: Vec<String>, plan: Plan) {
    let alone = servers.len() == 1;
    for _ in 0..plan.faults {
        sleep(up_to(plan.lease * 3)).await;
        let at = fastrand::usize(..servers.len());
        let server = &servers[at];
        let forgets = match fastrand::u8(0..5) {
            0 => {
                world.note(format_args!("server {at} stops"));
                server.stop();
                sleep(up_to(plan.lease * 3)).await;
                world.note(format_args!("server {at} goes on"));
                server.go_on();
                false
            }
            1 => {
                let lost = fastrand::u32(1..4);
                world.note(format_args!("server {at} loses {lost} answers"));
                server.lose_replies(lost);
                false
            }
            2 if plan.remember => {
                world.note(format_args!("server {at} starts anew"));
                server.restart();
                true
            }
            3 if !alone => {
                let key = &keys[fastrand::usize(..keys.len())];
                world.note(format_args!("server {at}: {key} is deleted"));
                server.delete(key);
                true
            }
            4 if !alone => {
                let offset = fastrand::i64(-600_000..600_000);
                world.note(format_args!("the clock of server {at} is {offset} ms ahead"));
                server.set_clock_offset(offset);
                true
            }
            _ => false,
        };
        if forgets {
            sleep(plan.lease * 4).await;
        }
    }
}

/// Runs the program of a seed; what happened, and for how long in virtual time.
fn simulate(seed: u64, aloud: bool) -> (Vec<String>, Duration) {
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let plan = Plan::of_seed();
        let world = Arc::new(World {
            start: Instant::now(),
            inside: Mutex::default(),
            fences: Mutex::default(),
            history: Mutex::default(),
            trace: Mutex::default(),
            aloud,
        });
        world.note(format_args!("seed {seed}: {plan:?}"));
        let servers: Vec<Server> = (0..plan.servers).map(|_| Server::new()).collect();
        let keys: Vec<String> = (0..plan.keys).map(|key| format!("key {key}")).collect();
        let mut lockers = Vec::new();
        for _ in 0..plan.lockers {
            let builder = servers.iter().fold(Locker::builder(), LockerBuilder::memory).lease(plan.lease);
            let quarantine = if plan.remember { plan.lease } else { Duration::ZERO };
            lockers.push(builder.restart_quarantine(quarantine).connect().await.unwrap());
        }
        let mut tasks = Vec::new();
        for (at, locks) in lockers.iter().enumerate() {
            for task in 0..plan.tasks {
                let owner = Owner::new();
                let locks: Vec<Lock> = keys.iter().map(|key| locks.get(key).owned_by(owner.clone())).collect();
                let worker = Worker { world: Arc::clone(&world), who: format!("{at}.{task}"), plan };
                tasks.push(tokio::spawn(worker.work(locks)));
            }
        }
        tasks.push(tokio::spawn(harm(Arc::clone(&world), servers.clone(), keys.clone(), plan)));
        for task in tasks {
            timeout(LONG, task).await.expect("everybody returns").unwrap();
        }
        // What is on its way comes to its end.
        sleep(plan.lease * 4).await;
        for locks in &lockers {
            let stats = locks.stats();
            assert_eq!((stats.waiters, stats.holds, stats.pending), (0, 0, 0), "{stats:?}");
            locks.close().await;
        }
        for (at, server) in servers.iter().enumerate() {
            for key in &keys {
                assert_eq!(server.holder(key), None, "{key} is left on server {at}");
            }
        }
        world.note("the end");
        world.history.lock().unwrap().check(Model::ReentrantFenced(3)).unwrap_or_else(|error| panic!("{error}"));
        let trace = world.trace.lock().unwrap().clone();
        (trace, world.start.elapsed())
    })
}

/// Runs a seed, and says which it was where it fails.
fn run(seed: u64) -> Duration {
    let simulated = std::panic::catch_unwind(|| simulate(seed, false));
    simulated.map(|(_, time)| time).unwrap_or_else(|panic| {
        println!("SIMULATION_SEED={seed} cargo test --features testing --test simulation -- --nocapture");
        std::panic::resume_unwind(panic)
    })
}

#[test]
fn nobody_is_inside_beside_another_whatever_the_seed() {
    if let Ok(seed) = std::env::var("SIMULATION_SEED") {
        let (_, time) = simulate(seed.parse().unwrap(), true);
        return println!("{time:?} of virtual time");
    }
    let (began, mut time) = (std::time::Instant::now(), Duration::ZERO);
    let minutes = if cfg!(feature = "soak") { 5 } else { 0 };
    let mut seeds = 0;
    while seeds < SEEDS || began.elapsed() < Duration::from_secs(60 * minutes) {
        time += run(seeds);
        seeds += 1;
    }
    let a_minute = time.as_secs_f64() / 3_600.0 / (began.elapsed().as_secs_f64() / 60.0);
    println!("{seeds} seeds, {:.1} virtual hours, {a_minute:.0} a minute", time.as_secs_f64() / 3_600.0);
}

#[test]
fn the_same_seed_makes_the_same_trace() {
    for seed in 0..20 {
        let (first, second) = (simulate(seed, false).0, simulate(seed, false).0);
        assert!(first.len() > 2);
        for (at, (one, other)) in first.iter().zip(&second).enumerate() {
            assert_eq!(one, other, "seed {seed}, line {at}");
        }
        assert_eq!(first.len(), second.len());
    }
}
