//! Giving back: the release of a hold, the count of a nested one, the undo of an acquire.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Session;
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::hold::{Hold, HoldState, Leave};
use crate::key::Key;
use crate::quorum::{NodeIndex, Settled};

/// The pause before a release or an undo is sent again.
const AGAIN: Duration = Duration::from_millis(50);

/// How many releases and undos may wait for an answer. Beyond that a key runs out with its lease.
const MOST_PENDING: usize = 10_000;

/// Counts what is under way, from before it is spawned to its end, however that comes.
struct Pending(Arc<Session>);

impl Pending {
    fn new(session: &Arc<Session>) -> Self {
        session.pending.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(session))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::AcqRel);
        self.0.settled.notify_one();
    }
}

impl Session {
    /// A guard of this hold goes. The answer of what is sent for it comes through the channel.
    ///
    /// # Errors
    /// The loss, if the hold is lost; the last guard's release is sent all the same.
    pub(super) fn leave(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<oneshot::Receiver<Result<(), Error>>, Loss> {
        let (reply, answer) = oneshot::channel();
        match hold.leave(Instant::now()) {
            // Nothing of a revoked grant is left to be counted.
            Leave::Nested(0) => _ = reply.send(Ok(())),
            Leave::Nested(count) => self.send_count(hold, count, reply),
            Leave::Last => self.send_release(Arc::clone(hold), reply),
            Leave::Lost { loss, last } => {
                if last {
                    self.gate.remove(hold);
                    self.watchdog.forget(hold, Instant::now());
                    let nodes = 0..self.quorum.nodes().len();
                    self.undo(&hold.key, &hold.field, nodes.collect(), Vec::new());
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

    /// Nobody took this grant in time.
    pub(super) fn release_revoked(self: &Arc<Self>, hold: Arc<Hold>) {
        tracing::debug!(key = %hold.key, field = hold.field, "nobody took the lock that was granted: it is released");
        let (reply, _) = oneshot::channel();
        self.send_release(hold, reply);
    }

    /// Undoes an acquire on the nodes that granted it, and on those that may have or may yet.
    pub(super) fn undo(self: &Arc<Self>, key: &Key, field: &str, taken: Vec<NodeIndex>, doubtful: Vec<NodeIndex>) {
        let taken = taken.into_iter().map(|node| (node, false));
        for (node, doubtful) in taken.chain(doubtful.into_iter().map(|node| (node, true))) {
            if self.pending.load(Ordering::Acquire) >= MOST_PENDING {
                tracing::warn!(%key, field, "too many undos are waiting for their server: this key runs out with its lease");
                return;
            }
            let pending = Pending::new(self);
            self.engine.spawn(undo(Arc::clone(self), node, key.clone(), field.to_owned(), doubtful, pending));
        }
    }
}

/// Releases a hold, again and again until a majority has answered. The caller is told after a command timeout at the
/// latest; the key's line goes on then too.
async fn release(session: Arc<Session>, hold: Arc<Hold>, reply: oneshot::Sender<Result<(), Error>>, pending: Pending) {
    let deadline = Instant::now() + session.settings.command_timeout;
    let mut reply = Some(reply);
    // Whether a release may have been executed before: then "gone" is what is expected.
    let mut executed = false;
    let answer = loop {
        match session.quorum.release(&hold.key, &hold.field).await {
            Settled::Done => break Ok(()),
            Settled::Gone if executed && Instant::now() < hold.valid_until() => break Ok(()),
            Settled::Gone => break Err(Error::Lost(Loss::NotOwner)),
            Settled::Refused(error) => break Err(error),
            Settled::Unanswered { nodes, executed: maybe } => {
                executed |= maybe;
                if Instant::now() >= deadline
                    && let Some(reply) = reply.take()
                {
                    tracing::warn!(key = %hold.key, field = hold.field, "the release is not confirmed yet");
                    session.gate.remove(&hold);
                    let _: Result<_, _> = reply.send(Err(Error::Unavailable { nodes, waited: Duration::ZERO }));
                }
                sleep(AGAIN.min(session.settings.command_timeout / 4)).await;
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

/// Undoes an acquire on one node, again and again until it answers. What may be executed late is undone once more: the
/// acquire may have been on a connection that was given up, and the cancel overtook it on another.
async fn undo(session: Arc<Session>, node: NodeIndex, key: Key, field: String, doubtful: bool, _pending: Pending) {
    for pass in 0..if doubtful { 2 } else { 1 } {
        if pass > 0 {
            sleep(session.settings.command_timeout).await;
        }
        while let Err(failure) = session.quorum.cancel(node, &key, &field).await {
            tracing::trace!(%key, field, %failure, "an undo has no answer");
            sleep(AGAIN.min(session.settings.command_timeout / 4)).await;
        }
    }
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
        match hold.at(Instant::now()).state {
            HoldState::Safe => {
                tracing::warn!(key = %hold.key, count, %error, "entered again, but the count could not be written");
                Ok(())
            }
            HoldState::Jeopardy => Err(error),
            HoldState::Lost(loss) => Err(Error::Lost(loss)),
        }
    }
}
