//! `lockhound run`: a command that runs while a lock is held.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use lockhound::{Error, MultiGuard, MultiLock};

use crate::exit::{self, Failure};
use crate::place::Place;

/// The exit codes, for the help.
const CODES: &str = "\
Exit codes:
  the command's own; 128 + N if signal N killed it
  1    the lock is held (--no-wait); -E sets another
  64   wrong usage: an option, an address or a name of a lock
  69   no server, or no majority of several, gave a usable answer
  70   a fault of lockhound itself
  74   the lock was lost
  75   the lock is still held after --wait; -E sets another
  126  the command cannot be run
  127  the command was not found";

/// Waits for a lock, runs a command while it is held, and releases it
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Wait for at most TIME, such as 500ms, 30s or 1h30m; otherwise it waits until it has the lock
    #[arg(short, long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,

    /// Do not wait if the lock is held
    #[arg(short, long, conflicts_with = "wait")]
    no_wait: bool,

    /// Exit code if the lock is held: of --no-wait (otherwise 1) and of --wait (otherwise 75)
    #[arg(short = 'E', long, value_name = "N")]
    conflict_exit_code: Option<u8>,

    /// Name of the lock; several locks are taken together, all or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,

    /// The command, and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,

    #[command(flatten)]
    place: Place,
}

/// Runs the subcommand, and returns its exit code.
pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    let keys = names(&args.keys)?;
    let builder = args.place.builder()?;
    let locks = builder.connect().await?;
    let taken = take(&locks.all(keys), args.wait, args.no_wait).await?;
    let Some(guard) = taken else {
        let usual = if args.no_wait {
            exit::HELD
        } else {
            exit::WAITED
        };
        return Ok(args.conflict_exit_code.unwrap_or(usual));
    };
    let status = Command::new(&args.command[0])
        .args(&args.command[1..])
        .status();
    let released = guard.unlock().await;
    locks.close().await;
    released?;
    let status = status.map_err(|e| {
        let code = match e.kind() {
            std::io::ErrorKind::NotFound => exit::NOT_FOUND,
            _ => exit::CANNOT_RUN,
        };
        Failure::new(code, format!("{}: {e}", args.command[0].display()))
    })?;
    let number = status
        .code()
        .or_else(|| Some(i32::from(exit::SIGNALLED) + status.signal()?));
    Ok(number
        .and_then(|number| number.try_into().ok())
        .unwrap_or(exit::SOFTWARE))
}

async fn take(
    locks: &MultiLock,
    wait: Option<Duration>,
    no_wait: bool,
) -> Result<Option<MultiGuard>, Error> {
    match wait {
        _ if no_wait => locks.try_lock().await,
        Some(time) => locks.try_lock_for(time).await,
        None => locks.lock().await.map(Some),
    }
}

/// # Errors
/// Refuses names that are not text, and empty ones.
fn names(keys: &[OsString]) -> Result<Vec<&str>, Failure> {
    keys.iter().map(name).collect()
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
