//! The book of what may stand on the servers and must not: what was taken for no caller, what may
//! have been taken, and locks whose release has no answer. It sends releases until they are
//! answered, with one list and one pause for each node.
//!
//! | what may stand | since | how it ends |
//! |---|---|---|
//! | `Granted` | an attempt failed, its caller is gone, or a vote arrived late | one answer, or the lease |
//! | `MayCome` | an acquire, a retake or a hand-over has no answer | an answer, and one more a command timeout later |
//! | `Held` | a server that voted did not answer a release | one answer, which goes to the release, or the lease |
//!
//! Not in the book:
//! - The first send of a release. Most are answered, and the task of the release needs no other
//!   task for that. Its answer shows who waits; the answer to a repeated one does not.
//! - The wait for late answers (`Book::follow`). Until one comes, it is not known whether anything
//!   stands there. The book gets what they leave.
//! - Whom a release wakes, and what it means for the line. That depends on a majority or on a
//!   command timeout, and not on the last server.
//!
//! # Invariants
//! - What is new in the book is sent at once, to a silent server too: an undo is then behind its
//!   acquire on the same connection, and a server that executes the acquire also executes the undo.
//! - It is sent again until it is answered. If the server has granted the claim, this also ends
//!   with the lease.
//! - An undo of what the server may have granted, or may yet grant, does not end with a lease: an
//!   acquire in the socket of a stopped server is executed when the server continues. The undo
//!   stays until it is answered, and is then sent once more, a command timeout later (`list.rs`).
//!   Nothing that takes a lock is sent while a connection is known to be silent
//!   ([`Redis::call`](crate::node::Redis::call)), so at most what was in flight when a server fell
//!   silent has to be undone.
//! - A release comes into the book when its first sending was not answered. Once a release may have
//!   been executed, the server is expected to answer that the lock is gone.
//! - While a server is silent, one entry at a time asks whether it is back. The servers are
//!   independent of each other.
//! - The task that waits for a node's answer deals with it: a late yes is a vote while the hold is
//!   held, and is undone afterwards. An answer that never comes leaves the node uncertain: the
//!   release sends it an undo as well.
//! - A node that answered that another holds the lock has nothing of ours, since an acquire is sent
//!   once per generation: nothing is undone there.

mod list;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use self::list::{Entry, List};
use crate::claim::{Claim, ReleaseAnswer};
use crate::clock::Instant;
use crate::engine::{Engine, Work};
use crate::error::NodeFailure;
use crate::foreign::{self, contained, log};
use crate::hold::{self, Hold, HoldState};
use crate::lease::NodeIndex;
use crate::node::Outcome;
use crate::op::AcquireAnswer;
use crate::quorum::{Calls, Quorum, Vote, was_there};
use crate::stats::Counters;

/// Why a claim may stand on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The node has granted it: one undo is enough.
    Granted,
    /// The node may have granted it, or may yet.
    MayCome,
    /// It was held, and its release has no answer.
    Held {
        executed: bool,
        valid_until: Instant,
    },
}

impl Doubt {
    /// Returns what an answer leaves on its node: yes, no, or unknown whether it took the lock.
    fn left_by(answer: &Outcome<bool>) -> Option<Self> {
        match answer {
            Outcome::Done(true) => Some(Self::Granted),
            Outcome::Unknown(_) => Some(Self::MayCome),
            Outcome::Done(false) | Outcome::NotExecuted(_) | Outcome::Refused(_) => None,
        }
    }
}

/// The book of all nodes.
#[derive(Debug)]
pub(crate) struct Book {
    engine: Engine,
    quorum: Arc<Quorum>,
    counters: Arc<Counters>,
    command_timeout: Duration,
    /// For each node, entries that are new, and those that were sent with their answers.
    news: Vec<UnboundedSender<(Entry, Option<Outcome<ReleaseAnswer>>)>>,
}

