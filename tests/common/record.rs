//! The record of who was inside when, and the check that no two visits overlap.
//!
//! Times are of CLOCK_MONOTONIC, which all processes of a machine share. A visit begins after the
//! lock was granted and ends before its release is requested, or when its holder is told of the
//! loss. So if two visits overlap, two holders were inside at once.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use super::history::{Call, History};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    pub key: String,
    pub who: String,
    pub fence: u64,
    pub entered: u64,
    pub left: u64,
}

#[derive(Debug, Default)]
pub struct Record {
    pub visits: Vec<Visit>,
    /// The calls, if they were recorded.
    pub history: History,
}

/// Returns the nanoseconds of the clock that all processes share.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// Returns the visits by a list on the server to which all contenders append "enter NAME" and
/// "leave NAME". Places in the list serve as times, so that the server decides the order.
pub fn visits(notes: &[String]) -> Vec<Visit> {
    let mut inside = HashMap::new();
    let mut visits = Vec::new();
    for (at, note) in (1_u64..).zip(notes) {
        let (what, who) = note.split_once(' ').unwrap();
        if what == "enter" {
            assert_eq!(inside.insert(who, at), None, "{who} enters twice");
        } else {
            let entered = inside.remove(who).unwrap();
            // These clients have no fences: the place serves as one.
            visits.push(Visit {
                key: "k".into(),
                who: who.into(),
                fence: entered,
                entered,
                left: at,
            });
        }
    }
    assert!(inside.is_empty(), "did not leave: {inside:?}");
    visits
}

impl Record {
    pub fn of(visits: Vec<Visit>) -> Self {
        Self {
            visits,
            ..Self::default()
        }
    }

    pub fn extend(&mut self, other: Self) {
        self.visits.extend(other.visits);
        self.history.calls.extend(other.history.calls);
    }

    /// # Errors
    /// The first two visits of one key that overlap, or whose fences do not grow.
    pub fn check(&self) -> Result<(), String> {
        let mut visits: Vec<&Visit> = self.visits.iter().collect();
        visits.sort_by(|a, b| (&a.key, a.entered).cmp(&(&b.key, b.entered)));
        for pair in visits.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            if first.key != second.key {
                continue;
            }
            if second.entered < first.left {
                return Err(format!("inside at once: {first:?} and {second:?}"));
            }
            if second.fence <= first.fence {
                return Err(format!("the fence did not grow: {first:?} and {second:?}"));
            }
        }
        Ok(())
    }

    pub fn write(&self, path: &Path) {
        let mut text = String::new();
        for v in &self.visits {
            writeln!(
                text,
                "{} {} {} {} {}",
                v.key, v.who, v.fence, v.entered, v.left
            )
            .unwrap();
        }
        for call in &self.history.calls {
            writeln!(text, "{call}").unwrap();
        }
        std::fs::write(path, text).unwrap();
    }

    pub fn read(&mut self, path: &Path) {
        for line in std::fs::read_to_string(path).unwrap().lines() {
            if let Some(call) = Call::parse(line) {
                self.history.calls.push(call);
                continue;
            }
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap().to_owned();
            self.visits.push(Visit {
                key: word(),
                who: word(),
                fence: word().parse().unwrap(),
                entered: word().parse().unwrap(),
                left: word().parse().unwrap(),
            });
        }
    }
}
