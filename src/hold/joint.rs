//! The loss of any of several holds, as one token.

use tokio_util::sync::CancellationToken;

use super::tokens::{self, Tokens};
use crate::error::Loss;
use crate::foreign::contained;
use crate::sync::{Mutex, OnceLock};

/// The common token of the guards of several locks. The holds have weak references: it lives as
/// long as the guards.
#[derive(Debug, Default)]
pub(crate) struct Joint {
    tokens: Mutex<Tokens>,
    first: OnceLock<Loss>,
}

impl Joint {
    /// Fires the tokens for the loss of one of the holds.
    pub(super) fn fire(&self, loss: Loss) {
        // The loss comes before the tokens, since a woken task asks for it. Later losses change
        // nothing.
        let _: Result<_, _> = self.first.set(loss);
        // One by one, so that another thread can continue if a waker blocks this one.
        while let Some(token) = self.take() {
            contained(|| token.cancel());
        }
    }

    fn take(&self) -> Option<CancellationToken> {
        self.tokens.lock().take()
    }

    /// Returns the first loss, if there was one.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.first.get().copied()
    }

    /// Returns a token that fires with the first loss; cancelling it cancels nothing else.
    pub(crate) fn token(&self) -> CancellationToken {
        let mut tokens = self.tokens.lock();
        // `fire` sets the loss before it takes tokens: it takes this one, or the loss is seen here.
        if self.loss().is_some() {
            tokens::fired()
        } else {
            tokens.hand_out()
        }
    }
}
