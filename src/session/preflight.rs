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
        let session = Arc::clone(self);
        self.on_engine(async move { Ok(session.quorum.preflight(&session.settings, &names).await) }).await
    }
}
