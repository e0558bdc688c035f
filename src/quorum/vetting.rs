//! Finds out who the servers are, and lets those vote that have waited.
//!
//! Each of several servers has a memory: one hash without an expiry, `lockhound_vote`, with the
//! server's identity, a random id, the number of servers, the longest lease that was announced, and
//! since when the server is *shut*. A server that may have forgotten locks is shut until a locker
//! *opens* it, and the ids change with that. The identity is the run id with `master_replid2`. The
//! replication id is of no use: it changes when the first replica comes, or an hour after the last
//! one has gone.
//!
//! # From a loss to a vote
//! 1. `vet.lua` begins a memory, shut, where there is none or another server's, and raises the
//!    longest lease to that of the locker. A server that votes and was given another number of
//!    servers writes nothing, and the locker gets an error. A shut one notes the number that counts
//!    most: one that a vote has confirmed, then one of which a majority is there, then the larger.
//!    It forgets the number when no locker has named it for the longest lease.
//! 2. A round takes its tickets before it sends anything, so every server that grants it knows this
//!    locker's lease. Acquires and retakes name the id (`remembers.lua`) and write nothing if it is
//!    another one. Renewals name nothing: a lock on a shut server was there before. So failovers
//!    that lose no data lose no lock.
//! 3. Once the longest lease and the drift are over, `ask.lua` asks the others by their ids for
//!    their longest lease and their highest mark. Marks more than 30 days ahead of a clock are
//!    skipped.
//! 4. `open.lua` raises the marks and gives the server another id, or only raises the lease if
//!    another server knows a longer one. The grounds (`PeerAnswers::grounds`):
//!    - `servers - majority + 1` others vote and have answered: each majority that the server ever
//!      voted with contains one of them;
//!    - or too many others are shut too for a majority to vote. They begin together, and the first
//!      of them names the others, so that they may follow. A locker that misses a server that it
//!      has seen voting does not do this;
//!    - or, after another longest lease, a majority answers at all. As long as all programs have
//!      one longest lease, no two holders are in even so; but a fence may repeat, which a WARN
//!      says.
//! 5. Without the first grounds a locker waits for `connect_timeout` after its start, unless all
//!    others have answered.
//!
//! # Not covered
//! A second loss before the first server votes again; clocks of servers that jump; single keys that
//! are deleted or evicted; an address that leads some programs to another, empty server; a failover
//! whose old master still serves somebody. Lists of members in the servers found the last two, with
//! twice the code, and a wrong list stopped the right programs.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::eligibility::{Ask, Eligibility, Status};
use crate::clock::Instant;
use crate::error::{Error, ServerErrorKind};
use crate::foreign::{self, log};
use crate::lease::{NodeIndex, majority};
use crate::node::{Lane, LinkEvent, Node, Outcome};
use crate::op::{self, Announced, AskAbout, Opening, Testimony, Vet};
use crate::random;
use crate::tasks;

/// How long after a useless answer a server is asked again who it is.
const VET_AGAIN: Duration = Duration::from_millis(100);

/// Asks a server who it is, on each connection whose answers may be votes.
pub(super) async fn vet(eligibility: &Eligibility, place: NodeIndex, node: &Node) {
    // In this order: the second look compares its server with that of the first.
    vet_on(eligibility, place, node, Lane::Grants).await;
    vet_on(eligibility, place, node, Lane::Renewals).await;
}

async fn vet_on(eligibility: &Eligibility, place: NodeIndex, node: &Node, lane: Lane) {
    // Before the request: an answer on another connection is no proof.
    let epoch = node.epoch(lane);
    let announced = Announced {
        id: fresh(),
        lease: eligibility.quarantine(),
        servers: eligibility.servers(),
        rank: eligibility.rank(),
    };
    let id = Arc::clone(&announced.id);
    let vet = Vet(eligibility.remembers().then_some(announced));
    let reason = match op::ask(node, lane, &vet).await {
        Outcome::Done(identity) if node.epoch(lane) == epoch => {
            eligibility.saw(place, lane, epoch, &identity, Instant::now());
            // Only a memory that this request has begun has its id.
            if identity.memory.is_some_and(|memory| *memory.id == *id) {
                eligibility.began(place);
            }
            return;
        }
        Outcome::Done(_) => "it was reconnected in the meantime".to_owned(),
        Outcome::Refused(Error::Server {
            kind: ServerErrorKind::NoPermission,
            source,
        }) => {
            return unreadable(eligibility, place, node, lane, epoch, &source.message);
        }
        Outcome::Refused(error) => error.to_string(),
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failure.reason,
    };
    eligibility.failed(place, lane, &reason, false);
}

