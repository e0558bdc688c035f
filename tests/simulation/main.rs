//! Whole programs under a seed, in virtual time, over servers in memory: tasks of several lockers
//! take locks, one or several at once, enter again, run sections, give up and let go, while servers
//! stop, forget, lose, repeat and delay answers and have wrong clocks, and while networks are cut
//! and lead elsewhere. Whatever happens, nobody believes in a lock beside another, fences grow,
//! some order of the calls explains all of them, everybody returns, and nothing is left. Then many
//! want one lock at once, for a moment (`crowd.rs`), and a story is told (`stories.rs`).
//!
//! A seed that fails is printed; `SIMULATION_SEED=7 cargo test --features testing --test simulation
//! -- --nocapture` runs it alone, and shows what happened. `./dev soak simulation` runs seeds for
//! minutes. `./dev mutants simulation` makes mistakes in the source, and looks whether the
//! simulation finds each of them; `mistakes.rs` has those of the models.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are for whoever runs it")]
#![allow(unreachable_pub, reason = "modules of a test")]

#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod faults;
mod latches;
mod leaders;
mod mistakes;
mod mutants;
mod permits;
mod plan;
mod readers;
mod seeds;
mod stories;
mod worker;
mod world;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::ms;
use faults::Net;
use leaders::Seeing;
use lockhound::testing::Server;
use lockhound::{Locker, LockerBuilder, Owner};
use plan::Plan;
use stories::Story;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing_subscriber::filter::LevelFilter;
use worker::{Name, Worker};
use world::World;

/// How many seeds the suite runs.
const SEEDS: u64 = 200;
/// The names of the locks. Fences of the first two are counted in one mark, as those of many locks
/// are.
const KEYS: [&str; 3] = ["key 0", "key 585", "key 1"];
/// The names of the read-write locks.
const READ_WRITE: [&str; 2] = ["prices", "stocks"];
/// In virtual time: whoever has not returned by then never will.
const LONG: Duration = Duration::from_secs(24 * 3_600);

/// A program under way.
struct Program {
    world: Arc<World>,
    plan: Plan,
    net: Arc<Net>,
    lockers: Vec<Locker>,
    keys: Arc<[String]>,
    read_write: Arc<[String]>,
    semaphores: Arc<[String]>,
    fair: Arc<[String]>,
    observers: Vec<Seeing>,
}

impl Program {
    async fn begin(world: Arc<World>, plan: Plan) -> Self {
        let net = Net::new(&plan);
        let mut lockers = Vec::new();
        for (at, routes) in net.routes.iter().enumerate() {
            let builder = routes.iter().fold(Locker::builder(), LockerBuilder::memory);
            let Plan {
                lease,
                command_timeout,
                remember,
                ..
            } = plan.of_locker(at);
            let builder = builder.lease(lease).command_timeout(command_timeout);
            let quarantine = if remember { lease } else { Duration::ZERO };
            lockers.push(
                builder
                    .restart_quarantine(quarantine)
                    .connect()
                    .await
                    .unwrap(),
            );
        }
        let named = |names: &[&str]| -> Arc<[String]> {
            names.iter().map(|&name| name.to_owned()).collect()
        };
        let keys = named(&KEYS[..plan.keys]);
        let read_write = named(&READ_WRITE[..plan.read_write]);
        let semaphores = named(&permits::SEMAPHORES[..plan.semaphores]);
        let fair = named(&worker::FAIR[..plan.fair]);
        let mut observers = Vec::new();
        if plan.elects {
            for locks in &lockers {
                observers.push(Seeing::begin(locks, &keys[0]).await);
            }
        }
        Self {
            world,
            plan,
            net,
            lockers,
            keys,
            read_write,
            semaphores,
            fair,
            observers,
        }
    }

