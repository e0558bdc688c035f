//! Contenders for one lock of three distant servers, with another server nearest to each. If all
//! contenders ask all three servers at once, each gets its nearest one, and none gets a majority.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockhound::{Lock, Locker};
use serde::Serialize;
use tokio::time::sleep;

use crate::Failure;
use crate::bar::Bar;
use crate::connection::Connection;
use crate::distance::Distances;
use crate::server::Server;
use crate::spread::Spread;
use crate::stuck;

/// The round trips to the three servers in milliseconds, in a different order for each contender.
const ROUND_TRIPS_MS: [[u64; 3]; 6] = [
    [2, 9, 16],
    [9, 16, 2],
    [16, 2, 9],
    [2, 16, 9],
    [16, 9, 2],
    [9, 2, 16],
];
const CONTENDERS: [usize; 3] = [2, 10, 20];
const ROUNDS: usize = 3;
const SLOT: Duration = Duration::from_secs(3);

/// From when to when each holder had the lock.
type Visits = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// The results of all contests.
#[derive(Debug, Serialize)]
pub(crate) struct Far {
    pub(crate) contests: Vec<Contest>,
    /// The rate of ten contenders divided by that of two, in the same round.
    pub(crate) ten_to_two: Spread,
}

/// The results of one number of contenders.
#[derive(Debug, Serialize)]
pub(crate) struct Contest {
    pub(crate) contenders: usize,
    pub(crate) acquisitions_per_second: Spread,
    /// Scripts per acquisition, on all servers together.
    pub(crate) scripts: Spread,
    /// The longest time for which the lock was free while all contenders wanted it.
    pub(crate) longest_free_ms: Spread,
    pub(crate) rounds: Vec<Round>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Round {
    acquisitions: usize,
    acquisitions_per_second: f64,
    scripts: f64,
    longest_free_ms: f64,
}

impl Far {
    pub(crate) fn measure() -> Result<Self, Failure> {
        eprintln!(
            "measuring far: {:.0} s",
            (SLOT.as_secs_f64() + 0.5) * (ROUNDS * CONTENDERS.len()) as f64
        );
        let servers = (0..3)
            .map(|_| Server::start())
            .collect::<Result<Vec<_>, _>>()?;
        let mut controls = servers
            .iter()
            .map(Server::connect)
            .collect::<Result<Vec<_>, _>>()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let distances = Distances::new();
        let most = CONTENDERS.into_iter().max().unwrap_or_default();
        let lockers = runtime.block_on(connect(&servers, &distances, most))?;
        let mut rounds = CONTENDERS.map(|_| Vec::with_capacity(ROUNDS));
        // A short contest warms up.
        runtime.block_on(contest(&lockers, &mut controls, SLOT / 6))?;
        for _ in 0..ROUNDS {
            for (contenders, rounds) in CONTENDERS.into_iter().zip(&mut rounds) {
                stuck::at("far", &format!("{contenders} contenders"));
                rounds.push(runtime.block_on(contest(
                    &lockers[..contenders],
                    &mut controls,
                    SLOT,
                ))?);
            }
        }
        stuck::over();
        for locker in lockers {
            runtime.block_on(locker.close());
        }
        let rate = |round: &Round| round.acquisitions_per_second;
        let ten_to_two = Spread::of(
            rounds[1]
                .iter()
                .zip(&rounds[0])
                .map(|(ten, two)| rate(ten) / rate(two)),
        );
        let contests = CONTENDERS
            .into_iter()
            .zip(rounds)
            .map(|(contenders, rounds)| Contest::of(contenders, rounds));
        Ok(Self {
            contests: contests.collect(),
            ten_to_two,
        })
    }