/// Returns a random id, so that no two memories have the same.
fn fresh() -> Arc<str> {
    format!("{:016x}", random::uuid().as_u64_pair().0).into()
}

/// Handles a server that does not permit INFO, so that it cannot be told who it is.
fn unreadable(
    eligibility: &Eligibility,
    place: NodeIndex,
    node: &Node,
    lane: Lane,
    epoch: u64,
    reason: &str,
) {
    if eligibility.remembers() {
        let reason = format!(
            "INFO, or its memory, is not allowed ({reason}), and restart_quarantine needs both"
        );
        eligibility.failed(place, lane, &reason, true);
        return;
    }
    if lane == Lane::Grants {
        log!(warn, node = %node.name(), reason, "no permission for INFO: cannot detect two addresses of one server");
    }
    eligibility.trust(place, lane, epoch);
}

/// Starts the tasks that vet the servers.
pub(super) fn start(
    eligibility: &Arc<Eligibility>,
    nodes: &[Arc<Node>],
    ups: Vec<UnboundedReceiver<LinkEvent>>,
) {
    if eligibility.is_moot() {
        return;
    }
    for (place, mut ups) in ups.into_iter().enumerate() {
        let eligibility = Arc::clone(eligibility);
        let nodes = nodes.to_vec();
        tasks::spawn(foreign::restarted(async move |_| {
            look_after(&eligibility, place, &nodes, &mut ups).await;
        }));
    }
}

/// Vets a server again after each reconnect, and when in doubt, before its vote counts again; and
/// opens it if it has waited. Ends when its connection is quit, or with the engine; no task awaits
/// it.
async fn look_after(
    eligibility: &Eligibility,
    place: NodeIndex,
    nodes: &[Arc<Node>],
    ups: &mut UnboundedReceiver<LinkEvent>,
) {
    let node = &nodes[place];
    let mut before = Status::Votes;
    loop {
        let status = eligibility.status(place);
        if let Some(presence) = node.presence() {
            presence.votes(status == Status::Votes);
        }
        // Of one that only was silent for a moment, nothing is told twice.
        let is_known = !matches!(status, Status::Unknown(_));
        if is_known && status != before {
            tell(node, &status, &before);
            before = status.clone();
        }
        if eligibility.is_news(place) {
            log!(
                warn, node = %node.name(),
                "this server is new, or has lost its data: it votes once the longest lease is over; check \
                its address unless the server was replaced or restarted"
            );
        }
        let pause = match status {
            Status::Votes => None,
            Status::Unknown(_) | Status::Unfit(_) => Some(VET_AGAIN),
            Status::Abstains(_) => {
                Some((eligibility.quarantine() / 16).clamp(VET_AGAIN / 10, VET_AGAIN * 10))
            }
        };
        // Callers that wait for news about it doubt again after each useless answer.
        tokio::select! {
            biased;
            up = ups.recv() => if up.is_none() { return },
            () = eligibility.doubted(place), if is_known => {}
            () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
        vet(eligibility, place, node).await;
        open(eligibility, place, nodes).await;
    }
}

/// Logs once that a vote starts or stops counting.
fn tell(node: &Node, status: &Status, before: &Status) {
    match (status, before) {
        (Status::Unfit(reason), _) => {
            log!(warn, node = %node.name(), reason, "the vote of this server does not count");
        }
        (Status::Abstains(reason), Status::Votes | Status::Unfit(_)) => {
            log!(warn, node = %node.name(), reason, "this server abstains for a while");
        }
        (Status::Votes, _) => {
            log!(debug, node = %node.name(), "the vote of this server counts again");
        }
        _ => {}
    }
}

/// Why a server may vote again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grounds {
    /// Enough of the others have told it what it may have forgotten.
    Told,
    /// Too many others are shut too for a majority to vote: they begin together.
    Together,
    /// It has waited for twice the longest lease, and a majority answers.
    Late,
}

