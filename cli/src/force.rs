//! `lockhound break`: takes a lock away from those who have it.

use std::io::{self, BufRead as _, IsTerminal as _};

use clap::builder::NonEmptyStringValueParser;
use lockhound::{Format, Locker, Semaphore};

use crate::exit::{self, Failure};
use crate::json;
use crate::look::{Kind, Looking, Seen};
use crate::out;
use crate::place::Place;
use crate::say::{ask, say};

/// The exit codes, for the help.
const CODES: &str = "\
Exit codes:
  0    it is broken
  1    nothing is broken: it is free, the answer was no, or somebody else has it by now
  64   wrong usage: an option, an address or a name, the key cannot be broken, --yes is needed
       because there is no terminal, or --yes is not enough because the key may be no lock
  69   no server, or no majority of several, gave a usable answer; it may be broken or not
  70   a fault of lockhound itself; if its output cannot be written, the lock is broken";

/// Takes a lock away from those who have it, after a question
///
/// They learn of it at their next renewal at the latest, and may act until then: break locks of
/// holders that are known to be dead. Of a semaphore, all permits are given back. A lock that
/// has changed hands by the time of the answer stays. It writes whom it has broken.
///
/// A text with a lifetime may be the lock of a client in another language, or anything else: it is
/// broken at a terminal, or by --yes with LOCKHOUND_FORMAT=plain.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Name of the lock
    #[arg(value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
    name: String,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    /// Write what was broken as an object, of the same shape as `ls` does
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Place,
}

/// Runs the subcommand, and returns its exit code.
pub(crate) async fn run(args: &Args) -> Result<u8, Failure> {
    if !args.yes && !io::stdin().is_terminal() {
        let advice = "there is no terminal to ask on: use --yes";
        return Err(Failure::usage(advice));
    }
    let mut looking = Looking::at(&args.place).await?;
    let code = args.run(&mut looking).await;
    looking.close().await;
    code
}

impl Args {
    async fn run(&self, looking: &mut Looking) -> Result<u8, Failure> {
        let seen = looking.look(&self.name).await?;
        let kind = match seen.kind {
            None => {
                say(format_args!("{:?} is free", self.name));
                return Ok(exit::FREE);
            }
            Some(kind @ (Kind::Latch | Kind::Counter)) => {
                return Err(Failure::usage(format!(
                    "{:?} is a {kind}: it has no holder, so there is none to break",
                    self.name
                )));
            }
            Some(kind) => kind,
        };
        let may_be_other = seen.is_unsure && looking.locker().settings().format() != Format::Plain;
        if self.yes && may_be_other {
            return Err(Failure::usage(format!(
                "{:?} may be no lock: it is a text with a lifetime, as clients in other languages write locks; \
                 set LOCKHOUND_FORMAT=plain if it is one",
                self.name
            )));
        }
        if !self.yes {
            let doubt = if may_be_other {
                " It may be no lock."
            } else {
                ""
            };
            ask(format_args!("{:?}: {seen}.{doubt} Break it?", self.name));
            if !is_yes()? {
                say("nothing is broken");
                return Ok(exit::FREE);
            }
            // Whoever was not named is not broken. Permits are given back one by one.
            let is_semaphore = matches!(kind, Kind::Permits | Kind::Semaphore);
            let now = looking.look(&self.name).await?;
            if !is_semaphore && !now.has_holders_of(&seen) {
                say(format_args!("nothing is broken: by now it is {now}"));
                return Ok(exit::FREE);
            }
        }
        if !broken(looking.locker(), &seen, kind).await? {
            say("nothing is broken: it became free");
            return Ok(exit::FREE);
        }
        if self.json {
            out::line(format_args!("{:#}", json::of(&seen)))?;
        } else {
            out::line(format_args!("broken: {:?}, {seen}", self.name))?;
        }
        Ok(0)
    }
}

async fn broken(locker: &Locker, seen: &Seen, kind: Kind) -> Result<bool, lockhound::Error> {
    let name = seen.key.as_str();
    match kind {
        Kind::Fair => locker.fair(name).force_unlock().await,
        Kind::ReadWrite => locker.rw(name).force_unlock().await,
        Kind::Permits => given_back(&locker.permits(name), seen).await,
        Kind::Semaphore => given_back(&locker.semaphore(name), seen).await,
        _ => locker.get(name).force_unlock().await,
    }
}

/// Returns whether any of them had permits.
async fn given_back(semaphore: &Semaphore, seen: &Seen) -> Result<bool, lockhound::Error> {
    let mut any = false;
    for holder in semaphore.usage().await?.holders() {
        if seen.holders.iter().any(|it| it.owner == holder.owner()) {
            any |= semaphore.force_release(holder).await?;
        }
    }
    Ok(any)
}

fn is_yes() -> Result<bool, Failure> {
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    let fault = |e| Failure::new(exit::SOFTWARE, format!("cannot read the answer: {e}"));
    read.map_err(fault)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
