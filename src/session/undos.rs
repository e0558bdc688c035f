//! Undoes what each server may have granted and nobody wants.
//!
//! # Invariants
//! - An undo is sent as soon as it is known, to a silent server too: it is then behind its acquire on the same
//!   connection, and a server that executes the acquire also executes the undo.
//! - It is sent again until it is answered. An undo of what the server has granted also ends with the lease.
//! - An undo of what the server may have granted, or may yet grant, does not end with a lease: an acquire in the socket
//!   of a stopped server is executed when the server goes on. The undo stays until it is answered, and is then sent
//!   once more, a command timeout later: the acquire may have been on a connection that was given up, and the undo may
//!   have overtaken it on another. Nothing that takes a lock is sent while a connection is known to be silent
//!   ([`Redis::call`](crate::node::Redis::call)), so at most what was in flight when a server fell silent has to be
//!   undone.
//! - While a server is silent, one undo at a time asks whether it is back. The servers are independent of each other.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::Session;
use crate::clock::Instant;
use crate::command::Claim;
use crate::engine::{Debt, Work};
use crate::foreign::{self, log};
use crate::hold::{self, Hold};
use crate::lease::{self, NodeIndex};
use crate::node::Outcome;

/// The first pause before an undo is sent again. It doubles up to half a command timeout.
const AGAIN: Duration = Duration::from_millis(20);

/// The senders of undos, one per server.
#[derive(Debug)]
pub(super) struct Undos(Vec<UnboundedSender<Undo>>);

/// The undos of one server.
pub(super) type Inbox = UnboundedReceiver<Undo>;

impl Undos {
    pub(super) fn new(nodes: usize) -> (Self, Vec<Inbox>) {
        let (senders, inboxes) = (0..nodes).map(|_| unbounded_channel()).unzip();
        (Self(senders), inboxes)
    }
}

/// Something that has to be undone on one server.
pub(super) struct Undo {
    claim: Claim,
    /// Whether the acquire may still be executed.
    uncertain: bool,
    /// How long the key may stand there after the last write.
    stands: Duration,
    /// Until when it is kept all the same.
    kept_until: Option<Instant>,
    _pending: Option<Debt>,
    /// If somebody waits for its end.
    _awaited: Option<UnboundedSender<Infallible>>,
}

impl std::fmt::Debug for Undo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Undo").field("key", &self.claim.key).field("uncertain", &self.uncertain).finish_non_exhaustive()
    }
}

impl Undo {
    /// Returns when nothing is left to undo, if the key was last written at this time.
    fn over_at(&self, written: Instant) -> Instant {
        written + self.stands + lease::drift(self.stands)
    }
}

impl Session {
    /// Undoes an acquire on the nodes that granted it, and on those that may have or may yet. The key stands for at
    /// most `stands` after the last write. A lock that was held is kept until `kept_until`, if given.
    pub(super) fn undo(
        self: &Arc<Self>,
        claim: &Claim,
        stands: Duration,
        kept_until: Option<Instant>,
        taken: impl IntoIterator<Item = NodeIndex>,
        uncertain: impl IntoIterator<Item = NodeIndex>,
    ) {
        let taken = taken.into_iter().map(|node| (node, false));
        for (node, uncertain) in taken.chain(uncertain.into_iter().map(|node| (node, true))) {
            let _pending = Some(self.engine.owe(Work::Undo(node)));
            let undo = Undo { claim: claim.clone(), uncertain, stands, kept_until, _pending, _awaited: None };
            // After the engine's end nothing is sent any more.
            let _: Result<_, _> = self.undos.0[node].send(undo);
        }
    }

    /// Undoes an acquire on the nodes that granted it, and waits for that, but no longer than a command may take.
    pub(super) async fn give_back(self: &Arc<Self>, claims: &[Claim], lease: Duration, taken: &[NodeIndex]) {
        let (awaited, mut ends) = unbounded_channel();
        for (claim, &node) in claims.iter().flat_map(|claim| taken.iter().map(move |node| (claim, node))) {
            let (claim, _pending) = (claim.clone(), Some(self.engine.owe(Work::Undo(node))));
            let _awaited = Some(awaited.clone());
            let undo = Undo { claim, uncertain: false, stands: lease, kept_until: None, _pending, _awaited };
            let _: Result<_, _> = self.undos.0[node].send(undo);
        }
        drop(awaited);
        let _: Result<_, _> = timeout(self.settings.command_timeout, ends.recv()).await;
    }

