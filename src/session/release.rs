//! Giving back: the release of a hold, the count of a nested one, the undo of an acquire.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Session;
use crate::clock::Instant;
use crate::error::{Error, Loss, NodeFailure};
use crate::hold::{Hold, HoldState, Leave};
use crate::key::Key;
use crate::node::Node;
use crate::quorum::{NodeIndex, Settled};
use crate::watchdog::Verdict;

/// The first pause before a release or an undo is sent again; it doubles up to half a command timeout.
const AGAIN: Duration = Duration::from_millis(20);

/// How many undos may wait for an answer. Beyond that a key runs out with its lease.
const MOST_UNDOS: usize = 10_000;

/// Counts what is under way, from before it is spawned to its end, however that comes.
pub(super) struct Pending {
    session: Arc<Session>,
    undo: bool,
}

impl Pending {
    pub(super) fn new(session: &Arc<Session>) -> Self {
        session.pending.fetch_add(1, Ordering::AcqRel);
        Self { session: Arc::clone(session), undo: false }
    }

    fn undo(session: &Arc<Session>) -> Self {
        session.undos.fetch_add(1, Ordering::AcqRel);
        let mut pending = Self::new(session);
        pending.undo = true;
        pending
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.undo {
            self.session.undos.fetch_sub(1, Ordering::AcqRel);
        }
        self.session.pending.fetch_sub(1, Ordering::AcqRel);
        self.session.settled.notify_one();
    }
}

