//! Sends releases, and writes the counts of re-entries.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::sleep;

use super::Session;
use super::unconfirmed::Unconfirmed;
use crate::clock::Instant;
use crate::command::{Release, Wakes};
use crate::engine::Work;
use crate::error::{Error, Loss, NodeFailure};
use crate::foreign::log;
use crate::hold::{self, Hold, HoldState};
use crate::lease::NodeIndex;
use crate::node::Outcome;
use crate::quorum::{Calls, Confirmations, Settled, was_there};
use crate::sync::{Arc, Mutex};

/// What the release of a hold tells the servers about waiting lockers: each copy of it the same.
type Passing = OnceLock<Wakes>;

/// The first pause before a release is sent again. It doubles up to half a command timeout.
const AGAIN: Duration = Duration::from_millis(20);

impl Session {
    /// Returns whom the release of this hold wakes, which is sent to all servers now.
    fn wakes(&self, hold: &Hold, passing: &Passing) -> Wakes {
        let releaser = || self.gate.begin_release(&hold.claim.key, hold.lease());
        passing.get_or_init(|| releaser().map_or(Wakes::All, |releaser| Wakes::Next(Some(releaser)))).clone()
    }

    /// Takes in a server's answer to the release of this hold. With a `rest`, the lock was kept for that long, and
    /// nobody was notified. Returns whether the lock was there.
    fn released(&self, hold: &Hold, release: &Release, rest: Option<Duration>) -> bool {
        let key = &hold.claim.key;
        match release {
            Release::Gone => {}
            Release::Released(_) if rest.is_some() => {}
            _ => self.gate.released(key, release),
        }
        if let Release::Unlisted(error) = release {
            self.quorum.unlist(key, error);
        }
        was_there(key, release)
    }
}

/// Releases a hold on every node, and repeats that until each has answered or the lease is over. The caller is told as
/// soon as a majority makes the outcome certain, and after a command timeout at the latest; the key's line goes on then
/// too.
pub(super) async fn release(mut unconfirmed: Unconfirmed) {
    let (session, hold) = (Arc::clone(&unconfirmed.session), Arc::clone(&unconfirmed.hold));
    // The end of the program, and closing, give the slower servers a moment too.
    let _debt = session.engine.owe(Work::Release);
    let common = Arc::new(Common { executed: unconfirmed.may_have_been_executed(), ..Common::default() });
    let release_on = |node| (node, release_on(Arc::clone(&session), Arc::clone(&hold), node, Arc::clone(&common)));
    let mut answers = Calls::new(session.quorum.everywhere().map(release_on));
    // What may yet be executed on a node is undone there as well, behind the release; with `replicas`, on another
    // connection than the release.
    let uncertain = session.quorum.everywhere().filter(|&node| hold.is_uncertain(node)).collect();
    session.undo_on(&hold, Vec::new(), uncertain);
    let mut confirmations = Confirmations::new(session.quorum.nodes().len());
    loop {
        let settled = tokio::select! {
            biased;
            answer = answers.next() => {
                let Some((_, answer)) = answer else { break };
                unconfirmed.undo_next(matches!(answer, Outcome::Done(_) | Outcome::Refused(_)));
                confirmations.add(answer);
                confirmations.verdict()
            }
            () = sleep(Instant::now().until(unconfirmed.deadline)), if unconfirmed.is_awaited() => {
                let nodes = common.silences.told().unwrap_or_else(|| unconfirmed.silence());
                unconfirmed.overdue(nodes);
                None
            }
        };
        if let Some(settled) = settled {
            unconfirmed.conclude(settled);
        }
    }
    unconfirmed.finish();
}

