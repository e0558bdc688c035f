//! Failovers of a master under Sentinels and under load: who was inside when, what holders and
//! waiters saw, and which writes that the old master had acknowledged are missing on the new one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockhound::{Guard, HoldState, Lock, Locker, Owner};
use tokio::task::JoinHandle;

use super::machine::within;
use super::record::{self, Visit};
use super::sentinel::{NAME, Sentinels};
use super::{Server, eventually, key, ms};

/// How the failover comes about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failover {
    /// `SENTINEL FAILOVER`.
    Ordered,
    /// The master is killed (kill -9).
    Killed,
    /// The master is stopped, and continued once it has a successor.
    Stopped,
}

/// What was seen of one failover.
#[derive(Debug)]
pub struct Seen {
    failover: Failover,
    /// The time from the beginning of the failover until all Sentinels name the successor.
    pub took: Duration,
    /// The time between the oldest and the newest acknowledged write that was lost.
    pub window: Duration,
    pub lost_writes: usize,
    pub visits: Vec<Visit>,
    /// Pairs of visits that overlap.
    pub overlaps: usize,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            failover,
            took,
            window,
            lost_writes,
            visits,
            overlaps,
        } = self;
        let visits = visits.len();
        write!(
            f,
            "{failover:?}: took {took:.1?}; {lost_writes} writes lost, over {window:.1?}; {visits} visits, {overlaps} \
             overlaps"
        )
    }
}

/// Longer than the Sentinels take to notice.
pub const LEASE: Duration = Duration::from_secs(15);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);

/// Three lockers hold eight locks, wait for four of them, and enter and leave three more while the
/// master is replaced. The load goes on for `go_on_for` after that. Checks that a lock that was
/// replicated is renewed by its holder on the new master, and that its waiters are woken there;
/// that no two visits overlap except by what asynchronous replication loses, for at most the
/// failover and one renewal; and that fences grow.
pub async fn under_load(failover: Failover, go_on_for: Duration) -> Seen {
    replace_under_load(Arc::new(Sentinels::start()), failover, go_on_for).await
}

/// As [`under_load`], while one Sentinel at a time is killed and started again, or stopped and
/// continued.
pub async fn under_load_with_sick_sentinels(failover: Failover, go_on_for: Duration) -> Seen {
    let (group, over) = (
        Arc::new(Sentinels::start()),
        Arc::new(AtomicBool::new(false)),
    );
    let (sick, ended) = (Arc::clone(&group), Arc::clone(&over));
    let meddling = std::thread::spawn(move || {
        // A failover takes seconds, and needs two of them.
        for turn in 0.. {
            let sentinel = &sick.sentinels[turn % 3];
            if turn % 2 == 0 {
                sentinel.kill();
                std::thread::sleep(ms(700));
                sentinel.restart();
            } else {
                sentinel.stop();
                std::thread::sleep(ms(700));
                sentinel.go_on();
            }
            if ended.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(ms(1_500));
        }
    });
    let seen = replace_under_load(group, failover, go_on_for).await;
    over.store(true, Ordering::Relaxed);
    meddling.join().unwrap();
    seen
}

async fn replace_under_load(
    group: Arc<Sentinels>,
    failover: Failover,
    go_on_for: Duration,
) -> Seen {
    let lockers = connect(&group).await;
    let held = Held::take(&group, &lockers).await;
    let over = Arc::new(AtomicBool::new(false));
    let names: Vec<_> = (0..3).map(|_| key()).collect();
    let load = load(&lockers, &names, &over);
    let writes = Writes::begin(&group.master);
    tokio::time::sleep(ms(500)).await;

    let (begun, from) = (Instant::now(), record::now());
    begin(failover, &group);
    group.failed_over().await;
    let took = begun.elapsed();
    let (lost_writes, window) = writes.lost(&group.replica);
    let until = record::now();
    if failover == Failover::Stopped {
        // It still acts as the master until the Sentinels demote it.
        group.master.go_on();
    }
    held.survive(&group, begun + took, took).await;
    tokio::time::sleep(go_on_for).await;

    over.store(true, Ordering::Relaxed);
    let mut visits = Vec::new();
    for task in load {
        visits.extend(task.await.unwrap());
    }
    let settled = until + u64::try_from(renewal().as_nanos()).unwrap();
    let overlaps = judge(&mut visits, from, settled)
        .unwrap_or_else(|problem| panic!("{failover:?}: {problem}"));
    let after = visits.iter().filter(|visit| visit.entered > until).count();
    assert!(after > 0, "{failover:?}: nobody comes in after it");
    Seen {
        failover,
        took,
        window,
        lost_writes,
        visits,
        overlaps,
    }
}

