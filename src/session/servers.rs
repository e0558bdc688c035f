//! What tools do with the servers.

use std::sync::Arc;

use super::{Session, jobs};
use crate::error::Error;
use crate::foreign;
use crate::lease::NodeIndex;
use crate::quorum::Quorum;

impl Session {
    pub(crate) fn quorum(&self) -> &Quorum {
        &self.quorum
    }

    /// Runs something for a tool, to its end, as a task of the engine.
    ///
    /// # Errors
    /// Those of [`enter`](Self::enter).
    pub(crate) async fn run_for_tool<T: Send + 'static>(
        self: &Arc<Self>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        foreign::give_way().await;
        self.enter()?;
        jobs::on_engine(self, async move { Ok(task.await) }).await
    }

    /// Returns why the vote of this node does not count; nothing in a forked process, where a mutex
    /// may be locked forever.
    pub(crate) fn why_no_vote(&self, place: NodeIndex) -> Option<String> {
        if self.is_forked() {
            None
        } else {
            self.quorum.why_no_vote(place)
        }
    }
}
