//! The steps of a loss: the alarm's mark, and the firing of tokens by several threads.

use super::super::Flaw;
use super::{Broken, World, ensure};
use crate::hold::{Alarmed, HoldPhase};

impl World {
    pub(super) fn counted(&self) -> u64 {
        self.counters.losses().total()
    }

    pub(super) fn alarm(&self, held: bool, clock: u8, flaw: Option<Flaw>) -> Result<(), Broken> {
        let late = u8::from(flaw == Some(Flaw::AlarmIsLate));
        let alarmed = self.hold.alarmed(None, self.at(clock.saturating_sub(late)));
        let expected = match (held, clock <= self.last_tick().0) {
            (true, true) => Alarmed::Held(self.hold.valid_until()),
            (true, false) => Alarmed::Lost,
            (false, _) if self.hold.is_unfired() => Alarmed::Lost,
            (false, _) => Alarmed::Over,
        };
        ensure(
            alarmed == expected,
            format_args!("the alarm finds {alarmed:?} instead of {expected:?}"),
        )
    }

    pub(super) fn fire_one(&self, flaw: Option<Flaw>) {
        match flaw {
            Some(Flaw::TokenIsForgotten) => {
                let mut state = self.hold.state.lock();
                if matches!(state.phase, HoldPhase::Lost(_)) {
                    drop(state.listeners.take());
                }
            }
            Some(Flaw::LossIsToldTwice) => self.hold.state.lock().fired = false,
            Some(Flaw::LossIsToldFirst) => {
                let listeners = self.hold.state.lock().listeners.take();
                self.hold.fire_one();
                self.hold.state.lock().listeners = listeners;
                return;
            }
            _ => {}
        }
        self.hold.fire_one();
    }
}