/// Returns how long a holder may take to notice a loss once the new master is named: it connects
/// there, and renews.
pub fn renewal() -> Duration {
    LEASE / 3 + 2 * COMMAND_TIMEOUT
}

async fn connect(group: &Sentinels) -> Vec<Locker> {
    let mut lockers = Vec::new();
    for _ in 0..3 {
        // Sentinels on a busy machine may do nothing for half a minute.
        let builder = group.builder(LEASE).outage_tolerance(ms(60_000));
        lockers.push(
            builder
                .command_timeout(COMMAND_TIMEOUT)
                .connect()
                .await
                .unwrap(),
        );
    }
    lockers
}

fn begin(failover: Failover, group: &Sentinels) {
    match failover {
        // A Sentinel may be away.
        Failover::Ordered => {
            let order = |sentinel: &Server| {
                sentinel
                    .try_command::<()>(&["SENTINEL", "FAILOVER", NAME])
                    .is_ok()
            };
            assert!(
                group.sentinels.iter().any(order),
                "no Sentinel takes the order"
            );
        }
        Failover::Killed => group.master.kill(),
        Failover::Stopped => group.master.stop(),
    }
}

/// Locks that are held all the time and were replicated, with their fields, and the waiters of
/// every other lock.
struct Held {
    guards: Vec<(Guard, Vec<(String, u64)>)>,
    waiting: Vec<Option<JoinHandle<(Guard, Instant)>>>,
}

impl Held {
    async fn take(group: &Sentinels, lockers: &[Locker]) -> Self {
        let (mut guards, mut waiting) = (Vec::new(), Vec::new());
        for at in 0..8 {
            let guard = lockers[at % 3].get(key()).lock().await.unwrap();
            let lock = lockers[(at + 1) % 3].get(guard.key());
            waiting.push((at % 2 == 0).then(|| {
                tokio::spawn(async move {
                    let guard = lock.lock().await.unwrap();
                    (guard, Instant::now())
                })
            }));
            guards.push(guard);
        }
        eventually(ms(20_000), "replicated", || {
            guards
                .iter()
                .all(|guard| group.replica.exists(guard.key().as_str()))
        })
        .await;
        let with_fields = |guard: Guard| {
            let fields = group.master.fields(guard.key().as_str());
            (guard, fields)
        };
        Self {
            guards: guards.into_iter().map(with_fields).collect(),
            waiting,
        }
    }

    /// Checks that the locks are renewed on the new master, and that their waiters are woken there.
    async fn survive(self, group: &Sentinels, named: Instant, took: Duration) {
        // On a busy machine the Sentinels may take longer than the lease.
        let in_time = took < LEASE / 2;
        for ((guard, fields), waiting) in self.guards.into_iter().zip(self.waiting) {
            let key = guard.key().to_string();
            if in_time {
                let left =
                    || Duration::from_millis(group.replica.pttl(&key).try_into().unwrap_or(0));
                let renewed = || LEASE - left() < named.elapsed();
                eventually(renewal(), "its holder renews it on the new master", renewed).await;
                assert_eq!(guard.state(), HoldState::Safe, "{key}");
                assert_eq!(group.replica.fields(&key), fields);
            }
            let Some(waiting) = waiting else {
                let released = guard.unlock().await;
                assert!(released.is_ok() || !in_time, "{released:?}");
                continue;
            };
            let channel = format!("redisson_lock__channel:{{{key}}}");
            let listens = || {
                group
                    .replica
                    .command::<(String, u64)>(&["PUBSUB", "NUMSUB", &channel])
                    .1
                    == 1
            };
            if in_time {
                eventually(ms(20_000), "its waiter listens at the new master", listens).await;
            }
            let unlocked = Instant::now();
            let released = guard.unlock().await;
            assert!(released.is_ok() || !in_time, "{released:?}");
            let (next, woken) = waiting.await.unwrap();
            // Without a message the waiter polls after a sixth of the lease.
            let waited = woken.saturating_duration_since(unlocked);
            assert!(within(waited, ms(1_000)) || !in_time, "{waited:?}");
            next.unlock().await.unwrap();
        }
    }
}