    /// Undoes what stands under the field of a hold that is no longer held, on all nodes where it may. A node that has
    /// not said yes has nothing; what is still on its way there is dealt with when it answers.
    pub(super) fn undo_hold(self: &Arc<Self>, hold: &Hold) {
        let somewhere = self.quorum.everywhere().filter(|&node| hold.is_uncertain(node) || hold.has_vote(node));
        let (uncertain, taken) = somewhere.partition(|&node| hold.is_uncertain(node));
        self.undo_on(hold, taken, uncertain);
    }

    /// Undoes what stands under the field of a hold on these nodes. A renewal under way may restart its lease once
    /// more.
    pub(super) fn undo_on(self: &Arc<Self>, hold: &Hold, taken: Vec<NodeIndex>, uncertain: Vec<NodeIndex>) {
        self.undo(&hold.claim, hold.lease() * 2, hold.kept_until(), taken, uncertain);
    }
}

/// Sends the undos of one server. Started with the session, and restarted after a panic, after which what was under way
/// is sent again; ends with the engine; nobody awaits it.
pub(super) async fn work_off(session: Arc<Session>, node: NodeIndex, mut inbox: Inbox) {
    let mut list = List::new(session.settings.command_timeout);
    foreign::restarted(async move |_| {
        list.ground();
        let mut undoing = session.quorum.undoing(node);
        loop {
            let now = Instant::now();
            while let Some((number, undo)) = list.next(now) {
                let wakes = session.quorum.wakes(None);
                undoing.send(number, undo.claim.clone(), hold::rest(undo.kept_until, now), wakes);
            }
            let wake = list.wakes_at();
            tokio::select! {
                biased;
                (number, outcome) = undoing.next() => settle(&session, &mut list, number, outcome),
                undo = inbox.recv() => match undo {
                    Some(undo) => list.add(undo, Instant::now()),
                    None => return,
                },
                () = sleep(wake.map_or(Duration::ZERO, |wake| Instant::now().until(wake))), if wake.is_some() => {}
            }
        }
    })
    .await;
}

fn settle(session: &Session, list: &mut List, number: u64, outcome: Outcome<bool>) {
    let now = Instant::now();
    let ended = match outcome {
        Outcome::Done(_) => list.answered(number, now),
        // Nothing was taken either: a server that refuses this user's release has refused the acquire too.
        Outcome::Refused(error) => {
            if let Some(Undo { claim: Claim { key, field, .. }, .. }) = list.refused(number) {
                log!(debug, key = %key.shown(), field = &*field, %error, "an undo was refused");
            }
            None
        }
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => {
            if let Some(Undo { claim: Claim { key, field, .. }, .. }) = list.unanswered(number, now) {
                log!(trace, key = %key.shown(), field = &**field, %failure, "an undo has no answer");
            }
            None
        }
    };
    if let Some(Undo { claim: Claim { key, field, .. }, .. }) = &ended {
        session.counters.undone();
        log!(debug, key = %key.shown(), field = &**field, "undone");
    }
}

/// The undos of one server, by number: plain data.
#[derive(Debug)]
struct List {
    command_timeout: Duration,
    added: u64,
    undos: BTreeMap<u64, Entry>,
    /// Undos to send for the first time.
    fresh: VecDeque<u64>,
    /// Undos to send again, since they had no answer.
    waiting: VecDeque<u64>,
    /// Undos to send once more, in the order of their times.
    later: VecDeque<(Instant, u64)>,
    /// The number of undos under way.
    flying: usize,
    /// If the last undo had no answer: the pause before the next one asks whether the server is back, and when it ends.
    silent: Option<(Duration, Instant)>,
}

#[derive(Debug)]
struct Entry {
    undo: Undo,
    /// When it ends in any case.
    until: Option<Instant>,
}

impl List {
    fn new(command_timeout: Duration) -> Self {
        let (undos, added, flying, silent) = (BTreeMap::new(), 0, 0, None);
        let (fresh, waiting, later) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { command_timeout, added, undos, fresh, waiting, later, flying, silent }
    }

    fn add(&mut self, undo: Undo, now: Instant) {
        let until = (!undo.uncertain).then(|| undo.over_at(now));
        self.undos.insert(self.added, Entry { undo, until });
        self.fresh.push_back(self.added);
        self.added += 1;
    }

    /// Marks everything under way as not sent: its answers are lost.
    fn ground(&mut self) {
        self.fresh = self.undos.keys().copied().collect();
        self.waiting.clear();
        self.later.clear();
        self.flying = 0;
    }