    fn worker(&self, at: usize, who: String, name: Name) -> Worker {
        let (world, runs) = (Arc::clone(&self.world), Arc::default());
        let (keys, read_write) = (Arc::clone(&self.keys), Arc::clone(&self.read_write));
        Worker {
            world,
            plan: self.plan.of_locker(at),
            who,
            name,
            at,
            locks: self.lockers[at].clone(),
            keys,
            read_write,
            semaphores: Arc::clone(&self.semaphores),
            fair: Arc::clone(&self.fair),
            depth: 0,
            runs,
        }
    }

    /// The names of all locks.
    fn names(&self) -> impl Iterator<Item = &String> {
        let keys = self.keys.iter().chain(&*self.read_write);
        // Without its counter, a semaphore knows what is taken all the same.
        keys.chain(&*self.semaphores).chain(&*self.fair)
    }

    /// One act: everybody returns, whatever happens meanwhile. Returns the servers that may have
    /// forgotten.
    async fn act(&self) -> Arc<[usize]> {
        let Self {
            world, plan, net, ..
        } = self;
        if plan.skew {
            net.set_clocks(world);
        }
        (0..plan.servers).for_each(|at| net.calm(at));
        let mut tasks = Vec::new();
        for at in 0..plan.lockers {
            for task in 0..plan.tasks {
                let owner = Owner::new();
                let worker = |name| self.worker(at, format!("{at}.{task}"), name);
                tasks.push(match fastrand::u8(0..3) {
                    0 => tokio::spawn(worker(Name::Owner(owner)).work()),
                    1 => {
                        let worker = worker(Name::Scope);
                        tokio::spawn(async move { owner.scope(worker.work()).await })
                    }
                    _ => tokio::spawn(worker(Name::Task).work()),
                });
            }
        }
        if plan.gathers {
            tasks.extend(latches::gather(world, *plan, &self.lockers).await);
        }
        let victims = faults::victims(plan);
        for _ in 0..plan.troubles {
            let (world, net, victims) = (Arc::clone(world), Arc::clone(net), Arc::clone(&victims));
            tasks.push(tokio::spawn(faults::trouble(world, net, *plan, victims)));
        }
        let (world, net, keys) = (
            Arc::clone(world),
            Arc::clone(net),
            self.names().cloned().collect(),
        );
        tasks.push(tokio::spawn(faults::oblivion(
            world,
            net,
            *plan,
            keys,
            Arc::clone(&victims),
        )));
        for task in tasks {
            timeout(LONG, task)
                .await
                .expect("everybody returns")
                .unwrap();
        }
        victims
    }

    /// Workers of two lockers, for a story: when there is no other fault.
    fn two_workers(&self) -> [Worker; 2] {
        let mut lockers: Vec<usize> = (0..self.plan.lockers).collect();
        fastrand::shuffle(&mut lockers);
        [0, 1].map(|at| {
            self.worker(
                lockers[at],
                format!("{} asks", lockers[at]),
                Name::Owner(Owner::new()),
            )
        })
    }

