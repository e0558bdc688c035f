//! Finds out who has a read-write lock, and releases it from them. Such a lock is on one server.

use std::sync::Arc;

use super::Quorum;
use crate::error::Error;
use crate::key::Key;
use crate::op::{Expel, LeaveHint, ListHolders, ListedHolder};

impl Quorum {
    /// Deletes the hint that a writer of this locker waits.
    ///
    /// # Errors
    /// Why it may still be there.
    pub(crate) async fn withdraw(&self, key: Key, locker: Arc<str>) -> Result<(), Error> {
        self.hear_all(LeaveHint { key, locker }).await.map(drop)
    }

    /// Returns who has the lock.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or the refusal of a server.
    pub(crate) async fn holders_of(&self, key: &Key) -> Result<Vec<ListedHolder>, Error> {
        let found = self.hear_all(ListHolders(key.clone())).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Releases the lock from the holders with these fields. Returns whether any of them had it.
    ///
    /// # Errors
    /// As [`holders_of`](Self::holders_of).
    pub(crate) async fn expel(&self, key: &Key, fields: Arc<[String]>) -> Result<bool, Error> {
        let key = key.clone();
        let expelled = self.hear_all(Expel { key, fields }).await?;
        Ok(expelled.iter().any(|count| *count > 0))
    }
}
