//! `lockhound run`: a command that runs while a lock is held.

use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant};

use clap::{ArgAction, ValueEnum};
use humantime::parse_duration;
use lockhound::{Error, Locker, MultiGuard, MultiLock, Owner};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::child::Child;
use crate::exit::{self, Failure};
use crate::log;
use crate::place::Place;
use crate::raw;
use crate::say::say;
use crate::signals::Signals;
use crate::supervise::{Ended, Supervisor};
use crate::terminal::Terminal;
use crate::wait::Patience;

/// The exit codes, for the help.
const CODES: &str = "\
Exit codes:
  the command's own; 128 + N if signal N killed it
  1    the lock is held (--no-wait); -E sets another
  64   wrong usage: an option, an address or a name of a lock
  69   no server, or no majority of several, gave a usable answer
  70   a fault of lockhound itself
  74   the lock was lost (--on-lost kill)
  75   the lock is still held after --wait; -E sets another
  126  the command cannot be run
  127  the command was not found";

/// Waits for a lock, runs a command while it is held, and releases it
///
/// lockhound run [OPTIONS] KEY.. -- CMD [ARG]..
///
/// The lock is renewed while the command runs. If it is lost, the command and what it started in
/// its process group are ended. Signals are passed on to this group, Ctrl-Z stops both, and a
/// second INT kills it.
///
/// The command finds the names of the locks in LOCKHOUND_KEY, their fencing tokens in
/// LOCKHOUND_FENCE (each on a line of its own), and in LOCKHOUND_OWNER who holds them.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Wait for at most TIME, such as 500ms, 30s or 1h30m; otherwise it waits until it has the lock
    ///
    /// It counts once there is a connection, for which there are 5s (LOCKHOUND_CONNECT_TIMEOUT).
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    wait: Option<Duration>,

    /// Do not wait if the lock is held
    #[arg(short, long, conflicts_with = "wait")]
    no_wait: bool,

    /// Exit code if the lock is held: of --no-wait (otherwise 1) and of --wait (otherwise 75)
    #[arg(short = 'E', long, value_name = "N")]
    conflict_exit_code: Option<u8>,

    /// What happens to the command if the lock is lost while it runs
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    on_lost: OnLost,

    /// How long the command may continue after TERM, until KILL
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = at_most_a_month)]
    kill_after: Duration,

    /// Keep the lock for at least TIME, also if the command ends sooner; this returns at once
    ///
    /// For a job that cron starts on several machines: the clocks of those that arrive late may
    /// differ by TIME, and the job still runs once.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    min_hold: Option<Duration>,

    /// Hold the lock for at most TIME: then it is lost
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_hold: Option<Duration>,

    /// How long the servers keep the lock if this machine dies (otherwise 30s); it is renewed every
    /// third of that
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    lease: Option<Duration>,

    /// Say what it waits for, and how it ends; -vv also shows what the library reports
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,

    /// Name of the lock; several locks are taken together, all or none. It cannot begin with -
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,

    /// The command, and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,

    #[command(flatten)]
    place: Place,
}

/// What happens to the command if the lock is lost while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnLost {
    /// It gets TERM, and KILL if it still runs after --kill-after
    Kill,
    /// It continues, and a line on standard error says so
    Warn,
}

/// How the subcommand ends.
#[derive(Debug)]
struct End {
    code: u8,
    /// Whether Ctrl-C ended the command.
    interrupted: bool,
}

impl End {
    fn with(code: u8) -> Self {
        Self {
            code,
            interrupted: false,
        }
    }
}

/// Runs the subcommand, and returns its exit code.
pub(crate) async fn run(args: &Args) -> Result<u8, Failure> {
    let keys = names(&args.keys)?;
    log::begin(args.verbose);
    let mut signals = Signals::listen().map_err(|e| fault(&e))?;
    let mut builder = args.place.builder()?;
    if let Some(lease) = args.lease {
        builder = builder.lease(lease);
    }
    let locker = match signals.unless(builder.connect()).await {
        Ok(connected) => connected?,
        Err(signal) => return Ok(exit::of_signal(signal as i32)),
    };
    let ended = args.run(&keys, &locker, &mut signals).await;
    locker.close().await;
    let End { code, interrupted } = ended?;
    if interrupted {
        // A shell ends its script only if Ctrl-C has ended this process, too. Otherwise the exit
        // code says the same.
        let _: nix::Result<()> = raw::end_by(Signal::SIGINT);
    }
    Ok(code)
}