    /// Some come and go again at once: what is granted to whoever is gone is given back. If one of
    /// several servers forgets meanwhile, some stay until they lose what they hold: that is given
    /// back there too.
    async fn hurry(&self, victims: &[usize]) {
        let Self {
            world,
            plan,
            net,
            keys,
            ..
        } = self;
        let (most, mut tasks) = (plan.command_timeout.mul_f64(0.9), JoinSet::new());
        world.note(format_args!(
            "answers take up to {most:?}, and nobody waits for them"
        ));
        net.servers
            .iter()
            .for_each(|server| server.delay(Duration::ZERO..=most));
        let forgets = fastrand::choice(victims)
            .filter(|_| plan.remember && plan.servers > 1 && fastrand::bool());
        let all = || keys.iter().chain(&*self.fair);
        for (locks, key) in self
            .lockers
            .iter()
            .flat_map(|locks| all().map(move |key| (locks, key)))
        {
            let lock = worker::lock(locks, key).owned_by(Owner::new());
            let patience = plan::up_to(most);
            if forgets.is_none() || fastrand::bool() {
                tasks.spawn(async move { _ = timeout(patience, lock.lock()).await });
                continue;
            }
            let (patience, lock) = (
                plan.lease,
                lock.max_hold(ms(100) + plan::up_to(plan.lease / 2)),
            );
            tasks.spawn(async move {
                if let Ok(Ok(guard)) = timeout(patience, lock.lock()).await {
                    guard.lost().cancelled().await;
                }
            });
        }
        for (locks, key) in self
            .lockers
            .iter()
            .flat_map(|locks| self.read_write.iter().map(move |key| (locks, key)))
        {
            let (rw, owner) = (locks.rw(key.as_str()), Owner::new());
            let (read, write) = (rw.read(), rw.write().owned_by(owner.clone()));
            let (patience, one_owner) = (plan::up_to(most), fastrand::bool());
            tasks.spawn(async move { _ = timeout(patience, write.lock()).await });
            let read = read.owned_by(if one_owner { owner } else { Owner::new() });
            let patience = plan::up_to(most);
            tasks.spawn(async move { _ = timeout(patience, read.lock()).await });
        }
        for (locks, key) in self
            .lockers
            .iter()
            .flat_map(|locks| self.semaphores.iter().map(move |key| (locks, key)))
        {
            let (semaphore, patience) = (permits::semaphore(locks, key), plan::up_to(most));
            tasks.spawn(async move { _ = timeout(patience, semaphore.acquire_many(2)).await });
        }
        if let Some(&at) = forgets {
            sleep(plan::up_to(plan.command_timeout * 2)).await;
            world.note(format_args!("server {at} starts anew"));
            net.servers[at].restart();
        }
        tasks.join_all().await;
    }

    /// Nothing is left, once there are no faults any more.
    async fn rest(&self) {
        let Self {
            world,
            plan,
            net,
            keys,
            ..
        } = self;
        net.heal();
        world.note("all faults end");
        let since = Instant::now();
        let census = |locks: &Locker| {
            let stats = locks.stats();
            (stats.waiters, stats.holds, stats.pending)
        };
        while let Some(locks) = self.lockers.iter().find(|locks| census(locks) != (0, 0, 0)) {
            assert!(
                since.elapsed() < LONG,
                "something is never over: {:?}",
                locks.stats()
            );
            sleep(plan.lease / 16).await;
        }
        world.note("nobody waits or holds");
        // An acquire that nobody waits for any more may be, and then its undo.
        sleep(plan.command_timeout * 2).await;
        // What was sent to another server in its place is left to run out, and so is what a
        // snapshot brought back.
        let restored = net.takes_restored();
        if restored || plan.mislead {
            sleep(plan.lease * 2).await;
        }
        // What was taken with a `min_hold` stays for that long: a lease at the most.
        let is_kept = |server: &Server, key: &String| {
            server
                .holder(key)
                .is_some_and(|holder| holder.ends_with(":kept"))
        };
        let since = Instant::now();
        while since.elapsed() < plan.lease
            && net
                .servers
                .iter()
                .any(|server| keys.iter().any(|key| is_kept(server, key)))
        {
            sleep(Duration::from_millis(5)).await;
        }
        if restored {
            self.pass_whoever_came_back().await;
        }
        // A hint is withdrawn, or runs out.
        self.nothing_is_left("at once", |key| !stays(key) && !is_hint(key));
        world.check_history();
        sleep(plan.lease + ms(1)).await;
        self.nothing_is_left("after a lease", |key| !stays(key));
        // A server that forgot remembers again, before another one forgets.
        sleep(plan.lease * 3).await;
        self.all_permits_are_free().await;
        self.observers.iter().for_each(Seeing::sees_nobody);
        self.nothing_is_left("after four leases", |key| key.starts_with(LEADER));
    }

