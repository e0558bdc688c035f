//! The channel on which a locker is woken by its name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::table::Name;
use crate::error::Error;
use crate::foreign::log;
use crate::key::WAKE;
use crate::lease::{NodeIndex, majority};

/// A locker's own channel. It is subscribed from the locker's first wait on.
#[derive(Debug)]
pub(super) struct WakeChannel {
    pub(super) name: Name,
    /// One for each node.
    states: Vec<AtomicU8>,
}

/// No caller has waited here yet.
const UNUSED: u8 = 0;
const WANTED: u8 = 1;
const ASKED: u8 = 2;
const CONFIRMED: u8 = 3;
/// The user may not subscribe, as this connection found.
const REFUSED: u8 = 4;

impl WakeChannel {
    pub(super) fn of(locker: &Arc<str>, nodes: usize) -> Self {
        let states = (0..nodes).map(|_| AtomicU8::new(UNUSED)).collect();
        Self {
            name: format!("{WAKE}{locker}").into(),
            states,
        }
    }

    fn change(&self, node: NodeIndex, from: u8, to: u8) -> bool {
        self.states[node]
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Records that a caller waits. Returns whether a server has to be asked for the channel.
    pub(super) fn want(&self) -> bool {
        let asks = |node: &NodeIndex| self.change(*node, UNUSED, WANTED);
        (0..self.states.len()).filter(asks).count() > 0
    }

    /// Returns the channel if this server has to be asked for it now. From here on it counts as
    /// asked.
    pub(super) fn ask(&self, node: NodeIndex) -> Option<Name> {
        self.change(node, WANTED, ASKED)
            .then(|| Arc::clone(&self.name))
    }

    pub(super) fn confirm(&self, node: NodeIndex) {
        self.change(node, ASKED, CONFIRMED);
    }

    /// Records that the user may not subscribe on this server. After a reconnect it is asked again.
    pub(super) fn refuse(&self, node: NodeIndex, error: &Error) {
        self.change(node, ASKED, REFUSED);
        log!(
            warn, channel = &*self.name, %error,
            "cannot subscribe to this locker's wake-up channel: falling back to broadcast wake-ups \
            (guide::operating has the rights)"
        );
    }

    /// Records that this server has to be asked again, if it was asked before.
    pub(super) fn again(&self, node: NodeIndex) {
        let used = |state| (state != UNUSED).then_some(WANTED);
        let _: Result<_, _> =
            self.states[node].fetch_update(Ordering::AcqRel, Ordering::Acquire, used);
    }

    /// Returns whether a majority of the servers has confirmed it.
    pub(super) fn is_confirmed(&self) -> bool {
        let confirmed = self
            .states
            .iter()
            .filter(|state| state.load(Ordering::Acquire) == CONFIRMED);
        confirmed.count() >= majority(self.states.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locker_is_woken_by_name_once_a_majority_has_its_channel() {
        let wake = WakeChannel::of(&"locker".into(), 3);
        assert!(
            (0..3).all(|node| wake.ask(node).is_none()),
            "no caller waits yet"
        );
        assert!(wake.want() && !wake.want());
        for (node, confirmed) in [(0, false), (2, true)] {
            assert!(
                wake.ask(node)
                    .is_some_and(|name| &*name == "lockhound_wake:locker")
                    && wake.ask(node).is_none()
            );
            wake.confirm(node);
            assert_eq!(wake.is_confirmed(), confirmed, "{node}");
        }
        assert!(wake.ask(1).is_some());
        let source = crate::error::NodeFailure {
            node: "one".into(),
            reason: "NOPERM".into(),
        };
        wake.refuse(
            1,
            &Error::Unavailable {
                keys: Vec::new(),
                servers: 3,
                nodes: vec![source],
                waited: std::time::Duration::ZERO,
            },
        );
        assert!(wake.is_confirmed() && wake.ask(1).is_none());
        wake.again(0);
        assert!(
            !wake.is_confirmed() && wake.ask(0).is_some(),
            "it was reconnected"
        );
        wake.again(1);
        assert!(wake.ask(1).is_some(), "it is asked again after a refusal");
    }
}
