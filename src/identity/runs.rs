//! Runs that are in progress: their nesting, and their turns.
//!
//! A run takes its turn before it locks. The lines know nothing of runs: this module decides
//! between runs of one owner, and the line keeps its order.
//!
//! # Invariants
//! - Of the runs of one owner on one lock, inside of the same run or of none, only one has the
//!   turn.
//! - A turn lasts until its run and all runs inside of it are over, including those that still wait
//!   for a turn. A task that a run left behind in its scope is no longer inside of it.
//! - Chains contain the runs that are not over. They are dropped in a loop, since a program can
//!   make them any length.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::foreign::contained;
use crate::key::Key;
use crate::owner::Owner;

/// The runs around a call, the innermost first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Runs(Option<Arc<Frame>>);

/// One run.
#[derive(Debug)]
struct Frame {
    number: u64,
    locker: Uuid,
    keys: Arc<[Key]>,
    /// Whether it has a turn of its own: reads run together.
    has_turn: bool,
    /// Gone when the run and all runs inside of it are over.
    turn: Weak<TurnHeld>,
    outer: Runs,
}

/// The turns of a run, one for each lock, and with them those of the runs around it.
#[derive(Debug)]
pub(crate) struct TurnHeld {
    turns: Vec<RunTurn>,
    /// The turns of the innermost run around it, which has those of the next.
    around: Option<Arc<Self>>,
}

impl Runs {
    /// Returns the runs that are not over, and the turns that keep them so.
    pub(crate) fn standing(&self) -> (Self, Option<Arc<TurnHeld>>) {
        let mut runs = self;
        while let Some(frame) = &runs.0 {
            // The runs around one that is not over are not over either.
            if let Some(turn) = frame.turn.upgrade() {
                return (runs.clone(), Some(turn));
            }
            runs = &frame.outer;
        }
        (Self::default(), None)
    }

    /// Begins a run of these locks inside of these runs. `around` has kept those alive since before
    /// it waited for a turn.
    pub(crate) fn begin(
        &self,
        locker: Uuid,
        keys: Arc<[Key]>,
        turns: Vec<RunTurn>,
        around: Option<Arc<TurnHeld>>,
    ) -> (Self, Arc<TurnHeld>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let has_turn = !turns.is_empty();
        let held = Arc::new(TurnHeld { turns, around });
        let frame = Frame {
            number,
            locker,
            keys,
            has_turn,
            turn: Arc::downgrade(&held),
            outer: self.clone(),
        };
        (Self(Some(Arc::new(frame))), held)
    }

    /// Returns the number of the innermost run of this lock that is not over.
    pub(crate) fn innermost(&self, locker: Uuid, key: &Key) -> Option<u64> {
        self.frames_of(locker, key).next().map(|frame| frame.number)
    }

    /// Returns the same, of those runs that have a turn.
    pub(crate) fn innermost_turn(&self, locker: Uuid, key: &Key) -> Option<u64> {
        let mut frames = self.frames_of(locker, key);
        frames
            .find(|frame| frame.has_turn)
            .map(|frame| frame.number)
    }

    fn frames_of(&self, locker: Uuid, key: &Key) -> impl Iterator<Item = &Frame> {
        self.frames().filter(move |frame| {
            frame.locker == locker && frame.keys.contains(key) && frame.turn.strong_count() > 0
        })
    }

    /// Returns whether these runs contain all of the `outer` runs that are not over.
    pub(crate) fn is_inside(&self, outer: &Self) -> bool {
        let (outer, _) = outer.standing();
        outer
            .0
            .is_none_or(|outer| self.frames().any(|frame| frame.number == outer.number))
    }

    fn frames(&self) -> impl Iterator<Item = &Frame> {
        std::iter::successors(self.0.as_deref(), |frame| frame.outer.0.as_deref())
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let mut outer = self.outer.0.take();
        while let Some(frame) = outer {
            outer = Arc::into_inner(frame).and_then(|mut frame| frame.outer.0.take());
        }
    }
}

