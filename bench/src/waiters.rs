//! What a long line costs: callers of one key that give up together, and callers whose futures are
//! dropped, while the lock of another key has to be renewed.

use std::fmt;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use lockhound::{Lock, Locker, Owner};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::Failure;
use crate::scenario::client_cpu;
use crate::server::Server;
use crate::spread::Spread;

const ROUNDS: usize = 5;
const SIZES: [usize; 2] = [1_000, 80_000];
/// The lease of the other lock, which is renewed every third of this.
const LEASE: Duration = Duration::from_secs(1);
/// From the first call to the end of all waits. All callers have to be in line before that.
const WAIT: Duration = Duration::from_secs(2);
/// A pause before and after callers are dropped, in which the other lock is renewed.
const PAUSE: Duration = Duration::from_millis(700);

/// What a line of one length costs.
#[derive(Debug, Serialize)]
pub(crate) struct Lines {
    pub(crate) waiters: usize,
    pub(crate) lease_seconds: f64,
    /// The time that one more caller takes to join the line.
    pub(crate) arrive_us: Spread,
    /// From the end of the wait time to the last answer.
    pub(crate) end_ms: Spread,
    /// For comparison, as many tasks that each wait for a channel, and a thread that sends to all:
    /// from first to last.
    pub(crate) bare_ms: Spread,
    /// The CPU time of the process from the end of the wait time to the last answer, for each
    /// caller.
    pub(crate) end_us: Spread,
    pub(crate) bare_us: Spread,
    /// The time to drop all futures, the last one first.
    pub(crate) drop_ms: Spread,
    /// How late the latest renewal of the other lock began.
    pub(crate) late_ms: Spread,
    /// In how many rounds the other lock was lost.
    pub(crate) lost: usize,
    pub(crate) rounds: Vec<Round>,
}

/// The figures of one round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Round {
    arrive_us: f64,
    end_ms: f64,
    bare_ms: f64,
    end_us: f64,
    bare_us: f64,
    drop_ms: f64,
    late_ms: f64,
    lost: bool,
}

pub(crate) fn measure(server: &Server, runtime: &Runtime) -> Result<Vec<Lines>, Failure> {
    eprintln!(
        "measuring waiters: {:.0} s",
        ((WAIT + PAUSE * 3) * 2).as_secs_f64() * ROUNDS as f64
    );
    let mut rounds = SIZES.map(|_| Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        for (waiters, rounds) in SIZES.into_iter().zip(&mut rounds) {
            rounds.push(runtime.block_on(Round::run(server, waiters))?);
        }
    }
    Ok(SIZES
        .into_iter()
        .zip(rounds)
        .map(|(waiters, rounds)| Lines::of(waiters, rounds))
        .collect())
}

impl Lines {
    fn of(waiters: usize, rounds: Vec<Round>) -> Self {
        let spread = |figure: fn(&Round) -> f64| Spread::of(rounds.iter().map(figure));
        Self {
            waiters,
            lease_seconds: LEASE.as_secs_f64(),
            arrive_us: spread(|round| round.arrive_us),
            end_ms: spread(|round| round.end_ms),
            bare_ms: spread(|round| round.bare_ms),
            end_us: spread(|round| round.end_us),
            bare_us: spread(|round| round.bare_us),
            drop_ms: spread(|round| round.drop_ms),
            late_ms: spread(|round| round.late_ms),
            lost: rounds.iter().filter(|round| round.lost).count(),
            rounds,
        }
    }
}

impl Round {
    async fn run(server: &Server, waiters: usize) -> Result<Self, Failure> {
        let holder = Locker::connect(server.url()).await?;
        let held = holder.get("waiters:held").lock().await?;
        let locker = Locker::builder()
            .node(server.url())
            .lease(LEASE)
            .connect()
            .await?;
        let beside = locker.get("waiters:beside").lock().await?;
        let lock = locker.get(held.key());
        let (bare_ms, bare_us) = bare(waiters).await?;
        let (end_ms, end_us) = give_up(&locker, &lock, waiters).await?;
        sleep(PAUSE).await;
        let (arrive_us, drop_ms) = go_away(&locker, &lock, waiters)?;
        sleep(PAUSE).await;
        let late = locker.stats().renewal_lateness.max;
        let lost = beside.check().is_err();
        drop((held, beside));
        locker.close().await;
        holder.close().await;
        Ok(Self {
            arrive_us,
            end_ms,
            bare_ms,
            end_us,
            bare_us,
            drop_ms,
            late_ms: late.as_secs_f64() * 1e3,
            lost,
        })
    }
}

