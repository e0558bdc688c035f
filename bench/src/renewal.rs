//! What the renewal of many locks costs: lockhound's watchdog, compared with crates that have a
//! task and a script for each lock, and with a bare socket that sends the watchdog's script.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use distkit::DistkitRedisKey;
use distkit::lock::{LockOptions, Mutex, MutexGuard};
use lockhound::{Guard, Locker};
use redis::aio::ConnectionManager;
use rlock::async_lock::{RLock, RLockGuard};
use rlock::{AcquireOptions, RenewalMode};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use crate::Failure;
use crate::connection::Connection;
use crate::contender::{ACQUIRE, OWNER, clock, mark, prefix};
use crate::scenario::{LOCKHOUND, SOCKET, client_cpu};
use crate::server::Server;
use crate::spread::Spread;

const RENEW: &str = include_str!("../../lua/redisson/renew.lua");
/// As in the watchdog.
const BATCH: usize = 100;

const ROUNDS: usize = 3;
/// How many tasks take the locks.
const TAKERS: usize = 64;

const RLOCK: &str = "rlock";
const DISTKIT: &str = "distkit";
/// lockhound on a cluster of one server, with a script for each slot.
const IN_SLOTS: &str = "in slots";

/// A number of holds, each of which its crate renews at a third of the lease.
#[derive(Debug, Clone, Copy)]
struct Size {
    holds: usize,
    lease: Duration,
    /// How many renewals of every lock are measured.
    renewals: u32,
    contenders: &'static [&'static str],
}

const SIZES: [Size; 3] = [
    Size {
        holds: 1_000,
        lease: Duration::from_secs(3),
        renewals: 5,
        contenders: &[SOCKET, LOCKHOUND, RLOCK, DISTKIT],
    },
    Size {
        holds: 10_000,
        lease: Duration::from_secs(3),
        renewals: 5,
        contenders: &[SOCKET, LOCKHOUND, IN_SLOTS, RLOCK, DISTKIT],
    },
    // With a task for each lock the machine has too little CPU time to renew this many.
    Size {
        holds: 100_000,
        lease: Duration::from_secs(30),
        renewals: 1,
        contenders: &[SOCKET, LOCKHOUND],
    },
];

impl Size {
    fn third(&self) -> Duration {
        self.lease / 3
    }

    /// Returns how long one contender takes in one round.
    fn time(&self) -> Duration {
        self.third() * (self.renewals + 2)
    }
}

/// What one number of holds costs each contender.
#[derive(Debug, Serialize)]
pub(crate) struct Renewals {
    pub(crate) holds: usize,
    pub(crate) lease_seconds: f64,
    pub(crate) contenders: Vec<Cost>,
}

/// A contender's figures, each for one renewal of one lock.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) name: &'static str,
    /// CPU time of the server above its idle time.
    pub(crate) server_us: Spread,
    /// CPU time of the bench's process, which does nothing else in that time.
    pub(crate) client_us: Spread,
    pub(crate) commands: Spread,
    /// This contender's figures divided by lockhound's of the same round: server, client, commands.
    pub(crate) ratios: [Spread; 3],
    pub(crate) rounds: Vec<[f64; 3]>,
}

/// The guards of the locks, which their crate renews.
enum Held {
    Socket(Arc<AtomicBool>, JoinHandle<io::Result<()>>),
    Lockhound(Locker, Vec<Guard>),
    Rlock(RLock, Vec<RLockGuard>),
    Distkit(Vec<MutexGuard>),
}

pub(crate) fn measure(
    server: &Server,
    control: &mut Connection,
    runtime: &Runtime,
) -> Result<Vec<Renewals>, Failure> {
    let time: Duration = SIZES
        .iter()
        .map(|size| size.time() * u32::try_from(ROUNDS * size.contenders.len()).unwrap_or(u32::MAX))
        .sum();
    eprintln!("measuring renewal: {:.0} s", time.as_secs_f64());
    let cluster = Server::cluster()?;
    let mut in_cluster = cluster.connect()?;
    let (idle, idle_in_cluster) = (idle(control)?, idle(&mut in_cluster)?);
    let mut all = Vec::new();
    for size in SIZES {
        let mut rounds = vec![Vec::new(); size.contenders.len()];
        for _ in 0..ROUNDS {
            for (name, samples) in size.contenders.iter().zip(&mut rounds) {
                let (server, control, idle) = match *name {
                    IN_SLOTS => (&cluster, &mut in_cluster, idle_in_cluster),
                    _ => (server, &mut *control, idle),
                };
                let held = runtime.block_on(Held::take(name, server, size))?;
                samples.push(slot(control, idle, size)?);
                runtime.block_on(held.release())?;
                control.call(&[b"FLUSHALL"])?;
            }
        }
        let measured: Vec<_> = size.contenders.iter().copied().zip(rounds).collect();
        let ours: Vec<_> = measured
            .iter()
            .filter(|(name, _)| *name == LOCKHOUND)
            .flat_map(|(_, rounds)| rounds.clone())
            .collect();
        let contenders = measured
            .into_iter()
            .map(|(name, rounds)| Cost::of(name, rounds, &ours))
            .collect();
        all.push(Renewals {
            holds: size.holds,
            lease_seconds: size.lease.as_secs_f64(),
            contenders,
        });
    }
    Ok(all)
}

