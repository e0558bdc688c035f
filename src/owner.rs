//! Who holds: the identity that may re-enter.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

/// The identity that a lock is held by, and that may enter again what it already holds.
///
/// Without further ado it is the tokio task that calls. An explicit owner lets several tasks share a hold, or tells
/// branches of one task apart: see [`Lock::owned_by`](crate::Lock::owned_by) and [`Owner::scope`]. Clones are the same
/// owner: whoever has one shares the right to enter.
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
pub struct Owner(Identity);

/// The three kinds never collide on the wire: `7`, `h7`, `o7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Identity {
    Task(u64),
    Thread(u64),
    Explicit(u64),
}

impl Owner {
    /// Makes an owner that nobody else is.
    #[allow(clippy::new_without_default, reason = "a default owner that differs at every call would surprise")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Identity::Explicit(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) const fn task(id: u64) -> Self {
        Self(Identity::Task(id))
    }

    pub(crate) const fn thread(id: u64) -> Self {
        Self(Identity::Thread(id))
    }

    /// The field of the lock's hash: `uuid:task-id:generation`. Redisson takes it as opaque text.
    pub(crate) fn field(&self, locker: Uuid, generation: u64) -> String {
        format!("{locker}:{self}:{generation}")
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Identity::Task(id) => write!(f, "{id}"),
            Identity::Thread(id) => write!(f, "h{id}"),
            Identity::Explicit(id) => write!(f, "o{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_owners_never_collide_on_the_wire() {
        let uuid = Uuid::nil();
        assert_eq!(Owner::task(7).field(uuid, 3), "00000000-0000-0000-0000-000000000000:7:3");
        assert_eq!(Owner::thread(7).to_string(), "h7");
        assert_ne!(Owner::task(7), Owner::thread(7));
        assert_ne!(Owner::new(), Owner::new());
    }
}