impl Drop for TurnHeld {
    fn drop(&mut self) {
        self.turns.clear();
        let mut around = self.around.take();
        while let Some(held) = around {
            around = Arc::into_inner(held).and_then(|mut held| held.around.take());
        }
    }
}

/// A group of runs that could enter at the same time without turns: those of one owner, inside of
/// the same run or of none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Level {
    key: Key,
    owner: Owner,
    inside: u64,
}

/// The turns of all runs of a locker. A level is in the table while a run has its turn or waits for
/// it.
#[derive(Debug, Default)]
pub(crate) struct RunTurns {
    levels: DashMap<Level, Arc<Semaphore>>,
    closed: AtomicBool,
}

/// The turn of a run in its level. Dropping it gives the turn to the next.
#[derive(Debug)]
pub(crate) struct RunTurn {
    turns: Arc<RunTurns>,
    level: Level,
    permit: Option<OwnedSemaphorePermit>,
    /// `None` only during the drop.
    line: Option<Arc<Semaphore>>,
}

impl RunTurns {
    /// Waits for the turn of a run of this lock. Returns `None` once the turns are closed.
    /// Cancel-safe: dropping the future leaves the place to the next.
    pub(crate) async fn take(
        self: &Arc<Self>,
        key: &Key,
        owner: &Owner,
        inside: Option<u64>,
    ) -> Option<RunTurn> {
        let level = Level {
            key: key.clone(),
            owner: owner.clone(),
            inside: inside.unwrap_or(0),
        };
        let line = Arc::clone(
            &self
                .levels
                .entry(level.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(1))),
        );
        let mut turn = RunTurn {
            turns: Arc::clone(self),
            level,
            permit: None,
            line: Some(line),
        };
        // Closing sets the flag and then closes the lines in the table: a line that is added later
        // sees the flag.
        if self.closed.load(Ordering::SeqCst) {
            return None;
        }
        turn.permit = Some(turn.line.clone()?.acquire_owned().await.ok()?);
        (!self.closed.load(Ordering::SeqCst)).then_some(turn)
    }

    /// Ends all waits, now and from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakers are foreign code, which may call this module: none is called under a shard's lock.
        let lines: Vec<_> = self.levels.iter().map(|level| Arc::clone(&level)).collect();
        for line in &lines {
            // One at a time, since a waker that panics must not leave those behind it asleep. Each
            // waiter has a clone of its line.
            (0..Arc::strong_count(line)).for_each(|_| contained(|| line.add_permits(1)));
            contained(|| line.close());
        }
    }
}