    /// Returns the next one to send now.
    fn next(&mut self, now: Instant) -> Option<(u64, &Undo)> {
        while self.later.front().is_some_and(|&(due, _)| due <= now) {
            self.waiting.extend(self.later.pop_front().map(|(_, number)| number));
        }
        let asks = match self.silent {
            Some((_, at)) => self.flying == 0 && at <= now,
            None => true,
        };
        if asks && self.silent.is_some() {
            self.end(now);
        }
        let again = |list: &mut Self| if asks { list.waiting.pop_front() } else { None };
        let number = self.fresh.pop_front().or_else(|| again(self))?;
        self.flying += 1;
        self.undos.get(&number).map(|entry| (number, &entry.undo))
    }

    /// Returns when [`next`](Self::next) may have one, apart from those that are answered or added in the meantime.
    fn wakes_at(&self) -> Option<Instant> {
        let later = self.later.front().map(|&(due, _)| due);
        match self.silent {
            Some(_) if self.flying > 0 => None,
            Some((_, at)) if !self.waiting.is_empty() => Some(at),
            Some((_, at)) => later.map(|due| due.max(at)),
            None => later,
        }
    }

    /// Drops waiting undos whose time is over.
    fn end(&mut self, now: Instant) {
        let undos = &mut self.undos;
        let mut is_over = |number: &u64| {
            let over = undos.get(number).is_some_and(|entry| entry.until.is_some_and(|until| until <= now));
            if over {
                undos.remove(number);
            }
            over
        };
        self.waiting.retain(|number| !is_over(number));
    }

    /// Notes that the server answers. Undos without an answer are then sent at once.
    fn hear(&mut self) {
        self.flying = self.flying.saturating_sub(1);
        self.silent = None;
    }

    /// Notes that an undo was executed. Returns it if it has ended.
    fn answered(&mut self, number: u64, now: Instant) -> Option<Undo> {
        self.hear();
        let entry = self.undos.get_mut(&number)?;
        if !std::mem::take(&mut entry.undo.uncertain) {
            return self.undos.remove(&number).map(|entry| entry.undo);
        }
        let due = now + self.command_timeout;
        entry.until = Some(entry.undo.over_at(due));
        self.later.push_back((due, number));
        None
    }

    /// Notes that the server refused an undo for good.
    fn refused(&mut self, number: u64) -> Option<Undo> {
        self.hear();
        self.undos.remove(&number).map(|entry| entry.undo)
    }

    /// Notes that an undo was not executed, or that this is unknown. It waits for its turn.
    fn unanswered(&mut self, number: u64, now: Instant) -> Option<&Undo> {
        self.flying = self.flying.saturating_sub(1);
        let pause = self.silent.map_or(AGAIN, |(pause, _)| (pause * 2).min(self.command_timeout / 2));
        self.silent = Some((pause, now + pause));
        self.waiting.push_back(number);
        self.undos.get(&number).map(|entry| &entry.undo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Kind;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3_600);

    /// Returns a list with `count` undos under way, and the time.
    fn sent(uncertain: bool, count: usize) -> (List, Instant) {
        let (mut list, now) = (List::new(SECOND), Instant::now());
        for _ in 0..count {
            let claim = Claim { kind: Kind::Redisson, key: "k".into(), field: "f".into() };
            let (stands, _pending, _awaited) = (SECOND * 10, None, None);
            list.add(Undo { claim, uncertain, stands, kept_until: None, _pending, _awaited }, now);
        }
        assert_eq!(due(&mut list, now).len(), count);
        (list, now)
    }

    /// Returns the undos that are sent at this time.
    fn due(list: &mut List, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| list.next(now).map(|(number, _)| number)).collect()
    }

    #[test]
    fn an_undo_of_what_was_granted_is_sent_until_it_is_answered() {
        let (mut list, mut now) = sent(false, 1);
        for _ in 0..8 {
            assert!(list.unanswered(0, now).is_some());
            assert_eq!(due(&mut list, now), [0; 0], "after a pause");
            now = list.wakes_at().expect("it is tried again");
            assert_eq!(due(&mut list, now), [0]);
            assert_eq!(list.wakes_at(), None);
        }
        assert!(list.answered(0, now).is_some());
        assert!(list.undos.is_empty() && list.wakes_at().is_none());
    }

