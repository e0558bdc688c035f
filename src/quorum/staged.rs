//! Servers in memory with memories that a test chooses, for tests of whose votes count.

use std::sync::Arc;
use std::time::Duration;

use super::eligibility::Eligibility;
use super::vetting;
use super::voter::Voter;
use crate::clock::Clock;
use crate::command::{Announced, Answer, Claim, Command, Kind, MEMORY};
use crate::lease::NodeIndex;
use crate::node::{Lane, Node, Outcome, Target, Wiring};
use crate::options::Options;
use crate::script;
use crate::testing::Server;

/// Three servers, in a runtime with paused time, and what a locker knows about them.
pub(super) struct Staged {
    pub(super) servers: Vec<Server>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) eligibility: Arc<Eligibility>,
    /// The servers and the locker use the time of the runtime.
    _clock: Clock,
}

impl Staged {
    /// Returns servers without memories, whose votes count at once.
    pub(super) fn new() -> Self {
        Self::over(Duration::ZERO)
    }

    /// Returns servers with these memories, which the locker has seen.
    pub(super) async fn of(memories: [&str; 3]) -> Self {
        let staged = Self::over(Duration::from_secs(1));
        for (place, memory) in memories.into_iter().enumerate() {
            staged.remembers(place, memory).await;
        }
        staged.look().await;
        staged
    }

    fn over(quarantine: Duration) -> Self {
        let clock = Clock::of(&tokio::runtime::Handle::current());
        let options = Options { command_timeout: Some(Duration::from_millis(50)), ..Options::default() };
        let settings = options.validate(3).expect("valid");
        let servers: Vec<Server> = (0..3).map(|_| Server::new()).collect();
        let node = |server: &Server| {
            let (reconnected, _) = tokio::sync::mpsc::unbounded_channel();
            let wiring = Wiring::new("", &settings, reconnected, &Arc::default());
            Node::await_server(&Target::Memory(server.clone()), &wiring).0
        };
        let nodes: Vec<_> = servers.iter().map(node).collect();
        let eligibility = Eligibility::new(&nodes, quarantine);
        Self { servers, nodes, eligibility, _clock: clock }
    }

    /// Gives the server at this place another memory, which the locker has not seen yet.
    pub(super) async fn remembers(&self, place: NodeIndex, memory: &str) {
        self.servers[place].delete(MEMORY);
        // The server has no memory, and so begins this one.
        let announced = Announced { begun: memory.into(), lease: Duration::ZERO, last: "".into(), age: Duration::ZERO };
        let vet = Command::Vet(Some(announced));
        let told = script::ask(&self.nodes[place], Lane::Grants, &vet, Answer::vet).await;
        let Outcome::Done(identity) = told else { panic!("{told:?}") };
        assert_eq!(identity.memory.map(|told| told.memory).as_deref(), Some(memory));
    }

    /// Has the locker vet all servers.
    pub(super) async fn look(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            vetting::vet(&self.eligibility, place, node).await;
        }
    }

    pub(super) fn voter(&self, place: NodeIndex) -> Voter {
        Voter { node: Arc::clone(&self.nodes[place]), place, eligibility: Arc::clone(&self.eligibility) }
    }
}

pub(super) fn claim(key: &str) -> Claim {
    Claim { kind: Kind::Redisson, key: key.into(), field: "f".into() }
}