/// Starts three tasks per locker, one for each of these locks, which enter and leave.
fn load(
    lockers: &[Locker],
    names: &[String],
    over: &Arc<AtomicBool>,
) -> Vec<JoinHandle<Vec<Visit>>> {
    let tasks = lockers
        .iter()
        .flat_map(|locker| names.iter().map(move |name| locker.get(name)));
    tasks
        .map(|lock| tokio::spawn(come_and_go(lock.owned_by(Owner::new()), Arc::clone(over))))
        .collect()
}

async fn come_and_go(lock: Lock, over: Arc<AtomicBool>) -> Vec<Visit> {
    let mut visits = Vec::new();
    while !over.load(Ordering::Relaxed) {
        // It fails while there is no master for longer than the call waits.
        let Ok(guard) = lock.lock().await else {
            continue;
        };
        let (key, who, fence) = (
            lock.key().to_string(),
            guard.owner().to_string(),
            guard.fence().get(),
        );
        let mut inside = None;
        // Most leave soon. Some stay for longer, so that a holder whose grant was not replicated is
        // still inside.
        let looks = if fastrand::u8(..) < 2 {
            300
        } else {
            fastrand::u16(0..3)
        };
        for _ in 0..=looks {
            // The time is taken before the check: the lock was held then, as far as its holder
            // could know.
            let now = record::now();
            if guard.check().is_err() {
                break;
            }
            inside = Some((inside.map_or(now, |(entered, _)| entered), now));
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2_000))).await;
        }
        visits.extend(inside.map(|(entered, left)| Visit {
            key,
            who,
            fence,
            entered,
            left,
        }));
        // Some releases are not confirmed; the next visit shows whether they were executed.
        drop(guard.unlock().await);
    }
    visits
}

/// Counts the pairs of visits that overlap.
///
/// # Errors
/// Two visits that overlap outside of the failover and the renewal after it, or a fence that does
/// not grow outside of it.
pub fn judge(visits: &mut [Visit], from: u64, settled: u64) -> Result<usize, String> {
    visits.sort_by(|a, b| (&a.key, a.entered).cmp(&(&b.key, b.entered)));
    let mut overlaps = 0;
    for of_key in visits.chunk_by(|a, b| a.key == b.key) {
        let mut last: Option<&Visit> = None;
        for visit in of_key {
            if let Some(before) = last.filter(|before| visit.entered < before.left) {
                overlaps += 1;
                if visit.entered < from || before.left.min(visit.left) > settled {
                    return Err(format!(
                        "inside at once, from {from} to {settled}: {before:?} and {visit:?}"
                    ));
                }
            }
            last = last
                .filter(|before| before.left > visit.left)
                .or(Some(visit));
        }
        let mut highest = 0;
        for visit in of_key {
            // Fences that the failover lost may be given out again while it lasts.
            let lasts = (from..=settled).contains(&visit.entered);
            if !lasts && visit.fence <= highest {
                return Err(format!(
                    "the fence did not grow beyond {highest}: {visit:?}"
                ));
            }
            highest = highest.max(visit.fence);
        }
    }
    Ok(overlaps)
}

