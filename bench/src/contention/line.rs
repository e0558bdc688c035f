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
//! Times are in nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share. Task n
//! contends for key n modulo the number of keys in a loop from BEGIN to END, and keeps it for
//! `HOLD_US` of real time.

use rustix::time::{ClockId, clock_gettime};

use crate::Failure;

/// Returns the time of the clock that all processes share, in nanoseconds.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What the programs are to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) keys: Vec<String>,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) hold_us: u64,
}

impl Order {
    pub(crate) fn line(&self) -> String {
        format!(
            "{} {} {} {}\n",
            self.keys.join(","),
            self.begin,
            self.end,
            self.hold_us
        )
    }

    pub(crate) fn parse(line: &str) -> Result<Self, Failure> {
        let [keys, begin, end, hold_us] = words(line)?;
        let keys = keys.split(',').map(str::to_owned).collect();
        Ok(Self {
            keys,
            begin: begin.parse()?,
            end: end.parse()?,
            hold_us: hold_us.parse()?,
        })
    }
}

/// One wait of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) asked: u64,
    /// When it got the lock, and when it called unlock. `None` if the end came first.
    pub(crate) inside: Option<(u64, u64)>,
}

impl Wait {
    pub(crate) fn line(&self, task: usize) -> String {
        let (entered, left) = self.inside.unwrap_or_default();
        format!("{task} {} {entered} {left}\n", self.asked)
    }

    /// Returns the task and its wait.
    pub(crate) fn parse(line: &str) -> Result<(usize, Self), Failure> {
        let [task, asked, entered, left] = words(line)?;
        let (entered, left) = (entered.parse()?, left.parse()?);
        Ok((
            task.parse()?,
            Self {
                asked: asked.parse()?,
                inside: (entered > 0).then_some((entered, left)),
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
        let order = Order {
            keys: vec!["a".to_owned(), "b".to_owned()],
            begin: 7,
            end: 9,
            hold_us: 1_000,
        };
        assert_eq!(Order::parse(&order.line()).ok(), Some(order));
        for inside in [None, Some((5, 6))] {
            let wait = Wait { asked: 4, inside };
            assert_eq!(Wait::parse(&wait.line(3)).ok(), Some((3, wait)));
        }
        assert!(Wait::parse("1 2 3").is_err_and(|failure| failure.to_string().contains("1 2 3")));
    }
}