/// Has all callers give up at the same time. Returns how long the last one takes, and the CPU time
/// of each.
async fn give_up(locker: &Locker, lock: &Lock, waiters: usize) -> Result<(f64, f64), Failure> {
    let deadline = Instant::now() + WAIT;
    let callers = (0..waiters).map(|_| {
        let lock = lock.clone().owned_by(Owner::new());
        tokio::spawn(async move {
            let answer = lock
                .try_lock_for(deadline.saturating_duration_since(Instant::now()))
                .await;
            (answer, Instant::now())
        })
    });
    let callers: Vec<_> = callers.collect();
    while locker.stats().waiters < waiters {
        if Instant::now() > deadline {
            return Err(format!("{waiters} callers are not in line within {WAIT:?}").into());
        }
        sleep(Duration::from_millis(1)).await;
    }
    sleep(deadline.saturating_duration_since(Instant::now())).await;
    let (cpu, mut last) = (client_cpu(), deadline);
    for caller in callers {
        let (answer, at) = caller.await?;
        if answer?.is_some() {
            return Err("the lock that is waited for is free".into());
        }
        last = last.max(at);
    }
    let cpu = client_cpu() - cpu;
    Ok((
        (last - deadline).as_secs_f64() * 1e3,
        cpu * 1e6 / waiters as f64,
    ))
}

/// Measures what tokio itself takes for as many tasks that another thread answers.
async fn bare(waiters: usize) -> Result<(f64, f64), Failure> {
    let (senders, callers): (Vec<_>, Vec<_>) = (0..waiters)
        .map(|_| {
            let (sender, answer) = oneshot::channel::<()>();
            (
                sender,
                tokio::spawn(async move { answer.await.map(|()| Instant::now()) }),
            )
        })
        .unzip();
    // By then all tasks wait.
    sleep(PAUSE).await;
    let (cpu, start) = (client_cpu(), Instant::now());
    let answering =
        thread::spawn(move || senders.into_iter().for_each(|sender| _ = sender.send(())));
    let mut last = start;
    for caller in callers {
        last = last.max(caller.await??);
    }
    answering
        .join()
        .map_err(|_| "the thread that answers panicked")?;
    let cpu = client_cpu() - cpu;
    Ok((
        (last - start).as_secs_f64() * 1e3,
        cpu * 1e6 / waiters as f64,
    ))
}

/// Has callers join the line, and drops their futures, the last one first.
fn go_away(locker: &Locker, lock: &Lock, waiters: usize) -> Result<(f64, f64), Failure> {
    let locks: Vec<Lock> = (0..waiters)
        .map(|_| lock.clone().owned_by(Owner::new()))
        .collect();
    let mut callers: Vec<_> = locks.iter().map(|lock| Box::pin(lock.lock())).collect();
    let mut context = Context::from_waker(Waker::noop());
    let start = Instant::now();
    for caller in &mut callers {
        if let Poll::Ready(answer) = caller.as_mut().poll(&mut context) {
            drop(answer?);
            return Err("the lock that is waited for is free".into());
        }
    }
    let arrived = start.elapsed();
    let start = Instant::now();
    while let Some(caller) = callers.pop() {
        drop(caller);
    }
    let dropped = start.elapsed();
    if locker.stats().waiters > 0 {
        return Err("a dropped caller is still in line".into());
    }
    Ok((
        arrived.as_secs_f64() * 1e6 / waiters as f64,
        dropped.as_secs_f64() * 1e3,
    ))
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |s: &Spread| format!("{:.2} ({:.2}..{:.2})", s.median, s.min, s.max);
        writeln!(
            f,
            "waiters: {} callers in one line, and another lock with a lease of {} s",
            self.waiters, self.lease_seconds
        )?;
        for (what, spread) in [
            ("one more arrives, us", &self.arrive_us),
            ("end of their time to the last answer, ms", &self.end_ms),
            ("as many tasks and bare channels, ms", &self.bare_ms),
            ("client CPU for each that ends, us", &self.end_us),
            ("for each task and bare channel, us", &self.bare_us),
            ("all dropped, the last one first, ms", &self.drop_ms),
            ("latest renewal meanwhile, ms", &self.late_ms),
        ] {
            writeln!(f, "  {what:<42} {:>26}", cell(spread))?;
        }
        writeln!(
            f,
            "  {:<42} {:>26}",
            "rounds that lost the renewed lock",
            format!("{} of {}", self.lost, self.rounds.len())
        )
    }
}
