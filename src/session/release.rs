//! Giving back: the release of a hold, and the count of a nested one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Session;
use super::pending::{Late, Pending};
use crate::clock::Instant;
use crate::command::{Claim, Release};
use crate::error::{Error, Loss, NodeFailure};
use crate::foreign::{self, Answer, contained};
use crate::hold::{self, Entrance, Hold, HoldState, Leave};
use crate::lease::NodeIndex;
use crate::node::Outcome;
use crate::quorum::{Calls, Confirmations, Settled};

/// The first pause before a release is sent again; it doubles up to half a command timeout.
const AGAIN: Duration = Duration::from_millis(20);

impl Session {
    /// A guard of this hold goes. The answer of what is sent for it comes through the channel.
    ///
    /// # Errors
    /// The loss, if the hold is lost; the last guard's release is sent all the same, but not by a forked process.
    pub(super) fn leave(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        entrance: Option<&Entrance>,
    ) -> Result<Answer<Result<(), Error>>, Loss> {
        if self.is_forked() {
            return Err(Loss::Forked);
        }
        let (reply, answer) = foreign::channel();
        let now = self.now();
        if let Some(entrance) = entrance {
            self.exits(hold, entrance, now);
        }
        let leave = hold.leave(now);
        if matches!(leave, Leave::Last | Leave::Lost { last: true, .. }) {
            self.counters.released_after(now.since(hold.since));
        }
        match leave {
            // Nothing of a revoked grant is left to be counted.
            Leave::Nested(0) => foreign::answer(reply, Ok(())),
            Leave::Nested(count) => self.send_count(hold, count, reply),
            Leave::Last => self.send_release(hold, reply),
            Leave::Lost { loss, last } => {
                if last {
                    self.bury(hold);
                } else {
                    self.gate.wake(&hold.claim.key);
                }
                return Err(loss);
            }
        }
        Ok(answer)
    }

    /// Counts on the wire inform, the truth is local: a count that cannot be written is no error.
    fn send_count(self: &Arc<Self>, hold: &Arc<Hold>, count: u32, reply: oneshot::Sender<Result<(), Error>>) {
        let (session, hold) = (Arc::clone(self), Arc::clone(hold));
        self.engine.spawn(async move {
            let claim = hold.claim.clone();
            let counting = session.quorum.count(&claim, count);
            let panicked = |said: String| Settled::Refused(session.panicked(&said));
            let settled = foreign::survive(counting).await.unwrap_or_else(panicked);
            if !matches!(settled, Settled::Done) && hold.is_held() {
                let key = &hold.claim.key;
                contained(
                    || tracing::warn!(key = %key.shown(), count, ?settled, "the hold count could not be written"),
                );
            }
            foreign::answer(reply, Ok(()));
        });
    }

    /// Has the driver of the key's line hand it over, where there is one that waits for it.
    fn send_release(self: &Arc<Self>, hold: &Arc<Hold>, reply: oneshot::Sender<Result<(), Error>>) {
        let unconfirmed = Unconfirmed::new(self, Arc::clone(hold), reply);
        let unsent =
            if self.hands_over(hold) { self.gate.pass(hold, unconfirmed, self.now()) } else { Some(unconfirmed) };
        match unsent {
            Some(unconfirmed) => self.engine.ask(release(unconfirmed)),
            None => self.engine.asked(),
        }
    }

    /// Whether this hold may be handed over. A renewal that failed may mean that its release will have no answer. What
    /// replicas have to acknowledge is on another connection. Nobody is to have what is kept for a `min_hold`.
    fn hands_over(&self, hold: &Hold) -> bool {
        let is_sound = hold.failed_ticks() == 0 && !self.quorum.everywhere().any(|node| hold.is_uncertain(node));
        let is_over = hold::rest(hold.kept_until(), self.now()).is_none();
        self.quorum.hands_over() && self.settings.replicas.is_none() && is_sound && is_over
    }

    /// A release told so many clients. Without a message to everybody nobody knows who else waits.
    fn note_others(&self, hold: &Hold, told: u64) {
        let key = &hold.claim.key;
        let tells_all = hold.claim.kind.is_told_of() && !self.quorum.nodes().iter().any(|node| node.is_cluster());
        self.gate.note_others(key, tells_all.then(|| told > u64::from(self.channels.hears(key))));
    }