impl Session {
    /// A guard of this hold goes. The answer of what is sent for it comes through the channel.
    ///
    /// # Errors
    /// The loss, if the hold is lost; the last guard's release is sent all the same.
    pub(super) fn leave(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<oneshot::Receiver<Result<(), Error>>, Loss> {
        let (reply, answer) = oneshot::channel();
        let now = Instant::now();
        let leave = hold.leave(now);
        if matches!(leave, Leave::Last | Leave::Lost { last: true, .. }) {
            self.counters.released_after(now.since(hold.since));
        }
        match leave {
            // Nothing of a revoked grant is left to be counted.
            Leave::Nested(0) => _ = reply.send(Ok(())),
            Leave::Nested(count) => self.send_count(hold, count, reply),
            Leave::Last => self.send_release(Arc::clone(hold), reply),
            Leave::Lost { loss, last } => {
                if last {
                    self.bury(hold);
                } else {
                    self.gate.wake(&hold.key);
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
            let settled = session.quorum.count(&hold.key, &hold.field, count).await;
            if !matches!(settled, Settled::Done) && hold.is_held() {
                tracing::warn!(key = %hold.key, count, ?settled, "the hold count could not be written");
            }
            let _: Result<_, _> = reply.send(Ok(()));
        });
    }

    fn send_release(self: &Arc<Self>, hold: Arc<Hold>, reply: oneshot::Sender<Result<(), Error>>) {
        let pending = Pending::new(self);
        self.engine.spawn(release(Arc::clone(self), hold, reply, pending));
    }

    /// The last guard of a lost hold is gone. What may stand under its field is released all the same.
    fn bury(self: &Arc<Self>, hold: &Arc<Hold>) {
        // Before the slot goes: closing sees the one or the other.
        self.undo(&hold.key, &hold.field, (0..self.quorum.nodes().len()).collect(), Vec::new());
        self.gate.remove(hold);
        self.watchdog.forget(hold, Instant::now());
    }

    /// Nobody took this grant in time, or before it was lost.
    pub(super) fn take_back(self: &Arc<Self>, hold: Arc<Hold>) {
        tracing::debug!(key = %hold.key, field = hold.field, "nobody took the lock that was granted: it is given back");
        match hold.mark(Instant::now()) {
            HoldState::Lost(Loss::Released) => {
                let (reply, _) = oneshot::channel();
                self.send_release(hold, reply);
            }
            _ => self.bury(&hold),
        }
    }

    /// Undoes an acquire on the nodes that granted it, and on those that may have or may yet.
    pub(super) fn undo(self: &Arc<Self>, key: &Key, field: &str, taken: Vec<NodeIndex>, doubtful: Vec<NodeIndex>) {
        let taken = taken.into_iter().map(|node| (node, false));
        for (node, doubtful) in taken.chain(doubtful.into_iter().map(|node| (node, true))) {
            if self.undos.load(Ordering::Acquire) >= MOST_UNDOS {
                tracing::warn!(%key, field, "too many undos are waiting for their server: this key runs out with its lease");
                return;
            }
            let pending = Pending::undo(self);
            self.engine.spawn(undo(Arc::clone(self), node, key.clone(), field.to_owned(), doubtful, pending));
        }
    }
}

/// Releases a hold, again and again until a majority has answered, or the lease is over in any case. The caller is told
/// after a command timeout at the latest; the key's line goes on then too.
async fn release(session: Arc<Session>, hold: Arc<Hold>, reply: oneshot::Sender<Result<(), Error>>, pending: Pending) {
    let deadline = Instant::now() + session.settings.command_timeout;
    // A renewal that was under way may have started the lease anew just now, and no later one can.
    let over = Instant::now() + hold.terms.lease;
    let mut reply = Some(reply);
    let mut pause = AGAIN;
    // Whether a release may have been executed before: then "gone" is what is expected.
    let mut executed = false;
    let answer = loop {
        let sending = session.quorum.release(&hold.key, &hold.field);
        tokio::pin!(sending);
        let settled = tokio::select! {
            settled = &mut sending => settled,
            () = sleep(Instant::now().until(deadline)), if reply.is_some() => {
                tell_unconfirmed(&session, &hold, &mut reply, Vec::new());
                sending.await
            }
        };
        match settled {
            Settled::Done => break Ok(()),
            Settled::Gone if executed && Instant::now() < hold.valid_until() => break Ok(()),
            Settled::Gone => break Err(Error::Lost(Loss::NotOwner)),
            Settled::Refused(error) => break Err(error),
            Settled::Unanswered { nodes, executed: maybe } => {
                executed |= maybe;
                let now = Instant::now();
                if now >= deadline {
                    tell_unconfirmed(&session, &hold, &mut reply, nodes);
                }
                if now >= over {
                    break Ok(());
                }
                back_off(&session, &mut pause).await;
            }
        }
    };
    session.gate.remove(&hold);
    session.watchdog.forget(&hold, Instant::now());
    match &answer {
        Ok(()) => tracing::debug!(key = %hold.key, field = hold.field, "released"),
        Err(error) => tracing::warn!(key = %hold.key, field = hold.field, %error, "released, but it was not ours"),
    }
    drop(pending);
    if let Some(reply) = reply {
        // Dropped guards do not wait for it.
        let _: Result<_, _> = reply.send(answer);
    }
}

/// The caller has waited for as long as it should; the release goes on, and so does the key's line.
fn tell_unconfirmed(
    session: &Session,
    hold: &Arc<Hold>,
    reply: &mut Option<oneshot::Sender<Result<(), Error>>>,
    mut nodes: Vec<NodeFailure>,
) {
    let Some(reply) = reply.take() else { return };
    tracing::warn!(key = %hold.key, field = hold.field, "the release is not confirmed yet");
    session.gate.remove(hold);
    if nodes.is_empty() {
        let reason = format!("did not confirm the release within {:?}", session.settings.command_timeout);
        let silent = |node: &Arc<Node>| NodeFailure { node: Arc::clone(node.name()), reason: reason.clone() };
        nodes = session.quorum.nodes().iter().map(silent).collect();
    }
    let _: Result<_, _> = reply.send(Err(Error::Unavailable { nodes, waited: Duration::ZERO }));
}

async fn back_off(session: &Session, pause: &mut Duration) {
    sleep(*pause).await;
    *pause = (*pause * 2).min(session.settings.command_timeout / 2);
}

/// Undoes an acquire on one node, again and again until it answers. What may be executed late is undone once more: the
/// acquire may have been on a connection that was given up, and the cancel overtook it on another.
async fn undo(session: Arc<Session>, node: NodeIndex, key: Key, field: String, doubtful: bool, _pending: Pending) {
    for pass in 0..if doubtful { 2 } else { 1 } {
        if pass > 0 {
            sleep(session.settings.command_timeout).await;
        }
        let mut pause = AGAIN;
        while let Err(failure) = session.quorum.cancel(node, &key, &field).await {
            tracing::trace!(%key, field, %failure, "an undo has no answer");
            back_off(&session, &mut pause).await;
        }
    }
    session.counters.undone();
    tracing::debug!(%key, field, "undone");
}

impl Session {
    /// The hold count of a re-entry is written. An answer that never comes is no reason to stay out while the hold is
    /// safe: the count was kept here before it was sent.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock turns out not to be ours; what happened to the write, if the hold is not safe.
    pub(super) async fn write_count(self: &Arc<Self>, hold: &Arc<Hold>, count: u32) -> Result<(), Error> {
        let (session, counted) = (Arc::clone(self), Arc::clone(hold));
        let settled =
            self.on_engine(async move { Ok(session.quorum.count(&counted.key, &counted.field, count).await) }).await?;
        let error = match settled {
            Settled::Done => return Ok(()),
            Settled::Gone => {
                self.lose(hold, Loss::NotOwner);
                Error::Lost(Loss::NotOwner)
            }
            Settled::Refused(error) => error,
            Settled::Unanswered { nodes, .. } => Error::Unavailable { nodes, waited: Duration::ZERO },
        };
        let look = hold.at(Instant::now());
        if look.newly_lost {
            self.judge(Verdict::Lost(Arc::clone(hold)));
        }
        match look.state {
            HoldState::Safe => {
                tracing::warn!(key = %hold.key, count, %error, "entered again, but the count could not be written");
                Ok(())
            }
            HoldState::Jeopardy => Err(error),
            HoldState::Lost(loss) => Err(Error::Lost(loss)),
        }
    }
}
