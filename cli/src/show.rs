//! `lockhound show`: one lock.

use clap::builder::NonEmptyStringValueParser;

use crate::exit::{self, Failure};
use crate::json;
use crate::look::{Kind, Looking, Seen, lease, shown};
use crate::out;
use crate::place::Place;

/// The exit codes, for the help.
const CODES: &str = "\
Exit codes:
  0    somebody has it
  1    it is free
  64   wrong usage: an option, an address or a name, or the key is no lock
  69   no server, or no majority of several, gave a usable answer
  70   a fault of lockhound itself";

/// Shows who has a lock, and who waits for it
///
/// The kind is told from what the key holds. A fair lock for which no caller waits looks like any
/// lock. Only one server, and not several or a cluster, keeps a list of those who wait; no client
/// knows who waits for permits or at a latch. At most 1,000 holders and waiters are shown.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Name of the lock
    #[arg(value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
    name: String,

    /// Write an object, of the same shape as `ls` does
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Place,
}

/// Runs the subcommand, and returns its exit code.
pub(crate) async fn run(args: &Args) -> Result<u8, Failure> {
    let mut looking = Looking::at(&args.place).await?;
    let seen = looking.look(&args.name).await;
    looking.close().await;
    let seen = seen?;
    if args.json {
        out::line(format_args!("{:#}", json::of(&seen)))?;
    } else {
        out::line(text(&seen))?;
    }
    Ok(if seen.kind.is_some() { 0 } else { exit::FREE })
}

/// Returns all that is known, a line for each fact.
pub(crate) fn text(seen: &Seen) -> String {
    let mut lines = vec![format!("key      {}", shown(&seen.key))];
    let mut fact = |name: &str, value: String| lines.push(format!("{name:8} {value}"));
    match (seen.kind, seen.mode) {
        (None, _) => fact("kind", "free".to_owned()),
        (Some(Kind::Counter), _) => fact(
            "kind",
            "counter: a semaphore with all permits free, a latch or semaphore of Redisson, or no lock"
                .to_owned(),
        ),
        (Some(kind), Some(mode)) => fact("kind", format!("{kind} ({mode})")),
        (Some(kind), None) => fact("kind", kind.to_string()),
    }
    if let Some(counted) = seen.counted() {
        fact("count", counted);
    }
    for holder in &seen.holders {
        let (count, left) = (holder.count, lease(holder.remaining));
        fact("holder", format!("{holder}, count {count}, lease {left}"));
    }
    if let Some(fence) = seen.fence {
        fact("fence", fence.to_string());
    }
    for (at, waiter) in seen.waiters.iter().enumerate() {
        fact("waiter", format!("{}. {waiter}", at + 1));
    }
    lines.join("\n")
}