impl Book {
    /// Starts the tasks that work off the book.
    pub(crate) fn start(
        engine: Engine,
        quorum: Arc<Quorum>,
        counters: Arc<Counters>,
        most: Duration,
    ) -> Arc<Self> {
        let (news, inboxes): (_, Vec<_>) = quorum.everywhere().map(|_| unbounded_channel()).unzip();
        let book = Arc::new(Self {
            engine,
            quorum,
            counters,
            command_timeout: most,
            news,
        });
        for (node, inbox) in inboxes.into_iter().enumerate() {
            book.engine.spawn(work_off(Arc::clone(&book), node, inbox));
        }
        book
    }

    /// Undoes what stands under the field of a hold that is no longer held, on all nodes where it
    /// may. A node that has not said yes has nothing; what is still on its way there is dealt with
    /// when it answers.
    pub(crate) fn undo_hold(&self, hold: &Hold) {
        self.undo_uncertain(hold);
        // On an uncertain node, the undo of what may come covers the vote too.
        // A claim that is gone may have left some of its permits.
        let votes = |node: &NodeIndex| {
            (hold.has_vote(*node) || hold.claim.permits > 1) && !hold.is_uncertain(*node)
        };
        self.quorum
            .everywhere()
            .filter(votes)
            .for_each(|node| self.undo_on(node, hold, Doubt::Granted));
    }

    /// Undoes what nodes may yet execute for a hold that is no longer held.
    pub(crate) fn undo_uncertain(&self, hold: &Hold) {
        let uncertain = self
            .quorum
            .everywhere()
            .filter(|&node| hold.is_uncertain(node));
        uncertain.for_each(|node| self.undo_on(node, hold, Doubt::MayCome));
    }

    /// Removes what stands under a name that is no hold's, on all nodes.
    pub(crate) fn undo(&self, claim: &Claim, doubt: Doubt, stands: Duration) {
        self.quorum
            .everywhere()
            .for_each(|node| self.add(node, Entry::new(claim, doubt, stands)));
    }

    fn undo_on(&self, node: NodeIndex, hold: &Hold, doubt: Doubt) {
        // A renewal in flight may restart its lease once more.
        let undo = Entry::new(&hold.claim, doubt, hold.lease() * 2);
        self.add(
            node,
            Entry {
                kept_until: hold.kept_until(),
                ..undo
            },
        );
    }

    /// Sends a release that was not answered once more, until it is answered or the lease is over.
    /// The channel tells whether the lock was there, or an earlier release may have deleted it.
    pub(crate) fn release_again(
        &self,
        node: NodeIndex,
        hold: &Hold,
        executed: bool,
    ) -> UnboundedReceiver<Outcome<bool>> {
        let (tell, told) = unbounded_channel();
        let doubt = Doubt::Held {
            executed,
            valid_until: hold.valid_until(),
        };
        // A renewal that was in flight may have restarted the lease just now, and no later one can.
        let release = Entry::new(&hold.claim, doubt, hold.lease());
        self.add(
            node,
            Entry {
                kept_until: hold.kept_until(),
                tell: Some(tell),
                ..release
            },
        );
        told
    }

    /// Re-acquires a held lock on a node that lost it.
    pub(crate) fn retake(self: &Arc<Self>, hold: Arc<Hold>, node: NodeIndex) {
        let book = Arc::clone(self);
        let in_flight = self.engine.track(Work::Vote(node));
        self.engine.spawn(async move {
            // Invariant 3.
            let sent = Instant::now();
            // A hold that has ended since would get a lock for no caller.
            if matches!(hold.mark(sent), HoldState::Safe | HoldState::Jeopardy) {
                let claim = hold.claim.clone();
                let lease = hold.terms.lease;
                let fence = hold.fence;
                let vote = Vote {
                    claim,
                    lease,
                    count: hold.guards(),
                    fence,
                };
                let answer = book.quorum.retake(node, vote).await;
                let taken = matches!(answer, Outcome::Done(true));
                // Before the log: a subscriber that panics must not cost a vote that was given.
                Doubt::left_by(&answer)
                    .into_iter()
                    .for_each(|doubt| book.settle_vote(&hold, node, sent, doubt));
                log!(
                    debug, key = %hold.claim.key.shown(), field = %hold.claim.field, node, taken,
                    "re-acquiring a lost vote"
                );
            }
            drop(in_flight);
        });
    }

