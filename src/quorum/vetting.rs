//! Finds out who the servers are, and writes what lets them vote.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::eligibility::{Ask, Eligibility, Status, fresh, texts};
use super::members::{Change, Memory, Phase, Plan};
use crate::clock::Instant;
use crate::command::{Amendment, Announced, Answer, Command, Remembered};
use crate::error::{Error, NodeFailure, ServerErrorKind};
use crate::foreign::{self, contained};
use crate::lease::{NodeIndex, majority};
use crate::node::{Lane, LinkEvent, Node, Outcome};
use crate::script;
use crate::tasks;

/// How long after a useless answer a server is asked again who it is.
const VET_AGAIN: Duration = Duration::from_millis(100);

/// Asks a server who it is, on each connection whose answers may be votes.
pub(super) async fn vet(eligibility: &Eligibility, place: NodeIndex, node: &Node) {
    vet_on(eligibility, place, node, Lane::Grants).await;
    vet_on(eligibility, place, node, Lane::Renewals).await;
}

async fn vet_on(eligibility: &Eligibility, place: NodeIndex, node: &Node, lane: Lane) {
    let epoch = node.epoch(lane);
    let begun = Memory::begun(fresh(), eligibility.seats()).to_string();
    let last = eligibility.last(place, Instant::now());
    let (last, age) = last.unwrap_or_else(|| ("".into(), Duration::ZERO));
    let announced = Announced { begun: begun.into(), lease: eligibility.quarantine(), last, age };
    let vet = Command::Vet(eligibility.remembers().then_some(announced));
    let reason = match script::ask(node, lane, &vet, Answer::vet).await {
        Outcome::Done(identity) if node.epoch(lane) == epoch => {
            return eligibility.saw(place, lane, epoch, &identity, Instant::now());
        }
        Outcome::Done(_) => "it was reconnected in the meantime".to_owned(),
        Outcome::Refused(Error::Server { kind: ServerErrorKind::NoPermission, source }) => {
            return unreadable(eligibility, place, node, lane, epoch, &source.message);
        }
        Outcome::Refused(error) => error.to_string(),
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failure.reason,
    };
    eligibility.failed(place, lane, &reason, false);
}

/// Handles a server that does not permit INFO, so that it cannot be told who it is.
fn unreadable(eligibility: &Eligibility, place: NodeIndex, node: &Node, lane: Lane, epoch: u64, reason: &str) {
    if eligibility.remembers() {
        let reason = format!("INFO, or its memory, is not allowed ({reason}), and restart_quarantine needs both");
        eligibility.failed(place, lane, &reason, true);
        return;
    }
    if lane == Lane::Grants {
        contained(|| {
            tracing::warn!(
                node = %node.name(), reason,
                "INFO is not allowed: two addresses of one server go unnoticed"
            );
        });
    }
    eligibility.trust(place, lane, epoch);
}

/// Starts the tasks that vet the servers and write their memories.
pub(super) fn start(eligibility: &Arc<Eligibility>, nodes: &[Arc<Node>], ups: Vec<UnboundedReceiver<LinkEvent>>) {
    if eligibility.is_moot() {
        return;
    }
    for (place, (node, mut ups)) in nodes.iter().zip(ups).enumerate() {
        let (eligibility, node) = (Arc::clone(eligibility), Arc::clone(node));
        tasks::spawn(foreign::restarted(async move |_| look_after(&eligibility, place, &node, &mut ups).await));
    }
    if eligibility.remembers() {
        let (eligibility, nodes) = (Arc::clone(eligibility), nodes.to_vec());
        tasks::spawn(foreign::restarted(async move |_| amend(&eligibility, &nodes).await));
    }
}