impl Args {
    async fn run(
        &self,
        keys: &[&str],
        locker: &Locker,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        let owner = Owner::new();
        let locks = self.locks(keys, locker).owned_by(owner.clone());
        let taken = if self.verbose > 0 {
            let aloud = self.patience().take_aloud(locker, &locks);
            signals.unless(aloud).await
        } else {
            signals.unless(self.patience().take(&locks)).await
        };
        let guard = match taken {
            Ok(Ok(Some(guard))) => guard,
            Ok(Ok(None)) => return Ok(End::with(self.conflict())),
            Ok(Err(error)) => return Err(error.into()),
            Err(signal) => return Ok(End::with(exit::of_signal(signal as i32))),
        };
        // The machine may have been suspended since.
        guard.check()?;
        let owner = format!("{}:{owner}", locker.id());
        let variables = variables(keys, locker, &guard, owner);
        let ended = self.supervise(&guard, &variables, signals).await;
        let released = guard.unlock().await;
        let ended = ended?;
        Ok(End {
            code: self.code(ended, released),
            interrupted: ended.interrupted,
        })
    }

    /// Runs the command until it ends.
    async fn supervise(
        &self,
        guard: &MultiGuard,
        variables: &[(&str, String)],
        signals: &mut Signals,
    ) -> Result<Ended, Failure> {
        let mut children = signal(SignalKind::child()).map_err(|e| fault(&e))?;
        let start = Instant::now();
        let terminal = Terminal::open();
        let supervisor = Supervisor {
            guard,
            child: Child::start(&self.command, variables, terminal.as_ref())?,
            terminal: terminal.as_ref(),
            kill_after: (self.on_lost == OnLost::Kill).then_some(self.kill_after),
        };
        let ended = supervisor.run(signals, &mut children).await?;
        if self.verbose > 0 {
            let (status, after) = (ended.status, start.elapsed());
            say(format_args!(
                "the command ended after {after:.1?}: {status}"
            ));
        }
        Ok(ended)
    }

    /// Returns the exit code of a command that has ended.
    fn code(&self, ended: Ended, released: Result<(), Error>) -> u8 {
        let lost = match released {
            Ok(()) => ended.lost,
            Err(lost @ Error::Lost { .. }) => {
                if !ended.lost {
                    say(format_args!("{lost}; the command has ended"));
                }
                true
            }
            // The command has done its work under the lock. The lock is free after a lease at most.
            Err(error) => {
                say(format_args!("the release is not confirmed: {error}"));
                ended.lost
            }
        };
        if lost && self.on_lost == OnLost::Kill {
            return exit::LOST;
        }
        exit::of_status(ended.status)
    }

    fn locks(&self, keys: &[&str], locker: &Locker) -> MultiLock {
        let mut locks = locker.multi(keys.iter().copied());
        if let Some(time) = self.min_hold {
            locks = locks.min_hold(time);
        }
        if let Some(time) = self.max_hold {
            locks = locks.max_hold(time);
        }
        locks
    }

    fn patience(&self) -> Patience {
        match self.wait {
            _ if self.no_wait => Patience::Never,
            Some(time) => Patience::For(time),
            None => Patience::Endless,
        }
    }

    /// Returns the exit code if the lock is held.
    fn conflict(&self) -> u8 {
        let usual = if self.no_wait {
            exit::HELD
        } else {
            exit::WAITED
        };
        self.conflict_exit_code.unwrap_or(usual)
    }
}

/// Returns what the command finds in its environment: of several locks, a line for each.
fn variables(
    keys: &[&str],
    locker: &Locker,
    guard: &MultiGuard,
    owner: String,
) -> [(&'static str, String); 3] {
    let fence = |key: &&str| Some(guard.fence(locker.get(*key).key())?.to_string());
    let fences: Vec<String> = keys.iter().filter_map(fence).collect();
    [
        ("LOCKHOUND_KEY", keys.join("\n")),
        ("LOCKHOUND_FENCE", fences.join("\n")),
        ("LOCKHOUND_OWNER", owner),
    ]
}

fn fault(error: &io::Error) -> Failure {
    Failure::new(exit::SOFTWARE, format!("cannot receive signals: {error}"))
}

/// # Errors
/// Refuses what no clock counts.
fn at_most_a_month(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|e| e.to_string())?;
    if time > 30 * Duration::from_secs(24 * 3600) {
        return Err("give 30 days at most".to_owned());
    }
    Ok(time)
}

/// # Errors
/// Refuses names that are not text, and empty ones; of several, also those with a line break.
fn names(keys: &[OsString]) -> Result<Vec<&str>, Failure> {
    let names = keys.iter().map(name).collect::<Result<Vec<_>, _>>()?;
    let broken = names.iter().find(|name| name.contains('\n'));
    match broken {
        Some(name) if names.len() > 1 => Err(Failure::usage(format!(
            "{name:?} has a line break, and LOCKHOUND_KEY lists several names on a line each: take it alone"
        ))),
        _ => Ok(names),
    }
}

fn name(key: &OsString) -> Result<&str, Failure> {
    match key.to_str() {
        Some("") => Err(Failure::usage("the name of a lock is empty")),
        Some(name) => Ok(name),
        None => Err(Failure::usage(format!(
            "the name of a lock has to be UTF-8 text, and {key:?} is not"
        ))),
    }
}