/// Returns the CPU time that an idle server uses per second.
fn idle(control: &mut Connection) -> Result<f64, Failure> {
    let (before, pause) = (control.cpu()?, Duration::from_secs(3));
    std::thread::sleep(pause);
    Ok((control.cpu()? - before) / pause.as_secs_f64())
}

/// Measures server CPU, client CPU and commands for one renewal.
fn slot(control: &mut Connection, idle: f64, size: Size) -> Result<[f64; 3], Failure> {
    // By then the work of the acquires is over, and every lock has been renewed once.
    std::thread::sleep(size.third() + size.third() / 2);
    control.reset_calls()?;
    let time = size.third() * size.renewals;
    let (server, client) = (control.cpu()?, client_cpu());
    std::thread::sleep(time);
    let (client, server) = (
        client_cpu() - client,
        control.cpu()? - server - idle * time.as_secs_f64(),
    );
    // Every renewal is one PEXPIRE, whatever script calls it.
    let (renewals, commands) = (
        control.calls("pexpire")?.count,
        control.calls("evalsha")?.count,
    );
    Ok([
        server * 1e6 / renewals,
        client * 1e6 / renewals,
        commands / renewals,
    ])
}

impl Cost {
    fn of(name: &'static str, rounds: Vec<[f64; 3]>, ours: &[[f64; 3]]) -> Self {
        let spread = |at: usize| Spread::of(rounds.iter().map(|round| round[at]));
        let ratio = |at: usize| {
            Spread::of(
                rounds
                    .iter()
                    .zip(ours)
                    .map(|(round, ours)| round[at] / ours[at]),
            )
        };
        let (server_us, client_us, commands) = (spread(0), spread(1), spread(2));
        Self {
            name,
            server_us,
            client_us,
            commands,
            ratios: [ratio(0), ratio(1), ratio(2)],
            rounds,
        }
    }
}

impl Held {
    async fn take(name: &str, server: &Server, size: Size) -> Result<Self, Failure> {
        let keys: Vec<String> = (0..size.holds)
            .map(|n| format!("{}renewal:{n}", prefix(name)))
            .collect();
        match name {
            SOCKET => {
                let mut socket = server.connect()?;
                take_bare(&mut socket, &keys, size)?;
                let stop = Arc::<AtomicBool>::default();
                let told = Arc::clone(&stop);
                let renewing =
                    std::thread::spawn(move || renew_bare(&mut socket, &keys, size, &told));
                Ok(Self::Socket(stop, renewing))
            }
            LOCKHOUND | IN_SLOTS => {
                let url = if name == IN_SLOTS {
                    server.cluster_url()
                } else {
                    server.url()
                };
                let locker = Locker::builder()
                    .node(url)
                    .lease(size.lease)
                    .connect()
                    .await?;
                let lock = |key: String| {
                    let lock = locker.get(key);
                    async move { Ok(lock.lock().await?) }
                };
                let guards = take(keys, lock).await?;
                Ok(Self::Lockhound(locker, guards))
            }
            RLOCK => {
                let manager = RLock::new(server.url()).await?;
                let options = AcquireOptions::builder()
                    .ttl(size.lease)
                    .renewal_mode(RenewalMode::Interval(size.third()))
                    .build()?;
                let lock = |key: String| {
                    let (manager, options) = (manager.clone(), options.clone());
                    async move { Ok(manager.acquire_mutex_with_options(key, options).await?) }
                };
                let guards = take(keys, lock).await?;
                Ok(Self::Rlock(manager, guards))
            }
            _ => {
                let connection = ConnectionManager::new(redis::Client::open(server.url())?).await?;
                let lock = |key: String| {
                    let connection = connection.clone();
                    async move {
                        // distkit allows no colons in names.
                        let options = LockOptions::builder(
                            DistkitRedisKey::try_from(key.replace(':', "-"))?,
                            connection,
                        )
                        .ttl(size.lease);
                        Ok(Mutex::new(options.build()).try_lock().await?)
                    }
                };
                Ok(Self::Distkit(take(keys, lock).await?))
            }
        }
    }