    /// The last guard of a lost hold is gone. What may stand under its field is released all the same.
    fn bury(self: &Arc<Self>, hold: &Arc<Hold>) {
        // Before the slot goes: closing sees the one or the other.
        self.undo_hold(hold);
        self.gate.remove(hold);
        self.watchdog.forget(hold, self.now());
    }

    /// Undoes what stands under the field of a hold that nobody holds any more, wherever it may. A node that has not
    /// said yes has nothing: what is on its way there is seen to by its answer.
    pub(super) fn undo_hold(self: &Arc<Self>, hold: &Hold) {
        let somewhere = self.quorum.everywhere().filter(|&node| hold.is_uncertain(node) || hold.has_vote(node));
        let (uncertain, taken) = somewhere.partition(|&node| hold.is_uncertain(node));
        self.undo_on(hold, taken, uncertain);
    }

    /// Undoes what stands there under the field of a hold. A renewal that is under way may still start its lease anew,
    /// once.
    pub(super) fn undo_on(self: &Arc<Self>, hold: &Hold, taken: Vec<NodeIndex>, uncertain: Vec<NodeIndex>) {
        self.undo(&hold.claim, hold.terms.lease * 2, hold.kept_until(), taken, uncertain);
    }

    /// Nobody took this grant in time, or before it was lost.
    pub(super) fn take_back(self: &Arc<Self>, hold: &Arc<Hold>) {
        contained(|| {
            tracing::debug!(
                key = %hold.claim.key.shown(), field = &*hold.claim.field,
                "nobody took the lock that was granted: it is given back"
            );
        });
        match hold.mark(self.now()) {
            HoldState::Lost(Loss::Released) => {
                let (reply, _) = foreign::channel();
                self.send_release(hold, reply);
            }
            _ => self.bury(hold),
        }
    }
}

/// A release that nobody has confirmed yet. If its task ends before its time, by a panic or with the engine, whoever
/// waits for it must not wait for ever: its caller, and the line of its key.
pub(super) struct Unconfirmed {
    pub(super) session: Arc<Session>,
    pub(super) hold: Arc<Hold>,
    /// Until the caller is told.
    awaited: Option<(oneshot::Sender<Result<(), Error>>, Pending)>,
    /// When the caller is told in any case.
    pub(super) deadline: Instant,
    /// What a hand-over without an answer may have taken, or may yet: a claim and its lease.
    may_have: Option<(Claim, Duration)>,
    /// Whether every node has answered.
    done: bool,
}

impl Unconfirmed {
    fn new(session: &Arc<Session>, hold: Arc<Hold>, reply: oneshot::Sender<Result<(), Error>>) -> Self {
        let awaited = Some((reply, Pending::new(session)));
        let deadline = session.now() + session.settings.command_timeout;
        Self { session: Arc::clone(session), hold, awaited, deadline, may_have: None, done: false }
    }

    /// The caller is told, and the key's line goes on. Closing waits for a minority that is silent for a moment only.
    pub(super) fn conclude(&mut self, settled: Settled) {
        if let Some((reply, pending)) = self.awaited.take() {
            conclude(&self.session, &self.hold, settled, reply);
            drop(pending);
        }
    }

    /// It was answered for good: nothing is left to be done.
    pub(super) fn end(mut self, settled: Settled) {
        self.done = true;
        self.conclude(settled);
    }

    /// It has been released, and the next hold is registered in its place: only the caller is left to be told.
    pub(super) fn succeeded(mut self) {
        self.done = true;
        if let Some((reply, _pending)) = self.awaited.take() {
            foreign::answer(reply, Ok(()));
        }
    }

    /// It has been released, and others are about to be told more.
    pub(super) fn tell(&self) {
        self.session.watchdog.forget(&self.hold, self.session.now());
        let Claim { key, field, .. } = &self.hold.claim;
        contained(|| tracing::debug!(key = %key.shown(), field = &**field, "released"));
    }

    /// The command timeout is over, and there is no answer yet.
    pub(super) fn overdue(&mut self, nodes: Vec<NodeFailure>) {
        let Claim { key, field, .. } = &self.hold.claim;
        contained(|| {
            tracing::warn!(key = %key.shown(), field = &**field, "the release is not confirmed yet");
        });
        self.conclude(Settled::Unanswered(nodes));
    }

    /// Why there is no answer, where no node said anything.
    pub(super) fn silence(&self) -> Vec<NodeFailure> {
        let bound = self.session.settings.command_timeout;
        self.session.quorum.failures(format!("did not confirm the release within {bound:?}"))
    }

