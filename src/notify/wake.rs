//! The channel on which a locker is woken by its name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::table::Name;
use crate::command::WAKE;
use crate::error::Error;
use crate::foreign::contained;

/// A locker's own channel. It is subscribed from the locker's first wait on.
#[derive(Debug)]
pub(super) struct WakeChannel {
    pub(super) name: Name,
    state: AtomicU8,
}

/// No caller has waited here yet.
const UNUSED: u8 = 0;
const WANTED: u8 = 1;
const ASKED: u8 = 2;
const CONFIRMED: u8 = 3;
/// The user may not subscribe, as this connection found.
const REFUSED: u8 = 4;

impl WakeChannel {
    pub(super) fn of(locker: &Arc<str>) -> Self {
        Self { name: format!("{WAKE}{locker}").into(), state: AtomicU8::new(UNUSED) }
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Records that a caller waits. Returns whether the server has to be asked for the channel.
    pub(super) fn want(&self) -> bool {
        self.change(UNUSED, WANTED)
    }

    /// Returns the channel if the server has to be asked for it now. From here on it counts as asked.
    pub(super) fn ask(&self) -> Option<Name> {
        self.change(WANTED, ASKED).then(|| Arc::clone(&self.name))
    }

    pub(super) fn confirm(&self) {
        self.change(ASKED, CONFIRMED);
    }

    /// Records that the user may not subscribe. After a reconnect the server is asked again.
    pub(super) fn refuse(&self, error: &Error) {
        self.change(ASKED, REFUSED);
        contained(|| {
            tracing::warn!(
                channel = &*self.name,
                %error,
                "this locker cannot be woken by its name: it is told what all are told (guide::operating has the \
                 rights)"
            );
        });
    }

    /// Records that the server has to be asked again, if it was asked before.
    pub(super) fn again(&self) {
        let used = |state| (state != UNUSED).then_some(WANTED);
        let _: Result<_, _> = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, used);
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CONFIRMED
    }
}
