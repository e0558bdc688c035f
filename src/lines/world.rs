//! What the lines need of what is around them: a session, or a test.

use super::{CallWaiter, Head};
use crate::clock::Instant;
use crate::key::Key;
use crate::line::{Effect, Event, Moment};

/// What is around the lines.
pub(crate) trait World {
    /// A waiter's grant: the proof of one guard.
    type RawGuard;
    /// A release that has no answer yet.
    type Unconfirmed;

    /// Returns the time of the locker.
    fn now(&self) -> Instant;

    /// Returns the present moment for a line. It is called under the shard's lock, and so are the
    /// next four.
    fn moment(&self, key: &Key) -> Moment<'_>;

    /// Listens to the channel of a lock, if it does not yet. Returns whether the subscription is
    /// confirmed.
    fn listen(&self, key: &Key) -> bool;

    /// Stops listening. The subscription may linger for the next caller.
    fn stop_listening(&self, key: &Key, lingers: bool);

    /// Records that a lock is about to be released, whose message may be heard.
    fn begin_release(&self, key: &Key);

    /// Records that a waiter was taken out of the line without a grant of its own. It is called
    /// after the shard's lock is released.
    fn left(&self, _key: &Key, _waiter: &CallWaiter<Self::RawGuard>) {}

    /// Records that a line begins to wait for lockers elsewhere.
    fn waits_for_others(&self);

    /// Carries out any other effect. Returns the event that follows, if it is there at once.
    fn carry(&self, key: &Key, effect: Effect<Self::Unconfirmed, Head>) -> Option<Event>;
}
