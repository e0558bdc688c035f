//! The identity that holds a lock and that may re-enter it.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use uuid::Uuid;

use crate::foreign::contained;
use crate::key::Key;
use crate::sync::{Arc, Mutex};

/// The identity that holds a lock, and that may enter the lock again while it holds it.
///
/// Defaults to the calling tokio task; [`Reentry`](crate::Reentry) changes the default. An explicit
/// owner lets several tasks share a hold, or tells branches of one task apart: see
/// [`Lock::owned_by`](crate::Lock::owned_by) and [`Owner::scope`]. Clones are the same owner: each
/// clone gives the right to enter.
///
/// # Examples
/// ```
/// use lockhound::Owner;
/// let (one, other) = (Owner::new(), Owner::new());
/// assert_eq!(one, one.clone());
/// assert_ne!(one, other);
/// assert!(one.to_string().starts_with('o'));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner(OwnerId);

/// The kinds never collide on the wire: `7`, `h7`, `w7`, `o7`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum OwnerId {
    Task(u64),
    Thread(u64),
    Polled(Arc<Polled>),
    Explicit(u64),
    Run(Arc<RunOwner>),
}

/// A caller that is identified by its waker alone. The clone keeps the waker's data alive, so no
/// other task can get the same waker while this owner holds anything.
#[derive(Debug)]
struct Polled {
    number: u64,
    /// `None` only during the drop.
    waker: Option<Waker>,
}

/// The owner that one `run` made for itself, and the locks that were taken as it.
#[derive(Debug)]
struct RunOwner {
    number: u64,
    keys: Mutex<Noted>,
}

/// The names of locks that an owner has noted.
#[derive(Debug, Default)]
struct Noted {
    keys: HashSet<Key>,
    /// With fewer names than this, `note` does not look for names to drop.
    enough: usize,
}

/// How many names of locks an owner may note before it drops those that it no longer holds.
const NOTED: usize = 32;

impl Owner {
    /// Creates an owner that differs from all others.
    #[allow(
        clippy::new_without_default,
        reason = "a default owner that differs at every call would surprise"
    )]
    pub fn new() -> Self {
        Self(OwnerId::Explicit(next()))
    }

    pub(crate) const fn task(id: u64) -> Self {
        Self(OwnerId::Task(id))
    }

    pub(crate) const fn thread(id: u64) -> Self {
        Self(OwnerId::Thread(id))
    }

    /// Returns the owner of a future that is polled with this waker, or `None` for a waker without
    /// data, which does not identify a task.
    pub(crate) fn polled(waker: &Waker) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if waker.data().is_null() {
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Some(Self(OwnerId::Polled(Arc::new(Polled {
            number,
            waker: Some(waker.clone()),
        }))))
    }

    /// Creates the owner of one run.
    pub(crate) fn of_run() -> Self {
        Self(OwnerId::Run(Arc::new(RunOwner {
            number: next(),
            keys: Mutex::default(),
        })))
    }

    /// Returns whether a run created this owner.
    pub(crate) const fn is_of_run(&self) -> bool {
        matches!(self.0, OwnerId::Run(_))
    }

    /// Notes that a lock was taken as this owner, if a run created it, so that a guard which
    /// outlives the section can pass to the run's caller. (If the whole owner became the caller,
    /// tasks that the section left behind could enter locks that the caller takes later.) `held`
    /// says whether a name that was noted earlier is still held.
    pub(crate) fn note(&self, key: &Key, held: impl Fn(&Key) -> bool) {
        let OwnerId::Run(run) = &self.0 else { return };
        let mut noted = run.keys.lock();
        if noted.keys.contains(key) {
            return;
        }
        if noted.keys.len() >= noted.enough.max(NOTED) {
            noted.keys.retain(held);
            // The next cleanup comes once the number of names has doubled, so it costs each name a
            // constant.
            noted.enough = noted.keys.len() * 2;
        }
        noted.keys.insert(key.clone());
    }

    /// Takes the names of the locks that were taken as this owner, if a run created it.
    pub(crate) fn noted(&self) -> HashSet<Key> {
        match &self.0 {
            OwnerId::Run(run) => std::mem::take(&mut run.keys.lock().keys),
            _ => HashSet::new(),
        }
    }

    /// Returns the field of the lock's hash: `uuid:task-id:generation`. Redisson takes it as opaque
    /// text.
    pub(crate) fn field(&self, locker: Uuid, generation: u64, suffix: &str) -> String {
        // As long as most fields, so that it is not copied while it grows.
        let mut field = String::with_capacity(64);
        // Writing into a string does not fail.
        let _: Result<_, _> = write!(field, "{locker}:{self}:{generation}{suffix}");
        field
    }
}