impl Drop for RunTurn {
    fn drop(&mut self) {
        contained(|| drop(self.permit.take()));
        drop(self.line.take());
        self.turns
            .levels
            .remove_if(&self.level, |_, line| Arc::strong_count(line) == 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;

    fn keys(names: &[&str]) -> Arc<[Key]> {
        names.iter().map(|&name| name.into()).collect()
    }

    #[test]
    fn runs_know_the_runs_around_them() {
        let locker = Uuid::from_u128(1);
        let other = Uuid::from_u128(2);
        let begin = |runs: &Runs, locker, names| {
            runs.begin(locker, keys(names), Vec::new(), runs.standing().1)
        };
        let (outer, outer_held) = begin(&Runs::default(), locker, &["a", "b"]);
        let (middle, middle_held) = begin(&outer, locker, &["c"]);
        let (inner, inner_held) = begin(&middle, other, &["a"]);
        let a = inner.innermost(locker, &"a".into());
        assert!(a.is_some() && a == outer.innermost(locker, &"b".into()));
        assert!(inner.innermost(locker, &"c".into()) > a);
        assert_eq!(
            (
                outer.innermost(locker, &"c".into()),
                outer.innermost(other, &"a".into())
            ),
            (None, None)
        );
        drop((outer_held, middle_held));
        assert_eq!(
            inner.innermost(locker, &"a".into()),
            a,
            "a run inside of it is not over"
        );
        drop(inner_held);
        assert_eq!(
            inner.innermost(locker, &"a".into()),
            None,
            "it is only what it left behind"
        );
    }

    /// Each run is left behind by the one before, and begins inside of it or after it.
    #[test]
    fn long_chains_of_runs_neither_grow_nor_overflow_the_stack() {
        let locker = Uuid::nil();
        let keys = keys(&["a"]);
        let mut runs = Runs::default();
        for _ in 0..100_000 {
            let (standing, around) = runs.standing();
            runs = standing
                .begin(locker, Arc::clone(&keys), Vec::new(), around)
                .0;
        }
        assert_eq!(
            runs.frames().count(),
            1,
            "all but it were over when the next began"
        );
        let mut held = None;
        for _ in 0..100_000 {
            let (standing, around) = runs.standing();
            let (inner, turn) = standing.begin(locker, Arc::clone(&keys), Vec::new(), around);
            (runs, held) = (inner, Some(turn));
        }
        assert_eq!(runs.frames().count(), 100_000);
        drop(held);
        assert_eq!(runs.innermost(locker, &keys[0]), None);
    }

    #[tokio::test]
    async fn one_run_of_a_level_has_the_turn() {
        let turns = Arc::<RunTurns>::default();
        let key = Key::from("k");
        let owner = Owner::new();
        let first = turns.take(&key, &owner, None).await.expect("open");
        let inside = turns
            .take(&key, &owner, Some(7))
            .await
            .expect("another level");
        let stranger = turns
            .take(&key, &Owner::new(), None)
            .await
            .expect("another level");
        {
            let mut second = pin!(turns.take(&key, &owner, None));
            let mut dropped = Box::pin(turns.take(&key, &owner, None));
            assert!(
                futures_util::poll!(&mut dropped).is_pending()
                    && futures_util::poll!(&mut second).is_pending()
            );
            drop(dropped);
            drop(first);
            assert!(futures_util::poll!(second).is_ready());
        }
        drop((inside, stranger));
        assert!(turns.levels.is_empty(), "{turns:?}");
    }

    /// A waker that panics.
    struct Bad;

    impl std::task::Wake for Bad {
        fn wake(self: Arc<Self>) {
            panic!("woken");
        }
    }

    #[tokio::test]
    async fn a_waker_that_panics_as_turns_are_closed_keeps_no_task_asleep() {
        let turns = Arc::<RunTurns>::default();
        let key = Key::from("k");
        let owner = Owner::new();
        let first = turns.take(&key, &owner, None).await.expect("open");
        let waiting = || {
            let turns = Arc::clone(&turns);
            let key = key.clone();
            let owner = owner.clone();
            tokio::spawn(async move { turns.take(&key, &owner, None).await.is_none() })
        };
        let before: Vec<_> = (0..50).map(|_| waiting()).collect();
        tokio::task::yield_now().await;
        let mut bad = Box::pin(turns.take(&key, &owner, None));
        let waker = std::task::Waker::from(Arc::new(Bad));
        assert!(
            bad.as_mut()
                .poll(&mut std::task::Context::from_waker(&waker))
                .is_pending()
        );
        let behind: Vec<_> = (0..50).map(|_| waiting()).collect();
        tokio::task::yield_now().await;
        turns.close();
        for waiting in before.into_iter().chain(behind) {
            let told = tokio::time::timeout(std::time::Duration::from_secs(5), waiting).await;
            assert!(told.expect("it is told").expect("joined"));
        }
        drop((first, bad));
        assert!(turns.levels.is_empty(), "{turns:?}");
    }

    #[tokio::test]
    async fn closing_ends_all_waits() {
        let turns = Arc::<RunTurns>::default();
        let key = Key::from("k");
        let owner = Owner::new();
        let first = turns.take(&key, &owner, None).await.expect("open");
        let mut second = Box::pin(turns.take(&key, &owner, None));
        assert!(futures_util::poll!(&mut second).is_pending());
        turns.close();
        assert!(second.await.is_none());
        assert!(turns.take(&key, &Owner::new(), None).await.is_none());
        drop(first);
        assert!(turns.levels.is_empty(), "{turns:?}");
    }
}
