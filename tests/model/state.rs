//! The states of the model, and what each action does to them.

use crate::client::{Acquire, Client, Hold, Renewal, Undo};
use crate::server::{Answer, Arrival, Attempt, Command, Script, Server, Wire};
use crate::{CLIENTS, Mutant, Protocol};

/// Everything at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) server: Server,
    pub(crate) wire: Wire,
    pub(crate) clients: [Client; CLIENTS],
    /// How many deletions from outside are left.
    pub(crate) deletions: u8,
    /// Whether a client's clock may still be slow once.
    pub(crate) drifts: bool,
    /// Ghost: the attempt whose hold was deleted from outside, until its owner is told or stops
    /// believing in it.
    pub(crate) victim: Option<Attempt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Time passes, everywhere.
    Tick,
    /// Time passes, except for the clock of one client.
    Drift(u8),
    /// Somebody deletes the key.
    Delete,
    /// The server executes a command, and its answer is on its way, if it matters.
    Execute(Command),
    /// The server executes a command, and its answer is lost.
    ExecuteUnheard(Command),
    /// An owner comes and an acquire is sent for it.
    Lock(u8),
    /// The grant arrives, and the owner takes it if validity is left.
    Granted(u8),
    /// The grant arrives, and the owner has gone away meanwhile.
    Unwanted(u8),
    /// A command timeout: the acquire's outcome is unknown.
    Timeout(u8),
    Enter(u8),
    /// A guard is released.
    Leave(u8),
    /// A command timeout: the owner goes on, and the release is sent further.
    Unconfirmed(u8),
    /// The second cancel is sent.
    CancelAgain(Attempt),
    Renew(u8),
    Renewed(u8),
    RenewalTimeout(u8),
    /// The watchdog saw too many renewals fail, or the locker is closed, or it forces the lock
    /// free.
    GiveUp(u8),
}

impl State {
    /// Returns the attempts that believe to hold the lock, except one that a deletion from outside
    /// has deceived.
    pub(crate) fn inside(&self) -> impl Iterator<Item = Attempt> {
        let believers = (0..).zip(&self.clients).filter_map(|(owner, client)| {
            let number = client.inside()?;
            Some(Attempt { owner, number })
        });
        believers.filter(|by| self.victim != Some(*by))
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.clients.iter().all(Client::is_quiet)
    }

    /// Returns whether nothing in flight renews the lease of the key.
    pub(crate) fn runs_out(&self, protocol: &Protocol) -> bool {
        let mut later = self.server;
        later.tick();
        let Some(left) = later.key.map(|key| key.lease) else {
            return true;
        };
        self.wire.commands().all(|command| {
            let mut server = later;
            server.execute(protocol, command, self.arrival(command));
            server.key.is_none_or(|key| key.lease == left)
        })
    }

    /// Returns whether it makes a difference to the client if the answer to this command is lost.
    /// The answer of a grant or a renewal can also be late, so it is an action of its own; a
    /// timeout stands for its loss.
    pub(crate) fn is_heard(&self, command: Command) -> bool {
        let Command { script, by } = command;
        let client = self.client(by.owner);
        let gone =
            client.inside() == Some(by.number) && self.server.key.is_none_or(|key| key.by != by);
        match script {
            Script::Acquire { .. } => {
                client.asking() == Some(by.number) && self.server.key.is_some()
            }
            Script::Release => client.undos[usize::from(by.number)].awaits(),
            Script::Count(_) => gone,
            Script::Renew { awaited } => awaited && gone,
        }
    }

    /// Applies an action.
    pub(crate) fn act(&mut self, protocol: &Protocol, action: Action) {
        match action {
            Action::Tick => self.tick(None),
            Action::Drift(slow) => self.tick(Some(slow)),
            Action::Delete => {
                self.deletions -= 1;
                self.victim = self.server.key.take().map(|key| key.by);
            }
            Action::Execute(command) => self.execute(protocol, command, true),
            Action::ExecuteUnheard(command) => self.execute(protocol, command, false),
            Action::Lock(owner) => self.lock(protocol, owner),
            Action::Granted(owner) => self.granted(protocol, owner),
            Action::Unwanted(owner) => self.unwanted(protocol, owner),
            Action::Timeout(owner) => self.timeout(protocol, owner),
            Action::Enter(owner) => self.enter(owner),
            Action::Leave(owner) => self.leave(owner),
            Action::Unconfirmed(owner) => self.client_mut(owner).hold = Hold::None,
            Action::CancelAgain(by) => self.undo(by, Undo::Second),
            Action::Renew(owner) => self.renew(protocol, owner),
            Action::Renewed(owner) => self.client_mut(owner).renewed(protocol),
            Action::RenewalTimeout(owner) => self.forget_renewal(owner),
            Action::GiveUp(owner) => self.client_mut(owner).lose(),
        }
        self.forget_victim();
    }

