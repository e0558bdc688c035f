//! What comes into a line, and what comes out.

use std::sync::Arc;
use std::time::Duration;

use super::wake_state::WakeUp;
use crate::claim::Listing;
use crate::clock::Instant;
use crate::error::Loss;
use crate::lease::NodeIndex;

/// For how many leases a list is kept after a locker was put in.
const LISTED: u32 = 3;

/// What happens to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Something has changed here: a caller came or went, a hold is gone, a release was passed to
    /// the line.
    Changed,
    /// A time has come for which it wanted to be woken, or an earlier one.
    Due,
    /// The subscription of the lock's channel is confirmed, perhaps by a majority now.
    Subscribed,
    /// This server has sent a message of the lock's channel.
    Heard(NodeIndex),
    /// The locker is woken by its name.
    WokenUp(WakeUp),
    /// Messages may have been missed.
    Missed,
    /// An acquire was answered; its grant is registered, or its caller has the error.
    Answered(AcquireOutcome),
    /// A hand-over, or the release that it became, was answered, or is sent by itself.
    HandedOver,
    /// Returns from [`Effect::Name`]: whether the holder was named in the log.
    Named(bool),
    /// An outage has lasted for too long.
    Outage,
    /// Returns from [`Effect::GiveUp`]: when the next caller is due, if any is left.
    GaveUp(Option<Duration>),
    /// Returns from [`Effect::Pass`]: whether the locker is off the list.
    Passed(bool),
    /// What was in flight has no outcome, and all of its callers have an error.
    Stopped,
}

/// What an acquire's answer says about others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcquireOutcome {
    Granted,
    /// A server refused it, and its caller has the error.
    Refused,
    /// Another owner holds the lock, for so long if it is not renewed.
    Held {
        ttl: Option<Duration>,
        /// How many lockers are before this one in the list, if it is there.
        place: Option<u64>,
        /// Some servers said yes all the same: others want it too.
        contested: bool,
        /// It lasts longer than any lease.
        lasts: bool,
    },
    /// Several want it at once, and none has a majority.
    Split,
    /// The first server says that another has it, and no other server was asked.
    Outrun,
    /// No majority answered. So long after now, the outage has lasted for too long; `None` if it
    /// has.
    Unavailable {
        ends_in: Option<Duration>,
    },
}

/// What has to be done for a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect<R, W = u64> {
    /// Stop listening: no caller waits any more. The subscription `lingers` if a caller got the
    /// lock meanwhile.
    Hush { lingers: bool },
    /// Release a hold and, with a waiter, hand the lock over to it. [`Event::HandedOver`] follows.
    Release(R, Option<W>),
    /// Tell this waiter that its owner's hold is lost. [`Event::Changed`] follows.
    Lost(u64, Loss),
    /// Send this waiter back: its owner has the lock in the other role. [`Event::Changed`] follows.
    SendBack(u64),
    /// Acquire for this waiter. [`Event::Answered`] follows.
    Ask {
        head: W,
        /// Ask the first server alone.
        first_alone: bool,
        /// Put the locker into the list, if another one has the lock.
        listing: Option<Listing>,
        /// It listens: if it is refused, it waits.
        listens: bool,
    },
    /// Subscribe the lock's channel, if it is not, and wake the line at this time in any case.
    Listen { until: Instant },
    /// Name the holder, whose lock lasts longer than any lease, in the log. [`Event::Named`]
    /// follows.
    Name,
    /// Wake the line at this time, by [`Event::Due`].
    WakeAt {
        until: Instant,
        /// Lockers elsewhere are waited for.
        others: bool,
    },
    /// Give those callers an error that have waited for long enough for servers that are away and,
    /// with a time, that came by then. [`Event::GaveUp`] follows.
    GiveUp { came_by: Option<Instant> },
    /// Take the locker off the list. [`Event::Passed`] follows. This is in flight beside all else.
    Pass,
}

impl<R, V> Effect<R, V> {
    /// Replaces the waiter that it names by what is known of it: nothing if it is not in line.
    pub(crate) fn known<W>(self, waiter: impl FnOnce(V) -> Option<W>) -> Option<Effect<R, W>> {
        Some(match self {
            Self::Hush { lingers } => Effect::Hush { lingers },
            Self::Release(release, next) => Effect::Release(release, next.and_then(waiter)),
            Self::Lost(id, loss) => Effect::Lost(id, loss),
            Self::SendBack(id) => Effect::SendBack(id),
            Self::Ask {
                head,
                first_alone,
                listing,
                listens,
            } => Effect::Ask {
                head: waiter(head)?,
                first_alone,
                listing,
                listens,
            },
            Self::Listen { until } => Effect::Listen { until },
            Self::Name => Effect::Name,
            Self::WakeAt { until, others } => Effect::WakeAt { until, others },
            Self::GiveUp { came_by } => Effect::GiveUp { came_by },
            Self::Pass => Effect::Pass,
        })
    }
}

/// The time of a step, and what is measured, set or drawn at it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    pub(crate) now: Instant,
    /// A random number from 0 to 1.
    pub(crate) chance: f64,
    /// A random pause between two attempts.
    pub(crate) retry: Duration,
    /// A random pause until a lock is polled. `None` if every release publishes a message: in the
    /// plain format, clients of other languages publish none.
    pub(crate) poll: Option<Duration>,
    /// After so long a lock is checked though nothing was heard.
    pub(crate) recheck: Duration,
    /// The lease of the locker: a list is kept for longer, whatever lease its callers want.
    pub(crate) lease: Duration,
    /// How long a subscription may take.
    pub(crate) patience: Duration,
    /// How many servers make a majority.
    pub(crate) majority: usize,
    /// How far the servers are.
    pub(crate) round_trip: Duration,
    /// Whether the number of clients that the message of a release reaches tells whether others
    /// wait.
    pub(crate) counts: bool,
    /// The name of the locker in this lock's list, if there is one.
    pub(crate) lister: Option<&'a Arc<str>>,
    /// How long a server keeps the hint that a writer waits. `None` for a lock without readers.
    pub(crate) hint: Option<Duration>,
    /// Whether what is held ends in parts, so that the end of one says nothing of the others.
    pub(crate) ends_apart: bool,
    /// Whether each caller has a place in a queue on the server: it is asked for when a caller
    /// comes, even if a hold here has the lock, and a release calls who is next.
    pub(crate) queues: bool,
    pub(crate) sources: WakeSources,
}

/// What a locker may hear of a lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WakeSources {
    /// A server has the subscription of the channel, or was asked for it.
    pub(crate) asked: bool,
    /// A majority has confirmed it: a caller waits, or did a moment ago.
    pub(crate) confirmed: bool,
    /// The message of this locker's last release may be yet to come.
    pub(crate) owed: bool,
    /// The locker can be woken by its name.
    pub(crate) named: bool,
}

impl Moment<'_> {
    /// Returns how long a line waits for a message before it asks again.
    pub(super) fn look(&self) -> Duration {
        self.poll
            .map_or(self.recheck, |poll| self.recheck.min(poll))
    }

    /// Returns whether what follows a release of this locker says something: there is a list, or
    /// subscribers are counted.
    pub(crate) fn heeds_releases(&self) -> bool {
        self.lister.is_some() || self.counts
    }

    /// Returns how long a list is kept for a caller with this lease, so that it still exists when
    /// the locker checks again.
    pub(super) fn lifetime(&self, lease: Duration) -> Duration {
        lease.max(self.lease) * LISTED
    }
}
