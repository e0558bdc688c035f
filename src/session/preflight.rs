//! Checks the servers for `preflight`.

use std::sync::Arc;

use super::Session;
use crate::error::Error;
use crate::foreign;
use crate::key::Key;
use crate::preflight::Preflight;

impl Session {
    /// Checks all servers for locks with these names, or with any name.
    pub(crate) async fn preflight(self: &Arc<Self>, names: Vec<Key>) -> Result<Preflight, Error> {
        foreign::give_way().await;
        self.enter()?;
        names.iter().try_for_each(Error::unless_named)?;
        let session = Arc::clone(self);
        self.on_engine(async move { Ok(session.quorum.preflight(&session.settings, &names).await) }).await
    }
}