    /// Waits for late answers, and passes on what each of them leaves.
    fn follow(
        &self,
        mut late: Calls<AcquireAnswer>,
        settle: impl Fn(NodeIndex, Doubt) + Send + 'static,
    ) {
        let mut in_flight: Vec<_> = late
            .missing()
            .map(|node| (node, self.engine.track(Work::Vote(node))))
            .collect();
        if in_flight.is_empty() {
            return;
        }
        self.engine.spawn(async move {
            while let Some((node, answer)) = late.next().await {
                let is_granted = answer.map(|answer| answer.is_granted());
                Doubt::left_by(&is_granted)
                    .into_iter()
                    .for_each(|doubt| settle(node, doubt));
                in_flight.retain(|(waiting, _)| *waiting != node);
            }
        });
    }

    /// Makes what stands on a node a vote for this hold. If the hold is no longer held, it is
    /// undone.
    fn settle_vote(&self, hold: &Arc<Hold>, node: NodeIndex, sent: Instant, doubt: Doubt) {
        let is_wanted = match doubt {
            // While the hold is held, it does no harm there.
            Doubt::MayCome => hold.make_uncertain(node),
            Doubt::Granted | Doubt::Held { .. } => hold.vote(node, sent, Instant::now()),
        };
        if !is_wanted {
            self.undo_on(node, hold, doubt);
        }
    }

    fn add(&self, node: NodeIndex, entry: Entry) {
        let _in_flight = entry.is_undo().then(|| self.engine.track(Work::Undo(node)));
        // After the engine's end nothing is sent any more.
        let _: Result<_, _> = self.news[node].send((
            Entry {
                _in_flight,
                ..entry
            },
            None,
        ));
    }

    /// Sends an entry to its node. The answer arrives as news.
    fn send(self: &Arc<Self>, node: NodeIndex, entry: Entry, now: Instant) {
        // It may be late: this locker may be waiting for the lock itself by then.
        let wakes = self.quorum.wakes(None);
        let release = self.quorum.release_on(
            node,
            entry.lane(),
            &entry.claim,
            hold::rest(entry.kept_until, now),
            wakes,
        );
        let book = Arc::clone(self);
        let name = Arc::clone(self.quorum.nodes()[node].name());
        self.engine.spawn(async move {
            // Without an answer the entry would be lost, and its list would wait for it forever.
            let panicked = |reason| Outcome::Unknown(NodeFailure::new(&name, reason));
            let answer = foreign::survive(release).await.unwrap_or_else(panicked);
            let _: Result<_, _> = book.news[node].send((entry, Some(answer)));
        });
    }

    /// Handles the answer to an entry.
    fn settle(&self, list: &mut List, entry: Entry, answer: Outcome<ReleaseAnswer>) {
        let now = Instant::now();
        let key = entry.claim.key.clone();
        let field = Arc::clone(&entry.claim.field);
        // The caller of a release is told, and logs what it was told.
        let is_undo = entry.is_undo();
        let is_ticket = entry.claim.is_ticket();
        let ended = match &answer {
            Outcome::Done(_) => list.answered(entry, now),
            // Nothing was taken either: a server that refuses this user's release has refused the
            // acquire too.
            Outcome::Refused(_) => Some(list.refused(entry)),
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => {
                list.unanswered(entry, matches!(answer, Outcome::Unknown(_)), now);
                if is_undo {
                    log!(trace, key = %key.shown(), field = &*field, %failure, "an undo has no answer");
                }
                None
            }
        };
        let Some(entry) = ended else { return };
        match &answer {
            Outcome::Done(_) if is_ticket => {
                log!(debug, key = %key.shown(), ticket = &*field, "left the queue");
            }
            Outcome::Done(_) if is_undo => {
                self.counters.undone();
                log!(debug, key = %key.shown(), field = &*field, "undone");
            }
            Outcome::Refused(error) if is_undo => {
                log!(debug, key = %key.shown(), field = &*field, %error, "an undo was refused");
            }
            _ => {}
        }
        let answer = answer.map(|release| was_there(&key, &release) || entry.may_be_gone(now));
        // Whoever waited for it may have ended.
        if let Some(tell) = entry.tell {
            let _: Result<_, _> = tell.send(answer);
        }
    }
}

