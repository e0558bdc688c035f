//! The end of a session.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Session, jobs, labels};
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::foreign::{self, contained};

/// How long closing waits for what is in flight, at most.
const CLOSING: Duration = Duration::from_secs(5);

impl Session {
    /// Closes: see [`Locker::close`](crate::Locker::close).
    pub(crate) async fn close(self: &Arc<Self>) {
        if self.is_forked() {
            return;
        }
        let (reply, answer) = foreign::channel();
        let session = Arc::clone(self);
        self.engine.spawn(async move {
            wind_down(&session).await;
            // Before the engine ends, which would drop the answer.
            foreign::answer(reply, ());
            session.engine.stop();
        });
        // An error means that the engine has ended, which is what this waits for.
        let _: Result<_, _> = answer.await;
    }
}

/// Refuses new work, ends waits, fires every token, waits for releases, quits. Runs on the engine,
/// which ends after it, also after a panic.
pub(super) async fn wind_down(session: &Arc<Session>) {
    // First: a caller whose wait ends below, and that asks again, must be refused.
    session.closed.store(true, Ordering::Release);
    session.turns.close();
    let _: Result<_, _> = foreign::survive(finish(session)).await;
}

/// Ends all waits and all holds.
pub(super) fn end_all(session: &Session) {
    jobs::refuse(session.lines.drain_all(), &Error::Closed);
    session.bells.ring_all();
    for hold in session.lines.holds() {
        hold.lose(Loss::Closed);
    }
}

async fn finish(session: &Arc<Session>) {
    end_all(session);
    let minority = session
        .quorum
        .nodes()
        .len()
        .saturating_sub(session.quorum.majority());
    let settled = session
        .engine
        .tally()
        .end(minority, || session.lines.is_idle());
    // What is not released by then ends with its lease.
    let bound = Instant::now() + CLOSING.min(session.settings.lease);
    let _: Result<_, _> = timeout(Instant::now().until(bound), settled).await;
    // Servers that do not answer get no QUIT: their sockets are closed with the engine.
    let politeness = Instant::now().until(bound).max(Duration::from_millis(100));
    let _: Result<_, _> = timeout(politeness, labels::leave_servers(session)).await;
    // fred's own tasks write what is queued for its sockets.
    sleep(Duration::from_millis(1)).await;
}

/// Ends an embedded engine with its runtime, which may end at any time and without closing the
/// locker: callers that wait get an error, and later ones find the locker closed. A job that was
/// never polled cannot do that.
pub(super) struct CloseOnRuntimeDrop(Weak<Session>);

impl CloseOnRuntimeDrop {
    pub(super) fn of(session: &Arc<Session>) -> Self {
        Self(Arc::downgrade(session))
    }
}

/// A task of an embedded engine that ends with that engine, or with the runtime.
pub(super) async fn stay(_until: CloseOnRuntimeDrop) {
    pending::<()>().await;
}

impl Drop for CloseOnRuntimeDrop {
    fn drop(&mut self) {
        if let Some(session) = self.0.upgrade() {
            session.closed.store(true, Ordering::Release);
            session.turns.close();
            contained(|| end_all(&session));
        }
    }
}
