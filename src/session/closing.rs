//! The end of a session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Session;
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::foreign;

/// How long closing waits for what is under way, at most.
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
            session.wind_down().await;
            foreign::answer(reply, ());
            session.engine.stop();
        });
        // An error means that the engine has ended, which is what this waits for.
        let _: Result<_, _> = answer.await;
    }

    /// Refuses new work, ends waits, fires every token, waits for releases, quits. Runs on the engine, which ends after
    /// it, also after a panic.
    pub(super) async fn wind_down(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        self.turns.close();
        let _: Result<_, _> = foreign::survive(self.finish()).await;
    }

    /// Ends all waits and all holds.
    pub(super) fn end_all(&self) {
        for waiter in self.lines.drain_all() {
            foreign::answer(waiter.call.reply, Err(Error::Closed));
        }
        for hold in self.lines.holds() {
            hold.lose(Loss::Closed);
        }
    }

    async fn finish(self: &Arc<Self>) {
        self.end_all();
        let minority = self.quorum.nodes().len().saturating_sub(self.quorum.majority());
        let settled = self.engine.tally().end(minority, || self.lines.is_idle());
        let bound = Instant::now() + CLOSING.min(self.settings.lease);
        let _: Result<_, _> = timeout(Instant::now().until(bound), settled).await;
        // Servers that do not answer get no QUIT: their sockets are closed with the engine.
        let politeness = Instant::now().until(bound).max(Duration::from_millis(100));
        let _: Result<_, _> = timeout(politeness, self.leave_servers()).await;
        // fred's own tasks write what is queued for its sockets.
        sleep(Duration::from_millis(1)).await;
    }
}
