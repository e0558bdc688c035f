//! What is measured and how: there are rounds, and in each round every contender has a slot, one
//! after the other.

use std::time::Duration;

use lockhound::Locker;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

use crate::Failure;
use crate::alone::Alone;
use crate::bar::Bar;
use crate::connection::Connection;
use crate::contender::{Callers, Contender, Floor, MOST_SOCKETS, Taken};
use crate::contention::{Contention, READ_WRITE};
use crate::far::Far;
use crate::fence::Price;
use crate::memory::Memory;
use crate::renewal;
use crate::report::{Outcome, Report, Sample, Setting};
use crate::server::Server;
use crate::stuck;
use crate::waiters;

/// Several, since other load comes and goes. With an odd number the median is a value that was
/// measured.
const ROUNDS: usize = 9;
/// A few thousand pairs for each contender, enough for a p99.
const SLOT: Duration = Duration::from_millis(400);
/// Before the first round, to load scripts, allocate memory and connect.
const WARM_UP: Duration = Duration::from_millis(100);

pub(crate) const SOCKET: &str = "socket";
pub(crate) const SOCKET_READS: &str = "socket, read";
pub(crate) const SOCKET_WRITES: &str = "socket, write";
pub(crate) const FRED: &str = "fred";
pub(crate) const LOCKHOUND: &str = "lockhound";
pub(crate) const PLAIN: &str = "plain";
pub(crate) const RSLOCK: &str = "rslock";
/// The contenders that the others are compared with.
const PEERS: [&str; 3] = [SOCKET, FRED, RSLOCK];

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Pair,
    Tasks,
    Fence,
    Renewal,
    Quorum,
    Far,
    Replicas,
    Waiters,
    ReadWrite,
    Contention,
}

impl Name {
    pub(crate) const ALL: [Self; 10] = [
        Self::Pair,
        Self::Tasks,
        Self::Fence,
        Self::Renewal,
        Self::Quorum,
        Self::Far,
        Self::Replicas,
        Self::Waiters,
        Self::ReadWrite,
        Self::Contention,
    ];
}

/// How many servers, and the names of the scenarios with one task and with many.
const QUORUMS: [(usize, &str, &str); 3] = [
    (1, "quorum-1", "quorum-1-64"),
    (3, "quorum-3", "quorum-3-64"),
    (5, "quorum-5", "quorum-5-64"),
];

/// Measures what is asked for on servers of its own; of `contention` perhaps one contest only.
pub(crate) fn measure(names: &[Name], contest: Option<&str>) -> Result<Report, Failure> {
    let mut bench = Bench::over(1)?;
    stuck::watch();
    let mut report = Report::new(Setting::of(&mut bench.controls[0], ROUNDS, SLOT)?);
    if names.contains(&Name::Pair) || names.contains(&Name::Tasks) {
        let mut contenders = bench.peers()?;
        if names.contains(&Name::Pair) {
            let title = "one key without contention; in the `async fn main` of a program";
            report.scenarios.push(bench.rounds(
                "pair",
                title,
                Callers::Main,
                &PEERS,
                &mut contenders,
            )?);
        }
        if names.contains(&Name::Tasks) {
            let title = "1 spawned task";
            report.scenarios.push(bench.rounds(
                "tasks-1",
                title,
                Callers::Tasks(1),
                &PEERS,
                &mut contenders,
            )?);
            let title = "64 tasks with a key each; the bare socket: a thread and a socket each";
            report.scenarios.push(bench.rounds(
                "tasks-64",
                title,
                Callers::Tasks(64),
                &PEERS,
                &mut contenders,
            )?);
            let title = format!(
                "1024 tasks with a key each; the bare socket: {MOST_SOCKETS} threads share the keys"
            );
            report.scenarios.push(bench.rounds(
                "tasks-1024",
                &title,
                Callers::Tasks(1024),
                &PEERS,
                &mut contenders,
            )?);
        }
        for contender in contenders {
            bench.runtime.block_on(contender.close());
        }
    }
    if names.contains(&Name::Fence) {
        report.fence = Some(Price::measure(&mut bench.controls[0])?);
    }
    if names.contains(&Name::Renewal) {
        report.renewal =
            renewal::measure(&bench.servers[0], &mut bench.controls[0], &bench.runtime)?;
    }
    if names.contains(&Name::Waiters) {
        report.waiters = waiters::measure(&bench.servers[0], &bench.runtime)?;
    }
    drop(bench);
    if names.contains(&Name::Quorum) {
        for (servers, one, many) in QUORUMS {
            quorum(&mut report, servers, one, many)?;
        }
    }
    if names.contains(&Name::Far) {
        report.far = Some(Far::measure()?);
    }
    if names.contains(&Name::Replicas) {
        report.scenarios.push(replicas()?);
    }
    if names.contains(&Name::ReadWrite) {
        report.scenarios.push(read_write()?);
        report.read_write = Some(Contention::measure(Some(READ_WRITE))?);
    }
    if names.contains(&Name::Contention) {
        report.contention = Some(Contention::measure(contest)?);
    }
    report.bars = Bar::all(&report);
    Ok(report)
}

