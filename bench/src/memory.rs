//! What the servers' memory costs a lock: less than the machine's speed changes between two slots
//! of the other scenarios. So three lockers take short turns, one with a memory and two without. A
//! locker may be faster than another for its whole life, depending on where its threads and sockets
//! are: each cycle has new ones.

use std::fmt;
use std::time::Duration;

use lockhound::Locker;
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::Failure;
use crate::bar::Bar;
use crate::contender::{Callers, lockhound_pairs, prefix};
use crate::server::Server;
use crate::spread::Spread;
use crate::stuck;

/// How many tasks, how long a turn is, and how many cycles. One task has a p50 soon; many tasks
/// take longer.
const PLANS: [(usize, Duration, usize); 2] = [
    (1, Duration::from_millis(20), 300),
    (64, Duration::from_millis(50), 60),
];
/// There and back, so that a machine that gets slower slows down all three equally.
const CYCLE: [usize; 6] = [0, 1, 2, 2, 1, 0];
/// Short, since new servers abstain for a lease. The same for all, so that only the memory differs.
const LEASE: Duration = Duration::from_secs(3);
/// The longest that such a lease allows: with 64 tasks on a busy machine a reply may take long.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(900);

/// The three, in the order of their numbers in a cycle.
const LOCKERS: [&str; 3] = ["without memory", "with memory", "without memory, another"];

/// What the memory costs on this many servers.
#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) servers: usize,
    pub(crate) tasks: usize,
    pub(crate) turn_ms: u128,
    pub(crate) figure: &'static str,
    pub(crate) without: Spread,
    pub(crate) with: Spread,
    /// With a memory / the geometric mean of both without: the median of the cycles' ratios, and
    /// its 95 % interval.
    pub(crate) ratio: Spread,
    /// The second locker without / the first without, likewise. Its distance from 1 is the error of
    /// the bench.
    pub(crate) control: Spread,
    /// The figures of the three in each cycle: means of their two turns.
    pub(crate) cycles: Vec<[f64; 3]>,
}

impl Memory {
    /// Measures the lock p50 of one task, and the pairs a second of 64.
    pub(crate) fn measure(servers: &[Server], runtime: &Runtime) -> Result<Vec<Self>, Failure> {
        let mut all = Vec::new();
        for (tasks, turn, count) in PLANS {
            let time = (turn * CYCLE.len() as u32).as_secs_f64() * count as f64;
            eprintln!(
                "measuring memory of {} servers, {tasks} tasks: {time:.0} s",
                servers.len()
            );
            let mut cycles = Vec::with_capacity(count);
            // The first cycle warms up, and waits until new servers vote.
            for at in 0..=count {
                let figures = cycle(servers, at, tasks, turn, runtime)?;
                if at > 0 {
                    cycles.push(figures);
                }
            }
            all.push(Self::of(servers.len(), tasks, turn, cycles));
        }
        stuck::over();
        Ok(all)
    }

    fn of(servers: usize, tasks: usize, turn: Duration, cycles: Vec<[f64; 3]>) -> Self {
        let figure = if tasks == 1 {
            "lock p50, us"
        } else {
            "pairs a second"
        };
        let spread = |locker: usize| Spread::of(cycles.iter().map(|cycle| cycle[locker]));
        let ratio = |of: fn(&[f64; 3]) -> f64| Spread::of_median(cycles.iter().map(of));
        let (without, with) = (spread(0), spread(1));
        // Two lockers without a memory are a steadier measure than one.
        let (ratio, control) = (
            ratio(|[a, b, c]| b / (a * c).sqrt()),
            ratio(|[a, _, c]| c / a),
        );
        Self {
            servers,
            tasks,
            turn_ms: turn.as_millis(),
            figure,
            without,
            with,
            ratio,
            control,
            cycles,
        }
    }

    /// Returns the bar for how much longer an acquire may take.
    pub(crate) fn bar(&self) -> Option<Bar> {
        let what = format!("quorum-{}: lock p50 with memory / without", self.servers);
        (self.tasks == 1).then(|| Bar::at_most(&what, self.ratio, 1.03))
    }
}

/// Runs one cycle and returns the figure of each locker, the mean of its two turns. The first
/// locker changes with each cycle.
fn cycle(
    servers: &[Server],
    at: usize,
    tasks: usize,
    turn: Duration,
    runtime: &Runtime,
) -> Result<[f64; 3], Failure> {
    let order: [usize; 3] = std::array::from_fn(|place| (at + place) % LOCKERS.len());
    let mut lockers = Vec::with_capacity(order.len());
    for who in order {
        stuck::at("memory", LOCKERS[who]);
        lockers.push(runtime.block_on(connect(servers, LOCKERS[who]))?);
    }
    let mut figures = [0.0; 3];
    for place in CYCLE {
        let who = order[place];
        stuck::at("memory", LOCKERS[who]);
        let locks = (0..tasks).map(|n| lockers[place].get(format!("{}{n}", prefix(LOCKERS[who]))));
        let pairs = locks.map(|lock| lockhound_pairs(lock, turn));
        let laps = runtime.block_on(Callers::Tasks(tasks).run(pairs))?;
        let figure = if tasks == 1 {
            laps.lock(0.5)
        } else {
            laps.pairs() as f64 / laps.elapsed().as_secs_f64()
        };
        figures[who] += figure / 2.0;
    }
    for locker in lockers {
        runtime.block_on(locker.close());
    }
    Ok(figures)
}

/// Connects a locker. When this returns, the votes of a majority count.
async fn connect(servers: &[Server], who: &str) -> Result<Locker, Failure> {
    let options = Locker::builder()
        .lease(LEASE)
        .command_timeout(COMMAND_TIMEOUT);
    let nodes = servers
        .iter()
        .fold(options, |builder, server| builder.node(server.url()));
    let nodes = if who == LOCKERS[1] {
        nodes
    } else {
        nodes.restart_quarantine(Duration::ZERO)
    };
    let locker = nodes.connect().await?;
    locker.get(prefix(who)).lock().await?.unlock().await?;
    Ok(locker)
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell =
            |s: &Spread, at: usize| format!("{:.at$} ({:.at$}..{:.at$})", s.median, s.min, s.max);
        writeln!(
            f,
            "memory: {} servers, {} tasks; {} cycles of turns of {} ms; {}",
            self.servers,
            self.tasks,
            self.cycles.len(),
            self.turn_ms,
            self.figure
        )?;
        writeln!(f, "  {:<42} {}", LOCKERS[0], cell(&self.without, 0))?;
        writeln!(f, "  {:<42} {}", LOCKERS[1], cell(&self.with, 0))?;
        writeln!(
            f,
            "  {:<42} {}",
            "with / without (95 % interval)",
            cell(&self.ratio, 3)
        )?;
        writeln!(
            f,
            "  {:<42} {}",
            "another without / without (95 % interval)",
            cell(&self.control, 3)
        )
    }
}
