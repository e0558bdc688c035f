//! What the renewal of many locks costs: lockhound's watchdog beside crates with a task and a script for each lock.

use std::fmt;
use std::time::Duration;

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
use crate::contender::prefix;
use crate::scenario::{LOCKHOUND, client_cpu};
use crate::server::Server;
use crate::spread::Spread;

const ROUNDS: usize = 3;
const HOLDS: [usize; 2] = [1_000, 10_000];
/// All of them renew at a third of it.
const LEASE: Duration = Duration::from_secs(3);
const THIRD: Duration = Duration::from_secs(1);
/// Five renewals of every lock.
const SLOT: Duration = Duration::from_secs(5);
/// So many tasks take the locks.
const TAKERS: usize = 64;

const RLOCK: &str = "rlock";
const DISTKIT: &str = "distkit";
const CONTENDERS: [&str; 3] = [LOCKHOUND, RLOCK, DISTKIT];

/// What one number of holds costs each contender.
#[derive(Debug, Serialize)]
pub(crate) struct Renewals {
    pub(crate) holds: usize,
    pub(crate) contenders: Vec<Cost>,
}

/// A contender's figures, all of them a renewal of one lock.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) name: &'static str,
    /// CPU time of the server, above what it takes idle.
    pub(crate) server_us: Spread,
    /// CPU time of the bench's process, which does nothing else meanwhile.
    pub(crate) client_us: Spread,
    pub(crate) commands: Spread,
    /// This one's figures divided by lockhound's of the same round: server, client, commands.
    pub(crate) ratios: [Spread; 3],
    pub(crate) rounds: Vec<[f64; 3]>,
}

/// Guards of as many locks, whose crate renews them.
enum Held {
    Lockhound(Locker, Vec<Guard>),
    Rlock(RLock, Vec<RLockGuard>),
    Distkit(Vec<MutexGuard>),
}

pub(crate) fn measure(server: &Server, control: &mut Connection, runtime: &Runtime) -> Result<Vec<Renewals>, Failure> {
    let time = (SLOT + THIRD * 2) * u32::try_from(ROUNDS * CONTENDERS.len() * HOLDS.len())?;
    eprintln!("measuring renewal: {:.0} s", time.as_secs_f64());
    let before = control.cpu()?;
    std::thread::sleep(THIRD * 3);
    let idle = (control.cpu()? - before) / (THIRD * 3).as_secs_f64();
    let mut all = Vec::new();
    for holds in HOLDS {
        let mut rounds = vec![Vec::new(); CONTENDERS.len()];
        for _ in 0..ROUNDS {
            for (name, samples) in CONTENDERS.iter().zip(&mut rounds) {
                let held = runtime.block_on(Held::take(name, server, holds))?;
                samples.push(slot(control, idle)?);
                runtime.block_on(held.release())?;
            }
        }
        let ours = rounds[0].clone();
        let contenders = CONTENDERS.into_iter().zip(rounds).map(|(name, rounds)| Cost::of(name, rounds, &ours));
        all.push(Renewals { holds, contenders: contenders.collect() });
    }
    Ok(all)
}

/// Server CPU, client CPU and commands, a renewal.
fn slot(control: &mut Connection, idle: f64) -> Result<[f64; 3], Failure> {
    // What the acquires left behind is cleared away, and every lock has been renewed once.
    std::thread::sleep(THIRD + THIRD / 2);
    control.call(&[b"CONFIG", b"RESETSTAT"])?;
    let (server, client) = (control.cpu()?, client_cpu());
    std::thread::sleep(SLOT);
    let (client, server) = (client_cpu() - client, control.cpu()? - server - idle * SLOT.as_secs_f64());
    // Every renewal is one PEXPIRE, whatever script calls it.
    let (renewals, commands) = (calls(control, "pexpire")?, calls(control, "evalsha")?);
    Ok([server * 1e6 / renewals, client * 1e6 / renewals, commands / renewals])
}

fn calls(control: &mut Connection, command: &str) -> Result<f64, Failure> {
    let value = control.info("commandstats", &format!("cmdstat_{command}"))?;
    let calls = value.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse().ok());
    Ok(calls.ok_or("INFO commandstats has changed its form")?)
}

impl Cost {
    fn of(name: &'static str, rounds: Vec<[f64; 3]>, ours: &[[f64; 3]]) -> Self {
        let spread = |at: usize| Spread::of(rounds.iter().map(|round| round[at]));
        let ratio = |at: usize| Spread::of(rounds.iter().zip(ours).map(|(round, ours)| round[at] / ours[at]));
        let (server_us, client_us, commands) = (spread(0), spread(1), spread(2));
        Self { name, server_us, client_us, commands, ratios: [ratio(0), ratio(1), ratio(2)], rounds }
    }
}

impl Held {
    async fn take(name: &str, server: &Server, holds: usize) -> Result<Self, Failure> {
        let keys: Vec<String> = (0..holds).map(|n| format!("{}renewal:{n}", prefix(name))).collect();
        match name {
            LOCKHOUND => {
                let locker = Locker::builder().node(server.url()).lease(LEASE).connect().await?;
                let lock = |key: String| {
                    let lock = locker.get(key);
                    async move { Ok(lock.lock().await?) }
                };
                let guards = take(keys, lock).await?;
                Ok(Self::Lockhound(locker, guards))
            }
            RLOCK => {
                let manager = RLock::new(server.url()).await?;
                let options =
                    AcquireOptions::builder().ttl(LEASE).renewal_mode(RenewalMode::Interval(THIRD)).build()?;
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
                        // It allows no colons.
                        let options =
                            LockOptions::builder(DistkitRedisKey::try_from(key.replace(':', "-"))?, connection)
                                .ttl(LEASE);
                        Ok(Mutex::new(options.build()).try_lock().await?)
                    }
                };
                Ok(Self::Distkit(take(keys, lock).await?))
            }
        }
    }

    async fn release(self) -> Result<(), Failure> {
        match self {
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

/// Takes the locks with some tasks at once, as they would come.
async fn take<G, F>(keys: Vec<String>, lock: impl Fn(String) -> F) -> Result<Vec<G>, Failure>
where
    G: Send + 'static,
    F: Future<Output = Result<G, Failure>> + Send + 'static,
{
    let mut guards = Vec::with_capacity(keys.len());
    for keys in keys.chunks(TAKERS) {
        let taken: Vec<_> = keys.iter().map(|key| tokio::spawn(lock(key.clone()))).collect();
        for guard in taken {
            guards.push(guard.await??);
        }
        // They are taken over a while, as the locks of a program are; at once they would all be renewed at once.
        sleep(THIRD / 500).await;
    }
    Ok(guards)
}

impl fmt::Display for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "renewal: {} holds, a lease of {LEASE:?}; for one renewal of one lock", self.holds)?;
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