/// Works off the part of one node. Started with the session, and restarted after a panic; ends with
/// the engine; no task awaits it.
async fn work_off(
    book: Arc<Book>,
    node: NodeIndex,
    mut inbox: UnboundedReceiver<(Entry, Option<Outcome<ReleaseAnswer>>)>,
) {
    // Outside of what starts again: a panic loses no entry.
    let mut list = List::new(book.command_timeout);
    foreign::restarted(async move |_| {
        list.recount();
        loop {
            let now = Instant::now();
            while let Some(entry) = list.next(now) {
                book.send(node, entry, now);
            }
            let wake = list.wakes_at();
            tokio::select! {
                biased;
                news = inbox.recv() => match news {
                    Some((entry, None)) => list.add(entry, Instant::now()),
                    Some((entry, Some(answer))) => book.settle(&mut list, entry, answer),
                    None => return,
                },
                () = sleep(wake.map_or(Duration::ZERO, |wake| Instant::now().until(wake))), if wake.is_some() => {}
            }
        }
    })
    .await;
}

/// What an acquire or a hand-over may have taken, until its answers are dealt with. If its task
/// ends before that, it is undone everywhere.
#[derive(Debug)]
pub(crate) struct Unsettled {
    book: Arc<Book>,
    claims: Arc<[Claim]>,
    lease: Duration,
    is_settled: bool,
}

impl Unsettled {
    pub(crate) fn new(book: &Arc<Book>, claims: &Arc<[Claim]>, lease: Duration) -> Self {
        Self {
            book: Arc::clone(book),
            claims: Arc::clone(claims),
            lease,
            is_settled: false,
        }
    }

    /// Notes that nothing of it is left to undo.
    pub(crate) fn settle(mut self) {
        self.is_settled = true;
    }

    /// Follows the nodes that a grant did not wait for, and notes those that may have granted it.
    pub(crate) fn keep(
        self,
        holds: &[Arc<Hold>],
        sent: Instant,
        uncertain: &[NodeIndex],
        late: Calls<AcquireAnswer>,
    ) {
        let book = Arc::clone(&self.book);
        let holds = holds.to_vec();
        let settle = move |node, doubt| {
            holds
                .iter()
                .for_each(|hold| book.settle_vote(hold, node, sent, doubt));
        };
        uncertain
            .iter()
            .for_each(|&node| settle(node, Doubt::MayCome));
        self.book.follow(late, settle);
        self.settle();
    }

    /// Undoes it, on the nodes that have answered and on those that have not yet.
    pub(crate) fn undo(
        mut self,
        taken: &[NodeIndex],
        uncertain: &[NodeIndex],
        late: Calls<AcquireAnswer>,
    ) {
        taken
            .iter()
            .for_each(|&node| self.undo_on(node, Doubt::Granted));
        uncertain
            .iter()
            .for_each(|&node| self.undo_on(node, Doubt::MayCome));
        self.is_settled = true;
        let book = Arc::clone(&self.book);
        book.follow(late, move |node, doubt| self.undo_on(node, doubt));
    }

    /// Undoes it on the nodes that granted it, and waits for that, but no longer than a command may
    /// take.
    pub(crate) async fn give_back(&self, taken: &[NodeIndex]) {
        let (tell, mut told) = unbounded_channel();
        for claim in self.claims.iter() {
            let undo = || Entry {
                tell: Some(tell.clone()),
                ..Entry::new(claim, Doubt::Granted, self.lease)
            };
            taken.iter().for_each(|&node| self.book.add(node, undo()));
        }
        // The channel has to end with the last entry.
        drop(tell);
        let undone = async { while told.recv().await.is_some() {} };
        // The book continues with what has no answer by then.
        let _: Result<_, _> = timeout(self.book.command_timeout, undone).await;
    }

