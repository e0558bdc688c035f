//! `lockhound watch`: what happens to one lock.

use std::time::{Duration, SystemTime};

use clap::builder::NonEmptyStringValueParser;
use humantime::format_rfc3339_millis;
use tokio::signal::ctrl_c;
use tokio::time::sleep;

use crate::exit::{self, Failure};
use crate::json;
use crate::look::{Looking, Seen, interval};
use crate::out;
use crate::outage::Outage;
use crate::place::Place;

/// The exit codes, for the help.
const CODES: &str = "\
Exit codes:
  0    it was ended with Ctrl-C, or its output has no reader any more
  64   wrong usage: an option, an address or a name, or the key is no lock
  69   no server, or no majority of several, gave a usable answer at the start
  70   a fault of lockhound itself";

/// Writes a line for each change of a lock, until Ctrl-C
///
/// The first line is how it is now. It asks every --interval, so it does not see what lasts for a
/// shorter time. That a lease shrinks and is renewed is no change. If the servers go away, a line
/// on standard error says so, and it keeps asking.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Name of the lock
    #[arg(value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
    name: String,

    /// Time between two questions
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// Write an object on each line, of the same shape as `ls` does
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Place,
}

/// Runs the subcommand, and returns its exit code.
pub(crate) async fn run(args: &Args) -> Result<u8, Failure> {
    let mut looking = tokio::select! {
        looking = Looking::at(&args.place) => looking?,
        asked = ctrl_c() => return interrupted(asked),
    };
    let code = tokio::select! {
        watched = args.watch(&mut looking) => watched.map(|()| 0),
        asked = ctrl_c() => interrupted(asked),
    };
    looking.close().await;
    code
}

fn interrupted(asked: std::io::Result<()>) -> Result<u8, Failure> {
    let fault = |e| Failure::new(exit::SOFTWARE, format!("cannot receive signals: {e}"));
    asked.map(|()| 0).map_err(fault)
}

impl Args {
    /// Ends when no process reads.
    async fn watch(&self, looking: &mut Looking) -> Result<(), Failure> {
        let mut last = looking.look(&self.name).await?;
        let mut outage = Outage::default();
        if !self.tell(&last)? {
            return Ok(());
        }
        loop {
            sleep(self.interval).await;
            if out::is_closed() {
                return Ok(());
            }
            let looked = looking.look(&self.name).await;
            let Some(seen) = outage.pass(looked)? else {
                continue;
            };
            if !seen.is_like(&last) {
                if !self.tell(&seen)? {
                    return Ok(());
                }
                last = seen;
            }
        }
    }

    fn tell(&self, seen: &Seen) -> Result<bool, Failure> {
        if self.json {
            return out::line(json::of(seen));
        }
        let now = format_rfc3339_millis(SystemTime::now());
        out::line(format_args!("{now}  {seen}"))
    }
}
