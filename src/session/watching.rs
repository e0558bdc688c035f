//! Watches keys: has a caller read again whenever what it read may have changed.
//!
//! A watch is no waiter: it has no line and takes nothing. Its keys are of families without lines,
//! so that two may listen to one channel, and its caller does the reading. It reads
//! - when the watch begins, and again once its subscription is confirmed: what changed before that
//!   sent a message to nobody;
//! - at each message, at a reconnect and at a lag, as a line does;
//! - when it looks: messages get lost, and the end of a lease sends none.
//!
//! # Invariants
//! - A channel is listened to as long as a watch has its key.
//! - A bell that rings while its caller does something else stays rung: nothing is missed between a
//!   read and the wait behind it.

use std::sync::Arc;

use super::Session;
use super::bells::Bell;
use crate::clock::Instant;
use crate::error::Error;
use crate::foreign;
use crate::key::Key;

/// Has its caller read again. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    session: Arc<Session>,
    keys: Vec<Key>,
    bell: Arc<Bell>,
}

impl Session {
    /// Watches these keys, which no line has.
    ///
    /// # Errors
    /// [`Error::Closed`] and others that end every call.
    pub(super) fn watch(self: &Arc<Self>, keys: Vec<Key>) -> Result<KeyWatch, Error> {
        self.enter()?;
        debug_assert!(keys.iter().all(Key::is_observed), "a line has it: {keys:?}");
        let bell = Arc::default();
        self.bells
            .add(&bell, &keys, |key| _ = self.channels.listen(key));
        Ok(KeyWatch {
            session: Arc::clone(self),
            keys,
            bell,
        })
    }
}

impl KeyWatch {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Waits until the bell rings, or until `look`.
    pub(super) async fn wait(&self, look: Instant) {
        let (waits, rings) = foreign::channel();
        if self.bell.silence(Some(waits)) {
            return;
        }
        // The bell hangs up, so there is only an error to hear.
        let _: Option<Result<(), _>> = self.session.in_time(Some(look), rings).await;
        self.bell.silence(None);
    }
}

impl Drop for KeyWatch {
    fn drop(&mut self) {
        let session = &self.session;
        // A mutex that was held at a fork is never released here.
        if !session.is_forked() {
            let last = |key: &Key| session.channels.stop_listening(key, false);
            session.bells.remove(&self.bell, &self.keys, last);
        }
    }
}