/// What the other servers answered for one that may be opened.
#[derive(Debug, Clone, Copy)]
struct PeerAnswers {
    servers: usize,
    /// How many of the others vote.
    open: usize,
    /// How many others are shut too.
    shut: usize,
    /// Whether one is silent that this locker has seen voting.
    misses: bool,
    /// Whether one that is silent may still be on its way.
    connecting: bool,
    /// Whether the server has waited for another longest lease.
    late: bool,
}

impl PeerAnswers {
    fn grounds(self) -> Option<Grounds> {
        let majority = majority(self.servers);
        let answers = self.open + self.shut;
        let minority = self.servers - majority;
        if self.open > minority {
            return Some(Grounds::Told);
        }
        // A server that is slow to connect is not away.
        if self.connecting && answers + 1 < self.servers {
            return None;
        }
        // A server that this locker has seen voting may still vote, and know more.
        let together = self.shut >= minority && !self.misses;
        let late = self.late && answers + 1 >= majority;
        if together {
            Some(Grounds::Together)
        } else {
            late.then_some(Grounds::Late)
        }
    }
}

/// Lets a server vote, if it has waited and there are grounds.
async fn open(eligibility: &Eligibility, place: NodeIndex, nodes: &[Arc<Node>]) {
    let now = Instant::now();
    let Some((memory, shut)) = eligibility
        .shut(place)
        .filter(|(_, shut)| shut.until <= now)
    else {
        return;
    };
    let node = &nodes[place];
    // Only after the wait: what they said earlier proves nothing.
    let others = || nodes.iter().enumerate().filter(|&(at, _)| at != place);
    let told = join_all(others().map(|(at, other)| ask(eligibility, at, other, &memory.id))).await;
    let silent: Vec<_> = others()
        .zip(&told)
        .filter(|(_, told)| told.is_none())
        .map(|(other, _)| other)
        .collect();
    let told: Vec<_> = told.into_iter().flatten().collect();
    let forgot: Vec<&str> = told
        .iter()
        .filter(|(_, told)| !told.votes)
        .map(|(id, _)| &**id)
        .collect();
    let answered = PeerAnswers {
        servers: nodes.len(),
        open: told.len() - forgot.len(),
        shut: forgot.len(),
        misses: silent.iter().any(|&(at, _)| eligibility.met(at)),
        connecting: eligibility.is_connecting(now),
        late: shut.at_most <= now,
    };
    let Some(grounds) = answered.grounds() else {
        return;
    };
    // Another number of servers may be right, unless one that votes names as many as this locker.
    if answered.open == 0 && (eligibility.is_misled() || memory.servers != nodes.len()) {
        return;
    }
    let opening = Opening {
        from: memory.id,
        to: fresh(),
        waited: memory.lease,
        lease: told
            .iter()
            .map(|(_, told)| told.lease)
            .max()
            .unwrap_or_default(),
        marks: told
            .iter()
            .map(|(_, told)| told.mark.as_str())
            .collect::<Vec<_>>()
            .join(" "),
        with: if grounds == Grounds::Told {
            String::new()
        } else {
            forgot.join(" ")
        },
        servers: nodes.len(),
        named: memory.servers,
    };
    let opened = op::ask(node, Lane::Grants, &opening).await;
    match opened {
        Outcome::Done(true) => tell_grounds(node, grounds, &silent),
        // It waits on, or another locker was faster.
        Outcome::Done(false) => {}
        why => log!(debug, node = %node.name(), ?why, "a server could not be opened"),
    }
    // It votes only with the new id, which this look finds out.
    vet(eligibility, place, node).await;
}

