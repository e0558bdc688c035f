//! The states of the quorum's model, and what each action does to them.

use super::node::{Answer, Node, Script, Undo, View};
use super::{AHEAD, CLIENTS, MAJORITY, Mutant, NODES, Protocol};
use crate::server::Attempt;

/// Everything at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State {
    /// Sorted, since nodes are interchangeable.
    pub(crate) nodes: [Node; NODES],
    pub(crate) clients: [Client; CLIENTS],
    /// How many nodes may still lose their data.
    pub(crate) restarts: u8,
    /// How many answers may still be lost.
    pub(crate) silences: u8,
    /// How often another lock of the same mark may still raise it on a node.
    pub(crate) crossings: u8,
    /// Ghost: a mark fell although its node had not lost its data.
    pub(crate) fallen: bool,
    /// Ghost: the highest fence that a guard was made with.
    pub(crate) highest: u8,
    /// Ghost: a guard was made with a fence that was not higher than all before it.
    pub(crate) stale_fence: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Client {
    /// How many attempts it has made; the last one may be under way.
    pub(crate) made: u8,
    pub(crate) phase: Phase,
    /// The validity that the acquire would give now.
    pub(crate) fresh: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Phase {
    /// It wants nothing, or has begun to release.
    #[default]
    Idle,
    Asking,
    /// A majority has granted the lock, and does not agree on its fence.
    Raising {
        fence: u8,
    },
    Held,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Time passes, everywhere.
    Tick,
    /// A node comes back without its data.
    Restart(u8),
    /// A node that has forgotten is told the highest mark of the others, and votes again.
    Tell(u8),
    /// Another lock of the same mark raises it.
    Cross(u8),
    /// A mark that has a lifetime is gone.
    Expire(u8),
    Lock(u8),
    /// A node executes a script, and its answer arrives.
    Execute {
        node: u8,
        by: Attempt,
        script: Script,
        adrift: bool,
        /// What the clocks of the client and the node amount to.
        clock: u8,
    },
    /// A node executes a script, and its answer is lost.
    ExecuteUnheard {
        node: u8,
        by: Attempt,
        script: Script,
        clock: u8,
    },
    /// A connection is given up, and its command is late or lost.
    Silence {
        node: u8,
        by: Attempt,
        script: Script,
    },
    /// The client stops waiting for the last node.
    Impatience(u8),
    /// A node writes the fence, and its answer arrives.
    Raise {
        node: u8,
        owner: u8,
    },
    /// No majority takes the fence in time.
    NotRaised(u8),
    /// A node answers a renewal.
    Renew {
        node: u8,
        owner: u8,
    },
    /// The guard is released, or told that it is lost.
    Leave(u8),
}

impl State {
    /// Returns the present or the last attempt of a client.
    pub(crate) fn attempt(&self, owner: u8) -> Attempt {
        Attempt {
            owner,
            number: self.client(owner).made.saturating_sub(1),
        }
    }

    pub(crate) fn client(&self, owner: u8) -> &Client {
        &self.clients[usize::from(owner)]
    }

    fn client_mut(&mut self, owner: u8) -> &mut Client {
        &mut self.clients[usize::from(owner)]
    }

    fn node_mut(&mut self, node: u8) -> &mut Node {
        &mut self.nodes[usize::from(node)]
    }

    pub(crate) fn views(&self, owner: u8) -> impl Iterator<Item = &View> {
        self.nodes
            .iter()
            .map(move |node| &node.views[usize::from(owner)])
    }

    fn answers(&self, owner: u8, answer: Answer) -> usize {
        self.views(owner)
            .filter(|view| view.answer == answer)
            .count()
    }

    pub(crate) fn votes(&self, owner: u8) -> usize {
        self.views(owner).filter(|view| view.valid > 0).count()
    }

    /// Returns whether no client wants, holds or releases anything, or waits for an answer.
    pub(crate) fn is_quiet(&self) -> bool {
        let undone = |node: &Node| {
            node.lines()
                .any(|line| line.is_undone() || line.is_in_line())
        };
        self.clients
            .iter()
            .all(|client| client.phase == Phase::Idle)
            && !self.nodes.iter().any(undone)
    }

    /// Returns whether a client may go on without the nodes that have not answered.
    pub(crate) fn is_heard(&self, owner: u8) -> bool {
        self.answers(owner, Answer::Granted) + self.answers(owner, Answer::Held) >= MAJORITY
    }

    /// Applies an action.
    pub(crate) fn act(&mut self, protocol: &Protocol, action: Action) {
        match action {
            Action::Tick => self.tick(protocol),
            Action::Restart(node) => self.restart(protocol, node),
            Action::Lock(owner) => self.lock(protocol, owner),
            Action::Tell(node) => self.tell(protocol, node),
            Action::Cross(node) => {
                self.crossings -= 1;
                let node = self.node_mut(node);
                node.mark = (node.mark + 1).max(AHEAD + 1);
            }
            Action::Expire(node) => self.node_mut(node).mark = 0,
            Action::Execute {
                node,
                by,
                script,
                adrift,
                clock,
            } => {
                self.execute(protocol, node, by, script, adrift, clock);
            }
            Action::ExecuteUnheard {
                node,
                by,
                script,
                clock,
            } => {
                self.silences -= 1;
                self.node_mut(node).take(protocol, script, by, false, clock);
                self.node_mut(node).line_mut(by).remove(script, false);
                self.unheard(protocol, node, by, script);
            }
            Action::Silence { node, by, script } => {
                self.silences -= 1;
                self.node_mut(node).line_mut(by).set_adrift(script);
                self.unheard(protocol, node, by, script);
            }
            Action::Impatience(owner) | Action::NotRaised(owner) => self.end(owner),
            Action::Raise { node, owner } => self.raise(protocol, node, owner),
            Action::Renew { node, owner } => self.renew(protocol, node, owner),
            Action::Leave(owner) => self.end(owner),
        }
        self.nodes.iter_mut().for_each(|node| node.settle(protocol));
        self.nodes.sort_unstable();
        if protocol.is_symmetric() {
            let mut other = *self;
            other.clients.swap(0, 1);
            other.nodes = other.nodes.map(Node::exchanged);
            other.nodes.sort_unstable();
            *self = other.min(*self);
        }
    }

    fn tick(&mut self, protocol: &Protocol) {
        self.nodes.iter_mut().for_each(Node::tick);
        for owner in 0..CLIENTS as u8 {
            let client = self.client_mut(owner);
            client.fresh = client.fresh.saturating_sub(1);
            self.look(protocol, owner);
        }
    }

    /// Ends a hold if too few of its votes are valid.
    fn look(&mut self, protocol: &Protocol, owner: u8) {
        let enough = if protocol.is(Mutant::ValidityOfOne) {
            1
        } else {
            MAJORITY
        };
        if self.client(owner).phase == Phase::Held && self.votes(owner) < enough {
            self.end(owner);
        }
    }

    fn restart(&mut self, protocol: &Protocol, node: u8) {
        self.restarts -= 1;
        let cut = super::attempts().flat_map(|by| {
            self.nodes[usize::from(node)]
                .line(by)
                .in_line()
                .map(move |script| (by, script))
        });
        let cut: Vec<_> = cut.collect();
        self.node_mut(node).restart(protocol);
        for (by, script) in cut {
            self.unheard(protocol, node, by, script);
        }
        if protocol.is(Mutant::MarksToldAtOnce) {
            self.tell(protocol, node);
        }
    }

    fn tell(&mut self, protocol: &Protocol, node: u8) {
        let highest = self.nodes.iter().map(|node| node.mark).max().unwrap_or(0);
        self.node_mut(node).told(protocol, highest);
    }

    fn lock(&mut self, protocol: &Protocol, owner: u8) {
        let client = self.client_mut(owner);
        client.made += 1;
        client.phase = Phase::Asking;
        client.fresh = protocol.validity();
        let by = self.attempt(owner);
        for node in &mut self.nodes {
            // A vote that would not count is not requested.
            if node.votes() {
                node.line_mut(by).acquire = true;
                node.view_mut(owner).answer = Answer::Waiting;
            }
        }
    }

    fn execute(
        &mut self,
        protocol: &Protocol,
        node: u8,
        by: Attempt,
        script: Script,
        adrift: bool,
        clock: u8,
    ) {
        if script == Script::Release {
            self.node_mut(node).release(protocol, by);
            return;
        }
        let before = self.nodes[usize::from(node)].mark;
        let taken = self
            .node_mut(node)
            .take(protocol, script, by, adrift, clock);
        self.fallen |= self.nodes[usize::from(node)].mark < before;
        self.node_mut(node).line_mut(by).remove(script, adrift);
        if adrift {
            return;
        }
        let Client { phase, fresh, .. } = *self.client(by.owner);
        let (current, server) = (
            self.attempt(by.owner) == by,
            self.nodes[usize::from(node)].mark,
        );
        let view = self.node_mut(node).view_mut(by.owner);
        match phase {
            Phase::Asking | Phase::Raising { .. } if current => {
                view.answer = if taken { Answer::Granted } else { Answer::Held };
                if phase == Phase::Asking {
                    view.fence = if taken { server } else { 0 };
                    self.decide(protocol, by.owner);
                }
            }
            Phase::Held if current => {
                let valid = if script == Script::Acquire {
                    fresh
                } else {
                    view.asked
                };
                if taken {
                    view.valid = view.valid.max(valid);
                }
                view.uncertain &= !protocol.is(Mutant::DoubtForgotten);
            }
            _ if taken && self.listens(protocol, script) => {
                self.nodes[usize::from(node)].undo(by, Undo::Once);
            }
            _ => {}
        }
    }

    /// Returns whether the client heeds an answer that arrives after its attempt is over.
    fn listens(&self, protocol: &Protocol, script: Script) -> bool {
        script == Script::Acquire || !protocol.is(Mutant::RetakeForgotten)
    }

    /// A client will not receive the answer of a node.
    fn unheard(&mut self, protocol: &Protocol, node: u8, by: Attempt, script: Script) {
        let current = self.attempt(by.owner) == by;
        let phase = self.client(by.owner).phase;
        let view = self.node_mut(node).view_mut(by.owner);
        match phase {
            Phase::Asking if current => {
                view.answer = Answer::Unknown;
                self.decide(protocol, by.owner);
            }
            Phase::Raising { .. } if current => view.answer = Answer::Unknown,
            Phase::Held if current => view.uncertain |= !protocol.is(Mutant::RetakeTrusted),
            _ if self.listens(protocol, script) => self.node_mut(node).undo(by, Undo::First),
            _ => {}
        }
    }

    /// Counts the answers to an acquire.
    fn decide(&mut self, protocol: &Protocol, owner: u8) {
        let granted = |view: &&View| view.answer == Answer::Granted;
        if self.views(owner).filter(granted).count() >= MAJORITY {
            let fence = self
                .views(owner)
                .filter(granted)
                .map(|view| view.fence)
                .max()
                .unwrap_or(0);
            if !protocol.fences || protocol.is(Mutant::FenceKept) {
                self.guard(protocol, owner, fence);
            } else {
                self.client_mut(owner).phase = Phase::Raising { fence };
                self.agree(protocol, owner, fence);
            }
        } else if self.answers(owner, Answer::Waiting) == 0 {
            self.end(owner);
        }
    }

    fn agree(&mut self, protocol: &Protocol, owner: u8, fence: u8) {
        if self.views(owner).filter(|view| view.fence == fence).count() >= MAJORITY {
            self.guard(protocol, owner, fence);
        }
    }

    fn raise(&mut self, protocol: &Protocol, at: u8, owner: u8) {
        let Phase::Raising { fence } = self.client(owner).phase else {
            return;
        };
        let by = self.attempt(owner);
        let node = self.node_mut(at);
        // The script compares the lock's field first.
        if !node.is_held_by(protocol, by) && !protocol.is(Mutant::FenceAnywhere) {
            return;
        }
        let before = node.mark;
        node.mark = if protocol.is(Mutant::RaiseLowers) {
            fence
        } else {
            node.mark.max(fence)
        };
        node.view_mut(owner).fence = fence;
        self.fallen |= self.nodes[usize::from(at)].mark < before;
        self.agree(protocol, owner, fence);
    }

    fn guard(&mut self, protocol: &Protocol, owner: u8, fence: u8) {
        let fresh = self.client(owner).fresh;
        if fresh == 0 {
            self.end(owner);
            return;
        }
        self.client_mut(owner).phase = Phase::Held;
        for node in &mut self.nodes {
            let view = node.view_mut(owner);
            let valid = if view.answer == Answer::Granted {
                fresh
            } else {
                0
            };
            *view = View {
                valid,
                uncertain: view.answer == Answer::Unknown,
                ..View::default()
            };
        }
        self.stale_fence |= protocol.fences && fence <= self.highest;
        self.highest = self.highest.max(fence);
    }

    fn renew(&mut self, protocol: &Protocol, at: u8, owner: u8) {
        let by = self.attempt(owner);
        let node = self.node_mut(at);
        if node.is_held_by(protocol, by) {
            if let Some(key) = &mut node.key {
                key.lease = protocol.lease;
            }
            node.view_mut(owner).valid = protocol.validity();
            return;
        }
        node.view_mut(owner).valid = 0;
        self.look(protocol, owner);
        let node = &mut self.nodes[usize::from(at)];
        // A majority of the others has it: the vote is requested again.
        if self.clients[usize::from(owner)].phase == Phase::Held && !node.line(by).retake {
            node.line_mut(by).retake = true;
            node.view_mut(owner).asked = protocol.validity();
        }
    }

    /// Releases what a client holds, and undoes what it may hold or may still be granted.
    fn end(&mut self, owner: u8) {
        let by = self.attempt(owner);
        let held = self.client(owner).phase == Phase::Held;
        let client = self.client_mut(owner);
        client.phase = Phase::Idle;
        client.fresh = 0;
        for node in &mut self.nodes {
            let view = std::mem::take(node.view_mut(owner));
            let undo = match view.answer {
                _ if view.uncertain => Undo::First,
                _ if held => Undo::Once,
                Answer::Granted => Undo::Once,
                Answer::Unknown => Undo::First,
                // Its answer tells whether there is anything to undo.
                Answer::Waiting | Answer::None | Answer::Held => Undo::None,
            };
            node.undo(by, undo);
        }
    }
}
