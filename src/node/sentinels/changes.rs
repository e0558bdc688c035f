//! Which changes of the verdict, and of each Sentinel, are news.

use std::time::Duration;

use super::super::host_port::HostPort;
use super::super::naming::{GOING_BACK, Verdict};
use crate::clock::Instant;

/// What was logged of the verdict.
#[derive(Debug, Default)]
pub(super) struct Changes {
    last: Option<HostPort>,
    nobody_since: Option<Instant>,
    warned: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// There was this master before.
    Another(HostPort),
    /// There was none for this long, which a warning has said.
    Again(Duration),
    Nobody,
}

impl Changes {
    /// Takes in the verdict. Returns what is news about it.
    pub(super) fn next(&mut self, master: &Verdict, now: Instant) -> Option<Change> {
        let Ok(master) = master else {
            let since = *self.nobody_since.get_or_insert(now);
            let is_long = now.since(since) >= GOING_BACK;
            return (is_long && !std::mem::replace(&mut self.warned, true))
                .then_some(Change::Nobody);
        };
        let since = self.nobody_since.take();
        let warned = std::mem::take(&mut self.warned);
        match self
            .last
            .replace(master.clone())
            .filter(|before| before != master)
        {
            Some(before) => Some(Change::Another(before)),
            None => since
                .filter(|_| warned)
                .map(|since| Change::Again(now.since(since))),
        }
    }
}

/// Which warnings about a Sentinel are in force: each is logged once, until it has passed.
#[derive(Default)]
pub(super) struct SentinelWarnings {
    failed: Option<Instant>,
    tilted: bool,
}

impl SentinelWarnings {
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let is_news = self.failed.is_none();
        self.failed.get_or_insert(now);
        is_news
    }

    /// Returns for how long it has failed.
    pub(super) fn recovered(&mut self, now: Instant) -> Option<Duration> {
        self.failed.take().map(|since| now.since(since))
    }

    pub(super) fn tilted(&mut self, in_tilt: bool) -> bool {
        !std::mem::replace(&mut self.tilted, in_tilt) && in_tilt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_master_and_a_long_time_without_one_are_news_once() {
        let mut changes = Changes::default();
        let now = Instant::now();
        let master = |port| {
            Ok(HostPort {
                host: "h".into(),
                port,
            })
        };
        let nobody = || Err("they do not agree".to_owned());
        assert_eq!(changes.next(&nobody(), now), None, "it has just begun");
        assert_eq!(changes.next(&master(1), now), None, "the first one");
        assert_eq!(changes.next(&nobody(), now), None);
        let before = HostPort {
            host: "h".into(),
            port: 1,
        };
        assert_eq!(
            changes.next(&master(2), now),
            Some(Change::Another(before)),
            "through a moment without one"
        );
        assert_eq!(changes.next(&nobody(), now), None);
        let later = now + GOING_BACK;
        assert_eq!(
            [
                changes.next(&nobody(), later),
                changes.next(&nobody(), later)
            ],
            [Some(Change::Nobody), None]
        );
        assert_eq!(
            changes.next(&master(2), later),
            Some(Change::Again(GOING_BACK))
        );
        assert_eq!(changes.next(&master(2), later), None);
    }
}
