//! What is in flight: operations, releases and undos without an answer. Closing waits for it, the
//! end of a thread does, and operators see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::leaving::{self, OpenWork};
use crate::clock::Instant;
use crate::lease::NodeIndex;
use crate::quorum::STRAGGLERS;

/// A kind of work, by what ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Ends as soon as a majority has answered.
    Operation,
    /// Ends when this node has answered. It concerns a minority only: no thread waits for it.
    Vote(NodeIndex),
    /// An undo on this node.
    Undo(NodeIndex),
    /// A release whose caller is told, and that not every node has answered. Most are already
    /// certain: closing, and the end of the program, give the slower nodes a moment.
    Release,
    /// A part of something else, or an event: closing does not wait for it.
    Part,
}

/// An engine's counts of what is in flight.
#[derive(Debug)]
pub(crate) struct Tally {
    /// What `main` waits for.
    pub(super) open_work: Arc<OpenWork>,
    all: AtomicUsize,
    undos: AtomicUsize,
    /// One count per node: of what waits for this node alone, and not for a majority.
    at: Vec<AtomicUsize>,
    late: AtomicUsize,
    /// Notified when something ended that closing may wait for.
    settled: Notify,
}

impl Tally {
    /// Makes the counts of an engine of this process, for this many nodes.
    pub(super) fn new(pid: u32, nodes: usize) -> Arc<Self> {
        let [all, undos, late] = Default::default();
        let at = (0..nodes).map(|_| AtomicUsize::default()).collect();
        Arc::new(Self {
            open_work: OpenWork::of(pid),
            all,
            undos,
            at,
            late,
            settled: Notify::new(),
        })
    }

    /// Returns how many operations, releases and undos wait for an answer.
    pub(crate) fn pending(&self) -> usize {
        self.all() + self.late.load(Ordering::Acquire)
    }

    fn all(&self) -> usize {
        self.all.load(Ordering::Acquire)
    }

    pub(crate) fn undos(&self) -> usize {
        self.undos.load(Ordering::Acquire)
    }