    /// Nobody knows what became of the hand-over. It takes nothing once the hold is gone, which its release sees to: so
    /// what it may have taken is undone behind the answer to that, and not before.
    pub(super) fn may_have_taken(&mut self, claim: Claim, lease: Duration) {
        self.may_have = Some((claim, lease));
    }

    /// Undoes what a hand-over may have taken, now that the release was answered, or has been given up.
    fn undo_next(&mut self, is_answered: bool) {
        if let Some((claim, lease)) = self.may_have.take() {
            let (taken, uncertain) = if is_answered { (Some(0), None) } else { (None, Some(0)) };
            self.session.undo(&claim, lease, None, taken, uncertain);
        }
    }
}

impl std::fmt::Debug for Unconfirmed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unconfirmed").field("hold", &self.hold).field("done", &self.done).finish_non_exhaustive()
    }
}

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        contained(|| {
            match self.session.check_open() {
                // The engine has ended, and nothing is sent any more: the caller hears of that by its channel.
                Err(Error::Closed) => {
                    self.session.gate.remove(&self.hold);
                    self.awaited.take().into_iter().for_each(|(reply, _)| foreign::hang_up(reply));
                }
                _ => {
                    self.session.undo_hold(&self.hold);
                    self.undo_next(false);
                    self.conclude(Settled::Refused(self.session.panicked("the panic hook was told why")));
                }
            }
        });
    }
}

/// Releases a hold on every node, again and again until each has answered, or the lease is over in any case. The caller
/// is told as soon as a majority makes it certain, and after a command timeout at the latest; the key's line goes on
/// then too.
pub(super) async fn release(mut unconfirmed: Unconfirmed) {
    let (session, hold) = (Arc::clone(&unconfirmed.session), Arc::clone(&unconfirmed.hold));
    // The program's end, and closing, leave a moment to the slower servers too.
    let (_debt, _late) = (session.engine.owe(), Late::new(&session));
    let silences = Arc::<Silences>::default();
    let executed = unconfirmed.may_have.is_some();
    let release_on =
        |node| (node, release_on(Arc::clone(&session), Arc::clone(&hold), node, executed, Arc::clone(&silences)));
    let mut answers = Calls::new(session.quorum.everywhere().map(release_on));
    // What may yet be executed there is undone once more, behind it; where replicas acknowledge, on another connection
    // than the release.
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
            () = sleep(Instant::now().until(unconfirmed.deadline)), if unconfirmed.awaited.is_some() => {
                let nodes = silences.told().unwrap_or_else(|| unconfirmed.silence());
                unconfirmed.overdue(nodes);
                None
            }
        };
        if let Some(settled) = settled {
            unconfirmed.conclude(settled);
        }
    }
    unconfirmed.done = true;
}

/// What the release came to is told, and the key's line goes on.
fn conclude(session: &Arc<Session>, hold: &Arc<Hold>, settled: Settled, reply: oneshot::Sender<Result<(), Error>>) {
    let answer = match settled {
        Settled::Done => Ok(()),
        Settled::Gone => Err(Error::Lost(Loss::NotOwner)),
        Settled::Refused(error) => Err(error),
        Settled::Unanswered(nodes) => Err(session.quorum.unavailable(nodes, Duration::ZERO)),
    };
    session.gate.remove(hold);
    session.watchdog.forget(hold, session.now());
    let Claim { key, field, .. } = &hold.claim;
    match &answer {
        Ok(()) => match hold::rest(hold.kept_until(), session.now()) {
            None => contained(|| tracing::debug!(key = %key.shown(), field = &**field, "released")),
            Some(rest) => contained(|| {
                tracing::debug!(key = %key.shown(), field = &**field, ?rest, "released, and kept for its min_hold");
            }),
        },
        Err(Error::Unavailable { .. }) => {}
        Err(error) => {
            contained(|| tracing::warn!(key = %key.shown(), field = &**field, %error, "released, but it was not ours"));
        }
    }
    session.engine.answered();
    // Dropped guards do not wait for it.
    foreign::answer(reply, answer);
}

