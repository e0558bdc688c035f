//! The loss of any of several holds, as one token.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use super::{Hold, Phase};
use crate::error::Loss;
use crate::foreign::contained;

/// What the guards of several locks wait for together. The holds know it weakly: it ends with those who wait.
#[derive(Debug, Default)]
pub(crate) struct Joint {
    lost: CancellationToken,
    first: OnceLock<Loss>,
}

impl Joint {
    /// One of the holds is lost.
    pub(super) fn fire(&self, loss: Loss) {
        // Before the token: whoever it wakes asks for the reason. Later losses change nothing.
        let _: Result<_, _> = self.first.set(loss);
        contained(|| self.lost.cancel());
    }

    /// The first loss, if there was one.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.first.get().copied()
    }

    /// A token that fires with the first loss; cancelling it cancels nothing else.
    pub(crate) fn token(&self) -> CancellationToken {
        self.lost.child_token()
    }
}

impl Hold {
    /// Tells these of its loss too, at once if it is lost already.
    pub(crate) fn join(&self, joint: &Arc<Joint>) {
        let mut state = self.state();
        match state.phase {
            Phase::Lost(loss) if state.fired => {
                drop(state);
                joint.fire(loss);
            }
            _ => {
                let alive = state.joints.iter().filter(|joint| joint.strong_count() > 0).cloned();
                state.joints = alive.chain([Arc::downgrade(joint)]).collect();
            }
        }
    }
}
