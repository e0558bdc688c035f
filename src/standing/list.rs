//! The book of one node: what is sent to it, when, and how often. Pure: callers pass the time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::Doubt;
use crate::claim::Claim;
use crate::clock::Instant;
use crate::engine::InFlight;
use crate::lease;
use crate::node::{Lane, Outcome};

/// The first pause before a silent server is asked again. It doubles up to half a command timeout.
const AGAIN: Duration = Duration::from_millis(20);

/// A claim that may stand on one node and must not.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) claim: Claim,
    pub(super) doubt: Doubt,
    /// How long the key may stand there after the last write.
    pub(super) stands: Duration,
    /// When it ends in any case.
    pub(super) until: Option<Instant>,
    /// Until when the lock is kept all the same.
    pub(super) kept_until: Option<Instant>,
    /// Where its answer goes, if somebody waits for it.
    pub(super) tell: Option<UnboundedSender<Outcome<bool>>>,
    pub(super) _in_flight: Option<InFlight>,
}

impl Entry {
    pub(super) fn new(claim: &Claim, doubt: Doubt, stands: Duration) -> Self {
        Self {
            claim: claim.clone(),
            doubt,
            stands,
            until: None,
            kept_until: None,
            tell: None,
            _in_flight: None,
        }
    }

    pub(super) fn is_undo(&self) -> bool {
        !matches!(self.doubt, Doubt::Held { .. })
    }

    /// Returns the connection that it is sent on. An undo is behind its acquire; a release waits
    /// for no replica.
    pub(super) fn lane(&self) -> Lane {
        if self.is_undo() {
            Lane::Grants
        } else {
            Lane::Commands
        }
    }

    /// Returns whether an earlier release explains that the lock is gone.
    pub(super) fn may_be_gone(&self, now: Instant) -> bool {
        matches!(self.doubt, Doubt::Held { executed: true, valid_until } if now < valid_until)
    }

    /// Notes that the key was last written by this time.
    fn written(&mut self, by: Instant) {
        self.until = Some(by + self.stands + lease::drift(self.stands));
    }
}

/// What is to be sent to one node.
#[derive(Debug)]
pub(super) struct List {
    command_timeout: Duration,
    /// What is sent for the first time.
    fresh: VecDeque<Entry>,
    /// What is sent again, since it had no answer.
    waiting: VecDeque<Entry>,
    /// What is sent once more, in the order of their times.
    later: VecDeque<(Instant, Entry)>,
    /// How many are in flight.
    flying: usize,
    /// If the last one had no answer: the pause before the next one asks whether the server is
    /// back, and when it ends.
    silent: Option<(Duration, Instant)>,
}

impl List {
    pub(super) fn new(command_timeout: Duration) -> Self {
        let fresh = VecDeque::new();
        let waiting = VecDeque::new();
        let later = VecDeque::new();
        Self {
            command_timeout,
            fresh,
            waiting,
            later,
            flying: 0,
            silent: None,
        }
    }

    pub(super) fn add(&mut self, mut entry: Entry, now: Instant) {
        // What may yet come is not over with a lease: its lease begins when it comes.
        if entry.doubt != Doubt::MayCome {
            entry.written(now);
        }
        self.fresh.push_back(entry);
    }

    /// Waits for nothing that is in flight: one of its answers may be lost.
    pub(super) fn recount(&mut self) {
        self.flying = 0;
    }

