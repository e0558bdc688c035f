//! Giving back: the release of a hold, and the count of a nested one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Session;
use super::pending::{Late, Pending};
use crate::clock::Instant;
use crate::command::Claim;
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
            Leave::Last => self.send_release(Arc::clone(hold), reply),
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

    fn send_release(self: &Arc<Self>, hold: Arc<Hold>, reply: oneshot::Sender<Result<(), Error>>) {
        let awaited = Some((reply, Pending::new(self)));
        self.engine.ask(release(Unconfirmed { session: Arc::clone(self), hold, awaited, done: false }));
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
    pub(super) fn take_back(self: &Arc<Self>, hold: Arc<Hold>) {
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
            _ => self.bury(&hold),
        }
    }
}

/// A release that nobody has confirmed yet. If its task ends before its time, by a panic or with the engine, whoever
/// waits for it must not wait for ever: its caller, and the line of its key.
struct Unconfirmed {
    session: Arc<Session>,
    hold: Arc<Hold>,
    /// Until the caller is told.
    awaited: Option<(oneshot::Sender<Result<(), Error>>, Pending)>,
    /// Whether every node has answered.
    done: bool,
}

impl Unconfirmed {
    /// The caller is told, and the key's line goes on. Closing waits for a minority that is silent for a moment only.
    fn conclude(&mut self, settled: Settled) {
        if let Some((reply, pending)) = self.awaited.take() {
            conclude(&self.session, &self.hold, settled, reply);
            drop(pending);
        }
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
                    self.conclude(Settled::Refused(self.session.panicked("the panic hook was told why")));
                }
            }
        });
    }
}

/// Releases a hold on every node, again and again until each has answered, or the lease is over in any case. The caller
/// is told as soon as a majority makes it certain, and after a command timeout at the latest; the key's line goes on
/// then too.
async fn release(mut unconfirmed: Unconfirmed) {
    let (session, hold) = (Arc::clone(&unconfirmed.session), Arc::clone(&unconfirmed.hold));
    // The program's end, and closing, leave a moment to the slower servers too.
    let (_debt, _late) = (session.engine.owe(), Late::new(&session));
    let deadline = Instant::now() + session.settings.command_timeout;
    let silences = Arc::<Silences>::default();
    let release_on = |node| (node, release_on(Arc::clone(&session), Arc::clone(&hold), node, Arc::clone(&silences)));
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
                confirmations.add(answer);
                confirmations.verdict()
            }
            () = sleep(Instant::now().until(deadline)), if unconfirmed.awaited.is_some() => {
                let Claim { key, field, .. } = &hold.claim;
                contained(|| {
                    tracing::warn!(key = %key.shown(), field = &**field, "the release is not confirmed yet");
                });
                Some(Settled::Unanswered(silences.told(&session)))
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
async fn release_on(session: Arc<Session>, hold: Arc<Hold>, node: NodeIndex, silences: Arc<Silences>) -> Outcome<bool> {
    // A renewal that was under way may have started the lease anew just now, and no later one can.
    let over = Instant::now() + hold.terms.lease;
    let mut pause = AGAIN;
    // Whether a release may have been executed before: then "gone" is what is expected.
    let mut executed = false;
    loop {
        let rest = hold::rest(hold.kept_until(), Instant::now());
        let failure = match session.quorum.release(node, &hold.claim, rest).await {
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

    /// The failures of those that said something, of all if none did.
    fn told(&self, session: &Session) -> Vec<NodeFailure> {
        let said: Vec<_> = self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        if !said.is_empty() {
            return said;
        }
        let bound = session.settings.command_timeout;
        session.quorum.failures(format!("did not confirm the release within {bound:?}"))
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
        let awaited = Some((reply, Pending::new(session)));
        let under_way = Unconfirmed { session: Arc::clone(session), hold, awaited, done: false };
        let mut releasing = Box::pin(release(under_way));
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
            let under_way = Unconfirmed { session: Arc::clone(&session), hold, awaited: None, done: true };
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
        let answer = release_on(Arc::clone(&session), hold, 0, Arc::clone(&silences));
        let answer = tokio::time::timeout(Duration::from_secs(10), answer).await.expect("not for a lease");
        assert!(matches!(answer, Outcome::NotExecuted(_) | Outcome::Unknown(_)), "{answer:?}");
        session.engine.stop();
    }
}
