//! Fencing tokens: numbers by which a resource tells a late writer from the present holder.

use std::fmt;

/// A number that grows with every acquisition of a lock, for the resource to check.
///
/// A lock service cannot stop a holder that was paused past its lease from acting when it wakes. The resource can: it
/// remembers the highest fence that it has seen and refuses a lower one. See Martin Kleppmann, *How to do distributed
/// locking* (2016). A re-entry keeps the fence of its hold.
///
/// # What is promised
/// The fence of a later acquisition is greater, in whatever process and whatever the clients' clocks say, for as long
/// as the fence's own key survives on the server (it is kept for two minutes after the last acquisition). After the key
/// was lost (`FLUSHALL`, a failover that had not replicated it, a restart without persistence) fences are at most 61 seconds
/// of time below the last one, and above it again once that much time has passed: they are microseconds of the clocks,
/// of which the server bounds the clients'. A server whose own clock is set back is not covered.
///
/// Over several servers each fence is remembered by a majority before its holder gets it, and any later majority shares a
/// server with that one: the same promise, as long as the servers keep their state. Of those that lost it the above is
/// true: their part of a later majority knows the clocks only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    pub(crate) const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number, for a column or a header of the resource.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

/// What the client's wall clock contributes: one second behind it, so that of two nodes the one that has kept count
/// decides. Each node bounds it by its own clock.
pub(crate) fn floor(wall_micros: u64) -> u64 {
    wall_micros.saturating_sub(1_000_000)
}