/// Vets a server again after each reconnect, and when in doubt, before its vote counts again. Ends when its connection
/// is quit, or with the engine; nobody awaits it.
async fn look_after(eligibility: &Eligibility, place: NodeIndex, node: &Node, ups: &mut UnboundedReceiver<LinkEvent>) {
    let mut before = Status::Votes;
    loop {
        let status = eligibility.status(place);
        if let Some(presence) = node.presence() {
            presence.votes(status == Status::Votes);
        }
        if status != before {
            tell(node, &status, &before);
        }
        let pause = match status {
            Status::Votes => None,
            Status::Unknown(_) | Status::Unfit(_) => Some(VET_AGAIN),
            Status::Abstains(_) => Some((eligibility.quarantine() / 16).clamp(VET_AGAIN / 10, VET_AGAIN * 10)),
        };
        // Callers that wait for news about it doubt again after each useless answer.
        let is_known = !matches!(status, Status::Unknown(_));
        before = status;
        tokio::select! {
            biased;
            up = ups.recv() => if up.is_none() { return },
            () = eligibility.doubted(place), if is_known => {}
            () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
        vet(eligibility, place, node).await;
    }
}

/// Logs once that a vote starts or stops counting.
fn tell(node: &Node, status: &Status, before: &Status) {
    match (status, before) {
        (Status::Unfit(reason), _) => {
            contained(|| tracing::warn!(node = %node.name(), reason, "the vote of this server does not count"));
        }
        (Status::Abstains(reason), Status::Votes | Status::Unknown(_) | Status::Unfit(_)) => {
            contained(|| tracing::warn!(node = %node.name(), reason, "this server has no vote for a while"));
        }
        (Status::Votes, _) => {
            contained(|| tracing::debug!(node = %node.name(), "the vote of this server counts again"));
        }
        _ => {}
    }
}

/// Writes the first changes: servers with new memories list each other, and their wait begins.
pub(super) async fn list(eligibility: &Eligibility, nodes: &[Arc<Node>]) {
    // First to list, and then to be listed.
    for _ in 0..2 {
        let plan = plan(eligibility, nodes).await;
        join_all(plan.changes.iter().map(|change| carry_out(eligibility, nodes, change, &plan))).await;
    }
}

/// Plans what to write. Before a plan throws out a server that votes, this asks all servers once more: an idle locker
/// may know that server's new memory and only the old lists of the others.
async fn plan(eligibility: &Eligibility, nodes: &[Arc<Node>]) -> Plan {
    let first = eligibility.plan();
    let throws_out =
        |change: &Change| first.changes.iter().any(|known| known.throws_out() && known.from == change.from);
    if !first.changes.iter().any(Change::throws_out) {
        return first;
    }
    join_all(nodes.iter().enumerate().map(|(place, node)| vet_on(eligibility, place, node, Lane::Grants))).await;
    (0..nodes.len()).for_each(|place| look_on(eligibility, place));
    let mut plan = eligibility.plan();
    plan.changes.retain(|change| !change.throws_out() || throws_out(change));
    plan
}

/// Has a server vetted again that is no longer known: `look_after` sleeps while the server's vote counts.
fn look_on(eligibility: &Eligibility, place: NodeIndex) {
    if matches!(eligibility.status(place), Status::Unknown(_) | Status::Unfit(_)) {
        eligibility.doubt(place);
    }
}

/// Writes the planned changes to the servers' memories. Ends with the engine; nobody awaits it.
async fn amend(eligibility: &Eligibility, nodes: &[Arc<Node>]) {
    loop {
        let told = eligibility.told();
        let plan = plan(eligibility, nodes).await;
        let pause = plan.wait.unwrap_or(VET_AGAIN * 10).clamp(VET_AGAIN / 10, VET_AGAIN * 10);
        if plan.changes.is_empty() {
            tokio::select! {
                biased;
                () = told => {}
                () = sleep(pause) => {}
            }
            continue;
        }
        let changes = plan.changes.iter().map(|change| carry_out(eligibility, nodes, change, &plan));
        let written = join_all(changes).await;
        if written.iter().any(|written| !written) {
            // A server that does not answer, or with nothing new, is not asked again at once.
            sleep(VET_AGAIN).await;
        }
    }
}

/// Writes one change. Returns whether the server's answer told this locker anything new.
async fn carry_out(eligibility: &Eligibility, nodes: &[Arc<Node>], change: &Change, plan: &Plan) -> bool {
    let node = &nodes[change.place];
    let epoch = node.epoch(Lane::Grants);
    let marks = match change.to.phase {
        Phase::Votes if change.from.phase != Phase::Votes => {
            match highest(eligibility, nodes, change.place, plan).await {
                Ok(marks) => Some(marks),
                Err(failure) => return not_changed(node, &failure),
            }
        }
        _ => None,
    };
    let (from, to, listed) = texts(change);
    let amend = Amendment { from, to: to.clone(), listed, waited: change.waited, marks };
    let newcomers = eligibility.listed_by(change);
    let outcome = script::ask(node, Lane::Grants, &Command::Amend(amend), Answer::amend).await;
    let may_stand = match &outcome {
        Outcome::Done(told) => told.memory == to,
        Outcome::Unknown(_) => true,
        Outcome::NotExecuted(_) | Outcome::Refused(_) => false,
    };
    if may_stand {
        eligibility.listed(&newcomers, Instant::now());
    }
    match outcome {
        // On another connection, it may be the memory of another server.
        Outcome::Done(told) if node.epoch(Lane::Grants) == epoch => {
            let is_new = eligibility.amended(change.place, epoch, &told, Instant::now());
            look_on(eligibility, change.place);
            is_new
        }
        outcome => {
            eligibility.doubt(change.place);
            not_changed(node, &outcome)
        }
    }
}

fn not_changed(node: &Node, why: &dyn std::fmt::Debug) -> bool {
    contained(|| tracing::debug!(node = %node.name(), ?why, "the memory of a server could not be changed"));
    false
}

/// Returns the highest mark of each of the other servers that vote: of so many that each majority without this server
/// contains one of them. If no server votes, those that answer are enough.
async fn highest(
    eligibility: &Eligibility,
    nodes: &[Arc<Node>],
    place: NodeIndex,
    plan: &Plan,
) -> Result<String, NodeFailure> {
    let witnesses = if plan.founding { 0 } else { nodes.len() - majority(nodes.len()) + 1 };
    let votes = |at: NodeIndex| plan.founding || plan.votes[at];
    let others = nodes.iter().enumerate().filter(|&(at, _)| at != place && votes(at));
    let told = join_all(others.map(|(at, node)| highest_of(eligibility, at, node, plan.founding))).await;
    let (mut marks, mut failure) = (Vec::new(), None);
    for told in told {
        match told {
            Outcome::Done(mark) => marks.push(mark),
            Outcome::NotExecuted(why) | Outcome::Unknown(why) => failure = Some(why),
            Outcome::Refused(error) => {
                failure = Some(NodeFailure { node: Arc::clone(nodes[place].name()), reason: error.to_string() });
            }
        }
    }
    match failure {
        Some(failure) if marks.len() < witnesses => Err(failure),
        _ => Ok(marks.join(" ")),
    }
}

/// Returns the highest mark of a server, if it still is the one that votes: its address may lead elsewhere by now.
async fn highest_of(eligibility: &Eligibility, place: NodeIndex, node: &Node, founding: bool) -> Outcome<String> {
    if founding {
        return ask_highest(node, None).await.map(Option::unwrap_or_default);
    }
    let ticket = match eligibility.ticket(place, node, Lane::Grants, Ask::Vote).await {
        Ok(ticket) => ticket,
        Err(failure) => return Outcome::NotExecuted(failure),
    };
    match ask_highest(node, ticket.vote.clone()).await {
        Outcome::Done(Some(mark)) if eligibility.holds(&ticket, node) => Outcome::Done(Some(mark)),
        Outcome::Done(_) => {
            eligibility.doubt(place);
            let reason = "is no longer the server that voted here".to_owned();
            Outcome::NotExecuted(NodeFailure { node: Arc::clone(node.name()), reason })
        }
        outcome => outcome,
    }
    .map(Option::unwrap_or_default)
}

async fn ask_highest(node: &Node, vote: Option<Remembered>) -> Outcome<Option<String>> {
    script::ask(node, Lane::Grants, &Command::Highest { vote }, Answer::highest).await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::super::voter::Company;
    use super::*;
    use crate::options::Options;

    /// Three servers that cannot be reached any more, each seen with this memory.
    fn seen(memories: [&str; 3]) -> (Vec<Arc<Node>>, Arc<Eligibility>) {
        let options = Options { command_timeout: Some(Duration::from_millis(50)), ..Options::default() };
        let settings = options.validate(1).expect("valid");
        let nodes: Vec<_> = memories.iter().map(|_| Node::of_nobody(&settings)).collect();
        let eligibility = Eligibility::new(&nodes, Duration::from_secs(1));
        (0..3).for_each(|place| eligibility.shows(place, memories[place]));
        (nodes, eligibility)
    }

    const IN_STEP: [&str; 3] = [
        "000000000000000a 3 votes 000000000000000a,000000000000000c ",
        "000000000000000b 3 votes 000000000000000b ",
        "000000000000000c 3 votes 000000000000000a,000000000000000c ",
    ];

    #[tokio::test]
    async fn servers_that_do_not_answer_before_another_is_thrown_out_are_vetted_again() {
        let (nodes, eligibility) = seen(IN_STEP);
        assert!(eligibility.plan().changes.iter().any(Change::throws_out));
        assert!(plan(&eligibility, &nodes).await.changes.is_empty(), "nobody is known any more");
        for place in 0..3 {
            assert!(futures_util::poll!(pin!(eligibility.doubted(place))).is_ready(), "{place}");
        }
    }

    #[tokio::test]
    async fn votes_from_different_lists_count_together_only_if_the_servers_list_each_other() {
        let (nodes, eligibility) = seen(IN_STEP);
        let ticket = async |place: NodeIndex| {
            eligibility.ticket(place, &nodes[place], Lane::Grants, Ask::Keep).await.expect("it was seen")
        };
        let (first, same_time) = (ticket(0).await, ticket(1).await);
        eligibility.shows(1, "000000000000000b 3 votes 000000000000000b,000000000000000c ");
        let (changed, mutual) = (ticket(1).await, ticket(2).await);
        let company = Company::default();
        assert!(company.admits(&first) && company.admits(&mutual));
        assert!(!company.admits(&changed), "the first does not list it");
        assert!(!company.admits(&same_time), "nor does the other");
        let company = Company::default();
        assert!(company.admits(&first) && company.admits(&same_time), "at one time the plan says whose votes count");
    }

    #[tokio::test]
    async fn a_listing_counts_if_its_server_was_seen_when_it_was_sent() {
        let begun = "000000000000000b 3 begun 000000000000000b ";
        let members = ["000000000000000a", "000000000000000c", "00000000000000ff"].join(",");
        let of = |id: &str| format!("000000000000000{id} 3 votes {members} ");
        let (_nodes, eligibility) = seen([&of("a"), begun, &of("c")]);
        let lists = |plan: Plan| plan.changes.iter().filter(|change| change.place != 1).count();
        assert_eq!(lists(eligibility.plan()), 2);
        // Three times by each of the others, and each time the server was no longer known when the answer came.
        for change in eligibility.plan().changes.iter().cycle().take(9) {
            assert_eq!(lists(eligibility.plan()), 2, "not often enough yet");
            let listed = eligibility.listed_by(change);
            eligibility.failed(1, Lane::Grants, "silent", false);
            eligibility.listed(&listed, Instant::now());
            eligibility.shows(1, begun);
        }
        assert_eq!(lists(eligibility.plan()), 0, "it rests");
    }

    #[tokio::test]
    async fn servers_that_forbid_info_vote_if_there_are_no_memories() {
        let (nodes, remembering) = seen(IN_STEP);
        let trusting = Eligibility::new(&nodes, Duration::ZERO);
        for lane in [Lane::Grants, Lane::Renewals] {
            unreadable(&trusting, 0, &nodes[0], lane, 0, "NOPERM");
            let ticket = trusting.ticket(0, &nodes[0], lane, Ask::Vote).await;
            assert!(ticket.is_ok_and(|ticket| ticket.votes.is_ok()), "{lane:?}");
        }
        assert_eq!(trusting.status(0), Status::Votes);
        unreadable(&remembering, 0, &nodes[0], Lane::Grants, 0, "NOPERM");
        let status = remembering.status(0);
        assert!(matches!(&status, Status::Unfit(reason) if reason.contains("NOPERM")), "{status:?}");
    }

    #[cfg(feature = "testing")]
    mod over_servers {
        use super::super::super::staged::Staged;
        use super::*;

        const BEGUN: [&str; 3] = [
            "000000000000000a 3 begun 000000000000000a ",
            "000000000000000b 3 begun 000000000000000b ",
            "000000000000000c 3 begun 000000000000000c ",
        ];

        #[tokio::test(start_paused = true)]
        async fn the_wait_of_servers_that_begin_together_starts_once_they_are_listed() {
            let Staged { nodes, eligibility, .. } = &Staged::of(BEGUN).await;
            assert_eq!(eligibility.plan().wait, None);
            list(eligibility, nodes).await;
            let plan = eligibility.plan();
            assert!(plan.changes.is_empty() && plan.wait.is_some(), "{plan:?}");
        }

        #[tokio::test(start_paused = true)]
        async fn a_server_is_thrown_out_if_it_is_still_not_listed_when_all_are_asked_again() {
            let Staged { nodes, eligibility, .. } = &Staged::of(IN_STEP).await;
            let plan = plan(eligibility, nodes).await;
            assert!(matches!(&plan.changes[..], [change] if change.throws_out() && change.place == 1), "{plan:?}");
        }

        /// The second server was not listed, and by now it is the first one: only the second look shows that.
        #[tokio::test(start_paused = true)]
        async fn no_server_is_thrown_out_by_what_only_the_second_look_shows() {
            let staged = Staged::of(IN_STEP).await;
            for (place, memory) in [
                (0, "000000000000000a 3 votes 000000000000000a "),
                (1, "000000000000000b 3 votes 000000000000000b,000000000000000c "),
                (2, "000000000000000c 3 votes 000000000000000b,000000000000000c "),
            ] {
                staged.remembers(place, memory).await;
            }
            let planned = plan(&staged.eligibility, &staged.nodes).await;
            assert_eq!(planned.changes, [], "not by what only this look showed");
            let planned = plan(&staged.eligibility, &staged.nodes).await;
            assert!(
                matches!(&planned.changes[..], [change] if change.throws_out() && change.place == 0),
                "{planned:?}"
            );
        }

        #[tokio::test(start_paused = true)]
        async fn a_change_that_was_written_is_known_at_once_and_counts_as_a_listing() {
            let [first, second, third] = [
                "000000000000000a 3 votes 000000000000000a,000000000000000c ",
                "000000000000000b 3 begun 000000000000000b ",
                "000000000000000c 3 votes 000000000000000a,000000000000000c ",
            ];
            let staged = Staged::of([first, second, third]).await;
            let Staged { nodes, eligibility, .. } = &staged;
            let lists = |plan: &Plan| plan.changes.iter().find(|change| change.place == 0).cloned();
            // Three times for each of the servers.
            for _ in 0..9 {
                let plan = eligibility.plan();
                let change = lists(&plan).expect("it does not rest yet");
                assert!(carry_out(eligibility, nodes, &change, &plan).await, "it is news");
                assert_eq!(lists(&eligibility.plan()), None);
                staged.remembers(0, first).await;
                vet(eligibility, 0, &nodes[0]).await;
            }
            assert_eq!(lists(&eligibility.plan()), None, "it rests");
        }

        #[tokio::test(start_paused = true)]
        async fn a_change_that_is_not_answered_is_no_news() {
            let staged = Staged::of(BEGUN).await;
            let plan = staged.eligibility.plan();
            staged.servers[0].stop();
            let change = plan.changes.iter().find(|change| change.place == 0).expect("it is to be listed");
            assert!(!carry_out(&staged.eligibility, &staged.nodes, change, &plan).await);
        }
    }
}
