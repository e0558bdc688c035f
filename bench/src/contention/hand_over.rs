//! How long it takes from `unlock()` in one locker until a waiter of another one has the lock,
//! compared with the floor: a release, its message and an acquire, by two threads that block on
//! bare sockets.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lockhound::Locker;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::task::spawn_blocking;

use super::ROUNDS;
use super::line::now;
use crate::Failure;
use crate::bar::Bar;
use crate::connection::Connection;
use crate::contender::{ACQUIRE, LEASE, OWNER, RELEASE, clock, mark};
use crate::server::Server;
use crate::spread::Spread;
use crate::stuck;

/// Hand-overs in each round: enough for a p99.9.
const PASSES: usize = 2_000;
/// How long the lock is kept once the other side waits. By then the waiter is idle.
const HOLD: Duration = Duration::from_millis(1);
const KEY: &str = "contention:hand-over";

/// The results of all rounds.
#[derive(Debug, Serialize)]
pub(crate) struct HandOver {
    pub(crate) lockhound: Times,
    pub(crate) floor: Times,
    /// The ratio of the p50s of the same round.
    pub(crate) p50_to_floor: Spread,
    pub(crate) p99_to_p50: Spread,
}

/// Times in microseconds, over the rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) p50_us: Spread,
    pub(crate) p99_us: Spread,
    pub(crate) p999_us: Spread,
    /// p50, p99 and p99.9 of each round.
    pub(crate) rounds: Vec<[f64; 3]>,
}

/// What the two sides of a round share.
#[derive(Debug, Default)]
struct Passes {
    /// When the last holder called `unlock()`.
    left: AtomicU64,
    count: AtomicUsize,
}

impl Passes {
    /// Counts a hand-over, and returns how long it took.
    fn entered(&self) -> Option<u64> {
        let entered = now();
        self.count.fetch_add(1, Ordering::Relaxed);
        let left = self.left.swap(0, Ordering::AcqRel);
        (left > 0).then(|| entered - left)
    }

    fn are_over(&self) -> bool {
        self.count.load(Ordering::Relaxed) > PASSES
    }
}

impl HandOver {
    pub(crate) fn measure() -> Result<Self, Failure> {
        eprintln!(
            "measuring hand-over: {:.0} s",
            (HOLD * 2 * (2 * ROUNDS * PASSES) as u32).as_secs_f64()
        );
        let server = Server::start()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let lockers = runtime.block_on(async {
            Ok::<_, Failure>([
                Locker::connect(server.url()).await?,
                Locker::connect(server.url()).await?,
            ])
        })?;
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            stuck::at("hand-over", "lockhound");
            ours.push(shares(between(&runtime, &lockers)?)?);
            stuck::at("hand-over", "socket");
            floor.push(shares(between_sockets(&server)?)?);
        }
        for locker in lockers {
            runtime.block_on(locker.close());
        }
        let p50_to_floor = Spread::of(
            ours.iter()
                .zip(&floor)
                .map(|(ours, floor)| ours[0] / floor[0]),
        );
        let p99_to_p50 = Spread::of(ours.iter().map(|[p50, p99, _]| p99 / p50));
        Ok(Self {
            lockhound: Times::of(ours),
            floor: Times::of(floor),
            p50_to_floor,
            p99_to_p50,
        })
    }

    pub(crate) fn bars(&self) -> [Bar; 2] {
        [
            Bar::at_most(
                "hand-over between lockers: p50 / floor",
                self.p50_to_floor,
                1.4,
            ),
            Bar::at_most(
                "hand-over between lockers: p99 / its p50",
                self.p99_to_p50,
                3.0,
            ),
        ]
    }
}

impl Times {
    fn of(rounds: Vec<[f64; 3]>) -> Self {
        let spread = |at: usize| Spread::of(rounds.iter().map(|round| round[at]));
        Self {
            p50_us: spread(0),
            p99_us: spread(1),
            p999_us: spread(2),
            rounds,
        }
    }
}

/// Returns p50, p99 and p99.9 in microseconds, by the nearest rank.
fn shares(mut nanos: Vec<u64>) -> Result<[f64; 3], Failure> {
    nanos.sort_unstable();
    let last = nanos
        .len()
        .checked_sub(1)
        .ok_or("nothing was handed over")?;
    let at = |share: f64| {
        nanos[((nanos.len() as f64 * share).ceil() as usize)
            .saturating_sub(1)
            .min(last)]
    };
    Ok([0.5, 0.99, 0.999].map(|share| at(share) as f64 / 1e3))
}

/// Runs a task of each locker. Each keeps the lock until the other one waits.
fn between(runtime: &Runtime, lockers: &[Locker; 2]) -> Result<Vec<u64>, Failure> {
    let passes = Arc::new(Passes::default());
    let [one, other] = lockers;
    let ones = runtime.spawn(pass(one.clone(), other.clone(), Arc::clone(&passes)));
    let others = runtime.spawn(pass(other.clone(), one.clone(), passes));
    let mut took = runtime.block_on(ones)??;
    took.extend(runtime.block_on(others)??);
    Ok(took)
}

