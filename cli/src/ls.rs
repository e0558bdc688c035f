//! `lockhound ls`: the locks that there are.

use crate::exit::Failure;
use crate::json;
use crate::look::{Looking, Progress, Seen, lease, shown};
use crate::out;
use crate::place::Place;
use crate::say::say;

/// The exit codes, for the help.
const CODES: &str = "\
It lists keys that can only be locks: those that somebody holds, semaphores of which permits are
taken, and latches that are closed. A lock that a client in another language holds (`plain`), and a
semaphore or latch that only Redisson uses, look like other keys: `lockhound show KEY` knows them by
name.

Exit codes:
  0    the locks are listed, also if there are none
  64   wrong usage: an option or an address
  69   a server, or a majority of several, gave no usable answer
  70   a fault of lockhound itself";

/// Lists the locks
///
/// It asks each master with SCAN, in small steps, and changes nothing. Locks that are taken or
/// released meanwhile may be listed or not.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Only names that match this pattern: * ? and [a-z], as in Redis
    #[arg(default_value = "*")]
    pattern: String,

    /// Write an array of objects, one for each lock
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Place,
}

/// Runs the subcommand, and returns its exit code.
pub(crate) async fn run(args: &Args) -> Result<u8, Failure> {
    let mut looking = Looking::at(&args.place).await?;
    let locks = looking.list(&args.pattern, Progress::shown()).await;
    looking.close().await;
    let (locks, notes) = locks?;
    notes.iter().for_each(say);
    if args.json {
        out::line(format_args!("{:#}", json::all(&locks)))?;
    } else {
        print(&locks)?;
    }
    Ok(0)
}

/// A cell that is wider moves only its own row.
const WIDEST: usize = 60;

/// Writes a table, without lines and colours.
fn print(locks: &[Seen]) -> Result<(), Failure> {
    const HEAD: [&str; 5] = ["KEY", "KIND", "LEASE", "WAITERS", "HELD BY"];
    let rows = locks.iter().map(row);
    let rows: Vec<[String; 5]> = [HEAD.map(str::to_owned)].into_iter().chain(rows).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max();
    let widths = (0..HEAD.len() - 1).filter_map(width);
    let widths: Vec<usize> = widths.map(|it| it.min(WIDEST)).collect();
    for [key, kind, lease, waiters, holders] in &rows {
        let [a, b, c, d] = widths[..] else { continue };
        let row = format!("{key:a$}  {kind:b$}  {lease:>c$}  {waiters:>d$}  {holders}");
        if !out::line(row.trim_end())? {
            break;
        }
    }
    Ok(())
}

/// Returns the columns of the table: key, kind, lease, waiters and who has it.
pub(crate) fn row(seen: &Seen) -> [String; 5] {
    let mut kind = seen.kind.map(|kind| kind.to_string()).unwrap_or_default();
    if let Some(mode) = seen.mode {
        kind = format!("{kind} ({mode})");
    }
    let left = if seen.holders.is_empty() {
        String::new()
    } else {
        lease(seen.shortest())
    };
    let who = seen.holders.iter().map(|holder| {
        let name = holder.label.as_ref().unwrap_or(&holder.owner);
        let times = if holder.count == 1 {
            String::new()
        } else {
            format!(" x{}", holder.count)
        };
        format!("{}{times}", shown(name))
    });
    let mut held: Vec<String> = who.take(3).collect();
    if let more @ 1.. = seen.holders.len().saturating_sub(held.len()) {
        held.push(format!("{more} more"));
    }
    held.extend(seen.counted());
    let waiters = match seen.waiters.len() {
        0 => String::new(),
        waiters => waiters.to_string(),
    };
    [shown(&seen.key), kind, left, waiters, held.join(", ")]
}