/// Releases a hold on one node. Returns whether it was there.
async fn release_on(session: Arc<Session>, hold: Arc<Hold>, node: NodeIndex, common: Arc<Common>) -> Outcome<bool> {
    let (mut executed, Common { silences, passing, .. }) = (common.executed, &*common);
    // A renewal that was under way may have restarted the lease just now, and no later one can.
    let over = Instant::now() + hold.lease();
    let mut pause = AGAIN;
    let mut is_first = true;
    loop {
        let rest = hold::rest(hold.kept_until(), Instant::now());
        // A release that is sent again may be late: this locker may be waiting for the lock itself by then. A lock that
        // is kept wakes nobody.
        let enlists = std::mem::take(&mut is_first) && rest.is_none();
        let wakes = if enlists { session.wakes(&hold, passing) } else { session.quorum.wakes(None) };
        let answer = session.quorum.release(node, &hold.claim, rest, wakes).await;
        let failure = match answer.map(|release| session.released(&hold, &release, rest)) {
            Outcome::Done(false) if executed && Instant::now() < hold.valid_until() => return Outcome::Done(true),
            Outcome::NotExecuted(failure) => failure,
            Outcome::Unknown(failure) => {
                executed = true;
                failure
            }
            answer => return answer,
        };
        // A node that never had the lock has nothing to release. Undos deal with what may yet reach it.
        if Instant::now() >= over || !hold.has_vote(node) {
            return Outcome::Unknown(failure);
        }
        silences.note(node, failure);
        back_off(&session, &mut pause).await;
    }
}

/// What the releases of a hold on all nodes have in common.
#[derive(Debug, Default)]
struct Common {
    /// Whether a release may have been executed before: then "gone" is expected.
    executed: bool,
    silences: Silences,
    passing: Passing,
}

/// Why nodes have not confirmed a release, as far as they said anything.
#[derive(Debug, Default)]
struct Silences(Mutex<BTreeMap<NodeIndex, NodeFailure>>);

impl Silences {
    fn note(&self, node: NodeIndex, failure: NodeFailure) {
        self.0.lock().insert(node, failure);
    }

    /// Returns the failures of the nodes that said something, if any did.
    fn told(&self) -> Option<Vec<NodeFailure>> {
        let said: Vec<_> = self.0.lock().values().cloned().collect();
        (!said.is_empty()).then_some(said)
    }
}

async fn back_off(session: &Session, pause: &mut Duration) {
    sleep(*pause).await;
    *pause = (*pause * 2).min(session.settings.command_timeout / 2);
}

impl Session {
    /// Writes the hold count of re-entries that wait for nothing.
    pub(super) fn count_behind(self: &Arc<Self>, hold: &Arc<Hold>, count: u32) {
        let (session, hold) = (Arc::clone(self), Arc::clone(hold));
        self.engine.spawn(async move {
            if let Err(error) = session.write_count(&hold, count).await {
                log!(debug, key = %hold.claim.key.shown(), %error, "the hold count could not be written");
            }
        });
    }

    /// Writes the hold count of a re-entry. A missing answer does not fail the re-entry while the hold is safe: the
    /// count was kept here before it was sent.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock turns out not to be ours; the failure of the write, if the hold is not safe.
    pub(super) async fn write_count(self: &Arc<Self>, hold: &Arc<Hold>, count: u32) -> Result<(), Error> {
        let (session, counted) = (Arc::clone(self), Arc::clone(hold));
        let settled = self.on_engine(async move { Ok(session.quorum.count(&counted.claim, count).await) }).await?;
        let error = match settled {
            Settled::Done => return Ok(()),
            Settled::Gone => {
                hold.lose(Loss::NotOwner);
                Error::lost(&hold.claim.key, Loss::NotOwner)
            }
            Settled::Refused(error) => error,
            Settled::Unanswered(nodes) => self.quorum.unavailable(nodes, Duration::ZERO),
        };
        match hold.at(self.now()) {
            HoldState::Safe => {
                log!(
                    warn, key = %hold.claim.key.shown(), count, %error,
                    "entered again, but the count could not be written"
                );
                Ok(())
            }
            HoldState::Jeopardy => Err(error),
            HoldState::Lost(loss) => Err(Error::lost(&hold.claim.key, loss)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    use crate::foreign::{self, poll_sickly};
    use crate::hold::Leave;
    use crate::hold::Terms;
    use crate::owner::Owner;

    /// Drops a release half-way, and returns what its caller gets.
    async fn left(session: &Arc<Session>) -> Result<Result<(), Error>, oneshot::error::RecvError> {
        let terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };
        let hold = Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1));
        session.gate.admit(&hold, None, Instant::now());
        assert_eq!(hold.leave(Instant::now()), Leave::Last);
        let (reply, answer) = foreign::channel();
        let mut releasing = Box::pin(release(Unconfirmed::new(session, hold, reply)));
        poll_sickly(releasing.as_mut());
        assert_eq!(session.stats().holds, 1);
        drop(releasing);
        assert_eq!(session.stats().holds, 0, "its line goes on");
        answer.await
    }

