//! The spans around what a caller does: its wait, and its hold.

use tracing::field::{Empty, display};

use crate::error::Error;
use crate::foreign;
use crate::key::Key;
use crate::session::RawGuards;

/// Returns the span of the caller's wait. The engine logs its work for the call outside of this
/// span.
pub(super) fn wait(
    operation: &'static str,
    keys: &[Key],
    class: Option<&'static str>,
) -> foreign::Span {
    match keys {
        [key] => foreign::span(|| {
            tracing::info_span!(
                "lockhound.wait", operation, key = %key.shown(), class, owner = Empty, outcome = Empty
            )
        }),
        keys => foreign::span(|| {
            tracing::info_span!(
                "lockhound.wait",
                operation,
                ?keys,
                class,
                owner = Empty,
                outcome = Empty
            )
        }),
    }
}

/// The span of a guard, or of a section. If nothing says how it ended, it was dropped.
#[derive(Debug, Default)]
pub(super) struct HoldSpan {
    span: foreign::Span,
    has_outcome: bool,
}

impl HoldSpan {
    pub(super) fn of(guards: &RawGuards, keys: &[Key], class: Option<&'static str>) -> Self {
        let owner = guards.owner();
        let reentry = guards.is_reentry();
        let fence = display(guards.first().hold().fence);
        let span = match keys {
            [key] => foreign::span(|| {
                tracing::info_span!(
                    "lockhound.hold", key = %key.shown(), class, %owner, fence, reentry, outcome = Empty
                )
            }),
            keys => foreign::span(
                || tracing::info_span!("lockhound.hold", ?keys, class, %owner, reentry, outcome = Empty),
            ),
        };
        Self {
            span,
            has_outcome: false,
        }
    }

    pub(super) fn span(&self) -> &foreign::Span {
        &self.span
    }

    /// Notes what the release said.
    pub(super) fn ended(mut self, released: &Result<(), Error>) {
        self.end(match released {
            Ok(()) => "released",
            Err(Error::Lost { .. }) => "lost",
            Err(_) => "unconfirmed",
        });
    }

    fn end(&mut self, outcome: &'static str) {
        self.has_outcome = true;
        self.span.record("outcome", &outcome);
    }
}

impl Drop for HoldSpan {
    fn drop(&mut self) {
        if !self.has_outcome {
            self.end("dropped");
        }
    }
}
