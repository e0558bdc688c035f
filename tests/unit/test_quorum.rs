//! Servers in memory that vote or have forgotten as a test chooses, for tests of whose votes count.

use std::sync::Arc;
use std::time::Duration;

use super::eligibility::Eligibility;
use super::vetting;
use super::voter::Voter;
use crate::claim::Claim;
use crate::clock::Clock;
use crate::kind::Format;
use crate::lease::NodeIndex;
use crate::node::{Lane, Node, Outcome, Target, Wiring};
use crate::op::{self, Announced, Opening, Vet};
use crate::options::Options;
use crate::testing::Server;

/// The longest lease of the locker.
pub(super) const QUARANTINE: Duration = Duration::from_secs(10);

/// Three servers, in a runtime with paused time, and what a locker knows about them.
pub(super) struct TestQuorum {
    pub(super) servers: Vec<Server>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) eligibility: Arc<Eligibility>,
    /// The servers and the locker use the time of the runtime.
    _clock: Clock,
}

impl TestQuorum {
    /// Returns servers without memories, whose votes count at once.
    pub(super) fn new() -> Self {
        Self::over(Duration::ZERO)
    }

    /// Returns servers that remember and vote, which the locker has seen.
    pub(super) async fn voting() -> Self {
        let test = Self::over(QUARANTINE);
        for place in 0..3 {
            test.forgets(place, Duration::ZERO).await;
            test.votes(place).await;
        }
        test.look().await;
        test
    }

    /// Returns servers that have begun to wait for the quarantine, which the locker has seen.
    pub(super) async fn begun() -> Self {
        let test = Self::over(QUARANTINE);
        test.look().await;
        test
    }

    fn over(quarantine: Duration) -> Self {
        let clock = Clock::of(&tokio::runtime::Handle::current());
        let options = Options {
            command_timeout: Some(Duration::from_millis(50)),
            ..Options::default()
        };
        let settings = options.validate(3).expect("valid");
        let servers: Vec<Server> = (0..3).map(|_| Server::new()).collect();
        let node = |server: &Server| {
            let (reconnected, _) = tokio::sync::mpsc::unbounded_channel();
            let wiring = Wiring::new("", &settings, reconnected, &Arc::default());
            Node::await_server(&Target::Memory(server.clone()), &wiring).0
        };
        let nodes: Vec<_> = servers.iter().map(node).collect();
        let eligibility = Eligibility::new(&nodes, quarantine, Duration::ZERO);
        Self {
            servers,
            nodes,
            eligibility,
            _clock: clock,
        }
    }

    /// Has the server at this place forget, and another locker, with this lease, see that before
    /// ours does.
    pub(super) async fn forgets(&self, place: NodeIndex, lease: Duration) {
        self.servers[place].flush();
        let (id, servers) = (Self::id(place), self.nodes.len());
        let vet = Vet(Some(Announced {
            id,
            lease,
            servers,
            rank: 1_000 + servers,
        }));
        let told = op::ask(&self.nodes[place], Lane::Grants, &vet).await;
        let Outcome::Done(identity) = told else {
            panic!("{told:?}")
        };
        assert!(
            identity
                .memory
                .is_some_and(|memory| memory.waited.is_some())
        );
    }

    /// Has a server vote that has just forgotten.
    pub(super) async fn votes(&self, place: NodeIndex) {
        let opening = Opening {
            from: Self::id(place),
            to: format!("{}'", Self::id(place)).into(),
            waited: Duration::MAX,
            lease: Duration::ZERO,
            marks: String::new(),
            with: String::new(),
            servers: self.nodes.len(),
            named: self.nodes.len(),
        };
        let opened = op::ask(&self.nodes[place], Lane::Grants, &opening).await;
        assert!(matches!(opened, Outcome::Done(true)), "{opened:?}");
    }

    fn id(place: NodeIndex) -> Arc<str> {
        format!("id{place}").into()
    }

    /// Has the locker vet all servers.
    pub(super) async fn look(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            vetting::vet(&self.eligibility, place, node).await;
        }
    }

    pub(super) fn voter(&self, place: NodeIndex) -> Voter {
        Voter {
            node: Arc::clone(&self.nodes[place]),
            place,
            eligibility: Arc::clone(&self.eligibility),
        }
    }
}

pub(super) fn claim(key: &str) -> Claim {
    Claim {
        kind: Format::Redisson.kind(),
        key: key.into(),
        field: "f".into(),
        permits: 0,
    }
}
