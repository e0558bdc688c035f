//! A further connection to the same server, for work that must not disturb the others.

use std::sync::Arc;

use super::Link;
use crate::node::client::Role;

impl Link {
    /// Opens a further connection to the same server, as [`Link::connect_once`].
    pub(in crate::node) async fn another(
        &self,
        role: Role,
    ) -> Result<Arc<Self>, fred::error::Error> {
        let locker = self.client_name.rsplit(':').next().unwrap_or_default();
        Self::connect_once(Arc::clone(&self.address), role, locker, &self.settings).await
    }
}