    /// Waits until nothing is in flight and `idle` returns true. A minority of the nodes may take a
    /// moment longer than the others; silent ones are not waited for.
    pub(crate) async fn end(&self, minority: usize, idle: impl Fn() -> bool) {
        let mut alone_since = None;
        loop {
            // This check comes first: a user's thread counts an undo here before it removes the
            // hold from its line. Only the engine, on which this runs, moves anything the other
            // way.
            let idle = idle();
            let waiting: Vec<usize> = self
                .at
                .iter()
                .map(|at| at.load(Ordering::Acquire))
                .filter(|&n| n > 0)
                .collect();
            let all = self.all();
            let now = Instant::now();
            if idle && all == 0 && self.late.load(Ordering::Acquire) == 0 {
                return;
            }
            // All that is left waits for single nodes, and these are no majority.
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

/// A piece of work in flight, from before it is queued until it ends, in whatever way. The thread
/// that makes it waits for it at the thread's end.
#[derive(Debug)]
pub(crate) struct InFlight {
    engine: Arc<Tally>,
    thread: Option<Arc<OpenWork>>,
    work: Work,
}

impl InFlight {
    pub(super) fn new(engine: &Arc<Tally>, work: Work) -> Self {
        let is_awaited = !matches!(work, Work::Vote(_));
        Self::of(
            engine,
            is_awaited
                .then(|| leaving::track(&engine.open_work))
                .flatten(),
            work,
        )
    }

    /// Counts work for which no thread waits but `main`, if it has noted the engine.
    pub(super) fn unawaited(engine: &Arc<Tally>, work: Work) -> Self {
        Self::of(engine, None, work)
    }

    fn of(engine: &Arc<Tally>, thread: Option<Arc<OpenWork>>, work: Work) -> Self {
        let in_flight = Self {
            engine: Arc::clone(engine),
            thread,
            work,
        };
        in_flight.open_work().for_each(OpenWork::add);
        in_flight
            .counts()
            .for_each(|count| _ = count.fetch_add(1, Ordering::AcqRel));
        in_flight
    }

    /// The counts that the ends of threads wait for.
    fn open_work(&self) -> impl Iterator<Item = &OpenWork> {
        let engine = (!matches!(self.work, Work::Vote(_))).then_some(&self.engine.open_work);
        self.thread.iter().chain(engine).map(Arc::as_ref)
    }

    /// The counts that closing waits for, and that operators see.
    fn counts(&self) -> impl DoubleEndedIterator<Item = &AtomicUsize> {
        let Tally {
            all,
            undos,
            at,
            late,
            ..
        } = &*self.engine;
        let counts = match self.work {
            Work::Operation => [Some(all), None, None],
            Work::Vote(node) => [Some(all), Some(&at[node]), None],
            Work::Undo(node) => [Some(all), Some(&at[node]), Some(undos)],
            Work::Release => [Some(late), None, None],
            Work::Part => [None; 3],
        };
        counts.into_iter().flatten()
    }

    #[cfg(test)]
    pub(super) fn thread(&self) -> Option<&Arc<OpenWork>> {
        self.thread.as_ref()
    }

    /// Returns whether its thread, or `main`, would wait for it at its end.
    #[cfg(test)]
    pub(super) fn is_awaited(&self) -> bool {
        self.thread.is_some() || leaving::is_noted(&self.engine.open_work)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // In the other order: whoever reads a node's count before `all` does not take the rest for
        // a straggler.
        self.counts()
            .rev()
            .for_each(|count| _ = count.fetch_sub(1, Ordering::AcqRel));
        self.engine.settled.notify_one();
        self.open_work().for_each(OpenWork::settle);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn tally(nodes: usize) -> Arc<Tally> {
        Tally::new(std::process::id(), nodes)
    }

    /// Returns when closing ends, if within three times the moment that it gives to stragglers. One
    /// of three nodes may be a straggler; `at` counts what waits for each node, and `operations`
    /// what waits for a majority.
    async fn ends(operations: usize, at: [usize; 3], idle: bool) -> Option<Duration> {
        let tally = tally(3);
        let votes = at
            .iter()
            .enumerate()
            .flat_map(|(node, &votes)| vec![Work::Vote(node); votes]);
        let works = votes.chain(vec![Work::Operation; operations]);
        let _debts: Vec<InFlight> = works
            .map(|work| InFlight::unawaited(&tally, work))
            .collect();
        let began = Instant::now();
        timeout(STRAGGLERS * 3, tally.end(1, || idle))
            .await
            .ok()
            .map(|()| Instant::now().since(began))
    }

    #[tokio::test]
    async fn closing_waits_for_a_majority_and_gives_the_others_a_moment() {
        let [nothing, straggler, two, more, busy] = tokio::join!(
            ends(0, [0, 0, 0], true),
            ends(0, [2, 0, 0], true),
            ends(0, [1, 1, 0], true),
            ends(1, [1, 0, 0], true),
            ends(0, [2, 0, 0], false)
        )
        .into();
        assert!(
            nothing.is_some_and(|after| after < STRAGGLERS),
            "{nothing:?}"
        );
        assert!(
            straggler.is_some_and(|after| after >= STRAGGLERS),
            "{straggler:?}"
        );
        assert_eq!((two, more, busy), (None, None, None));
    }

    #[test]
    fn a_release_is_late_until_every_node_has_answered() {
        let tally = tally(1);
        let late = || tally.late.load(Ordering::Acquire);
        let release = InFlight::unawaited(&tally, Work::Release);
        assert_eq!(late(), 1);
        drop(release);
        assert_eq!(late(), 0);
    }

    #[tokio::test]
    async fn closing_waits_for_an_undo_that_is_added_while_it_checks() {
        let tally = tally(1);
        let moved = std::cell::RefCell::new(None);
        let idle = || {
            moved
                .borrow_mut()
                .get_or_insert_with(|| InFlight::unawaited(&tally, Work::Undo(0)));
            true
        };
        let mut ended = pin!(tally.end(0, idle));
        assert!(
            futures_util::poll!(&mut ended).is_pending(),
            "an undo is in flight"
        );
    }

    #[test]
    fn work_ends_in_every_count_that_it_began_in() {
        let works = [
            Work::Operation,
            Work::Vote(1),
            Work::Undo(1),
            Work::Release,
            Work::Part,
        ];
        let expected = [
            (1, 0, 0, 0),
            (1, 1, 0, 0),
            (1, 1, 1, 0),
            (0, 0, 0, 1),
            (0, 0, 0, 0),
        ];
        for (work, counted) in works.into_iter().zip(expected) {
            let tally = tally(2);
            let counts = || {
                let [at, late] =
                    [&tally.at[1], &tally.late].map(|count| count.load(Ordering::Acquire));
                (tally.all(), at, tally.undos(), late)
            };
            let in_flight = InFlight::unawaited(&tally, work);
            assert_eq!(
                (counts(), tally.open_work.is_settled()),
                (counted, work == Work::Vote(1)),
                "{work:?}"
            );
            drop(in_flight);
            assert_eq!(
                (counts(), tally.open_work.is_settled()),
                ((0, 0, 0, 0), true),
                "{work:?}"
            );
        }
    }
}