/// Logs what is not promised about locks of before.
fn tell_grounds(node: &Node, grounds: Grounds, silent: &[(NodeIndex, &Arc<Node>)]) {
    let unasked = silent
        .iter()
        .map(|(_, other)| &**other.name())
        .collect::<Vec<_>>()
        .join(", ");
    match grounds {
        Grounds::Told => {}
        Grounds::Together => log!(
            warn, node = %node.name(), "most servers are new, or have lost their data: they start voting together"
        ),
        Grounds::Late => log!(
            warn, node = %node.name(), unasked,
            "a server votes again although too few others could be asked: fences may repeat"
        ),
    }
}

/// Asks another server, if it still is the one that was vetted, what the server with this id has to
/// know. Returns the other's id too.
async fn ask(
    eligibility: &Eligibility,
    at: NodeIndex,
    other: &Node,
    about: &Arc<str>,
) -> Option<(Arc<str>, Testimony)> {
    // Servers that are shut are asked as well.
    let ticket = eligibility.look(at, other, Lane::Grants, Ask::Keep).ok()?;
    let ask = AskAbout {
        about: Arc::clone(about),
        vote: ticket.vote.clone(),
    };
    match op::ask(other, Lane::Grants, &ask).await {
        Outcome::Done(Some(told)) if eligibility.holds(&ticket, other) => {
            Some((ticket.vote?, told))
        }
        Outcome::Done(_) => {
            // It is another server, or has another memory, than the one that was vetted.
            eligibility.doubt(at);
            None
        }
        why => {
            log!(debug, node = %other.name(), ?why, "a server could not be asked what another one may have forgotten");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    /// Three servers, all of which answer and none of which has waited for long.
    const ANSWERED: PeerAnswers = PeerAnswers {
        servers: 3,
        open: 0,
        shut: 0,
        misses: false,
        connecting: false,
        late: false,
    };

    #[test]
    fn a_server_is_told_by_one_of_each_majority_that_it_voted_with() {
        for (servers, least) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (7, 4)] {
            let told = |open| {
                PeerAnswers {
                    servers,
                    open,
                    ..ANSWERED
                }
                .grounds()
                    == Some(Grounds::Told)
            };
            assert!(told(least) && (least == 1 || !told(least - 1)), "{servers}");
            assert!(
                servers < 2 || majority(servers) - 1 > servers - 1 - least,
                "{servers}"
            );
        }
        let connecting = PeerAnswers {
            open: 2,
            connecting: true,
            servers: 5,
            ..ANSWERED
        };
        assert_eq!(connecting.grounds(), None);
        assert_eq!(
            PeerAnswers {
                open: 3,
                ..connecting
            }
            .grounds(),
            Some(Grounds::Told),
            "enough have answered"
        );
    }

    #[test]
    fn servers_begin_together_if_no_majority_can_vote() {
        let together = |answered: PeerAnswers| answered.grounds() == Some(Grounds::Together);
        assert!(
            together(PeerAnswers {
                shut: 2,
                ..ANSWERED
            }),
            "a new deployment"
        );
        assert!(
            together(PeerAnswers {
                shut: 1,
                ..ANSWERED
            }),
            "the third is away"
        );
        assert!(
            !together(PeerAnswers {
                shut: 1,
                misses: true,
                ..ANSWERED
            }),
            "it may vote elsewhere"
        );
        assert!(
            !together(PeerAnswers {
                shut: 1,
                connecting: true,
                ..ANSWERED
            }),
            "it may be on its way"
        );
        assert!(
            together(PeerAnswers {
                shut: 1,
                open: 1,
                connecting: true,
                ..ANSWERED
            }),
            "all have answered"
        );
        assert!(!together(PeerAnswers {
            servers: 5,
            shut: 1,
            open: 2,
            ..ANSWERED
        }));
        assert!(together(PeerAnswers {
            servers: 5,
            shut: 2,
            ..ANSWERED
        }));
    }

    #[test]
    fn a_server_that_has_waited_twice_is_opened_by_a_majority() {
        let late = PeerAnswers {
            late: true,
            ..ANSWERED
        };
        assert_eq!(
            PeerAnswers { open: 1, ..late }.grounds(),
            Some(Grounds::Late)
        );
        assert_eq!(
            PeerAnswers {
                open: 1,
                late: false,
                ..late
            }
            .grounds(),
            None
        );
        assert_eq!(
            PeerAnswers {
                shut: 1,
                misses: true,
                ..late
            }
            .grounds(),
            Some(Grounds::Late)
        );
        assert_eq!(
            PeerAnswers {
                servers: 5,
                open: 1,
                ..late
            }
            .grounds(),
            None,
            "no majority"
        );
        assert_eq!(
            PeerAnswers {
                servers: 5,
                open: 1,
                shut: 1,
                ..late
            }
            .grounds(),
            Some(Grounds::Late)
        );
        assert_eq!(
            PeerAnswers {
                open: 1,
                connecting: true,
                ..late
            }
            .grounds(),
            None
        );
    }

    #[tokio::test]
    async fn servers_that_forbid_info_vote_if_there_are_no_memories() {
        let options = Options {
            command_timeout: Some(Duration::from_millis(50)),
            ..Options::default()
        };
        let settings = options.validate(1).expect("valid");
        let nodes: Vec<_> = (0..3).map(|_| Node::of_nobody(&settings)).collect();
        let trusting = Eligibility::new(&nodes, Duration::ZERO, Duration::ZERO);
        for lane in [Lane::Grants, Lane::Renewals] {
            unreadable(&trusting, 0, &nodes[0], lane, 0, "NOPERM");
            assert!(
                trusting.look(0, &nodes[0], lane, Ask::Vote).is_ok(),
                "{lane:?}"
            );
        }
        assert_eq!(trusting.status(0), Status::Votes);
        let remembering = Eligibility::new(&nodes, Duration::from_secs(1), Duration::ZERO);
        unreadable(&remembering, 0, &nodes[0], Lane::Grants, 0, "NOPERM");
        let status = remembering.status(0);
        assert!(
            matches!(&status, Status::Unfit(reason) if reason.contains("NOPERM")),
            "{status:?}"
        );
    }

    #[cfg(feature = "testing")]
    mod over_servers {
        use tokio::time::advance;

        use super::super::super::test_quorum::{QUARANTINE, TestQuorum};
        use super::*;

        /// Vets the server at this place, and opens it if it may be.
        async fn look(test: &TestQuorum, place: NodeIndex) -> bool {
            let node = &test.nodes[place];
            vet(&test.eligibility, place, node).await;
            open(&test.eligibility, place, &test.nodes).await;
            test.eligibility.status(place) == Status::Votes
        }

        #[tokio::test(start_paused = true)]
        async fn a_new_deployment_waits_for_one_quarantine_and_then_votes() {
            let test = TestQuorum::begun().await;
            advance(QUARANTINE).await;
            assert!(
                !look(&test, 0).await,
                "the allowance for clocks is not over"
            );
            advance(Duration::from_millis(102)).await;
            for place in 0..3 {
                assert!(look(&test, place).await, "{place}");
            }
        }

        #[tokio::test(start_paused = true)]
        async fn a_server_is_opened_when_the_others_longest_lease_is_over() {
            let test = TestQuorum::voting().await;
            test.forgets(0, Duration::from_secs(1)).await;
            assert!(!look(&test, 0).await);
            advance(QUARANTINE + Duration::from_millis(102)).await;
            assert!(look(&test, 0).await);
        }

        #[tokio::test(start_paused = true)]
        async fn a_server_waits_on_for_a_longer_lease_that_another_tells() {
            let test = TestQuorum::voting().await;
            let announced = Announced {
                id: fresh(),
                lease: QUARANTINE * 3,
                servers: 3,
                rank: 3,
            };
            let vet = Vet(Some(announced));
            assert!(matches!(
                op::ask(&test.nodes[1], Lane::Grants, &vet).await,
                Outcome::Done(_)
            ));
            test.forgets(0, Duration::ZERO).await;
            assert!(!look(&test, 0).await);
            advance(QUARANTINE * 2).await;
            assert!(!look(&test, 0).await, "it is notified of the longer lease");
            advance(QUARANTINE * 2).await;
            assert!(look(&test, 0).await);
        }

        /// Of three servers one is silent, and another one has forgotten.
        #[tokio::test(start_paused = true)]
        async fn a_server_that_cannot_ask_enough_others_waits_one_more_lease() {
            let test = TestQuorum::voting().await;
            test.servers[2].stop();
            test.forgets(0, Duration::ZERO).await;
            assert!(!look(&test, 0).await);
            advance(QUARANTINE * 2).await;
            assert!(!look(&test, 0).await);
            advance(Duration::from_millis(102)).await;
            assert!(look(&test, 0).await);
        }

        #[tokio::test(start_paused = true)]
        async fn an_opening_that_was_decided_before_another_loss_does_nothing() {
            let test = TestQuorum::voting().await;
            test.forgets(0, Duration::ZERO).await;
            look(&test, 0).await;
            advance(QUARANTINE * 2).await;
            // This locker has not seen the second loss.
            test.servers[0].flush();
            open(&test.eligibility, 0, &test.nodes).await;
            assert!(matches!(test.eligibility.status(0), Status::Abstains(_)));
        }

        /// Has a program that was given this many servers look at the first one.
        async fn looks(test: &TestQuorum, servers: usize) {
            let vet = Vet(Some(Announced {
                id: fresh(),
                lease: QUARANTINE,
                servers,
                rank: 1_000 + servers,
            }));
            assert!(matches!(
                op::ask(&test.nodes[0], Lane::Grants, &vet).await,
                Outcome::Done(_)
            ));
        }

        /// It decides to, and then another one names more servers.
        #[tokio::test(start_paused = true)]
        async fn opening_for_fewer_servers_than_somebody_names_does_nothing() {
            let test = TestQuorum::begun().await;
            let alone = Eligibility::new(&test.nodes[..1], QUARANTINE, Duration::ZERO);
            test.servers[0].flush();
            vet(&alone, 0, &test.nodes[0]).await;
            advance(QUARANTINE * 3).await;
            looks(&test, 3).await;
            open(&alone, 0, &test.nodes[..1]).await;
            assert!(
                matches!(alone.status(0), Status::Abstains(_)),
                "{:?}",
                alone.status(0)
            );
            for _ in 0..5 {
                advance(QUARANTINE).await;
                looks(&test, 3).await;
                vet(&alone, 0, &test.nodes[0]).await;
                open(&alone, 0, &test.nodes[..1]).await;
                assert!(
                    matches!(alone.status(0), Status::Abstains(_)),
                    "whoever names three servers looks at it"
                );
            }
        }

        #[tokio::test(start_paused = true)]
        async fn who_has_named_more_servers_and_is_gone_keeps_none_shut() {
            let test = TestQuorum::begun().await;
            advance(QUARANTINE).await;
            looks(&test, 5).await;
            advance(QUARANTINE / 2).await;
            assert!(!look(&test, 0).await, "it may be right");
            advance(QUARANTINE).await;
            assert!(look(&test, 0).await, "it has not come again");
        }

        #[tokio::test(start_paused = true)]
        async fn who_names_more_servers_than_those_that_vote_keeps_none_shut() {
            let test = TestQuorum::voting().await;
            test.forgets(0, Duration::ZERO).await;
            assert!(!look(&test, 0).await);
            looks(&test, 5).await;
            advance(QUARANTINE + Duration::from_millis(102)).await;
            looks(&test, 5).await;
            assert!(look(&test, 0).await, "the others vote as three");
        }

        #[tokio::test(start_paused = true)]
        async fn a_locker_with_a_wrong_list_opens_no_server() {
            let test = TestQuorum::voting().await;
            let pair = Eligibility::new(&test.nodes[..2], QUARANTINE, Duration::ZERO);
            test.forgets(0, Duration::ZERO).await;
            for place in [0, 1] {
                vet(&pair, place, &test.nodes[place]).await;
            }
            assert!(
                matches!(pair.status(1), Status::Unfit(_))
                    && matches!(pair.status(0), Status::Abstains(_))
            );
            advance(QUARANTINE * 3).await;
            vet(&pair, 0, &test.nodes[0]).await;
            open(&pair, 0, &test.nodes[..2]).await;
            assert!(
                matches!(pair.status(0), Status::Abstains(_)),
                "{:?}",
                pair.status(0)
            );
            assert!(look(&test, 0).await, "the others open it");
        }
    }
}