/// Returns a number for an owner that the program creates.
fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            OwnerId::Task(id) => write!(f, "{id}"),
            OwnerId::Thread(id) => write!(f, "h{id}"),
            OwnerId::Polled(polled) => write!(f, "w{}", polled.number),
            OwnerId::Explicit(id) => write!(f, "o{id}"),
            OwnerId::Run(run) => write!(f, "o{}", run.number),
        }
    }
}

impl PartialEq for Polled {
    fn eq(&self, other: &Self) -> bool {
        // Both are clones of an executor's wakers: equal ones have the same data and the same
        // vtable.
        self.waker
            .as_ref()
            .zip(other.waker.as_ref())
            .is_some_and(|(one, other)| one.will_wake(other))
    }
}

impl Eq for Polled {}

impl Hash for Polled {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.waker.as_ref().map(Waker::data).hash(state);
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        contained(|| drop(self.waker.take()));
    }
}

impl PartialEq for RunOwner {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for RunOwner {}

impl Hash for RunOwner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_owners_never_collide_on_the_wire() {
        let uuid = Uuid::nil();
        assert_eq!(
            Owner::task(7).field(uuid, 3, ""),
            "00000000-0000-0000-0000-000000000000:7:3"
        );
        assert_eq!(Owner::thread(7).to_string(), "h7");
        assert_ne!(Owner::task(7), Owner::thread(7));
        assert_ne!(Owner::new(), Owner::new());
        let run = Owner::of_run();
        assert!(run.to_string().starts_with('o') && run == run.clone() && run != Owner::of_run());
    }

    struct Bell;

    impl std::task::Wake for Bell {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn wakers_tell_tasks_apart_and_keep_their_data() {
        let one = Arc::new(Bell);
        let other = Arc::new(Bell);
        let waker = Waker::from(Arc::clone(&one));
        let owner = Owner::polled(&waker).expect("it has data");
        assert_eq!(owner, Owner::polled(&waker).expect("it has data"));
        assert_ne!(
            owner,
            Owner::polled(&Waker::from(other)).expect("it has data")
        );
        drop(waker);
        assert_eq!(
            Arc::strong_count(&one),
            2,
            "the owner has a clone of the waker"
        );
        drop(owner);
        assert_eq!(Arc::strong_count(&one), 1);
        assert_eq!(
            Owner::polled(Waker::noop()),
            None,
            "all no-op wakers are equal"
        );
    }

    #[test]
    fn the_owner_of_a_run_notes_what_it_holds_and_not_more() {
        let run = Owner::of_run();
        let name = |n: usize| Key::from(n.to_string());
        let held = |key: &Key| key.as_str().ends_with('7');
        (0..10_000)
            .chain(0..10)
            .for_each(|n| run.note(&name(n), held));
        let noted = run.noted();
        assert!(
            (0..10_000)
                .map(name)
                .filter(held)
                .all(|key| noted.contains(&key)),
            "{}",
            noted.len()
        );
        assert!(noted.len() < 5_000, "{}", noted.len());
        assert!(run.noted().is_empty());
        // Just below a power of two names are held while others come and go.
        let run = Owner::of_run();
        let looks = std::cell::Cell::new(0_u32);
        let held = |key: &Key| {
            looks.set(looks.get() + 1);
            key.as_str().parse::<usize>().expect("a number") < 1_023
        };
        (0..11_023).for_each(|n| run.note(&name(n), held));
        assert!(looks.get() < 40_000, "{looks:?}");
        let other = Owner::new();
        other.note(&name(1), held);
        assert!(
            other.noted().is_empty(),
            "only the owner of a run notes names"
        );
    }
}
