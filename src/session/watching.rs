//! Watches keys: has a caller read again whenever what it read may have changed.
//!
//! A watch is no waiter: it has no line and takes nothing. Its keys are of families without lines,
//! so that two may listen to one channel, and its caller does the reading. It reads
//! - when the watch begins, and again once its subscription is confirmed: what changed before that
//!   sent a message to no client;
//! - at each message, at a reconnect and at a lag, as a line does;
//! - when it looks: messages get lost, and the end of a lease sends none;
//! - a while after a read without an answer, for an `outage_tolerance`.
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
use crate::random;

/// Has its caller read again. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    session: Arc<Session>,
    keys: Vec<Key>,
    bell: Arc<Bell>,
    /// When its caller reads again in any case.
    look: Instant,
    /// Since when no read has been answered, and the last error.
    failing: Option<(Instant, Error)>,
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
            look: self.now(),
            failing: None,
        })
    }
}

impl KeyWatch {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Notes that a read was answered, and when to read again in any case.
    pub(super) fn answered(&mut self, look: Instant) {
        self.look = look;
        self.failing = None;
    }

    /// Returns the error of the last read, if it had no answer.
    pub(super) fn failure(&self) -> Option<Error> {
        let (_, error) = self.failing.as_ref()?;
        Some(error.clone())
    }

    /// Waits for a reason to read again, after this read.
    ///
    /// # Errors
    /// The error of the read, unless it may pass: there has been no answer for an
    /// `outage_tolerance`. The next time counts from the start.
    pub(super) async fn rest(&mut self, read: Result<(), Error>) -> Result<(), Error> {
        match read {
            Ok(()) => self.wait(self.look).await,
            Err(error @ Error::Unavailable { .. }) => self.wait_out(error).await?,
            Err(error) => {
                if matches!(error, Error::Server { .. }) {
                    self.session.pace_refusal(None).await;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits before a read that follows one without an answer.
    async fn wait_out(&mut self, error: Error) -> Result<(), Error> {
        let settings = &self.session.settings;
        let now = self.session.now();
        let since = self.failing.as_ref().map_or(now, |(since, _)| *since);
        let lasts = now.since(since);
        let error = error.after(lasts);
        if lasts >= settings.outage_tolerance {
            self.failing = None;
            return Err(error);
        }
        self.failing = Some((since, error));
        let pause = random::retry_pause();
        self.wait(now + pause).await;
        Ok(())
    }

    /// Waits until the bell rings, or until `look`.
    async fn wait(&self, look: Instant) {
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