    pub(crate) fn bars(&self) -> Vec<Bar> {
        let rounds = self.contests.iter().flat_map(|contest| &contest.rounds);
        let longest = Spread::of(rounds.map(|round| round.longest_free_ms));
        let mut bars = vec![
            Bar::at_least(
                "far: acquisitions a second of 10 / of 2 contenders",
                self.ten_to_two,
                0.6,
            ),
            Bar::never_above("far: longest wait for a free lock, ms,", longest, 1_000.0),
        ];
        if let Some(most) = self.contests.last() {
            let what = format!(
                "far: scripts an acquisition of {} contenders",
                most.contenders
            );
            bars.push(Bar::at_most(&what, most.scripts, 30.0));
        }
        bars
    }
}

impl Contest {
    fn of(contenders: usize, rounds: Vec<Round>) -> Self {
        let spread = |figure: fn(&Round) -> f64| Spread::of(rounds.iter().map(figure));
        Self {
            contenders,
            acquisitions_per_second: spread(|round| round.acquisitions_per_second),
            scripts: spread(|round| round.scripts),
            longest_free_ms: spread(|round| round.longest_free_ms),
            rounds,
        }
    }
}

async fn connect(
    servers: &[Server],
    distances: &Distances,
    contenders: usize,
) -> Result<Vec<Locker>, Failure> {
    let mut lockers = Vec::with_capacity(contenders);
    for at in 0..contenders {
        let mut builder = Locker::builder().restart_quarantine(Duration::ZERO);
        for (server, round_trip) in servers
            .iter()
            .zip(ROUND_TRIPS_MS[at % ROUND_TRIPS_MS.len()])
        {
            let port = distances.to(server.port(), Duration::from_millis(round_trip));
            builder = builder.node(format!("redis://127.0.0.1:{port}"));
        }
        lockers.push(builder.connect().await?);
    }
    Ok(lockers)
}

/// All lockers contend for one lock all the time, and release it at once.
async fn contest(
    lockers: &[Locker],
    controls: &mut [Connection],
    slot: Duration,
) -> Result<Round, Failure> {
    for control in &mut *controls {
        control.reset_calls()?;
    }
    let (start, visits) = (Instant::now(), Visits::default());
    let contenders = lockers
        .iter()
        .map(|locker| visit(locker.get("bench:far"), start + slot, Arc::clone(&visits)));
    let contenders: Vec<_> = contenders.map(tokio::spawn).collect();
    sleep(slot).await;
    // Those that still wait get the lock later, and do not count for the rate.
    let (acquisitions, took) = (seen(&visits).len(), start.elapsed());
    let mut scripts = 0.0;
    for control in controls {
        scripts += control.calls("evalsha")?.count;
    }
    for contender in contenders {
        contender.await??;
    }
    let mut visits = seen(&visits);
    visits.sort_unstable_by_key(|visit| visit.0);
    if visits.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err("two contenders held the lock at the same time".into());
    }
    let left = std::iter::once(start).chain(visits.iter().map(|visit| visit.1));
    let longest_free = visits
        .iter()
        .zip(left)
        .map(|(visit, left)| visit.0 - left)
        .max()
        .unwrap_or_default();
    Ok(Round {
        acquisitions,
        acquisitions_per_second: acquisitions as f64 / took.as_secs_f64(),
        scripts: scripts / acquisitions as f64,
        longest_free_ms: longest_free.as_secs_f64() * 1e3,
    })
}

async fn visit(lock: Lock, end: Instant, visits: Visits) -> Result<(), Failure> {
    while Instant::now() < end {
        let guard = lock.lock().await?;
        let entered = Instant::now();
        guard.check()?;
        visits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((entered, Instant::now()));
        guard.unlock().await?;
    }
    Ok(())
}

fn seen(visits: &Visits) -> Vec<(Instant, Instant)> {
    visits
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell =
            |s: &Spread, at: usize| format!("{:.at$} ({:.at$}..{:.at$})", s.median, s.min, s.max);
        writeln!(
            f,
            "far: contenders for one lock of three servers, 2, 9 and 16 ms away; {ROUNDS} rounds of {} s",
            SLOT.as_secs()
        )?;
        writeln!(
            f,
            "  {:<10} {:>24} {:>24} {:>28}",
            "contenders",
            "acquisitions a second",
            "scripts an acquisition",
            "longest wait while free, ms"
        )?;
        for contest in &self.contests {
            writeln!(
                f,
                "  {:<10} {:>24} {:>24} {:>28}",
                contest.contenders,
                cell(&contest.acquisitions_per_second, 1),
                cell(&contest.scripts, 1),
                cell(&contest.longest_free_ms, 0)
            )?;
        }
        writeln!(
            f,
            "  ten are {} times as fast as two",
            cell(&self.ten_to_two, 2)
        )
    }
}
