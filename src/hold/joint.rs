//! The loss of any of several holds, as one token.

use std::sync::{Mutex, OnceLock, PoisonError};

use tokio_util::sync::CancellationToken;

use super::tokens::{self, Tokens};
use crate::error::Loss;
use crate::foreign::contained;

/// What the guards of several locks wait for together. The holds know it weakly: it ends with those who wait.
#[derive(Debug, Default)]
pub(crate) struct Joint {
    tokens: Mutex<Tokens>,
    first: OnceLock<Loss>,
}

impl Joint {
    /// One of the holds is lost.
    pub(super) fn fire(&self, loss: Loss) {
        // Before the tokens: whoever is woken asks for the reason. Later losses change nothing.
        let _: Result<_, _> = self.first.set(loss);
        // One by one: another thread goes on where a waker blocks this one.
        while let Some(token) = self.take() {
            contained(|| token.cancel());
        }
    }

    fn take(&self) -> Option<CancellationToken> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The first loss, if there was one.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.first.get().copied()
    }

    /// A token that fires with the first loss; cancelling it cancels nothing else.
    pub(crate) fn token(&self) -> CancellationToken {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever fires sets the loss before it takes tokens: it takes this one, or the loss is seen here.
        if self.loss().is_some() { tokens::fired() } else { tokens.hand_out() }
    }
}