    #[tokio::test]
    async fn a_release_whose_task_ends_early_leaves_nobody_waiting() {
        let session = Session::over_nobody();
        let Ok(Err(Error::Unavailable { nodes, .. })) = left(&session).await else { panic!("it gets an error") };
        assert!(nodes[0].reason().contains("panicked: the panic hook was told why"), "{nodes:?}");
        assert_eq!(session.stats().pending_undos, 1, "the key is released all the same");
        session.closed.store(true, std::sync::atomic::Ordering::Release);
        assert!(left(&session).await.is_err(), "nothing is answered once the engine has ended");
        assert_eq!(session.stats().pending, 1);
        session.engine.stop();
    }

    #[tokio::test]
    async fn a_release_undoes_what_may_yet_be_executed() {
        let session = Session::over_nobody();
        for (uncertain, undos) in [(false, 0), (true, 1)] {
            let terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };
            let hold = Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1));
            assert!(!uncertain || hold.make_uncertain(0));
            assert_eq!(hold.leave(Instant::now()), Leave::Last);
            let under_way = Unconfirmed::new(&session, hold, foreign::channel().0).told();
            let mut releasing = Box::pin(release(under_way));
            poll_sickly(releasing.as_mut());
            assert_eq!(session.stats().pending_undos, undos);
        }
        session.engine.stop();
    }

    #[tokio::test]
    async fn others_are_known_to_wait_where_a_release_told_them_or_woke_them() {
        let (session, now) = (Session::over_nobody(), Instant::now());
        let terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };
        let hold = &Arc::new(Hold::for_test(Owner::task(1), terms, &[0], 1));
        session.gate.admit(hold, None, now);
        let wait = |release: &Release, rest: Option<Duration>| {
            assert!(session.released(hold, release, rest));
            session.gate.others_wait(&hold.claim.key)
        };
        assert!(wait(&Release::Released(1), None));
        assert!(!wait(&Release::Released(0), None));
        assert!(!wait(&Release::Released(1), Some(terms.lease)), "it says nothing: the lock stands");
        assert!(wait(&Release::PassedOn { place: None, turn: None, others: 0, waiting: 1 }, None));
        assert!(wait(&Release::Released(0), Some(terms.lease)), "as before");
        session.engine.stop();
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_half_a_command_timeout() {
        let (session, mut pause) = (Session::over_nobody(), AGAIN);
        for lasts in [20, 40, 50, 50] {
            let began = tokio::time::Instant::now();
            back_off(&session, &mut pause).await;
            assert_eq!(began.elapsed(), Duration::from_millis(lasts));
        }
        session.engine.stop();
    }

    #[tokio::test]
    async fn a_server_that_never_had_a_lock_is_asked_to_release_it_once() {
        let session = Session::over_nobody();
        let terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };
        let hold = Arc::new(Hold::for_test(Owner::task(1), terms, &[], 1));
        let answer = release_on(Arc::clone(&session), hold, 0, Arc::default());
        let answer =
            tokio::time::timeout(Duration::from_secs(10), answer).await.expect("it does not go on for a lease");
        assert!(matches!(answer, Outcome::NotExecuted(_) | Outcome::Unknown(_)), "{answer:?}");
        session.engine.stop();
    }
}