/// A thread that writes one number after the other to the master, and notes when each was
/// acknowledged.
struct Writes {
    over: Arc<AtomicBool>,
    writing: std::thread::JoinHandle<Vec<Instant>>,
}

const NUMBER: &str = "window:number";

impl Writes {
    fn begin(master: &Server) -> Self {
        let (over, mut connection) = (
            Arc::new(AtomicBool::new(false)),
            master.connection().unwrap(),
        );
        let ended = Arc::clone(&over);
        // A stopped master does not answer.
        connection
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let writing = std::thread::spawn(move || {
            let mut answered = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let written = redis::cmd("SET")
                    .arg(NUMBER)
                    .arg(answered.len())
                    .exec(&mut connection);
                if written.is_err() {
                    break;
                }
                answered.push(Instant::now());
                std::thread::sleep(Duration::from_micros(200));
            }
            answered
        });
        Self { over, writing }
    }

    /// Returns how many of the writes the new master does not have, and the time between the first
    /// and the last of them.
    fn lost(self, new: &Server) -> (usize, Duration) {
        self.over.store(true, Ordering::Relaxed);
        let answered = self.writing.join().unwrap();
        assert!(!answered.is_empty(), "nothing was written");
        let kept = new
            .command::<Option<usize>>(&["GET", NUMBER])
            .map_or(0, |last| last + 1);
        let lost = answered.get(kept..).unwrap_or_default();
        let window = lost
            .first()
            .zip(lost.last())
            .map_or(Duration::ZERO, |(first, last)| *last - *first);
        (lost.len(), window)
    }
}

/// Sums up failovers of one kind: the lost writes, how far back they went, and the overlaps.
pub fn table(seen: &[Seen]) -> String {
    let mut windows: Vec<_> = seen.iter().map(|seen| seen.window).collect();
    windows.sort_unstable();
    let (median, most) = (windows[windows.len() / 2], windows[windows.len() - 1]);
    let (writes, overlaps) = (
        seen.iter().map(|seen| seen.lost_writes).sum::<usize>(),
        seen.iter().map(|seen| seen.overlaps).sum::<usize>(),
    );
    let kind = seen[0].failover;
    let runs = seen.len();
    format!(
        "{kind:?}, {runs} failovers: {writes} writes lost, over {median:.1?} (median) and {most:.1?} (max); {overlaps} \
         overlaps"
    )
}

/// Replaces the master under load while a replica has to acknowledge each grant, and checks that no
/// two visits overlap. Returns for how long the new master had no replica, and so granted nothing.
pub async fn under_load_with_acknowledgements(failover: Failover) -> Duration {
    let group = Sentinels::start();
    let (over, names) = (Arc::new(AtomicBool::new(false)), [key(), key(), key()]);
    let mut lockers = Vec::new();
    for _ in 0..3 {
        let builder = group
            .builder(LEASE)
            .command_timeout(COMMAND_TIMEOUT)
            .replica_acks(1, ms(200));
        lockers.push(builder.connect().await.unwrap());
    }
    let load = load(&lockers, &names, &over);
    tokio::time::sleep(ms(500)).await;
    begin(failover, &group);
    group.failed_over().await;
    let until = record::now();
    match failover {
        Failover::Ordered => {}
        Failover::Killed => group.master.restart(),
        Failover::Stopped => group.master.go_on(),
    }
    // The new master grants nothing until the old one is its replica.
    let without = eventually(ms(120_000), "it has a replica", || {
        group.replica.has_replicas(1)
    })
    .await;
    tokio::time::sleep(LEASE).await;
    over.store(true, Ordering::Relaxed);
    let mut visits = Vec::new();
    for task in load {
        visits.extend(task.await.unwrap());
    }
    assert!(
        visits.iter().any(|visit| visit.entered > until),
        "{failover:?}: nobody comes in after it"
    );
    record::Record::of(visits)
        .check()
        .unwrap_or_else(|problem| panic!("{failover:?}: {problem}"));
    without
}
