//! What the servers keep of a lock, for those who ask.

use std::sync::Arc;

use super::Session;
use crate::error::Error;
use crate::key::Key;
use crate::preflight::Preflight;

impl Session {
    /// Asks all servers what they keep of locks with these names, or of any.
    pub(crate) async fn preflight(self: &Arc<Self>, names: Vec<Key>) -> Result<Preflight, Error> {
        self.enter()?;
        names.iter().try_for_each(Key::validate)?;
        if self.quorum.nodes().iter().any(|node| node.is_cluster()) {
            let problem = "the masters of a cluster are not looked over yet: ask a server that is set up as they are, \
                           but with `cluster-enabled no`";
            return Err(Error::config("preflight", problem));
        }
        let session = Arc::clone(self);
        self.on_engine(async move { Ok(session.quorum.preflight(&session.settings, &names).await) }).await
    }
}