    pub(crate) fn client(&self, owner: u8) -> &Client {
        &self.clients[usize::from(owner)]
    }

    fn client_mut(&mut self, owner: u8) -> &mut Client {
        &mut self.clients[usize::from(owner)]
    }

    fn tick(&mut self, slow: Option<u8>) {
        self.server.tick();
        for (owner, client) in (0..).zip(&mut self.clients) {
            if slow != Some(owner) {
                client.tick();
            }
        }
        self.drifts &= slow.is_none();
    }
}

/// What the clients do.
impl State {
    fn lock(&mut self, protocol: &Protocol, owner: u8) {
        let client = self.client_mut(owner);
        let by = Attempt {
            owner,
            number: client.made,
        };
        client.made += 1;
        self.acquire(protocol, by, 0);
    }

    fn acquire(&mut self, protocol: &Protocol, by: Attempt, copy: u8) {
        self.client_mut(by.owner).acquire = Some(Acquire {
            copy,
            valid: protocol.validity(),
            granted: false,
        });
        self.wire.put(Command {
            script: Script::Acquire { copy },
            by,
        });
    }

    fn granted(&mut self, protocol: &Protocol, owner: u8) {
        let client = self.client_mut(owner);
        let Some(acquire) = client.acquire.take() else {
            return;
        };
        let (number, valid) = (client.made - 1, protocol.left(acquire.valid));
        if valid > 0 {
            client.hold = Hold::Held {
                number,
                guards: 1,
                valid,
            };
        } else {
            self.undo(Attempt { owner, number }, Undo::Once);
        }
    }

    fn unwanted(&mut self, protocol: &Protocol, owner: u8) {
        let client = self.client_mut(owner);
        client.acquire = None;
        let by = Attempt {
            owner,
            number: client.made - 1,
        };
        if !protocol.is(Mutant::UnwantedKept) {
            self.undo(by, Undo::Once);
        }
    }

    fn timeout(&mut self, protocol: &Protocol, owner: u8) {
        let client = self.client_mut(owner);
        let Some(acquire) = client.acquire.take() else {
            return;
        };
        let by = Attempt {
            owner,
            number: client.made - 1,
        };
        if protocol.is(Mutant::UnknownRepeated) && acquire.copy == 0 {
            self.acquire(protocol, by, 1);
        } else if !protocol.is(Mutant::NoCancel) {
            self.undo(by, Undo::First);
        }
    }

    fn undo(&mut self, by: Attempt, undo: Undo) {
        self.client_mut(by.owner).undos[usize::from(by.number)] = undo;
        self.wire.put(Command {
            script: Script::Release,
            by,
        });
    }

    fn enter(&mut self, owner: u8) {
        let Hold::Held { number, guards, .. } = &mut self.client_mut(owner).hold else {
            return;
        };
        *guards += 1;
        let (script, by) = (
            Script::Count(*guards),
            Attempt {
                owner,
                number: *number,
            },
        );
        self.wire.put(Command { script, by });
    }

    fn leave(&mut self, owner: u8) {
        let client = self.client_mut(owner);
        match &mut client.hold {
            &mut Hold::Held {
                number, guards: 1, ..
            } => {
                client.hold = Hold::Releasing { number };
                self.forget_renewal(owner);
                self.undo(Attempt { owner, number }, Undo::Once);
            }
            &mut Hold::Lost { number, guards: 1 } => {
                client.hold = Hold::None;
                self.forget_renewal(owner);
                self.undo(Attempt { owner, number }, Undo::Once);
            }
            Hold::Held { number, guards, .. } => {
                *guards -= 1;
                let (script, by) = (
                    Script::Count(*guards),
                    Attempt {
                        owner,
                        number: *number,
                    },
                );
                self.wire.put(Command { script, by });
            }
            Hold::Lost { guards, .. } => *guards -= 1,
            Hold::None | Hold::Releasing { .. } => {}
        }
    }

    fn renew(&mut self, protocol: &Protocol, owner: u8) {
        let client = self.client_mut(owner);
        let Some(number) = client.inside() else {
            return;
        };
        client.renewal = Some(Renewal {
            valid: protocol.validity(),
            done: false,
        });
        self.wire.put(Command {
            script: Script::Renew { awaited: true },
            by: Attempt { owner, number },
        });
    }

