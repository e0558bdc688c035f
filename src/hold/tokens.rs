//! The tokens of a hold, or of several: each is cancelled without the others.
//!
//! A waker that panics keeps those asleep that wait behind it in the same tree of tokens, and no later cancel wakes
//! them. So a token is a tree of its own. A tree does not say when its last handle is dropped, though, and a caller may
//! ask for a token in a loop: beyond the first few, tokens share trees, which forget what is dropped.

use tokio_util::sync::CancellationToken;

/// How many tokens have a tree each.
pub(super) const ALONE: usize = 16;

/// How many trees all others share: one after the other.
pub(super) const SHARED: usize = 16;

/// Tokens that were handed out and have not been cancelled.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) trees: Vec<CancellationToken>,
    handed_out: usize,
}

impl Tokens {
    /// A token; cancelling it cancels nothing else.
    pub(super) fn hand_out(&mut self) -> CancellationToken {
        let number = self.handed_out;
        self.handed_out = number.wrapping_add(1);
        let place = if number < ALONE { number } else { ALONE + number % SHARED };
        // Places come in order: there is one more tree at the most.
        if place == self.trees.len() {
            self.trees.push(CancellationToken::new());
        }
        let tree = &self.trees[place];
        if place < ALONE { tree.clone() } else { tree.child_token() }
    }

    /// Takes out one tree, to be cancelled.
    pub(super) fn take(&mut self) -> Option<CancellationToken> {
        self.trees.pop()
    }
}

/// The token of what is lost already.
pub(crate) fn fired() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}
