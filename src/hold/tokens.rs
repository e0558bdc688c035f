//! The tokens of a hold or of a joint. Cancelling one cancels no other.
//!
//! A waker that panics leaves the tasks asleep that wait behind it in the same tree of tokens, and
//! no later cancel wakes them. So each token is a tree of its own. But a tree does not report when
//! its last handle is dropped, and a caller may ask for a token in a loop: beyond the first few,
//! tokens share trees, which forget dropped children.

use tokio_util::sync::CancellationToken;

/// How many tokens have a tree of their own.
pub(super) const ALONE: usize = 16;

/// How many trees all other tokens share, in turn.
pub(super) const SHARED: usize = 16;

/// Tokens that were handed out and have not been cancelled.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) trees: Vec<CancellationToken>,
    handed_out: usize,
}

impl Tokens {
    /// Returns a token; cancelling it cancels nothing else.
    pub(super) fn hand_out(&mut self) -> CancellationToken {
        let number = self.handed_out;
        self.handed_out = number.wrapping_add(1);
        let place = if number < ALONE {
            number
        } else {
            ALONE + number % SHARED
        };
        // Places are used in order, so at most one tree is missing.
        if place == self.trees.len() {
            self.trees.push(CancellationToken::new());
        }
        let tree = &self.trees[place];
        if place < ALONE {
            tree.clone()
        } else {
            tree.child_token()
        }
    }

    /// Takes out one tree for cancelling.
    pub(super) fn take(&mut self) -> Option<CancellationToken> {
        self.trees.pop()
    }
}

/// Returns a token that has fired already.
pub(crate) fn fired() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}