    /// Returns the next one to send now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Entry> {
        while self.later.front().is_some_and(|&(due, _)| due <= now) {
            self.waiting
                .extend(self.later.pop_front().map(|(_, entry)| entry));
        }
        // One entry at a time asks a silent server whether it is back.
        let asks = self
            .silent
            .is_none_or(|(_, at)| self.flying == 0 && at <= now);
        if asks && self.silent.is_some() {
            self.waiting
                .retain(|entry| entry.until.is_none_or(|until| now < until));
        }
        let again = |waiting: &mut VecDeque<Entry>| if asks { waiting.pop_front() } else { None };
        // New ones first, to a silent server too: an undo has to be behind its acquire on its
        // connection.
        let entry = self
            .fresh
            .pop_front()
            .or_else(|| again(&mut self.waiting))?;
        self.flying += 1;
        Some(entry)
    }

    /// Returns when [`next`](Self::next) may have one, apart from those that are answered or added
    /// in the meantime.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        let later = self.later.front().map(|&(due, _)| due);
        match self.silent {
            // The answer to that one wakes the list.
            Some(_) if self.flying > 0 => None,
            Some((_, at)) if !self.waiting.is_empty() => Some(at),
            Some((_, at)) => later.map(|due| due.max(at)),
            None => later,
        }
    }

    /// Notes that the server refused one for good, and ends it. What had no answer is then sent at
    /// once.
    pub(super) fn refused(&mut self, entry: Entry) -> Entry {
        self.flying = self.flying.saturating_sub(1);
        self.silent = None;
        entry
    }

    /// Notes that one was executed. Returns it if it has ended; otherwise it is sent once more.
    pub(super) fn answered(&mut self, entry: Entry, now: Instant) -> Option<Entry> {
        let mut entry = self.refused(entry);
        if entry.doubt != Doubt::MayCome {
            return Some(entry);
        }
        // The acquire may be on a connection that was given up, and this undo may have overtaken it
        // on another.
        let due = now + self.command_timeout;
        entry.doubt = Doubt::Granted;
        entry.written(due);
        self.later.push_back((due, entry));
        None
    }

    /// Notes that one was not executed, or that this is unknown. It waits for its turn.
    pub(super) fn unanswered(&mut self, mut entry: Entry, may_be_executed: bool, now: Instant) {
        self.flying = self.flying.saturating_sub(1);
        let pause = self.silent.map_or(AGAIN, |(pause, _)| {
            (pause * 2).min(self.command_timeout / 2)
        });
        // Many may fail together, as those of one connection do: that is one pause.
        if self.silent.is_none_or(|(_, at)| at <= now) {
            self.silent = Some((pause, now + pause));
        }
        // From here on, this release may be the reason that the lock is gone.
        if let Doubt::Held { executed, .. } = &mut entry.doubt {
            *executed |= may_be_executed;
        }
        self.waiting.push_back(entry);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::kind::Format;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3_600);

    /// A list, and what is in flight, by the number that is its key.
    struct Node {
        list: List,
        flying: BTreeMap<usize, Entry>,
        added: usize,
    }

    impl Node {
        fn new() -> Self {
            Self {
                list: List::new(SECOND),
                flying: BTreeMap::new(),
                added: 0,
            }
        }

        fn add(&mut self, doubt: Doubt, now: Instant) {
            let claim = Claim {
                kind: Format::Redisson.kind(),
                key: self.added.to_string().into(),
                field: "f".into(),
                permits: 0,
            };
            self.list.add(Entry::new(&claim, doubt, SECOND * 10), now);
            self.added += 1;
        }

        /// Returns what is sent at this time.
        fn due(&mut self, now: Instant) -> Vec<usize> {
            let mut numbers = Vec::new();
            while let Some(entry) = self.list.next(now) {
                let number = entry.claim.key.as_str().parse().expect("a number");
                self.flying.insert(number, entry);
                numbers.push(number);
            }
            numbers
        }

        fn unanswered(&mut self, number: usize, now: Instant) {
            let entry = self.flying.remove(&number).expect("it is in flight");
            self.list.unanswered(entry, true, now);
        }

        /// Returns whether it has ended.
        fn answered(&mut self, number: usize, now: Instant) -> bool {
            let entry = self.flying.remove(&number).expect("it is in flight");
            self.list.answered(entry, now).is_some()
        }

        fn is_empty(&self) -> bool {
            let List {
                fresh,
                waiting,
                later,
                ..
            } = &self.list;
            fresh.is_empty() && waiting.is_empty() && later.is_empty() && self.flying.is_empty()
        }
    }

    /// Returns a list with this many in flight, and the time.
    fn sent(doubt: Doubt, count: usize) -> (Node, Instant) {
        let mut node = Node::new();
        let now = Instant::now();
        (0..count).for_each(|_| node.add(doubt, now));
        assert_eq!(node.due(now).len(), count);
        (node, now)
    }

    #[test]
    fn an_undo_of_what_was_granted_is_sent_until_it_is_answered() {
        let (mut node, mut now) = sent(Doubt::Granted, 1);
        for _ in 0..8 {
            node.unanswered(0, now);
            assert_eq!(node.due(now), [0; 0], "after a pause");
            now = node.list.wakes_at().expect("it is tried again");
            assert_eq!(node.due(now), [0]);
            assert_eq!(node.list.wakes_at(), None);
        }
        assert!(node.answered(0, now));
        assert!(node.is_empty() && node.list.wakes_at().is_none());
    }

    #[test]
    fn what_was_granted_or_held_ends_with_the_lease() {
        for doubt in [
            Doubt::Granted,
            Doubt::Held {
                executed: false,
                valid_until: Instant::now(),
            },
        ] {
            let (mut node, now) = sent(doubt, 1);
            node.unanswered(0, now);
            assert_eq!(node.due(now + SECOND * 9), [0]);
            node.unanswered(0, now + SECOND * 9);
            assert_eq!(
                node.due(now + SECOND * 10),
                [0],
                "the server's clock may be slower"
            );
            node.unanswered(0, now + SECOND * 10);
            assert_eq!(
                node.due(now + SECOND * 10 + lease::drift(SECOND * 10)),
                [0; 0]
            );
            assert!(node.is_empty() && node.list.wakes_at().is_none());
        }
    }

    #[test]
    fn an_undo_of_what_may_yet_run_is_resent_after_its_first_answer() {
        let (mut node, now) = sent(Doubt::MayCome, 1);
        node.unanswered(0, now);
        let late = now + HOUR;
        assert_eq!(node.due(late), [0], "its lease says nothing");
        assert!(!node.answered(0, late));
        assert_eq!(node.list.wakes_at(), Some(late + SECOND));
        assert_eq!(node.due(late + SECOND / 2), [0; 0]);
        assert_eq!(node.due(late + SECOND), [0]);
        // From here on it ends with the lease, which began by now.
        node.unanswered(0, late + SECOND);
        assert_eq!(node.due(late + SECOND * 11), [0]);
        node.unanswered(0, late + SECOND * 11);
        assert_eq!(
            node.due(late + SECOND * 11 + lease::drift(SECOND * 10)),
            [0; 0]
        );
        assert!(node.is_empty());
    }

    #[test]
    fn a_silent_server_is_sent_one_at_a_time_and_all_once_it_speaks() {
        let (mut node, now) = sent(Doubt::MayCome, 3);
        for number in 0..3 {
            node.unanswered(number, now);
        }
        let mut asked = now;
        for number in [0, 1, 2, 0] {
            asked = node.list.wakes_at().expect("it is asked");
            assert_eq!(node.due(asked), [number]);
            assert!(
                node.list.wakes_at().is_none() && node.due(asked + HOUR).is_empty(),
                "one at a time"
            );
            node.unanswered(number, asked);
        }
        node.add(Doubt::MayCome, asked);
        assert_eq!(
            node.due(asked),
            [3],
            "a new one is behind its acquire all the same"
        );
        assert!(!node.answered(3, asked));
        assert_eq!(node.due(asked), [1, 2, 0]);
    }

    #[test]
    fn pauses_for_a_silent_server_double_to_half_a_command_timeout() {
        let (mut node, mut now) = sent(Doubt::MayCome, 1);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            node.unanswered(0, now);
            let at = node.list.wakes_at().expect("it is asked");
            pauses.push(now.until(at).as_millis());
            now = at;
            assert_eq!(node.due(now), [0]);
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500]);
    }

    #[test]
    fn an_answer_that_is_lost_by_a_panic_stops_nothing() {
        let (mut node, now) = sent(Doubt::MayCome, 2);
        node.unanswered(0, now);
        assert_eq!(
            node.list.wakes_at(),
            None,
            "the other one may yet be answered"
        );
        node.list.recount();
        let at = node.list.wakes_at().expect("it is asked");
        assert_eq!(node.due(at), [0]);
    }

    #[test]
    fn what_fails_together_is_one_failure() {
        let (mut node, now) = sent(Doubt::MayCome, 100);
        (0..100).for_each(|number| node.unanswered(number, now));
        assert_eq!(node.list.wakes_at(), Some(now + AGAIN));
    }

    #[test]
    fn an_undo_whose_time_is_over_is_sent_to_a_server_that_answers() {
        let (mut node, now) = sent(Doubt::Granted, 2);
        node.unanswered(0, now);
        node.answered(1, now);
        assert_eq!(node.due(now + SECOND * 11), [0]);
    }
}
