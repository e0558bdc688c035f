//! The contenders: the bare socket, fred alone, lockhound and rslock, each with the same loop of
//! lock and unlock pairs.

use std::io;
use std::sync::{Barrier, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockhound::{Format, Lock, Locker, RwLock};
use rslock::LockManager;
use tokio::runtime::Runtime;

use crate::Failure;
use crate::alone::Alone;
use crate::connection::Connection;
use crate::laps::Laps;
use crate::scenario::{LOCKHOUND, PLAIN, SOCKET, SOCKET_READS, SOCKET_WRITES};
use crate::server::Server;

/// The scripts of the library, unchanged.
pub(crate) static ACQUIRE: LazyLock<String> = LazyLock::new(|| whole(ACQUIRE_BODY));
/// `acquire.lua` without the lines of `fence.lua`.
pub(crate) const ACQUIRE_BODY: &str = include_str!("../../lua/redisson/acquire.lua");
pub(crate) const RELEASE: &str = include_str!("../../lua/redisson/release.lua");

/// Returns a script with the parts in place that it shares with others.
fn whole(script: &str) -> String {
    script
        .replace("-- fence.lua\n", include_str!("../../lua/shared/fence.lua"))
        .replace(
            "-- leased.lua\n",
            include_str!("../../lua/shared/leased.lua"),
        )
        .replace(
            "-- timeouts.lua\n",
            include_str!("../../lua/shared/timeouts.lua"),
        )
}

/// The part before the generation in the field of contenders that send the scripts themselves.
pub(crate) const OWNER: &str = "6f1d9a52-0c8e-4b57-9d35-5a1c7e2b9f40:1";

/// lockhound's default, used by all contenders.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// With more blocking threads the bench would measure the scheduler and not the server.
pub(crate) const MOST_SOCKETS: usize = 64;

/// What a bare socket takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Taken {
    Lock,
    Read,
    Write,
}

/// A contender.
pub(crate) enum Contender {
    Socket(Floor),
    Fred(Alone),
    Lockhound(Locker),
    /// lockhound with `Format::Plain`, the format of rslock.
    Plain(Locker),
    /// lockhound with `replica_acks(1)`.
    Replicated(Locker),
    /// One side of lockhound's read-write lock.
    ReadWrite(Locker, Taken),
    Rslock(LockManager),
}

impl Contender {
    /// Connects lockhound to these servers. They are new and have forgotten nothing, so there is no
    /// quarantine.
    pub(crate) async fn lockhound(servers: &[Server]) -> Result<Self, Failure> {
        let nodes = servers.iter().fold(Locker::builder(), |builder, server| {
            builder.node(server.url())
        });
        Ok(Self::Lockhound(
            nodes.restart_quarantine(Duration::ZERO).connect().await?,
        ))
    }

    pub(crate) async fn plain(server: &Server) -> Result<Self, Failure> {
        Ok(Self::Plain(
            Locker::builder()
                .node(server.url())
                .format(Format::Plain)
                .connect()
                .await?,
        ))
    }

    pub(crate) async fn replicated(server: &Server) -> Result<Self, Failure> {
        let builder = Locker::builder()
            .node(server.url())
            .replica_acks(1, Duration::from_secs(1));
        Ok(Self::Replicated(builder.connect().await?))
    }

    pub(crate) fn rslock(servers: &[Server]) -> Self {
        Self::Rslock(LockManager::new(servers.iter().map(Server::url).collect()))
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Socket(floor) => match floor.scripts.taken {
                Taken::Lock => SOCKET,
                Taken::Read => SOCKET_READS,
                Taken::Write => SOCKET_WRITES,
            },
            Self::Fred(_) => "fred",
            Self::Lockhound(_) => LOCKHOUND,
            Self::Plain(_) => PLAIN,
            Self::Replicated(_) => "replica_acks(1)",
            Self::ReadWrite(_, Taken::Write) => "write",
            Self::ReadWrite(..) => "read",
            Self::Rslock(_) => "rslock",
        }
    }

    /// Locks and unlocks for this time, with a key for each task.
    pub(crate) fn run(
        &mut self,
        runtime: &Runtime,
        callers: Callers,
        slot: Duration,
    ) -> Result<Laps, Failure> {
        let prefix = prefix(self.name());
        let keys: Vec<String> = (0..callers.count())
            .map(|caller| format!("{prefix}{caller}"))
            .collect();
        match self {
            Self::Socket(floor) => Ok(floor.run(&keys, slot)?),
            Self::Fred(alone) => {
                let pairs = |key| alone.clone().pairs(key, slot);
                runtime.block_on(callers.run(keys.into_iter().map(pairs)))
            }
            Self::Lockhound(locker) | Self::Plain(locker) | Self::Replicated(locker) => {
                let pairs = |key: String| lockhound_pairs(locker.get(key), slot);
                runtime.block_on(callers.run(keys.into_iter().map(pairs)))
            }
            Self::ReadWrite(locker, taken) => {
                let pairs = |key: String| read_write_pairs(locker.rw(key), *taken, slot);
                runtime.block_on(callers.run(keys.into_iter().map(pairs)))
            }
            Self::Rslock(manager) => {
                let pairs = |key| rslock_pairs(manager.clone(), key, slot);
                runtime.block_on(callers.run(keys.into_iter().map(pairs)))
            }
        }
    }

    /// Closes the connections of a locker.
    pub(crate) async fn close(self) {
        if let Self::Lockhound(locker)
        | Self::Plain(locker)
        | Self::Replicated(locker)
        | Self::ReadWrite(locker, _) = self
        {
            locker.close().await;
        }
    }
}