/// Releases a hold on one node; whether it was there.
async fn release_on(
    session: Arc<Session>,
    hold: Arc<Hold>,
    node: NodeIndex,
    // Whether a release may have been executed before: then "gone" is what is expected.
    mut executed: bool,
    silences: Arc<Silences>,
) -> Outcome<bool> {
    // A renewal that was under way may have started the lease anew just now, and no later one can.
    let over = Instant::now() + hold.terms.lease;
    let mut pause = AGAIN;
    loop {
        let rest = hold::rest(hold.kept_until(), Instant::now());
        let answer = session.quorum.release(node, &hold.claim, rest).await;
        // Nobody is told of a lock that stands for the rest of its time.
        if let (Outcome::Done(Release::Released(told)), None) = (&answer, rest) {
            session.note_others(&hold, *told);
        }
        let failure = match answer.map(|release| release != Release::Gone) {
            Outcome::Done(false) if executed && Instant::now() < hold.valid_until() => return Outcome::Done(true),
            Outcome::NotExecuted(failure) => failure,
            Outcome::Unknown(failure) => {
                executed = true;
                failure
            }
            answer => return answer,
        };
        // A node that never had it has nothing to release. What may yet come to it has somebody who sees to it.
        if Instant::now() >= over || !hold.has_vote(node) {
            return Outcome::Unknown(failure);
        }
        silences.note(node, failure);
        back_off(&session, &mut pause).await;
    }
}

/// Why the nodes that have not confirmed a release have not, as far as they said anything.
#[derive(Debug, Default)]
struct Silences(Mutex<BTreeMap<NodeIndex, NodeFailure>>);

impl Silences {
    fn note(&self, node: NodeIndex, failure: NodeFailure) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(node, failure);
    }

    /// The failures of those that said something, if any did.
    fn told(&self) -> Option<Vec<NodeFailure>> {
        let said: Vec<_> = self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        (!said.is_empty()).then_some(said)
    }
}

async fn back_off(session: &Session, pause: &mut Duration) {
    sleep(*pause).await;
    *pause = (*pause * 2).min(session.settings.command_timeout / 2);
}

impl Session {
    /// The hold count of a re-entry is written. An answer that never comes is no reason to stay out while the hold is
    /// safe: the count was kept here before it was sent.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock turns out not to be ours; what happened to the write, if the hold is not safe.
    pub(super) async fn write_count(self: &Arc<Self>, hold: &Arc<Hold>, count: u32) -> Result<(), Error> {
        let (session, counted) = (Arc::clone(self), Arc::clone(hold));
        let settled = self.on_engine(async move { Ok(session.quorum.count(&counted.claim, count).await) }).await?;
        let error = match settled {
            Settled::Done => return Ok(()),
            Settled::Gone => {
                hold.lose(Loss::NotOwner);
                Error::Lost(Loss::NotOwner)
            }
            Settled::Refused(error) => error,
            Settled::Unanswered(nodes) => self.quorum.unavailable(nodes, Duration::ZERO),
        };
        match hold.at(self.now()) {
            HoldState::Safe => {
                contained(|| {
                    tracing::warn!(
                        key = %hold.claim.key.shown(), count, %error,
                        "entered again, but the count could not be written"
                    );
                });
                Ok(())
            }
            HoldState::Jeopardy => Err(error),
            HoldState::Lost(loss) => Err(Error::Lost(loss)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::poll_sickly;
    use crate::hold::Terms;
    use crate::owner::Owner;

    /// A release that is dropped half-way; what its caller hears.
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
    async fn a_release_whose_task_ends_before_its_time_leaves_nobody_waiting() {
        let session = Session::over_nobody();
        let Ok(Err(Error::Unavailable { nodes, .. })) = left(&session).await else { panic!("told so") };
        assert!(nodes[0].reason().contains("panicked: the panic hook was told why"), "{nodes:?}");
        assert_eq!(session.stats().pending_undos, 1, "the key is released all the same");
        session.closed.store(true, std::sync::atomic::Ordering::Release);
        assert!(left(&session).await.is_err(), "with the engine nobody answers any more");
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
            let mut under_way = Unconfirmed::new(&session, hold, foreign::channel().0);
            (under_way.awaited, under_way.done) = (None, true);
            let mut releasing = Box::pin(release(under_way));
            poll_sickly(releasing.as_mut());
            assert_eq!(session.stats().pending_undos, undos);
        }
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
        let silences = Arc::<Silences>::default();
        let answer = release_on(Arc::clone(&session), hold, 0, false, Arc::clone(&silences));
        let answer = tokio::time::timeout(Duration::from_secs(10), answer).await.expect("not for a lease");
        assert!(matches!(answer, Outcome::NotExecuted(_) | Outcome::Unknown(_)), "{answer:?}");
        session.engine.stop();
    }
}
