//! The clients of the model: one owner each, in a process of its own, as `hold.rs`, `session/` and
//! the watchdog have it.

use crate::{ATTEMPTS, LEASE, Mutant, Protocol};

/// One owner. Its clocks count the ticks that are left, by the clock of its own machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Client {
    /// How many attempts it has made; the next one has this number.
    pub(crate) made: u8,
    /// The attempt under way, which is the last one made.
    pub(crate) acquire: Option<Acquire>,
    pub(crate) hold: Hold,
    /// The renewal under way.
    pub(crate) renewal: Option<Renewal>,
    pub(crate) undos: [Undo; ATTEMPTS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Acquire {
    pub(crate) copy: u8,
    /// The validity that would be left if the acquire were granted now: it counts from before the
    /// send.
    pub(crate) valid: u8,
    /// The answer is on its way back.
    pub(crate) granted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    pub(crate) valid: u8,
    /// The answer is on its way back.
    pub(crate) done: bool,
}

/// `None`, and the phases of `hold.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Hold {
    #[default]
    None,
    Held {
        number: u8,
        guards: u8,
        valid: u8,
    },
    Releasing {
        number: u8,
    },
    /// The owner has been told, and some of its guards still live.
    Lost {
        number: u8,
        guards: u8,
    },
}

/// How the traces of an attempt on the server are undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Undo {
    #[default]
    None,
    /// It was granted: a release is sent until it is answered.
    Once,
    /// It is unknown whether it was or will be granted: a cancel is sent until it is answered, and
    /// later once more.
    First,
    /// The first cancel is answered; the second is not sent yet.
    Pause,
    Second,
    /// Both are answered, and the acquire may still arrive.
    Over,
}

impl Undo {
    /// Returns whether the answer to a release matters.
    pub(crate) fn awaits(self) -> bool {
        matches!(self, Self::Once | Self::First | Self::Second)
    }

    /// Returns what is left to undo after an answer.
    pub(crate) fn answered(self, protocol: &Protocol) -> Self {
        match self {
            Self::First if !protocol.is(Mutant::CancelOnce) => Self::Pause,
            Self::First | Self::Once => Self::None,
            Self::Second => Self::Over,
            Self::None | Self::Pause | Self::Over => self,
        }
    }
}

impl Client {
    /// A tick of its clock. A hold is lost when its validity is over, since each check of a hold
    /// reads the clock.
    pub(crate) fn tick(&mut self) {
        if let Hold::Held { valid, .. } = &mut self.hold {
            *valid -= 1;
            if *valid == 0 {
                self.lose();
            }
        }
        if let Some(acquire) = &mut self.acquire {
            acquire.valid = acquire.valid.saturating_sub(1);
        }
        if let Some(renewal) = &mut self.renewal {
            renewal.valid = renewal.valid.saturating_sub(1);
        }
    }

    pub(crate) fn has_clocks(&self) -> bool {
        self.acquire.is_some() || self.renewal.is_some() || self.inside().is_some()
    }

    /// Returns the number of the attempt by which it believes to hold the lock, with validity left.
    pub(crate) fn inside(&self) -> Option<u8> {
        match self.hold {
            Hold::Held { number, .. } => Some(number),
            Hold::None | Hold::Releasing { .. } | Hold::Lost { .. } => None,
        }
    }

    /// Returns the number of the attempt whose answer it waits for.
    pub(crate) fn asking(&self) -> Option<u8> {
        self.acquire.map(|_| self.made - 1)
    }

    /// Returns whether it wants nothing, holds nothing and has nothing left to undo.
    pub(crate) fn is_quiet(&self) -> bool {
        let undone = self
            .undos
            .iter()
            .all(|undo| matches!(undo, Undo::None | Undo::Over));
        self.acquire.is_none() && self.hold == Hold::None && undone
    }

    /// Its hold becomes lost.
    pub(crate) fn lose(&mut self) {
        if let Hold::Held { number, guards, .. } = self.hold {
            self.hold = Hold::Lost { number, guards };
        }
    }

    /// Receives the answer that its renewal succeeded, which changes nothing if the owner was told
    /// of a loss.
    pub(crate) fn renewed(&mut self, protocol: &Protocol) {
        let Some(renewal) = self.renewal.take() else {
            return;
        };
        let left = protocol.left(renewal.valid);
        match self.hold {
            Hold::Held {
                number,
                guards,
                valid,
            } => {
                self.hold = Hold::Held {
                    number,
                    guards,
                    valid: valid.max(left),
                }
            }
            Hold::Lost { number, guards } if protocol.is(Mutant::LostRevives) && left > 0 => {
                self.hold = Hold::Held {
                    number,
                    guards,
                    valid: left,
                };
            }
            Hold::None | Hold::Releasing { .. } | Hold::Lost { .. } => {}
        }
    }
}

impl Protocol {
    /// Returns for how long a lease that is requested now can be trusted.
    pub(crate) fn validity(&self) -> u8 {
        if self.is(Mutant::NoDrift) {
            LEASE
        } else {
            LEASE - 1
        }
    }

    /// Returns what is left of a validity that counts from before the send when the answer arrives.
    pub(crate) fn left(&self, valid: u8) -> u8 {
        if self.is(Mutant::ValidityFromReply) {
            self.validity()
        } else {
            valid
        }
    }
}