    /// Asserts that no permit is missing, and that there is none too many.
    async fn all_permits_are_free(&self) {
        for key in &*self.semaphores {
            let semaphore = permits::semaphore(&self.lockers[0], key);
            let usage = semaphore.usage().await.unwrap();
            assert_eq!(usage.taken(), 0, "{key}: {usage:?}");
            // A semaphore that was forgotten has none before somebody wants one.
            drop(semaphore.try_acquire().await.unwrap());
            let free = async || semaphore.usage().await.unwrap().free();
            let since = Instant::now();
            while free().await < permits::CAPACITY && since.elapsed() < self.plan.lease {
                sleep(ms(1)).await;
            }
            assert_eq!(free().await, permits::CAPACITY, "{key}");
        }
    }

    /// Callers of a fair lock that have gone, and that a snapshot has brought back, are passed.
    async fn pass_whoever_came_back(&self) {
        for key in &*self.fair {
            let lock = self.lockers[0].fair(&**key);
            let guard = timeout(LONG, lock.lock()).await;
            let guard = guard.expect("they do not come").unwrap();
            guard.unlock().await.unwrap();
        }
    }

    /// Asserts that no such key is on a server.
    fn nothing_is_left(&self, since: &str, counts: impl Fn(&str) -> bool) {
        for (at, server) in self.net.servers.iter().enumerate() {
            let left: Vec<String> = server
                .keys()
                .into_iter()
                .filter(|key| counts(key))
                .collect();
            assert!(left.is_empty(), "{since} {left:?} are left on server {at}");
        }
    }
}

/// What the keys of leaders' values begin with.
const LEADER: &str = "lockhound_leader:";

/// Whether a key is no lock's: a mark, the memory of a server, the label of a locker, the calls of
/// a latch, or a leader's value or a semaphore's, which are looked at by themselves.
fn stays(key: &str) -> bool {
    const OTHERS: [&str; 4] = [
        "lockhound_fence:",
        "lockhound_vote",
        "lockhound_label:",
        "lockhound_counted:",
    ];
    OTHERS.iter().any(|prefix| key.starts_with(prefix))
        || key.starts_with(LEADER)
        || permits::SEMAPHORES.iter().any(|name| key.contains(name))
}

/// Whether a key says that a writer or a reader waits.
fn is_hint(key: &str) -> bool {
    ["lockhound_writer:", "lockhound_reader:"]
        .iter()
        .any(|prefix| key.starts_with(prefix))
}

impl Program {
    async fn end(self) {
        for locks in &self.lockers {
            locks.close().await;
        }
        for observer in self.observers {
            observer.end().await;
        }
        self.world.note("the end");
    }
}

/// Runs the program of a seed; what happened, and for how long in virtual time.
fn simulate(seed: u64, aloud: bool) -> (Vec<String>, Duration) {
    let _logs = aloud.then(|| tracing::subscriber::set_default(log()));
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (plan, start) = (Plan::of_seed(), Instant::now());
        // A tick of renewal, and another one where the first is in vain. Where addresses lead
        // elsewhere, who forces a lock may release a minority; stories stop servers, so that nobody
        // can renew.
        let has_stories = plan.remember && plan.servers > 1;
        let is_told = plan.troubles == 0 && !plan.mislead && !has_stories;
        let told_after = is_told.then_some(plan.lease * 3 / 4 + plan.usual * 2);
        let world = World::new(aloud, told_after, is_told && plan.servers == 1);
        world.note(format_args!("seed {seed}: {plan:?}"));
        let program = Program::begin(Arc::clone(&world), plan).await;
        for _ in 0..plan.acts {
            let victims = program.act().await;
            program.hurry(&victims).await;
            program.rest().await;
        }
        if has_stories && plan.lockers > 1 {
            stories::forget_a_grant(&world, &program.net, &plan, program.two_workers()).await;
            program.rest().await;
            stories::change_too_late(&world, &program.net, &plan, program.two_workers()).await;
            program.rest().await;
        }
        program.end().await;
        let mut trace = world.trace();
        trace.extend(in_a_crowd(aloud).await);
        trace.extend(in_a_story(aloud).await);
        (trace, start.elapsed())
    })
}

