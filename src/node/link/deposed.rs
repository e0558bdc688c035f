//! A connection to a deposed master: nothing is sent to it, and it is given up.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Link;
use crate::clock::Instant;
use crate::error::NodeFailure;
use crate::foreign::contained;

/// How long after connecting such a connection is given up: a Sentinel that does not know of the failover yet may name
/// the same server again.
const PAUSE: Duration = Duration::from_millis(50);

impl Link {
    /// # Errors
    /// The server that it is connected to has a successor.
    pub(super) fn leads_to_no_deposed_master(&self) -> Result<(), NodeFailure> {
        let Some(succession) = self.address.succession() else { return Ok(()) };
        let Some(place) = self.connected_to().filter(|place| succession.is_deposed(place, Instant::now())) else {
            return Ok(());
        };
        let reason = format!("connected to {place}, which is not the master any more");
        Err(NodeFailure { node: Arc::clone(self.server()), reason })
    }

    /// Gives up a connection that has just been made, if it leads to a deposed master. Started for each connection;
    /// nobody awaits it.
    pub(super) async fn leave_deposed_master(self: Arc<Self>) {
        if self.leads_to_no_deposed_master().is_ok() {
            return;
        }
        contained(|| {
            tracing::info!(
                node = %self.server(),
                "connected to a master that has a successor: nothing is sent to it, and the Sentinels are asked again"
            );
        });
        sleep(PAUSE).await;
        if self.leads_to_no_deposed_master().is_err() {
            self.reconnect().await;
        }
    }
}
