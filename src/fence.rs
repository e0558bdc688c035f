//! Fencing tokens: numbers by which a resource tells a late writer from the current holder.
//!
//! They are counted in 1,024 marks without a lifetime, and not in a key for each lock: such keys
//! would have to expire, and after a hold that outlasts its key the next fence would depend on the
//! clocks. INCR also costs a fraction of SET, GET and PX.

use std::fmt;

use crate::options::FenceSource;

/// A number that grows with every acquisition of a lock, and that the resource checks.
///
/// A lock service cannot stop a holder that was paused past its lease from acting when it wakes.
/// The resource can: it remembers the highest fence that it has seen and refuses a lower one. See
/// Martin Kleppmann, *How to do distributed locking* (2016). A re-entry keeps the fence of its
/// hold.
///
/// # What is promised
/// As long as the servers keep their *marks*, the fence of a later acquisition of the lock is
/// greater, in any process, with any clocks, however long a hold lasts, and whoever deletes the
/// lock meanwhile. Marks are 1,024 keys without a lifetime; the name of the lock chooses one of
/// them (in a cluster there is one for each slot). There may be gaps between two fences, since
/// locks share marks, among other reasons.
///
/// If a server loses its marks, fences continue from a clock: fences are microseconds since 1970.
/// - **One server that lost all of them** (`FLUSHALL`, a restart without data): the next fence is
///   greater, whatever the clocks of the clients show, unless the server's own clock was set back.
/// - **One server that came back with older marks** (a failover that had not replicated the last
///   ones, an older snapshot): the next fence is greater once the clocks of the client and of the
///   current server are both more than 0.1 s past the last acquisition that was lost. Before that,
///   a fence may be given out a second time.
/// - **Several servers**: a majority remembers each fence before its holder gets it, and any later
///   majority shares a server with that one. A server that lost its marks takes over the highest of
///   the others before it votes again
///   ([`restart_quarantine`](crate::LockerBuilder::restart_quarantine)), so fences grow while a
///   majority keeps its memory and marks. If more servers lost them at once, or if the quarantine
///   is zero, fences can fall by at most the difference of the servers' clocks and a minute; after
///   that time they are above the last one again.
///
/// [`FenceSource::RedissonTokens`] promises less. The fence of a later acquisition is greater,
/// tokens of `RFencedLock` included, as long as the server keeps the lock's counter,
/// `redisson_lock_token:{name}`. Without it fences begin at 1 again: after a `FLUSHALL`, or after
/// Redisson took a `MultiLock` of fenced locks with a lease, which becomes the lifetime of the
/// counter too. After a failover that had not replicated the last acquisitions, fences are given
/// out a second time.
///
/// # Changing [`FenceSource`]
/// Fences of [`FenceSource::Counters`] are microseconds since 1970, and tokens begin at 1: a
/// resource that has seen the first refuses the second. To change to tokens, set the counter of
/// each lock to the server's clock (`TIME`) in microseconds, or to the last fence if that is
/// greater, while no client holds the lock: `SET redisson_lock_token:{name} 1795000000000000`. To
/// change back, wait until the clocks of server and client are 0.1 s past the last acquisition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// What permits have, whose holders are in no order.
    pub(crate) const NONE: Self = Self(0);

    #[cfg(test)]
    pub(crate) const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the fence with this number, or `None` if the number cannot be a fence.
    pub(crate) fn read(number: i64) -> Option<Self> {
        u64::try_from(number)
            .ok()
            .filter(|number| (1..MOST).contains(number))
            .map(Self)
    }

    /// Returns the number, for example for a column or a header.
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

/// The beginning of 2025, in microseconds. An earlier clock is wrong, and a lower mark was counted
/// up from zero: the server then has to read its clock.
const EARLIEST: u64 = 1_735_689_600_000_000;

/// How long a single server only increments a mark before it reads its clock again, in
/// microseconds. A failover takes longer, and a server that makes 50,000 fences a second reads its
/// clock for a fifth of them at most. A minute would cost as little but repeat fences for a minute
/// after a failover; reading the clock each time would cost as much as the rest of the script.
const COUNTED: i64 = 100_000;

/// Numbers from here on are not exact in Lua, and are refused as fences.
const MOST: u64 = 1 << 53;

/// Where the fences of an acquire come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The marks, and the client's clock as [`clock`] encodes it.
    Marks { clock: i64 },
    /// Redisson's counter of the lock.
    Tokens,
}

impl Source {
    pub(crate) fn new(fence_source: FenceSource, wall_micros: u64, servers: usize) -> Self {
        match fence_source {
            FenceSource::Counters => Self::Marks {
                clock: clock(wall_micros, servers),
            },
            FenceSource::RedissonTokens => Self::Tokens,
        }
    }

    /// Returns the clock for the server. For tokens it is one that is never ahead of a counter, so
    /// the server only increments.
    pub(crate) fn clock(self) -> i64 {
        match self {
            Self::Marks { clock } => clock,
            Self::Tokens => -1,
        }
    }
}

/// Encodes the client's wall clock for the scripts. Several servers have to give the same number:
/// they write the client's clock, within bounds of their own. A single server writes its own clock
/// once a mark is behind the client's clock, rounded down: its fences are never ahead of its clock,
/// so it may forget them.
///
/// Each of several servers compares the client's clock with its own when a mark enters another 20
/// s, and accepts a difference of 20 s. A wrong clock moves marks ahead by 40 s at most, so after
/// lost marks fences are behind for at most a minute.
fn clock(wall_micros: u64, servers: usize) -> i64 {
    let micros = i64::try_from(wall_micros.clamp(EARLIEST, MOST)).unwrap_or(i64::MAX);
    if servers > 1 {
        micros
    } else {
        micros % COUNTED - micros
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_lua_cannot_represent_are_refused() {
        assert_eq!(Fence::read(1), Some(Fence(1)));
        assert_eq!(Fence::read((1 << 53) - 1), Some(Fence((1 << 53) - 1)));
        assert_eq!((Fence(7).get(), u64::from(Fence(7))), (7, 7));
        for number in [0, -1, i64::MIN, 1 << 53, i64::MAX] {
            assert_eq!(Fence::read(number), None, "{number}");
        }
    }

    #[test]
    fn tokens_do_not_depend_on_a_clock() {
        let source = |fence_source| Source::new(fence_source, 1_800_000_000_123_456, 1);
        assert_eq!(
            source(FenceSource::Counters),
            Source::Marks {
                clock: -1_800_000_000_100_000
            }
        );
        assert_eq!(
            (source(FenceSource::RedissonTokens), Source::Tokens.clock()),
            (Source::Tokens, -1)
        );
        assert_eq!(Source::Marks { clock: 7 }.clock(), 7);
    }

    #[test]
    fn one_server_gets_the_clock_rounded_down_and_several_exactly() {
        assert_eq!(clock(1_800_000_000_123_456, 1), -1_800_000_000_100_000);
        assert_eq!(clock(1_800_000_000_123_456, 2), 1_800_000_000_123_456);
        let earliest = i64::try_from(EARLIEST).expect("a time");
        assert_eq!(
            (clock(0, 1), clock(0, 3)),
            (-earliest, earliest),
            "a clock that was never set"
        );
        assert_eq!(clock(u64::MAX, 3), 1 << 53);
    }
}