/// The second part of a program: many want one lock. What happens in it.
async fn in_a_crowd(aloud: bool) -> Vec<String> {
    let (plan, fault) = (crowd::plan(), crowd::Fault::any());
    let world = World::new(aloud, None, fault.leaves_answers());
    world.note(format_args!("a crowd, and {fault:?}: {plan:?}"));
    let program = Program::begin(Arc::clone(&world), plan).await;
    crowd::gather(
        &world,
        (plan, fault),
        &program.net,
        &program.lockers,
        &program.keys[0],
    )
    .await;
    program.rest().await;
    program.end().await;
    world.trace()
}

/// The third part of a program: a story. What happens in it.
async fn in_a_story(aloud: bool) -> Vec<String> {
    let story = Story::any();
    let (plan, world) = (story.plan(), World::new(aloud, None, false));
    world.note(format_args!("{story:?}: {plan:?}"));
    let program = Program::begin(Arc::clone(&world), plan).await;
    timeout(LONG, story.happen(&program))
        .await
        .expect("it comes to an end");
    program.rest().await;
    program.end().await;
    world.trace()
}

/// What the lockers log goes between what happens.
fn log() -> impl tracing::Subscriber + Send + Sync {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::DEBUG)
        .without_time()
        .with_ansi(false)
        .finish()
}

/// What a variable of the environment says.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|value| value.parse().unwrap())
}

#[test]
fn nobody_is_inside_beside_another_whatever_the_seed() {
    if let Some(seed) = number("SIMULATION_SEED") {
        let (_, time) = simulate(seed, true);
        return println!("{time:?} of virtual time");
    }
    let began = std::time::Instant::now();
    let minutes = if cfg!(feature = "soak") { 5 } else { 0 };
    let most = number("SIMULATION_SEEDS");
    let is_on = move |seed| match most {
        Some(most) => seed < most,
        None => seed < SEEDS || began.elapsed() < Duration::from_secs(60 * minutes),
    };
    let (seeds, time) = seeds::run(is_on, |seed| simulate(seed, false).1);
    let a_minute = time.as_secs_f64() / 3_600.0 / (began.elapsed().as_secs_f64() / 60.0);
    let (hours, threads) = (time.as_secs_f64() / 3_600.0, seeds::at_a_time());
    println!(
        "{seeds} seeds, {threads} at a time, {hours:.1} virtual hours, {a_minute:.0} a minute"
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_two_locks_share_a_mark() {
    let servers: Vec<Server> = (0..3).map(|_| Server::new()).collect();
    let locks = servers
        .iter()
        .fold(Locker::builder(), LockerBuilder::memory)
        .connect()
        .await
        .unwrap();
    let mut fences = Vec::new();
    for key in KEYS {
        fences.push(locks.get(key).lock().await.unwrap().fence().get());
    }
    // No time passes, so a clock makes the first fence of each mark.
    assert_eq!(fences, [fences[0], fences[0] + 1, fences[0]]);
}

/// Beside others on other threads, too.
#[test]
fn the_same_seed_makes_the_same_trace() {
    let trace = |seed| simulate(seed, false).0;
    let (seeds, threads) = (8, seeds::at_a_time().max(2));
    let alone: Vec<_> = (0..seeds).map(trace).collect();
    let begin = Barrier::new(threads);
    let beside_others = &|thread: u64| {
        begin.wait();
        (thread..seeds)
            .step_by(threads)
            .map(|seed| (seed, trace(seed)))
            .collect::<Vec<_>>()
    };
    let beside_others: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as u64)
            .map(|at| scope.spawn(move || beside_others(at)))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(beside_others.len(), alone.len());
    for (seed, second) in beside_others {
        let first = &alone[usize::try_from(seed).unwrap()];
        assert!(first.len() > 2);
        for (at, (one, other)) in first.iter().zip(&second).enumerate() {
            assert_eq!(one, other, "seed {seed}, line {at}");
        }
        assert_eq!(first.len(), second.len());
    }
}
