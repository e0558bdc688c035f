//! Asks the servers who holds a key.

use std::sync::Arc;

use super::Session;
use crate::error::Error;
use crate::holder::Holder;
use crate::key::Key;

impl Session {
    /// Returns whether an attempt would find a key held, according to the servers.
    pub(crate) async fn is_locked(self: &Arc<Self>, key: &Key) -> Result<bool, Error> {
        self.enter()?;
        let (session, asked) = (Arc::clone(self), key.clone());
        self.on_engine(async move { Ok(session.quorum.inspect(&asked).await?.is_some()) }).await
    }

    /// Returns who holds a key, according to the servers, with the label of its locker.
    pub(crate) async fn holder(self: &Arc<Self>, key: &Key) -> Result<Option<Holder>, Error> {
        self.enter()?;
        let (session, asked) = (Arc::clone(self), key.clone());
        let operation = async move {
            match session.quorum.inspect(&asked).await? {
                Some(holder) if session.has_labels() => Ok(Some(session.quorum.labelled(holder).await)),
                holder => Ok(holder),
            }
        };
        self.on_engine(operation).await
    }
}
