//! Reports whether the server of a connection is there.

use std::sync::Arc;

use super::Link;
use crate::clock::Instant;
use crate::presence::Presence;

impl Link {
    /// Has this connection speak for its server from now on.
    pub(in crate::node) fn reports_to(&self, presence: &Arc<Presence>) {
        // It is asked to once, when the node is made.
        let _: Result<_, _> = self.presence.set(Arc::downgrade(presence));
    }

    /// Reports whether the server answers.
    pub(super) fn report(&self) {
        let Some(presence) = self.presence.get().and_then(std::sync::Weak::upgrade) else {
            return;
        };
        let is_up = self.is_connected() && !self.is_silent();
        // An absence that a reconnect ends is not logged: it takes a heartbeat to notice that a
        // server is silent, and another one until it is reconnected.
        presence.seen(
            is_up,
            Instant::now(),
            2 * self.settings.command_timeout,
            || {
                if self.is_connected() {
                    self.last_error.lock().clone()
                } else {
                    self.down().reason
                }
            },
        );
        presence.beat();
    }
}
