//! The line protocol between the bench and a program that contends: orders on its stdin, answers on
//! its stdout.
//!
//! ```text
//! program  ready NOW
//! bench    KEY[,KEY..] BEGIN END HOLD_US
//! program  TASK ASKED ENTERED LEFT           a line for each wait; ENTERED and LEFT are 0 if END came first
//! program  over
//! bench    KEY[,KEY..] BEGIN ..              and so on, until stdin ends
//! ```
//!
//! For other kinds than locks, an order has one more word, the name of a [`Mix`], and the line of a
//! wait beside which others may be inside has the word `read` at its end.
//!
//! Times are in nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share. Task n
//! contends for key n modulo the number of keys in a loop from BEGIN to END, and keeps it for
//! `HOLD_US` of real time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Failure;

/// Returns the time of the clock that all processes share, in nanoseconds.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What tasks contend for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    Locks,
    /// Fair locks.
    InTurn,
    /// One of [`PERMITS`] permits.
    Permits,
    Reads,
    Writes,
    /// Only the first task writes, and pauses for [`PAUSE`] after each write.
    OneWriter,
    /// One in twenty visits of each task is a write.
    FewWrites,
}

/// How many permits there are.
pub(crate) const PERMITS: u32 = 8;

/// The pause of a lone writer beside readers.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

impl Mix {
    const NAMED: [(Self, &str); 6] = [
        (Self::Permits, "permits"),
        (Self::InTurn, "in-turn"),
        (Self::Reads, "reads"),
        (Self::Writes, "writes"),
        (Self::OneWriter, "one-writer"),
        (Self::FewWrites, "few-writes"),
    ];

    /// Returns whether a task writes on this visit. A holder of a lock is a writer.
    pub(crate) fn writes(self, task: usize, visit: usize) -> bool {
        match self {
            Self::Locks | Self::InTurn | Self::Writes => true,
            Self::Reads | Self::Permits => false,
            Self::OneWriter => task == 0,
            Self::FewWrites => (task * 7 + visit) % 20 == 19,
        }
    }
}

/// What the programs are to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) keys: Vec<String>,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) hold_us: u64,
    pub(crate) mix: Mix,
}

impl Order {
    pub(crate) fn line(&self) -> String {
        let mut words = Mix::NAMED.iter();
        let mix = words.find_map(|(mix, word)| (*mix == self.mix).then(|| format!(" {word}")));
        format!(
            "{} {} {} {}{}\n",
            self.keys.join(","),
            self.begin,
            self.end,
            self.hold_us,
            mix.unwrap_or_default()
        )
    }

    pub(crate) fn parse(line: &str) -> Result<Self, Failure> {
        let mix = Mix::NAMED.into_iter().find_map(|(mix, word)| {
            Some((mix, line.trim_end().strip_suffix(word)?.strip_suffix(' ')?))
        });
        let (mix, line) = mix.unwrap_or((Mix::Locks, line));
        let [keys, begin, end, hold_us] = words(line)?;
        let keys = keys.split(',').map(str::to_owned).collect();
        Ok(Self {
            keys,
            begin: begin.parse()?,
            end: end.parse()?,
            hold_us: hold_us.parse()?,
            mix,
        })
    }
}

/// One wait of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) asked: u64,
    /// When it got the lock, and when it called unlock. `None` if the end came first.
    pub(crate) inside: Option<(u64, u64)>,
    /// Whether others may have been inside with it.
    pub(crate) reads: bool,
}

impl Wait {
    pub(crate) fn line(&self, task: usize) -> String {
        let (entered, left) = self.inside.unwrap_or_default();
        let role = if self.reads { " read" } else { "" };
        format!("{task} {} {entered} {left}{role}\n", self.asked)
    }

    /// Returns the task and its wait.
    pub(crate) fn parse(line: &str) -> Result<(usize, Self), Failure> {
        let read = line.strip_suffix(" read");
        let [task, asked, entered, left] = words(read.unwrap_or(line))?;
        let (entered, left) = (entered.parse()?, left.parse()?);
        Ok((
            task.parse()?,
            Self {
                asked: asked.parse()?,
                inside: (entered > 0).then_some((entered, left)),
                reads: read.is_some(),
            },
        ))
    }
}

fn words<const N: usize>(line: &str) -> Result<[&str; N], Failure> {
    let words: Vec<&str> = line.split_whitespace().collect();
    words
        .try_into()
        .map_err(|_| format!("a line of {N} words was expected, not {line:?}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        for mix in [Mix::Locks, Mix::InTurn, Mix::FewWrites] {
            let order = Order {
                keys: vec!["a".to_owned(), "b".to_owned()],
                begin: 7,
                end: 9,
                hold_us: 1_000,
                mix,
            };
            assert_eq!(Order::parse(&order.line()).ok(), Some(order));
        }
        for (inside, reads) in [(None, false), (Some((5, 6)), true)] {
            let wait = Wait {
                asked: 4,
                inside,
                reads,
            };
            let line = wait.line(3);
            assert_eq!(Wait::parse(line.trim_end()).ok(), Some((3, wait)));
        }
        assert!(Wait::parse("1 2 3").is_err_and(|failure| failure.to_string().contains("1 2 3")));
    }
}
