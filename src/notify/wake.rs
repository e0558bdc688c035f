//! The channel on which a locker is woken by its name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::table::Name;
use crate::command::WAKE;
use crate::error::Error;
use crate::foreign::contained;

/// A locker's own channel: subscribed when it waits for the first time, and from then on.
#[derive(Debug)]
pub(super) struct WakeChannel {
    pub(super) name: Name,
    state: AtomicU8,
}

/// Nobody waits here yet.
const UNUSED: u8 = 0;
const WANTED: u8 = 1;
const ASKED: u8 = 2;
const CONFIRMED: u8 = 3;
/// On this connection.
const REFUSED: u8 = 4;

impl WakeChannel {
    pub(super) fn of(locker: &Arc<str>) -> Self {
        Self { name: format!("{WAKE}{locker}").into(), state: AtomicU8::new(UNUSED) }
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Somebody waits. Whether the server is to be asked for that.
    pub(super) fn want(&self) -> bool {
        self.change(UNUSED, WANTED)
    }

    /// What the server is to be asked for now. It counts as asked from here on.
    pub(super) fn ask(&self) -> Option<Name> {
        self.change(WANTED, ASKED).then(|| Arc::clone(&self.name))
    }

    pub(super) fn confirm(&self) {
        self.change(ASKED, CONFIRMED);
    }

    /// The user may not. After a reconnect it is asked for again.
    pub(super) fn refuse(&self, error: &Error) {
        self.change(ASKED, REFUSED);
        contained(|| {
            tracing::warn!(
                channel = &*self.name,
                %error,
                "this locker cannot be woken by its name: it is told what all are told (SECURITY.md has the rights)"
            );
        });
    }

    /// The server has to be asked anew, if it was asked before.
    pub(super) fn again(&self) {
        let used = |state| (state != UNUSED).then_some(WANTED);
        let _: Result<_, _> = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, used);
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CONFIRMED
    }
}