/// Returns the prefix of a contender's keys: each contender has keys of its own.
pub(crate) fn prefix(contender: &str) -> String {
    format!("bench:{contender}:")
}

/// The callers that lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Callers {
    /// The future of `block_on`, as an `async fn main` is one. The thread that polls it is no
    /// worker.
    Main,
    /// This many spawned tasks.
    Tasks(usize),
}

impl Callers {
    pub(crate) fn count(self) -> usize {
        match self {
            Self::Main => 1,
            Self::Tasks(count) => count,
        }
    }

    pub(crate) async fn run(
        self,
        futures: impl Iterator<Item = impl Future<Output = Result<Laps, Failure>> + Send + 'static>,
    ) -> Result<Laps, Failure> {
        let mut laps = Vec::with_capacity(self.count());
        match self {
            Self::Main => {
                for future in futures {
                    laps.push(future.await?);
                }
            }
            Self::Tasks(_) => {
                let tasks: Vec<_> = futures.map(tokio::spawn).collect();
                for task in tasks {
                    laps.push(task.await??);
                }
            }
        }
        Ok(Laps::merge(laps))
    }
}

pub(crate) async fn lockhound_pairs(lock: Lock, slot: Duration) -> Result<Laps, Failure> {
    let mut laps = Laps::start();
    while let Some(asked) = laps.next(slot) {
        let guard = lock.lock().await?;
        let locked = Instant::now();
        guard.unlock().await?;
        laps.note(asked, locked);
    }
    Ok(laps)
}

async fn read_write_pairs(lock: RwLock, taken: Taken, slot: Duration) -> Result<Laps, Failure> {
    let (read, write, mut laps) = (lock.read(), lock.write(), Laps::start());
    while let Some(asked) = laps.next(slot) {
        let locked;
        if let Taken::Write = taken {
            let guard = write.lock().await?;
            locked = Instant::now();
            guard.unlock().await?;
        } else {
            let guard = read.lock().await?;
            locked = Instant::now();
            guard.unlock().await?;
        }
        laps.note(asked, locked);
    }
    Ok(laps)
}

async fn rslock_pairs(manager: LockManager, key: String, slot: Duration) -> Result<Laps, Failure> {
    let mut laps = Laps::start();
    while let Some(asked) = laps.next(slot) {
        let guard = manager.acquire(&*key, LEASE).await?;
        let locked = Instant::now();
        guard.release().await;
        laps.note(asked, locked);
    }
    Ok(laps)
}

/// The scripts on blocking sockets: what a pair costs without any library.
pub(crate) struct Floor {
    scripts: Scripts,
    /// The sockets of each thread, one to each server.
    threads: Vec<Vec<Connection>>,
}

/// Digests of the two scripts.
#[derive(Debug, Clone)]
struct Scripts {
    taken: Taken,
    acquire: Vec<u8>,
    release: Vec<u8>,
}

impl Floor {
    /// Connects this many threads to all of these servers, and loads the library's scripts.
    pub(crate) fn new(servers: &[Server], threads: usize) -> io::Result<Self> {
        Self::of(Taken::Lock, servers, threads)
    }

    pub(crate) fn of(taken: Taken, servers: &[Server], threads: usize) -> io::Result<Self> {
        let (acquire, release) = match taken {
            Taken::Lock => (ACQUIRE_BODY, RELEASE),
            Taken::Read => (
                include_str!("../../lua/read/acquire.lua"),
                include_str!("../../lua/read/release.lua"),
            ),
            Taken::Write => (
                include_str!("../../lua/write/acquire.lua"),
                include_str!("../../lua/write/release.lua"),
            ),
        };
        let sockets = || {
            servers
                .iter()
                .map(Server::connect)
                .collect::<io::Result<Vec<_>>>()
        };
        let mut threads = (0..threads)
            .map(|_| sockets())
            .collect::<io::Result<Vec<_>>>()?;
        let mut scripts = Scripts {
            taken,
            acquire: Vec::new(),
            release: Vec::new(),
        };
        for socket in &mut threads[0] {
            (scripts.acquire, scripts.release) =
                (socket.load(&whole(acquire))?, socket.load(&whole(release))?);
        }
        Ok(Self { scripts, threads })
    }