    #[test]
    fn an_undo_of_what_was_granted_ends_with_the_lease() {
        let (mut list, now) = sent(false, 1);
        list.unanswered(0, now);
        assert_eq!(due(&mut list, now + SECOND * 9), [0]);
        list.unanswered(0, now + SECOND * 9);
        assert_eq!(due(&mut list, now + SECOND * 10), [0], "the server's clock may be slower");
        list.unanswered(0, now + SECOND * 10);
        assert_eq!(due(&mut list, now + SECOND * 10 + lease::drift(SECOND * 10)), [0; 0]);
        assert!(list.undos.is_empty() && list.wakes_at().is_none());
    }

    #[test]
    fn an_undo_of_what_may_yet_be_executed_is_sent_once_more_after_its_first_answer() {
        let (mut list, now) = sent(true, 1);
        list.unanswered(0, now);
        let late = now + HOUR;
        assert_eq!(due(&mut list, late), [0], "its lease says nothing");
        assert!(list.answered(0, late).is_none());
        assert_eq!(list.wakes_at(), Some(late + SECOND));
        assert_eq!(due(&mut list, late + SECOND / 2), [0; 0]);
        assert_eq!(due(&mut list, late + SECOND), [0]);
        // From here on it ends with the lease, which began by now.
        list.unanswered(0, late + SECOND);
        assert_eq!(due(&mut list, late + SECOND * 11), [0]);
        list.unanswered(0, late + SECOND * 11);
        assert_eq!(due(&mut list, late + SECOND * 11 + lease::drift(SECOND * 10)), [0; 0]);
        assert!(list.undos.is_empty());
    }

    #[test]
    fn a_silent_server_is_sent_one_undo_at_a_time_and_all_once_it_answers() {
        let (mut list, now) = sent(true, 3);
        for number in 0..3 {
            list.unanswered(number, now);
        }
        let mut asked = now;
        for number in [0, 1, 2, 0] {
            asked = list.wakes_at().expect("it is asked");
            assert_eq!(due(&mut list, asked), [number]);
            assert!(list.wakes_at().is_none() && due(&mut list, asked + HOUR).is_empty(), "one at a time");
            list.unanswered(number, asked);
        }
        let (claim, _pending) = (Claim { kind: Kind::Redisson, key: "k".into(), field: "f".into() }, None);
        let (stands, _awaited) = (SECOND, None);
        list.add(Undo { claim, uncertain: true, stands, kept_until: None, _pending, _awaited }, asked);
        assert_eq!(due(&mut list, asked), [3], "a new one is behind its acquire all the same");
        assert!(list.answered(3, asked).is_none());
        assert_eq!(due(&mut list, asked), [1, 2, 0]);
    }

    #[test]
    fn pauses_for_a_silent_server_double_up_to_half_a_command_timeout() {
        let (mut list, mut now) = sent(true, 1);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            list.unanswered(0, now);
            let at = list.wakes_at().expect("it is asked");
            pauses.push(now.until(at).as_millis());
            now = at;
            assert_eq!(due(&mut list, now), [0]);
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500]);
    }

    #[test]
    fn an_undo_whose_time_is_over_is_still_sent_to_a_server_that_answers() {
        let (mut list, now) = sent(false, 2);
        list.unanswered(0, now);
        list.answered(1, now);
        assert_eq!(due(&mut list, now + SECOND * 11), [0]);
    }

    #[tokio::test]
    async fn executed_undos_are_counted_and_unanswered_ones_are_sent_again() {
        let session = Session::over_nobody();
        let (mut list, _) = sent(false, 3);
        settle(&session, &mut list, 0, Outcome::Done(true));
        settle(&session, &mut list, 1, Outcome::Refused(crate::error::Error::config("key", "not permitted")));
        let failure = crate::error::NodeFailure { node: "n".into(), reason: "silent".into() };
        settle(&session, &mut list, 2, Outcome::Unknown(failure));
        assert_eq!((list.undos.keys().copied().collect(), list.waiting), (vec![2], VecDeque::from([2])));
        assert_eq!(session.counters.stats(0, 0, 0, 0).undone, 1);
        session.engine.stop();
    }

    #[test]
    fn after_a_panic_all_undos_under_way_are_sent_again() {
        let (mut list, now) = sent(true, 4);
        list.answered(0, now);
        list.unanswered(1, now);
        list.refused(2);
        list.ground();
        assert_eq!(due(&mut list, now), [0, 1, 3]);
        assert_eq!(list.flying, 3);
    }
}