    async fn release(self) -> Result<(), Failure> {
        match self {
            Self::Socket(stop, renewing) => {
                stop.store(true, Ordering::Relaxed);
                renewing
                    .join()
                    .map_err(|_| "the thread that renews panicked")??;
            }
            Self::Lockhound(locker, guards) => {
                for guard in guards {
                    guard.unlock().await?;
                }
                locker.close().await;
            }
            Self::Rlock(manager, guards) => {
                for mut guard in guards {
                    guard.release().await?;
                }
                manager.shutdown().await;
            }
            Self::Distkit(guards) => {
                for guard in guards {
                    guard.release().await?;
                }
            }
        }
        Ok(())
    }
}

/// Takes the locks with some tasks at once.
async fn take<G, F>(keys: Vec<String>, lock: impl Fn(String) -> F) -> Result<Vec<G>, Failure>
where
    G: Send + 'static,
    F: Future<Output = Result<G, Failure>> + Send + 'static,
{
    let mut guards = Vec::with_capacity(keys.len());
    for keys in keys.chunks(TAKERS) {
        let taken: Vec<_> = keys
            .iter()
            .map(|key| tokio::spawn(lock(key.clone())))
            .collect();
        for guard in taken {
            guards.push(guard.await??);
        }
        // Spread over time, as in a program: locks taken all at once would be renewed all at once.
        sleep(Duration::from_millis(2)).await;
    }
    Ok(guards)
}

/// Returns the field of a lock of the bare socket.
fn field(at: usize) -> String {
    format!("{OWNER}:{at}")
}

fn take_bare(socket: &mut Connection, keys: &[String], size: Size) -> io::Result<()> {
    let (acquire, lease_ms) = (socket.load(&ACQUIRE)?, size.lease.as_millis().to_string());
    for (at, key) in keys.iter().enumerate() {
        let (mark, field, clock) = (mark(key), field(at), clock(1));
        let (key, mark, field) = (key.as_bytes(), mark.as_bytes(), field.as_bytes());
        socket.call(&[
            b"EVALSHA",
            &acquire,
            b"2",
            key,
            mark,
            lease_ms.as_bytes(),
            field,
            clock.as_bytes(),
        ])?;
    }
    Ok(())
}

/// Renews the locks in batches that are spread over a third of the lease.
fn renew_bare(
    socket: &mut Connection,
    keys: &[String],
    size: Size,
    stop: &AtomicBool,
) -> io::Result<()> {
    let (renew, lease_ms) = (socket.load(RENEW)?, size.lease.as_millis().to_string());
    let fields: Vec<String> = (0..keys.len()).map(field).collect();
    let batches = u32::try_from(keys.len().div_ceil(BATCH)).unwrap_or(u32::MAX);
    let mut due = Instant::now();
    loop {
        for (keys, fields) in keys.chunks(BATCH).zip(fields.chunks(BATCH)) {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let count = keys.len().to_string();
            let mut words: Vec<&[u8]> = vec![b"EVALSHA", &renew, count.as_bytes()];
            words.extend(keys.iter().map(|key| key.as_bytes()));
            words.push(lease_ms.as_bytes());
            words.extend(fields.iter().map(|field| field.as_bytes()));
            if socket.call(&words)? != format!("*1\r\n:{count}\r\n").as_bytes() {
                return Err(io::Error::other("not every lock was renewed"));
            }
            due += size.third() / batches;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}

impl fmt::Display for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "renewal: {} holds, a lease of {} s; for one renewal of one lock",
            self.holds, self.lease_seconds
        )?;
        writeln!(
            f,
            "  {:<10} {:>22} {:>22} {:>10}   times lockhound's",
            "", "server CPU, us", "client CPU, us", "commands"
        )?;
        for cost in &self.contenders {
            let cell = |s: &Spread| format!("{:.2} ({:.2}..{:.2})", s.median, s.min, s.max);
            let [server, client, commands] = cost.ratios.map(|ratio| ratio.median);
            writeln!(
                f,
                "  {:<10} {:>22} {:>22} {:>10.3}   {server:.1} {client:.1} {commands:.0}",
                cost.name,
                cell(&cost.server_us),
                cell(&cost.client_us),
                cost.commands.median
            )?;
        }
        Ok(())
    }
}
