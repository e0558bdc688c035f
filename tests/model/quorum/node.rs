//! A node of the model: its server, the commands on their way to it, and what the clients know of
//! it.

use super::{ATTEMPTS, CLIENTS, Mutant, Protocol};
use crate::server::Attempt;

/// Everything that belongs to one node, so that nodes can be reordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Node {
    pub(crate) key: Option<Key>,
    /// Its mark for this lock: the last fence that it knows of.
    pub(crate) mark: u8,
    /// Ticks until its vote counts again.
    pub(crate) abstains: u8,
    /// It has lost its mark and was not told those of the others. It does not vote.
    pub(crate) forgot: bool,
    /// Ghost.
    pub(crate) restarted: bool,
    lines: [[Line; ATTEMPTS]; CLIENTS],
    /// What each client knows of it in its present attempt.
    pub(crate) views: [View; CLIENTS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) by: Attempt,
    /// Ticks until it runs out.
    pub(crate) lease: u8,
    /// Ghost: written by a command that was adrift, after both cancels had been answered.
    pub(crate) stray: bool,
}

/// The commands that an attempt has sent to a node: in line, with the answer awaited, or adrift on
/// a connection that was given up. No order is relied on, since an acquire waits until the server
/// is vetted, and a release does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Line {
    pub(crate) acquire: bool,
    pub(crate) acquire_adrift: bool,
    pub(crate) retake: bool,
    pub(crate) retake_adrift: bool,
    pub(crate) undo: Undo,
}

/// The release that is sent to a node until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Undo {
    #[default]
    None,
    /// A release, or the cancel of a grant.
    Once,
    /// The first cancel of a command that may still arrive.
    First,
    Second,
    /// Both are answered, and a command may still arrive.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct View {
    /// The answer to the acquire.
    pub(crate) answer: Answer,
    /// The fence that the node gave, or was raised to.
    pub(crate) fence: u8,
    /// Ticks for which the node votes for the hold.
    pub(crate) valid: u8,
    /// The validity that the retake under way would give now.
    pub(crate) asked: u8,
    /// A command will have no answer, and may still arrive.
    pub(crate) uncertain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Answer {
    /// The node was not asked.
    #[default]
    None,
    Waiting,
    Granted,
    Held,
    Unknown,
}

/// The scripts that a node executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    Acquire,
    Retake,
    /// The release of a hold, or the cancel of an acquire.
    Release,
}

impl Node {
    pub(crate) fn line(&self, by: Attempt) -> &Line {
        &self.lines[usize::from(by.owner)][usize::from(by.number)]
    }

    pub(crate) fn line_mut(&mut self, by: Attempt) -> &mut Line {
        &mut self.lines[usize::from(by.owner)][usize::from(by.number)]
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().flatten()
    }

    pub(crate) fn view_mut(&mut self, owner: u8) -> &mut View {
        &mut self.views[usize::from(owner)]
    }

    /// A tick, of its clock and of the clients'.
    pub(crate) fn tick(&mut self) {
        if let Some(key) = &mut self.key {
            key.lease -= 1;
            if key.lease == 0 {
                self.key = None;
            }
        }
        self.abstains = self.abstains.saturating_sub(1);
        for view in &mut self.views {
            view.valid = view.valid.saturating_sub(1);
            view.asked = view.asked.saturating_sub(1);
        }
    }

    /// Restarts without data and connections. It votes again when every lease that it has forgotten
    /// is over, and the others have told it their highest mark after that.
    pub(crate) fn restart(&mut self, protocol: &Protocol) {
        self.key = None;
        self.mark = 0;
        self.abstains = if protocol.is(Mutant::NoQuarantine) {
            0
        } else {
            protocol.lease
        };
        self.forgot = protocol.fences && !protocol.is(Mutant::NoQuarantine);
        self.restarted = true;
        for line in self.lines.iter_mut().flatten() {
            *line = Line {
                undo: line.undo,
                ..Line::default()
            };
        }
    }

    /// Returns whether its vote counts.
    pub(crate) fn votes(&self) -> bool {
        self.abstains == 0 && !self.forgot
    }

    /// The others tell it their highest mark.
    pub(crate) fn told(&mut self, protocol: &Protocol, highest: u8) {
        if !protocol.is(Mutant::MarksForgotten) {
            self.mark = self.mark.max(highest);
        }
        self.forgot = false;
    }

    /// Raises the mark as an acquire does, given what the clocks show.
    fn count_up(&mut self, protocol: &Protocol, clock: u8) {
        self.mark = match protocol.mutant {
            Some(Mutant::ClockAlone) => self.mark.max(clock),
            Some(Mutant::ClockTrusted) if clock > 0 => clock,
            _ => (self.mark + 1).max(clock),
        };
    }

