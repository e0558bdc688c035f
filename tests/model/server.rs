//! The server of the model: one key, what is on the wire, and what each script does to the key.

use crate::{LEASE, Mutant, Protocol};

/// The sender of a command: an owner, and which of its attempts. On the wire it is the field
/// `uuid:task-id:generation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Attempt {
    pub(crate) owner: u8,
    pub(crate) number: u8,
}

/// The content of the lock's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The attempt that it was granted to last. Scripts see only what [`Protocol::field`] shows of
    /// it; the rest is a ghost.
    pub(crate) by: Attempt,
    pub(crate) count: u8,
    /// Ticks until it runs out.
    pub(crate) lease: u8,
    /// Ghost: its acquire was executed after the second cancel had been sent, so that nothing
    /// undoes it.
    pub(crate) stray: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    /// The copy is 0, unless a mutant sends the same acquire again.
    Acquire { copy: u8 },
    /// The hold count, absolute.
    Count(u8),
    /// The release of a hold, or the cancel of an acquire: the crate has one script for both.
    Release,
    /// `awaited`: the client still waits for the answer; otherwise it has given up, or has had it.
    Renew { awaited: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) script: Script,
    pub(crate) by: Attempt,
}

/// What a script answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    /// Held by another, or gone.
    No,
}

/// Violations that leave no other trace in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Harm {
    /// A command of one attempt deleted, changed or faked the hold of another.
    pub(crate) stale: bool,
    /// A grant found a count other than one.
    pub(crate) miscounted: bool,
    /// A client was answered "gone" and went on.
    pub(crate) untold: bool,
}

/// The server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Server {
    pub(crate) key: Option<Key>,
    /// Ghost.
    pub(crate) harm: Harm,
}

/// The commands that may still be executed, one bit each: in any order, at any time, or never (a
/// loss).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Wire(u64);

/// In the order of their bits.
const SCRIPTS: [Script; 7] = [
    Script::Acquire { copy: 0 },
    Script::Acquire { copy: 1 },
    Script::Count(1),
    Script::Count(2),
    Script::Release,
    Script::Renew { awaited: true },
    Script::Renew { awaited: false },
];

impl Wire {
    pub(crate) fn has(self, command: Command) -> bool {
        self.0 & command.bit() != 0
    }

    pub(crate) fn put(&mut self, command: Command) {
        self.0 |= command.bit();
    }

    pub(crate) fn take(&mut self, command: Command) {
        self.0 &= !command.bit();
    }

    pub(crate) fn commands(self) -> impl Iterator<Item = Command> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(Command::of(bit as u8))
        })
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.commands()).finish()
    }
}

impl Command {
    fn bit(self) -> u64 {
        let script = match self.script {
            Script::Acquire { copy } => copy,
            Script::Count(count) => 1 + count,
            Script::Release => 4,
            Script::Renew { awaited: true } => 5,
            Script::Renew { awaited: false } => 6,
        };
        1 << (self.by.owner * 16 + self.by.number * 8 + script)
    }

    fn of(bit: u8) -> Self {
        let by = Attempt {
            owner: bit / 16,
            number: bit / 8 % 2,
        };
        Self {
            script: SCRIPTS[usize::from(bit % 8)],
            by,
        }
    }
}

/// At what time an acquire is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Its client waits for the answer.
    Awaited,
    /// Its client does not wait any more.
    Late,
    /// Its client has sent the second cancel.
    TooLate,
}

impl Server {
    /// Executes a command. `arrival` concerns acquires only.
    pub(crate) fn execute(
        &mut self,
        protocol: &Protocol,
        command: Command,
        arrival: Arrival,
    ) -> Answer {
        match &mut self.key {
            Some(held)
                if protocol.field(held.by) == protocol.field(command.by)
                    || protocol.is_blind(command) =>
            {
                self.harm.stale |= held.by != command.by && arrival != Arrival::Awaited;
                self.change(protocol, command, arrival);
                Answer::Yes
            }
            Some(_) => Answer::No,
            None if protocol.creates(command) => {
                self.harm.stale |= !matches!(command.script, Script::Acquire { .. });
                let stray = arrival == Arrival::TooLate;
                self.key = Some(Key {
                    by: command.by,
                    count: 1,
                    lease: LEASE,
                    stray,
                });
                Answer::Yes
            }
            None => Answer::No,
        }
    }

    /// A tick of its clock.
    pub(crate) fn tick(&mut self) {
        if let Some(held) = &mut self.key {
            held.lease -= 1;
            if held.lease == 0 {
                self.key = None;
            }
        }
    }

    fn change(&mut self, protocol: &Protocol, command: Command, arrival: Arrival) {
        let Some(held) = &mut self.key else { return };
        match command.script {
            // Held by this attempt already: the count is kept.
            Script::Acquire { .. } => {
                held.lease = LEASE;
                if arrival == Arrival::Awaited {
                    held.by = command.by;
                    self.harm.miscounted |= held.count != 1;
                }
            }
            Script::Count(count) if !protocol.is(Mutant::CountIncrements) => held.count = count,
            // A count of one too many shows the mistake; more add only states.
            Script::Count(2) => held.count = (held.count + 1).min(3),
            Script::Count(_) => held.count = held.count.saturating_sub(1),
            Script::Renew { .. } => held.lease = LEASE,
            Script::Release => self.key = None,
        }
    }
}

impl Protocol {
    /// Returns the field of an attempt as the wire shows it.
    pub(crate) fn field(&self, by: Attempt) -> Attempt {
        if self.is(Mutant::GenerationPerTask) {
            Attempt { number: 0, ..by }
        } else {
            by
        }
    }

    /// Returns whether the script does not compare the field.
    fn is_blind(&self, command: Command) -> bool {
        match command.script {
            Script::Release => self.is(Mutant::ReleaseBlind),
            Script::Renew { .. } => self.is(Mutant::RenewalCreates),
            Script::Acquire { .. } | Script::Count(_) => false,
        }
    }

    /// Returns whether the script creates a missing key.
    fn creates(&self, command: Command) -> bool {
        match command.script {
            Script::Acquire { .. } => true,
            Script::Renew { .. } => self.is(Mutant::RenewalCreates),
            Script::Count(_) | Script::Release => false,
        }
    }
}
