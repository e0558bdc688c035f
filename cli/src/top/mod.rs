//! `lockhound top`: all locks on a screen that is refreshed.

mod view;

use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

use self::view::{Next, View};
use crate::exit::{self, Failure};
use crate::json;
use crate::look::{Looking, Progress, interval};
use crate::out;
use crate::outage::Outage;
use crate::place::Place;
use crate::say::say;
use crate::signals::Signals;

/// The exit codes, for the help.
const CODES: &str = "\
Keys:
  q, Ctrl-C   ends it
  up, down    choose a lock (also k, j, PageUp, PageDown, Home and End)
  Enter       all about this lock; Esc goes back
  /           shows only names with a text in them; Enter ends the text, Esc removes it
  n a w l     sort by name, age, waiters, and what is left of the lease

Exit codes:
  0    it was ended; 128 + N if signal N ended it
  64   wrong usage: an option or an address, or there is no terminal (without --json)
  69   no server, or no majority of several, gave a usable answer at the start
  70   a fault of lockhound itself";

/// Shows the locks, and keeps showing them
///
/// It lists what `lockhound ls` does. The age of a lock is how long this has seen one holder have
/// it: servers do not tell since when. With --json it needs no terminal.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Only names that match this pattern: * ? and [a-z], as in Redis
    #[arg(default_value = "*")]
    pattern: String,

    /// Time between two refreshes
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,

    /// Write an array on a line at each refresh, of the same objects as `ls` does, and show no
    /// screen
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Place,
}

/// Runs the subcommand, and returns its exit code.
pub(crate) async fn run(args: &Args) -> Result<u8, Failure> {
    if !args.json && (!io::stdin().is_terminal() || !io::stdout().is_terminal()) {
        let advice = "there is no terminal to show locks on: use --json, or lockhound ls";
        return Err(Failure::usage(advice));
    }
    let mut looking = Looking::at(&args.place).await?;
    let code = if args.json {
        until_signal(args.write(&mut looking)).await
    } else {
        args.screen(&mut looking).await
    };
    looking.close().await;
    code
}

/// Returns the exit code of a signal that comes first.
async fn until_signal(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let mut signals = Signals::listen().map_err(|e| fault(&e))?;
    match signals.unless(work).await {
        Ok(code) => code,
        Err(signal) => Ok(exit::of_signal(signal as i32)),
    }
}

fn fault(error: &io::Error) -> Failure {
    Failure::new(exit::SOFTWARE, format!("the terminal: {error}"))
}

/// Reads keys in a thread of its own, which ends with the process.
fn keys() -> UnboundedReceiver<io::Result<Event>> {
    let (tell, keys) = unbounded_channel();
    thread::spawn(move || {
        loop {
            let read = event::read();
            let is_over = read.is_err();
            if tell.send(read).is_err() || is_over {
                return;
            }
        }
    });
    keys
}

impl Args {
    /// Writes the locks again and again, until no process reads.
    async fn write(&self, looking: &mut Looking) -> Result<u8, Failure> {
        let mut listed = looking.list(&self.pattern, Progress::hidden()).await;
        if listed.is_err() {
            return listed.map(|_| 0);
        }
        let mut outage = Outage::default();
        let mut noted = Vec::new();
        loop {
            if let Some((locks, notes)) = outage.pass(listed)? {
                // A note that holds is said once.
                notes.iter().filter(|it| !noted.contains(*it)).for_each(say);
                noted = notes;
                if !out::line(json::all(&locks))? {
                    return Ok(0);
                }
            }
            sleep(self.interval).await;
            if out::is_closed() {
                return Ok(0);
            }
            listed = looking.list(&self.pattern, Progress::hidden()).await;
        }
    }

    /// Shows the locks on a screen, and restores the terminal at the end.
    async fn screen(&self, looking: &mut Looking) -> Result<u8, Failure> {
        let code = match ratatui::try_init() {
            Ok(mut terminal) => until_signal(self.refresh(looking, &mut terminal)).await,
            Err(error) => Err(fault(&error)),
        };
        // An initialization that failed may have begun.
        ratatui::restore();
        code
    }

    /// Looks again and again. Keys work also while the servers do not answer.
    async fn refresh(
        &self,
        looking: &mut Looking,
        terminal: &mut DefaultTerminal,
    ) -> Result<u8, Failure> {
        let mut keys = keys();
        let mut view = View::new();
        loop {
            {
                let mut listing = pin!(looking.list(&self.pattern, Progress::hidden()));
                loop {
                    draw(terminal, &mut view)?;
                    tokio::select! {
                        listed = &mut listing => {
                            view.update(listed, Instant::now())?;
                            break;
                        }
                        key = keys.recv() => if ends(key, &mut view)? { return Ok(0) },
                    }
                }
            }
            let mut pause = pin!(sleep(self.interval));
            loop {
                draw(terminal, &mut view)?;
                tokio::select! {
                    () = &mut pause => break,
                    key = keys.recv() => if ends(key, &mut view)? { return Ok(0) },
                }
            }
        }
    }
}

fn draw(terminal: &mut DefaultTerminal, view: &mut View) -> Result<(), Failure> {
    let drawn = terminal.draw(|frame| view.draw(frame, Instant::now()));
    drawn.map(|_| ()).map_err(|e| fault(&e))
}

/// Returns whether this key ends it.
fn ends(key: Option<io::Result<Event>>, view: &mut View) -> Result<bool, Failure> {
    let event = match key {
        Some(Ok(event)) => event,
        Some(Err(error)) => return Err(fault(&error)),
        None => return Ok(true),
    };
    // Other events, such as another size, have it drawn again.
    Ok(match event {
        Event::Key(key) if key.is_press() => view.press(key) == Next::End,
        _ => false,
    })
}