    /// If there are more keys than threads, each thread takes turns with its share of the keys.
    fn run(&mut self, keys: &[String], slot: Duration) -> io::Result<Laps> {
        let threads = keys.len().min(self.threads.len());
        let (scripts, barrier) = (&self.scripts, &Barrier::new(threads));
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            for (thread, sockets) in self.threads.iter_mut().take(threads).enumerate() {
                let mine: Vec<&str> = keys
                    .iter()
                    .skip(thread)
                    .step_by(threads)
                    .map(String::as_str)
                    .collect();
                running.push(scope.spawn(move || {
                    barrier.wait();
                    scripts.pairs(sockets, &mine, slot)
                }));
            }
            let panicked = |_| io::Error::other("a thread of the bare socket panicked");
            let laps = running
                .into_iter()
                .map(|thread| thread.join().map_err(panicked)?)
                .collect::<io::Result<Vec<_>>>();
            Ok(Laps::merge(laps?))
        })
    }
}

impl Scripts {
    fn pairs(&self, sockets: &mut [Connection], keys: &[&str], slot: Duration) -> io::Result<Laps> {
        let (channel, suffix) = match self.taken {
            Taken::Lock => ("redisson_lock__channel", ""),
            Taken::Read => ("redisson_rwlock", ""),
            Taken::Write => ("redisson_rwlock", ":write"),
        };
        let names: Vec<[String; 5]> = keys
            .iter()
            .map(|key| {
                [
                    (*key).to_owned(),
                    mark(key),
                    format!("{channel}:{{{key}}}"),
                    format!("lockhound_writer:{{{key}}}"),
                    format!("lockhound_reader:{{{key}}}"),
                ]
            })
            .collect();
        let lease_ms = LEASE.as_millis().to_string();
        let mut laps = Laps::start();
        // The number of the pair is the generation.
        while let Some(asked) = laps.next(slot) {
            let names = &names[laps.pairs() % names.len()];
            let [key, mark, channel, writers_hint, readers_hint] = names.each_ref().map(bytes);
            let field = format!("{OWNER}:{}{suffix}", laps.pairs());
            // Only a reader has one.
            let timeout = match self.taken {
                Taken::Read => format!("{{{}}}:{field}:rwlock_timeout:1", names[0]),
                _ => String::new(),
            };
            let clock_us = clock(sockets.len());
            let [field, timeout, clock_us] = [&field, &timeout, &clock_us].map(bytes);
            let (acquire, release) = (&self.acquire[..], &self.release[..]);
            let (evalsha, lease_ms): (&[u8], _) = (b"EVALSHA", bytes(&lease_ms));
            let words: [&[&[u8]]; 2] = match self.taken {
                Taken::Lock => [
                    &[evalsha, acquire, b"2", key, mark, lease_ms, field, clock_us],
                    &[evalsha, release, b"2", key, channel, field],
                ],
                Taken::Read => [
                    &[
                        evalsha,
                        acquire,
                        b"3",
                        key,
                        mark,
                        timeout,
                        lease_ms,
                        field,
                        clock_us,
                        b"",
                        writers_hint,
                        readers_hint,
                        b"0",
                    ],
                    &[evalsha, release, b"3", key, channel, timeout, field],
                ],
                Taken::Write => [
                    &[
                        evalsha,
                        acquire,
                        b"2",
                        key,
                        mark,
                        lease_ms,
                        field,
                        clock_us,
                        writers_hint,
                        OWNER.as_bytes(),
                        readers_hint,
                        b"1000",
                    ],
                    &[
                        evalsha,
                        release,
                        b"2",
                        key,
                        channel,
                        field,
                        readers_hint,
                        b"20",
                    ],
                ],
            };
            on_all(sockets, words[0], b"*2\r\n:1\r\n")?;
            let locked = Instant::now();
            on_all(sockets, words[1], b":0\r\n")?;
            laps.note(asked, locked);
        }
        Ok(laps)
    }
}

fn bytes(text: &String) -> &[u8] {
    text.as_bytes()
}

/// Sends a command to all servers and waits for all replies, which begin with these bytes.
fn on_all(sockets: &mut [Connection], words: &[&[u8]], beginning: &[u8]) -> io::Result<()> {
    for socket in &mut *sockets {
        socket.send(words)?;
    }
    sockets
        .iter_mut()
        .try_for_each(|socket| socket.expect(beginning))
}

/// Returns the key of a lock's mark, as the library has it.
pub(crate) fn mark(key: &str) -> String {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!(
        "lockhound_fence:{{{}}}",
        key.bytes().fold(0xcbf2_9ce4_8422_2325, fnv) % 1_024
    )
}

/// Returns the clock's value as the library sends it to this many servers.
pub(crate) fn clock(servers: usize) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros();
    if servers > 1 {
        now.to_string()
    } else {
        format!("-{}", now - now % 100_000)
    }
}