    /// Returns whether the key has the field of this attempt.
    pub(crate) fn is_held_by(&self, protocol: &Protocol, by: Attempt) -> bool {
        self.key
            .is_some_and(|key| protocol.field(key.by) == protocol.field(by))
    }

    /// Executes an acquire or a retake. Returns whether the attempt has the lock then.
    pub(crate) fn take(
        &mut self,
        protocol: &Protocol,
        script: Script,
        by: Attempt,
        adrift: bool,
        clock: u8,
    ) -> bool {
        if self.key.is_some() && !self.is_held_by(protocol, by) {
            return false;
        }
        let stray = adrift && self.line(by).undo == Undo::Over;
        self.key = Some(Key {
            by,
            lease: protocol.lease,
            stray,
        });
        if script == Script::Acquire && protocol.fences {
            self.count_up(protocol, clock);
        }
        true
    }

    /// Executes a release, and its answer arrives.
    pub(crate) fn release(&mut self, protocol: &Protocol, by: Attempt) {
        if self.is_held_by(protocol, by) {
            self.key = None;
        }
        let undo = &mut self.line_mut(by).undo;
        *undo = match *undo {
            Undo::First => Undo::Second,
            Undo::Second => Undo::Over,
            Undo::Once | Undo::None | Undo::Over => Undo::None,
        };
    }

    /// Begins to undo an attempt, or adds a second cancel to its undo.
    pub(crate) fn undo(&mut self, by: Attempt, undo: Undo) {
        let line = self.line_mut(by);
        match (line.undo, undo) {
            (_, Undo::None) | (Undo::First | Undo::Second, Undo::Once) => {}
            // One more release is sent.
            (Undo::Over, Undo::Once) => line.undo = Undo::Second,
            _ => line.undo = undo,
        }
    }

    /// Forgets what makes no difference any more: cancels of commands that cannot arrive, and
    /// releases of keys that are gone.
    pub(crate) fn settle(&mut self, protocol: &Protocol) {
        let by = self.key.map(|key| key.by);
        for (owner, lines) in (0..).zip(&mut self.lines) {
            for (number, line) in (0..).zip(lines) {
                if line.is_coming() {
                    continue;
                }
                let there =
                    by == Some(Attempt { owner, number }) || protocol.is(Mutant::GenerationPerTask);
                line.undo = if there && line.is_undone() {
                    Undo::Once
                } else {
                    Undo::None
                };
            }
        }
    }

    /// Returns the same node with the two clients exchanged.
    pub(crate) fn exchanged(mut self) -> Self {
        self.lines.swap(0, 1);
        self.views.swap(0, 1);
        if let Some(key) = &mut self.key {
            key.by.owner = 1 - key.by.owner;
        }
        self
    }
}

impl Line {
    /// Returns the commands that may be executed next, in line or adrift.
    pub(crate) fn executable(&self) -> impl Iterator<Item = (Script, bool)> {
        let scripts = [
            (self.acquire, Script::Acquire, false),
            (self.acquire_adrift, Script::Acquire, true),
            (self.retake, Script::Retake, false),
            (self.retake_adrift, Script::Retake, true),
            (self.is_undone(), Script::Release, false),
        ];
        scripts
            .into_iter()
            .filter(|(may, ..)| *may)
            .map(|(_, script, adrift)| (script, adrift))
    }

    /// Returns the commands whose answers the client awaits.
    pub(crate) fn in_line(&self) -> impl Iterator<Item = Script> + use<> {
        let scripts = [
            (self.acquire, Script::Acquire),
            (self.retake, Script::Retake),
        ];
        scripts
            .into_iter()
            .filter(|(is, _)| *is)
            .map(|(_, script)| script)
    }

    /// Removes a script that is executed or goes adrift.
    pub(crate) fn remove(&mut self, script: Script, adrift: bool) {
        match (script, adrift) {
            (Script::Acquire, false) => self.acquire = false,
            (Script::Acquire, true) => self.acquire_adrift = false,
            (Script::Retake, false) => self.retake = false,
            (Script::Retake, true) => self.retake_adrift = false,
            (Script::Release, _) => {}
        }
    }

    /// Gives the connection up: the script may be executed at any time or never.
    pub(crate) fn set_adrift(&mut self, script: Script) {
        self.remove(script, false);
        match script {
            Script::Acquire => self.acquire_adrift = true,
            Script::Retake => self.retake_adrift = true,
            Script::Release => {}
        }
    }

    /// Returns whether a release or a cancel has no answer yet.
    pub(crate) fn is_undone(&self) -> bool {
        matches!(self.undo, Undo::Once | Undo::First | Undo::Second)
    }

    /// Returns whether a command that may take the lock is on its way, with its answer awaited.
    pub(crate) fn is_in_line(&self) -> bool {
        self.acquire || self.retake
    }

    /// Returns whether a command that may take the lock is on its way.
    fn is_coming(&self) -> bool {
        self.is_in_line() || self.acquire_adrift || self.retake_adrift
    }
}
