//! Notices that a connection is silent, and makes it again.

use std::sync::Arc;
use std::time::Duration;

use fred::interfaces::ClientLike;
use tokio::time::timeout;

use super::Link;
use crate::error::NodeFailure;
use crate::foreign::log;
use crate::node::client::reply_timeout;
use crate::node::reply::Outcome;

impl Link {
    /// Returns whether the connection is silent: its last script had no answer.
    pub(in crate::node) fn is_silent(&self) -> bool {
        *self.silent.borrow()
    }

    /// Waits a while for an answer, if the connection is silent: a heartbeat is in flight.
    ///
    /// # Errors
    /// Why there is none.
    pub(in crate::node) async fn heard(&self) -> Result<(), NodeFailure> {
        let mut silent = self.silent.subscribe();
        if timeout(self.patience(), silent.wait_for(|silent| !silent))
            .await
            .is_ok()
        {
            return Ok(());
        }
        // If it is being re-established, that says more about the server.
        self.ready_for(Duration::ZERO).await?;
        let bound = reply_timeout(self.role, &self.settings);
        Err(self.failure(format!(
            "silent: a script had no answer within {bound:?}, and none has had one since"
        )))
    }

    pub(super) fn set_silent(&self, silent: bool) {
        if self.is_silent() != silent {
            self.silent.send_replace(silent);
        }
    }
}

/// Sends PINGs. To a connection that falls silent it sends scripts at once, one after the other,
/// until one is answered. Two heartbeats without an answer force a reconnect. Ends when the
/// reconnect hangs, or when the client's task has ended.
pub(super) async fn heartbeat(link: &Arc<Link>) {
    let mut silent = 0;
    let mut suspected = link.silent.subscribe();
    loop {
        if link.client().is_connected() {
            // No silence is missed: the current value is checked too, and not only changes.
            let _: Result<_, _> = timeout(
                link.settings.command_timeout,
                suspected.wait_for(|silent| *silent),
            )
            .await;
        } else {
            let client = link.client();
            let _: Result<_, _> =
                timeout(link.settings.command_timeout, client.wait_for_connect()).await;
        }
        link.report();
        if link.current.lock().task.is_finished() {
            return;
        }
        if !link.client().is_connected() {
            // The client is reconnecting by itself.
            silent = 0;
            continue;
        }
        // A paused server answers PINGs, and runs no script.
        let answer = if *link.silent.borrow() {
            link.run_nothing().await
        } else {
            link.barrier().await
        };
        silent = match answer {
            Outcome::Unknown(failure) => {
                *link.last_error.lock() = failure.reason;
                silent + 1
            }
            // Every other outcome is an answer, or nothing was sent.
            _ => 0,
        };
        link.report();
        if silent == 2 {
            silent = 0;
            let node = &link.address.name;
            let role = link.role.name();
            log!(debug, %node, role, "two silent heartbeats: reconnecting");
            let client = link.client();
            let forced = timeout(link.settings.command_timeout, client.force_reconnection()).await;
            // During an outage the client keeps reconnecting and is not connected. A stuck router
            // still claims that it is connected.
            if forced.is_err() && client.is_connected() {
                return;
            }
        }
    }
}
