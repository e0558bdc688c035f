//! A call that locks, from its begin to its end: its span, and its outcome.

use std::pin::Pin;

use super::{Wait, spans};
use crate::clock::Instant;
use crate::error::Error;
use crate::foreign;
use crate::key::Key;
use crate::kind::LockKind;
use crate::owner::Owner;
use crate::session::Session;
use crate::stats::CallOutcome;

/// A call in flight. It is counted when it ends, or as cancelled when it is dropped before.
#[derive(Debug)]
pub(crate) struct Calling<'a> {
    session: &'a Session,
    kind: LockKind,
    wait: Wait,
    came: Instant,
    class: Option<&'static str>,
    span: foreign::Span,
    has_ended: bool,
}

impl<'a> Calling<'a> {
    pub(super) fn begin(
        session: &'a Session,
        kind: LockKind,
        wait: Wait,
        keys: &[Key],
        class: Option<&'static str>,
    ) -> Self {
        let span = spans::wait(wait.operation(), keys, class);
        Self {
            session,
            kind,
            wait,
            came: session.now(),
            class,
            span,
            has_ended: false,
        }
    }

    /// Runs a future in the span of the call.
    pub(super) fn inside<T>(
        &self,
        future: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = T> {
        foreign::in_span(&self.span, future)
    }

    /// Counts the call by its result.
    pub(super) fn ended<T>(
        mut self,
        result: Result<Option<T>, Error>,
        is_reentry: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, Error> {
        let outcome = match &result {
            Ok(Some(taken)) if is_reentry(taken) => CallOutcome::Reentered,
            Ok(Some(_)) => CallOutcome::Granted,
            Ok(None) if self.waits() => CallOutcome::TimedOut,
            Ok(None) => CallOutcome::Busy,
            Err(Error::Unavailable { .. }) => CallOutcome::Unavailable,
            Err(Error::Lost { .. }) => CallOutcome::Lost,
            Err(_) => CallOutcome::Refused,
        };
        self.end(outcome);
        result
    }

    /// Returns when the wait is over. One attempt has no such time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.wait.end(self.came)
    }

    /// Returns until when a run waits for its turn. One attempt takes a turn that is free.
    pub(super) fn end_of_turn(&self) -> Option<Instant> {
        if self.waits() {
            self.deadline()
        } else {
            Some(self.came)
        }
    }

    /// Returns whether it waits while somebody else holds the lock.
    pub(crate) fn waits(&self) -> bool {
        self.wait != Wait::Never
    }

    /// Notes who calls, once that is known.
    pub(super) fn is_by(&self, owner: &Owner) {
        self.span.record("owner", owner);
    }

    fn end(&mut self, outcome: CallOutcome) {
        self.has_ended = true;
        self.span.record("outcome", &outcome);
        let may_wait = self.waits() && outcome != CallOutcome::Reentered;
        self.session.call_ended(
            self.kind,
            outcome,
            may_wait.then(|| self.session.now().since(self.came)),
            self.class,
        );
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(CallOutcome::Cancelled);
        }
    }
}
