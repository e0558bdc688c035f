//! The listeners to the loss of a hold: tokens of its own, and those of guards of several locks.

use std::sync::{Arc, Weak};

use tokio_util::sync::CancellationToken;

use super::joint::Joint;
use super::tokens::{Tokens, fired};
use super::{Hold, HoldPhase};
use crate::error::Loss;
use crate::foreign::contained;

/// The listeners to the loss of a hold. Most holds are released before a caller asks for a token.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    tokens: Tokens,
    joints: Vec<Weak<Joint>>,
}

/// One listener.
#[derive(Debug)]
pub(super) enum Listener {
    Token(CancellationToken),
    Joint(Weak<Joint>),
}

impl Listeners {
    /// Takes out one listener.
    pub(super) fn take(&mut self) -> Option<Listener> {
        self.tokens
            .take()
            .map(Listener::Token)
            .or_else(|| self.joints.pop().map(Listener::Joint))
    }

    /// Adds the joint of several holds, and drops those that are gone.
    pub(super) fn join(&mut self, joint: Weak<Joint>) {
        self.joints.retain(|joint| joint.strong_count() > 0);
        self.joints.push(joint);
    }
}

impl Listener {
    /// Reports the loss: runs the wakers of tasks that wait for it.
    pub(super) fn tell(self, loss: Loss) {
        // A waker may panic, and the listeners behind it have to be told all the same.
        match self {
            Self::Token(token) => contained(|| token.cancel()),
            Self::Joint(joint) => _ = joint.upgrade().map(|joint| joint.fire(loss)),
        }
    }
}

impl Hold {
    /// Returns a token that fires with the loss; cancelling it cancels nothing else.
    pub(crate) fn token(&self) -> CancellationToken {
        let mut state = self.state.lock();
        match state.phase {
            // The thread that fires may not see a new token any more.
            HoldPhase::Lost(_) => fired(),
            HoldPhase::Held | HoldPhase::Releasing => {
                state.listeners.get_or_insert_default().tokens.hand_out()
            }
        }
    }

    /// Reports its loss to this joint too, at once if it is lost already.
    pub(crate) fn join(&self, joint: &Arc<Joint>) {
        let mut state = self.state.lock();
        match state.phase {
            HoldPhase::Lost(loss) => {
                drop(state);
                joint.fire(loss);
            }
            HoldPhase::Held | HoldPhase::Releasing => {
                state
                    .listeners
                    .get_or_insert_default()
                    .join(Arc::downgrade(joint));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;
    use crate::hold::Terms;
    use crate::hold::tokens::{ALONE, SHARED};
    use crate::owner::Owner;

    fn hold() -> Arc<Hold> {
        let terms = Terms {
            lease: std::time::Duration::from_secs(30),
            renewed: true,
            max_hold: None,
        };
        Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1))
    }

    fn trees(hold: &Hold) -> usize {
        hold.state
            .lock()
            .listeners
            .as_ref()
            .map_or(0, |listeners| listeners.tokens.trees.len())
    }

    #[test]
    fn dropped_tokens_do_not_accumulate() {
        let hold = hold();
        let kept: Vec<_> = (0..100).map(|_| hold.token()).collect();
        for _ in 0..100_000 {
            drop(hold.token());
        }
        assert_eq!(trees(&hold), ALONE + SHARED);
        assert!(hold.lose(Loss::NotOwner));
        assert!(kept.iter().all(CancellationToken::is_cancelled));
        assert_eq!(trees(&hold), 0);
    }

    #[test]
    fn cancelling_a_token_cancels_no_other() {
        let hold = hold();
        let tokens: Vec<_> = (0..3 * (ALONE + SHARED)).map(|_| hold.token()).collect();
        for (place, token) in tokens.iter().enumerate() {
            assert!(tokens[place..].iter().all(|token| !token.is_cancelled()));
            token.cancel();
        }
    }

    #[test]
    fn a_joint_that_is_gone_is_forgotten() {
        let hold = hold();
        for _ in 0..100 {
            hold.join(&Arc::default());
        }
        let kept = [Arc::<Joint>::default(), Arc::default()];
        kept.iter().for_each(|joint| hold.join(joint));
        assert_eq!(
            hold.state
                .lock()
                .listeners
                .as_ref()
                .map(|listeners| listeners.joints.len()),
            Some(2)
        );
        assert!(hold.lose(Loss::NotOwner));
        assert!(
            kept.iter()
                .all(|joint| joint.loss() == Some(Loss::NotOwner) && joint.token().is_cancelled())
        );
        let late = Arc::default();
        hold.join(&late);
        assert_eq!(late.loss(), Some(Loss::NotOwner), "told at once");
    }

    struct Bomb;

    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("sick of waking"));
        }
    }

    struct Bell(std::sync::atomic::AtomicBool);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_task_asleep() {
        let hold = hold();
        let joint = Arc::<Joint>::default();
        hold.join(&joint);
        let wait = |token: CancellationToken, waker: Waker| {
            let mut waiting = Box::pin(token.cancelled_owned());
            assert_eq!(
                waiting.as_mut().poll(&mut Context::from_waker(&waker)),
                Poll::Pending
            );
            waiting
        };
        let mut waits = Vec::new();
        let mut bells = Vec::new();
        for _ in 0..ALONE / 2 {
            for token in [
                |hold: &Hold, _: &Joint| hold.token(),
                |_: &Hold, joint: &Joint| joint.token(),
            ] {
                let bell = Arc::new(Bell(false.into()));
                waits.push(wait(token(&hold, &joint), Arc::new(Bomb).into()));
                waits.push(wait(token(&hold, &joint), Arc::clone(&bell).into()));
                bells.push(bell);
            }
        }
        assert!(hold.lose(Loss::NotOwner));
        assert!(
            bells
                .iter()
                .all(|bell| bell.0.load(std::sync::atomic::Ordering::SeqCst))
        );
    }
}