/// Measures locks over this many servers.
fn quorum(
    report: &mut Report,
    servers: usize,
    one: &'static str,
    many: &'static str,
) -> Result<(), Failure> {
    let mut bench = Bench::over(servers)?;
    let mut contenders = [
        Contender::Socket(Floor::new(&bench.servers, MOST_SOCKETS)?),
        bench
            .runtime
            .block_on(Contender::lockhound(&bench.servers))?,
        Contender::rslock(&bench.servers),
    ];
    let title = |callers: &str| format!("{servers} independent servers; {callers}");
    let rivals = [SOCKET, RSLOCK];
    report.scenarios.push(bench.rounds(
        one,
        &title("1 spawned task"),
        Callers::Tasks(1),
        &rivals,
        &mut contenders,
    )?);
    let together =
        title("64 tasks with a key each; the bare socket: threads with a socket to each server");
    report.scenarios.push(bench.rounds(
        many,
        &together,
        Callers::Tasks(64),
        &rivals,
        &mut contenders,
    )?);
    for contender in contenders {
        bench.runtime.block_on(contender.close());
    }
    if servers > 1 {
        report
            .memory
            .extend(Memory::measure(&bench.servers, &bench.runtime)?);
    }
    Ok(())
}

/// Measures `replica_acks(1)`, on a server of its own, since replication costs a master CPU time.
fn replicas() -> Result<Outcome, Failure> {
    let master = Server::start()?;
    let _replica = master.replica()?;
    let mut bench = Bench::on(vec![master])?;
    let mut contenders = [
        bench
            .runtime
            .block_on(Contender::lockhound(&bench.servers))?,
        bench
            .runtime
            .block_on(Contender::replicated(&bench.servers[0]))?,
    ];
    let title = "like pair, on a server with one replica on the same machine";
    let outcome = bench.rounds(
        "replicas",
        title,
        Callers::Main,
        &[LOCKHOUND],
        &mut contenders,
    )?;
    for contender in contenders {
        bench.runtime.block_on(contender.close());
    }
    Ok(outcome)
}

/// Measures lone pairs of a read-write lock beside those of a lock.
fn read_write() -> Result<Outcome, Failure> {
    let mut bench = Bench::over(1)?;
    let socket = |taken| Floor::of(taken, &bench.servers, 1).map(Contender::Socket);
    let locker = bench
        .runtime
        .block_on(Locker::connect(bench.servers[0].url()))?;
    let mut contenders = [
        socket(Taken::Lock)?,
        socket(Taken::Read)?,
        socket(Taken::Write)?,
        Contender::Lockhound(locker.clone()),
        Contender::ReadWrite(locker.clone(), Taken::Read),
        Contender::ReadWrite(locker, Taken::Write),
    ];
    let outcome = bench.rounds(
        READ_WRITE,
        "like pair: a lock, and a read-write lock as a reader and as a writer",
        Callers::Main,
        &[SOCKET, SOCKET_READS, SOCKET_WRITES, LOCKHOUND],
        &mut contenders,
    )?;
    for contender in contenders {
        bench.runtime.block_on(contender.close());
    }
    Ok(outcome)
}

struct Bench {
    /// One to each server.
    controls: Vec<Connection>,
    servers: Vec<Server>,
    runtime: Runtime,
}

impl Bench {
    /// Starts this many servers.
    fn over(servers: usize) -> Result<Self, Failure> {
        Self::on(
            (0..servers)
                .map(|_| Server::start())
                .collect::<Result<_, _>>()?,
        )
    }

    fn on(servers: Vec<Server>) -> Result<Self, Failure> {
        let controls = servers
            .iter()
            .map(Server::connect)
            .collect::<Result<_, _>>()?;
        // As `#[tokio::main]` makes it, with a worker for each CPU. lockhound and rslock use it one
        // after the other.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            controls,
            servers,
            runtime,
        })
    }

    fn peers(&self) -> Result<Vec<Contender>, Failure> {
        Ok(vec![
            Contender::Socket(Floor::new(&self.servers, MOST_SOCKETS)?),
            Contender::Fred(self.runtime.block_on(Alone::connect(&self.servers[0]))?),
            self.runtime.block_on(Contender::lockhound(&self.servers))?,
            self.runtime.block_on(Contender::plain(&self.servers[0]))?,
            Contender::rslock(&self.servers),
        ])
    }

    /// Runs the contenders in turn (A B C, A B C, ..), so that a disturbance of some length hits
    /// all of them.
    fn rounds(
        &mut self,
        name: &'static str,
        title: &str,
        callers: Callers,
        rivals: &[&'static str],
        contenders: &mut [Contender],
    ) -> Result<Outcome, Failure> {
        let slots = u32::try_from(ROUNDS * contenders.len())?;
        eprintln!("measuring {name}: {:.0} s", (SLOT * slots).as_secs_f64());
        for contender in &mut *contenders {
            stuck::at(name, contender.name());
            contender.run(&self.runtime, callers, WARM_UP)?;
        }
        let mut samples = vec![Vec::new(); contenders.len()];
        for _ in 0..ROUNDS {
            for (contender, samples) in contenders.iter_mut().zip(&mut samples) {
                stuck::at(name, contender.name());
                samples.push(self.slot(contender, callers)?);
            }
        }
        stuck::over();
        let measured: Vec<_> = contenders
            .iter()
            .map(Contender::name)
            .zip(samples)
            .collect();
        Ok(Outcome::new(
            name,
            title,
            callers.count(),
            rivals,
            &measured,
        ))
    }

    fn slot(&mut self, contender: &mut Contender, callers: Callers) -> Result<Sample, Failure> {
        let (server, client) = (self.server_cpu()?, client_cpu());
        let laps = contender.run(&self.runtime, callers, SLOT)?;
        let (client, server) = (client_cpu() - client, self.server_cpu()? - server);
        Ok(Sample::of(&laps, server, client))
    }

    /// Returns the seconds of CPU time that all servers together have used so far.
    fn server_cpu(&mut self) -> Result<f64, Failure> {
        Ok(self
            .controls
            .iter_mut()
            .map(Connection::cpu)
            .sum::<Result<f64, _>>()?)
    }
}

/// Returns the seconds of CPU time that all threads of this process together have used so far.
pub(crate) fn client_cpu() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}