    /// The client no longer waits for the answer; the command may be executed nevertheless.
    fn forget_renewal(&mut self, owner: u8) {
        let client = self.client_mut(owner);
        client.renewal = None;
        for number in 0..client.made {
            self.unawait(Attempt { owner, number });
        }
    }

    fn unawait(&mut self, by: Attempt) {
        let awaited = Command {
            script: Script::Renew { awaited: true },
            by,
        };
        if self.wire.has(awaited) {
            self.wire.take(awaited);
            self.wire.put(Command {
                script: Script::Renew { awaited: false },
                by,
            });
        }
    }

    /// Forgets a victim that was told, or lost its hold in another way: it is no longer excepted.
    fn forget_victim(&mut self) {
        if let Some(Attempt { owner, number }) = self.victim {
            let client = self.client(owner);
            if client.inside() != Some(number) && client.asking() != Some(number) {
                self.victim = None;
            }
        }
    }
}

/// What the server does, and the effect of its answers.
impl State {
    fn execute(&mut self, protocol: &Protocol, command: Command, heard: bool) {
        let Command { script, by } = command;
        let arrival = self.arrival(command);
        let answer = self.server.execute(protocol, command, arrival);
        match script {
            Script::Acquire { .. } => self.executed_acquire(command, arrival, answer, heard),
            Script::Release if heard => self.executed_release(protocol, by),
            Script::Renew { awaited: true } => self.executed_renewal(protocol, by, answer, heard),
            Script::Count(_) if heard && answer == Answer::No => self.gone(protocol, by),
            // It stays on the wire: the command may be executed again.
            Script::Release | Script::Renew { .. } | Script::Count(_) => {}
        }
    }

    fn arrival(&self, command: Command) -> Arrival {
        let client = self.client(command.by.owner);
        let undo = client.undos[usize::from(command.by.number)];
        let awaited = |acquire: Acquire| command.script == Script::Acquire { copy: acquire.copy };
        if client.asking() == Some(command.by.number) && client.acquire.is_some_and(awaited) {
            Arrival::Awaited
        } else if matches!(undo, Undo::Second | Undo::Over) {
            Arrival::TooLate
        } else {
            Arrival::Late
        }
    }

    fn executed_acquire(
        &mut self,
        command: Command,
        arrival: Arrival,
        answer: Answer,
        heard: bool,
    ) {
        // An acquire is sent at most once, and the network makes no copies.
        self.wire.take(command);
        let client = self.client_mut(command.by.owner);
        let undo = &mut client.undos[usize::from(command.by.number)];
        if *undo == Undo::Over {
            *undo = Undo::None;
        }
        match (&mut client.acquire, answer) {
            (Some(acquire), Answer::Yes) if arrival == Arrival::Awaited => acquire.granted = true,
            (Some(_), Answer::No) if arrival == Arrival::Awaited && heard => client.acquire = None,
            _ => {}
        }
    }

    fn executed_release(&mut self, protocol: &Protocol, by: Attempt) {
        let coming = self.wire.has(Command {
            script: Script::Acquire { copy: 0 },
            by,
        });
        let client = self.client_mut(by.owner);
        let undo = &mut client.undos[usize::from(by.number)];
        *undo = undo.answered(protocol);
        if *undo == Undo::Over && !coming {
            *undo = Undo::None;
        }
        if client.hold == (Hold::Releasing { number: by.number }) {
            client.hold = Hold::None;
        }
    }

    fn executed_renewal(&mut self, protocol: &Protocol, by: Attempt, answer: Answer, heard: bool) {
        self.unawait(by);
        match (&mut self.client_mut(by.owner).renewal, answer) {
            (Some(renewal), Answer::Yes) => renewal.done = true,
            (_, Answer::No) if heard => {
                self.client_mut(by.owner).renewal = None;
                self.gone(protocol, by);
            }
            _ => {}
        }
    }

    /// A client receives the answer "gone", which means nothing if it no longer holds the lock by
    /// this attempt.
    fn gone(&mut self, protocol: &Protocol, by: Attempt) {
        if self.client(by.owner).inside() != Some(by.number) {
            return;
        }
        if !protocol.is(Mutant::GoneIgnored) {
            self.client_mut(by.owner).lose();
        }
        self.server.harm.untold |= self.client(by.owner).inside() == Some(by.number);
    }
}