    /// Undoes it on the only node.
    pub(crate) fn undo_alone(self, doubt: Doubt) {
        self.undo_on(0, doubt);
        self.settle();
    }

    fn undo_on(&self, node: NodeIndex, doubt: Doubt) {
        self.claims
            .iter()
            .for_each(|claim| self.book.add(node, Entry::new(claim, doubt, self.lease)));
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !self.is_settled {
            let undo = |node| self.undo_on(node, Doubt::MayCome);
            contained(|| self.book.quorum.everywhere().for_each(undo));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::hold::{Leave, Terms};
    use crate::kind::Format;
    use crate::lease;
    use crate::node::Node;
    use crate::options::Options;
    use crate::owner::Owner;

    const LEASE: Duration = Duration::from_secs(30);

    /// Makes the book of this many servers that are never there.
    fn book(servers: usize) -> Arc<Book> {
        let settings = Options::default().validate(servers).expect("valid");
        let nodes = (0..servers).map(|_| Node::of_nobody(&settings)).collect();
        let quorum = Arc::new(Quorum::new(nodes, Duration::ZERO, Duration::ZERO));
        let engine = Engine::start(servers).expect("a thread");
        Book::start(
            engine,
            quorum,
            Arc::new(Counters::new()),
            Duration::from_millis(100),
        )
    }

    /// A hold on three nodes, of which the first two have granted it.
    fn hold() -> Arc<Hold> {
        let terms = Terms {
            lease: LEASE,
            renewed: true,
            max_hold: None,
        };
        Arc::new(Hold::for_test(Owner::task(1), terms, &[0, 1], 3))
    }

    fn claim() -> Claim {
        Claim {
            kind: Format::Redisson.kind(),
            key: "k".into(),
            field: "f".into(),
            permits: 0,
        }
    }

    fn failure() -> NodeFailure {
        NodeFailure::new(&"n".into(), "silent")
    }

    #[tokio::test]
    async fn a_late_vote_is_undone_once_the_hold_is_released() {
        let book = book(1);
        let mut undos = 0;
        for (answer, undone) in [
            (Outcome::Done(true), 1),
            (Outcome::Unknown(failure()), 1),
            (Outcome::Done(false), 0),
            (Outcome::NotExecuted(failure()), 0),
        ] {
            let hold = hold();
            let sent = Instant::now();
            let settle =
                || Doubt::left_by(&answer).map(|doubt| book.settle_vote(&hold, 0, sent, doubt));
            settle();
            assert_eq!(book.engine.tally().undos(), undos, "it is held: {answer:?}");
            assert_eq!(hold.leave(Instant::now()), Leave::Last);
            settle();
            undos += undone;
            assert_eq!(
                book.engine.tally().undos(),
                undos,
                "it is released: {answer:?}"
            );
        }
        book.engine.stop();
    }

    #[tokio::test]
    async fn a_late_vote_is_valid_from_its_sending() {
        let book = book(1);
        let hold = hold();
        let now = Instant::now();
        // Sent long before it was answered: with the first node it makes the majority.
        let sent = now.before(LEASE / 2);
        book.settle_vote(&hold, 2, sent, Doubt::Granted);
        assert!(!hold.gone(1), "a majority is left");
        assert_eq!(hold.valid_until(), lease::valid_until(sent, LEASE));
        book.engine.stop();
    }

    /// Of three servers, the second answers late, and the third never does. An undo waits for the
    /// third too.
    #[tokio::test]
    async fn closing_waits_for_late_answers_except_those_of_a_minority() {
        let book = book(3);
        let answers = |node| async move {
            if node == 2 {
                std::future::pending::<()>().await;
            }
            Outcome::Done(AcquireAnswer::Granted(Vec::new()))
        };
        let late = Calls::new([1, 2].map(|node| (node, answers(node))).into_iter());
        book.follow(late, |node, doubt| {
            assert_eq!((node, doubt), (1, Doubt::Granted));
        });
        let _undo = book.engine.track(Work::Undo(2));
        let closed = timeout(Duration::from_secs(10), book.engine.tally().end(1, || true)).await;
        assert!(
            closed.is_ok(),
            "only the third is waited for, and for a moment"
        );
        book.engine.stop();
    }

    #[tokio::test]
    async fn executed_undos_are_counted_and_unanswered_ones_sent_again() {
        let book = book(1);
        let now = Instant::now();
        let mut list = List::new(LEASE);
        let undos = [
            Outcome::Done(ReleaseAnswer::Released(0)),
            Outcome::Refused(Error::config("key", "not permitted")),
            Outcome::Unknown(failure()),
        ];
        for answer in undos {
            list.add(Entry::new(&claim(), Doubt::Granted, LEASE), now);
            let undo = list.next(now).expect("it is sent");
            book.settle(&mut list, undo, answer);
        }
        assert!(
            list.next(now).is_none() && list.wakes_at().is_some(),
            "one waits"
        );
        assert_eq!(
            book.counters
                .stats(&Default::default(), 0, 0)
                .undone_acquires,
            1
        );
        book.engine.stop();
    }

    /// Returns what is reported of a release that was sent again, and whether it ended, for these
    /// answers to it.
    fn told(
        book: &Book,
        executed: bool,
        valid: Duration,
        answers: Vec<Outcome<ReleaseAnswer>>,
    ) -> Outcome<bool> {
        let (mut list, now) = (List::new(LEASE), Instant::now());
        let (tell, mut told) = unbounded_channel();
        let doubt = Doubt::Held {
            executed,
            valid_until: now + valid,
        };
        list.add(
            Entry {
                tell: Some(tell),
                ..Entry::new(&claim(), doubt, LEASE)
            },
            now,
        );
        for answer in answers {
            let release = list.next(now + LEASE / 2).expect("it is sent");
            assert!(told.try_recv().is_err(), "only the last answer counts");
            book.settle(&mut list, release, answer);
        }
        told.try_recv().expect("it has ended")
    }

    #[tokio::test]
    async fn a_lock_is_gone_as_expected_only_if_a_release_may_explain_it() {
        let book = book(1);
        let gone = || Outcome::Done(ReleaseAnswer::Gone);
        for (executed, valid, answers, expected) in [
            (false, LEASE, vec![gone()], false),
            (true, LEASE, vec![gone()], true),
            (true, Duration::ZERO, vec![gone()], false),
            (
                false,
                LEASE,
                vec![Outcome::NotExecuted(failure()), gone()],
                false,
            ),
            (
                false,
                LEASE,
                vec![Outcome::Unknown(failure()), gone()],
                true,
            ),
            (
                false,
                LEASE,
                vec![Outcome::Done(ReleaseAnswer::Released(0))],
                true,
            ),
        ] {
            let told = told(&book, executed, valid, answers);
            assert!(
                matches!(told, Outcome::Done(was_there) if was_there == expected),
                "{told:?}"
            );
        }
        let refused = told(
            &book,
            true,
            LEASE,
            vec![Outcome::Refused(Error::config("key", "not permitted"))],
        );
        assert!(matches!(refused, Outcome::Refused(_)), "{refused:?}");
        assert_eq!(
            book.counters
                .stats(&Default::default(), 0, 0)
                .undone_acquires,
            0,
            "a release is no undo"
        );
        book.engine.stop();
    }

    #[tokio::test]
    async fn what_an_attempt_may_have_taken_is_undone_unless_settled() {
        let book = book(3);
        let claims: Arc<[Claim]> = [claim(), claim()].into();
        let unsettled = || Unsettled::new(&book, &claims, LEASE);
        unsettled().settle();
        assert_eq!(book.engine.tally().undos(), 0);
        drop(unsettled());
        assert_eq!(book.engine.tally().undos(), 6, "each claim on each node");
        unsettled().undo(&[0], &[], Calls::none());
        assert_eq!(book.engine.tally().undos(), 8, "each claim on one node");
        book.engine.stop();
    }
}