async fn pass(mine: Locker, other: Locker, passes: Arc<Passes>) -> Result<Vec<u64>, Failure> {
    let (lock, mut took) = (mine.get(KEY), Vec::with_capacity(PASSES));
    loop {
        let guard = lock.lock().await?;
        took.extend(passes.entered());
        if passes.are_over() {
            guard.unlock().await?;
            return Ok(took);
        }
        while other.stats().waiters == 0 && !passes.are_over() {
            tokio::task::yield_now().await;
        }
        spawn_blocking(|| std::thread::sleep(HOLD)).await?;
        passes.left.store(now(), Ordering::Release);
        guard.unlock().await?;
    }
}

/// Runs two threads, each with a socket for its scripts and one for its messages.
fn between_sockets(server: &Server) -> Result<Vec<u64>, Failure> {
    let passes = Passes::default();
    let mut pair = [Socket::open(server, 1)?, Socket::open(server, 2)?];
    let [one, other] = &mut pair;
    let (ones, others) = std::thread::scope(|scope| {
        let ones = scope.spawn(|| one.pass(&passes, true));
        let others = other.pass(&passes, false);
        (ones.join(), others)
    });
    let mut took = ones.map_err(|_| "a thread of the bare sockets panicked")??;
    took.extend(others?);
    Ok(took)
}

/// Sends the scripts on bare sockets.
struct Socket {
    scripts: Connection,
    messages: Connection,
    acquire: Vec<u8>,
    release: Vec<u8>,
    key: String,
    mark: String,
    channel: String,
    field: String,
}

impl Socket {
    fn open(server: &Server, number: usize) -> Result<Self, Failure> {
        let (mut scripts, mut messages) = (server.connect()?, server.connect()?);
        let (acquire, release) = (scripts.load(&ACQUIRE)?, scripts.load(RELEASE)?);
        let key = format!("{KEY}:sockets");
        let channel = format!("redisson_lock__channel:{{{key}}}");
        messages.call(&[b"SUBSCRIBE", channel.as_bytes()])?;
        let field = format!("{OWNER}:{number}");
        Ok(Self {
            scripts,
            messages,
            acquire,
            release,
            mark: mark(&key),
            key,
            channel,
            field,
        })
    }

    /// Takes turns with the other side. Each side receives all messages: its own, and then the
    /// other side's.
    fn pass(&mut self, passes: &Passes, first: bool) -> Result<Vec<u64>, Failure> {
        let mut took = Vec::with_capacity(PASSES);
        if !first {
            self.messages.receive()?;
        }
        loop {
            self.acquire()?;
            took.extend(passes.entered());
            let over = passes.are_over();
            if !over {
                std::thread::sleep(HOLD);
                passes.left.store(now(), Ordering::Release);
            }
            let release: &[&[u8]] = &[
                b"EVALSHA",
                &self.release,
                b"2",
                self.key.as_bytes(),
                self.channel.as_bytes(),
                self.field.as_bytes(),
            ];
            self.scripts.send(release)?;
            self.scripts.expect(b":2\r\n")?;
            if over {
                return Ok(took);
            }
            self.messages.receive()?;
            self.messages.receive()?;
        }
    }

    fn acquire(&mut self) -> Result<(), Failure> {
        let (lease_ms, clock) = (LEASE.as_millis().to_string(), clock(1));
        let words: &[&[u8]] = &[
            b"EVALSHA",
            &self.acquire,
            b"2",
            self.key.as_bytes(),
            self.mark.as_bytes(),
            lease_ms.as_bytes(),
            self.field.as_bytes(),
            clock.as_bytes(),
        ];
        self.scripts.send(words)?;
        Ok(self.scripts.expect(b"*2\r\n:1\r\n")?)
    }
}

impl fmt::Display for HandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "hand-over: from unlock() in one locker to lock() in another that waits, us; {ROUNDS} rounds of {PASSES}"
        )?;
        let cell =
            |s: &Spread, at: usize| format!("{:.at$} ({:.at$}..{:.at$})", s.median, s.min, s.max);
        writeln!(
            f,
            "  {:<10} {:>22} {:>24} {:>24}",
            "", "p50", "p99", "p99.9"
        )?;
        for (who, times) in [("lockhound", &self.lockhound), ("socket", &self.floor)] {
            let [p50, p99, p999] =
                [&times.p50_us, &times.p99_us, &times.p999_us].map(|spread| cell(spread, 0));
            writeln!(f, "  {who:<10} {p50:>22} {p99:>24} {p999:>24}")?;
        }
        writeln!(
            f,
            "  lockhound's p50 is {} times the sockets' p50; its p99 is {} times its own p50",
            cell(&self.p50_to_floor, 2),
            cell(&self.p99_to_p50, 2)
        )
    }
}
