//! Counts what is under way: operations, releases and undos without an answer. Closing waits for them, and operators
//! see them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::Session;
use crate::clock::Instant;
use crate::engine::Debt;
use crate::lease::NodeIndex;
use crate::quorum::STRAGGLERS;

/// The counts of what is under way.
#[derive(Debug)]
pub(super) struct Pendings {
    all: AtomicUsize,
    undos: AtomicUsize,
    /// One count per node: of what waits for this node alone, and not for a majority.
    at: Vec<AtomicUsize>,
    /// Releases that not every node has answered. Most are already certain, and counted nowhere else.
    late: AtomicUsize,
    /// Notified when something ended that closing may wait for.
    settled: Notify,
}

impl Pendings {
    pub(super) fn new(nodes: usize) -> Self {
        let at = (0..nodes).map(|_| AtomicUsize::new(0)).collect();
        let [all, undos, late] = std::array::from_fn(|_| AtomicUsize::new(0));
        Self { all, undos, at, late, settled: Notify::new() }
    }

    pub(super) fn all(&self) -> usize {
        self.all.load(Ordering::Acquire)
    }

    pub(super) fn undos(&self) -> usize {
        self.undos.load(Ordering::Acquire)
    }

    /// Waits until nothing is under way and `idle` returns true. A minority of the nodes may take a moment longer than
    /// the others; silent ones are not waited for.
    pub(super) async fn end(&self, minority: usize, idle: impl Fn() -> bool) {
        let mut alone_since = None;
        loop {
            // This check comes first: a user's thread counts an undo here before it removes the hold from the gate.
            // Only the engine, on which this runs, moves anything the other way.
            let idle = idle();
            let waiting: Vec<usize> = self.at.iter().map(|at| at.load(Ordering::Acquire)).filter(|&n| n > 0).collect();
            let (all, now) = (self.all(), Instant::now());
            if idle && all == 0 && self.late.load(Ordering::Acquire) == 0 {
                return;
            }
            if idle && waiting.iter().sum::<usize>() == all && waiting.len() <= minority {
                if now.since(*alone_since.get_or_insert(now)) >= STRAGGLERS {
                    return;
                }
            } else {
                alone_since = None;
            }
            // The timeout covers a wake-up that came between the check and the wait.
            let _: Result<_, _> = timeout(Duration::from_millis(20), self.settled.notified()).await;
        }
    }
}

/// Counts one thing under way, from before it is spawned until it ends, in whatever way.
pub(super) struct Pending {
    session: Arc<Session>,
    node: Option<NodeIndex>,
    undo: bool,
    /// The end of a thread waits for it too, unless it concerns a minority only.
    _debt: Option<Debt>,
}

impl Pending {
    /// Counts something that ends as soon as a majority has answered.
    pub(super) fn new(session: &Arc<Session>) -> Self {
        Self::count(session, None, false, Some(session.engine.owe()))
    }

    /// Counts something that ends when this node has answered.
    pub(super) fn at(session: &Arc<Session>, node: NodeIndex) -> Self {
        Self::count(session, Some(node), false, None)
    }

    /// Counts an undo on this node.
    pub(super) fn undo(session: &Arc<Session>, node: NodeIndex) -> Self {
        Self::count(session, Some(node), true, Some(session.engine.owe()))
    }

    fn count(session: &Arc<Session>, node: Option<NodeIndex>, undo: bool, debt: Option<Debt>) -> Self {
        let pendings = &session.pendings;
        pendings.all.fetch_add(1, Ordering::AcqRel);
        if let Some(node) = node {
            pendings.at[node].fetch_add(1, Ordering::AcqRel);
        }
        if undo {
            pendings.undos.fetch_add(1, Ordering::AcqRel);
        }
        Self { session: Arc::clone(session), node, undo, _debt: debt }
    }
}

/// Counts a release until every node has answered it: closing gives the slower ones a moment.
pub(super) struct Late(Arc<Session>);

impl Late {
    pub(super) fn new(session: &Arc<Session>) -> Self {
        session.pendings.late.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(session))
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.0.pendings.late.fetch_sub(1, Ordering::AcqRel);
        self.0.pendings.settled.notify_one();
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let pendings = &self.session.pendings;
        if self.undo {
            pendings.undos.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(node) = self.node {
            pendings.at[node].fetch_sub(1, Ordering::AcqRel);
        }
        pendings.all.fetch_sub(1, Ordering::AcqRel);
        pendings.settled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    /// Returns when closing ends, if within three times the moment that it gives to stragglers. One of three nodes may
    /// be a straggler; `all` counts what is under way, and `at` how much of it waits for each node.
    async fn ends(all: usize, at: [usize; 3], idle: bool) -> Option<Duration> {
        let mut pendings = Pendings::new(3);
        (pendings.all, pendings.at) = (all.into(), at.map(AtomicUsize::new).into());
        let began = Instant::now();
        timeout(STRAGGLERS * 3, pendings.end(1, || idle)).await.ok().map(|()| Instant::now().since(began))
    }

    #[tokio::test]
    async fn closing_waits_for_a_majority_and_gives_the_others_a_moment() {
        let [nothing, straggler, two, more, busy] = tokio::join!(
            ends(0, [0, 0, 0], true),
            ends(2, [2, 0, 0], true),
            ends(2, [1, 1, 0], true),
            ends(2, [1, 0, 0], true),
            ends(2, [2, 0, 0], false)
        )
        .into();
        assert!(nothing.is_some_and(|after| after < STRAGGLERS), "{nothing:?}");
        assert!(straggler.is_some_and(|after| after >= STRAGGLERS), "{straggler:?}");
        assert_eq!((two, more, busy), (None, None, None));
    }

    #[tokio::test]
    async fn a_release_is_late_until_every_node_has_answered() {
        let session = Session::over_nobody();
        let late = || session.pendings.late.load(Ordering::Acquire);
        let release = Late::new(&session);
        assert_eq!(late(), 1);
        drop(release);
        assert_eq!(late(), 0);
        session.engine.stop();
    }

    #[tokio::test]
    async fn closing_waits_for_an_undo_that_is_added_while_it_checks() {
        let session = Session::over_nobody();
        let moved = std::cell::RefCell::new(None);
        let idle = || {
            moved.borrow_mut().get_or_insert_with(|| Pending::undo(&session, 0));
            true
        };
        let mut ended = pin!(session.pendings.end(0, idle));
        assert!(futures_util::poll!(&mut ended).is_pending(), "an undo is under way");
        session.engine.stop();
    }
}
