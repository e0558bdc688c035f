//! Sets the capacity of a semaphore, and finds out who has its permits. A semaphore is on one
//! server.

use std::time::Duration;

use super::Quorum;
use crate::claim::{Claim, ReleaseAnswer, Wakes};
use crate::error::Error;
use crate::key::Key;
use crate::op::{ListPermits, ListedPermits, Release, SetCapacity};

impl Quorum {
    /// Sets how many permits there are. Returns whether it is done: not if permits may be taken
    /// that have no record.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or the refusal of a server.
    pub(crate) async fn set_capacity(
        &self,
        key: &Key,
        capacity: u32,
        lease: Duration,
    ) -> Result<bool, Error> {
        let key = key.clone();
        self.ask_one(SetCapacity {
            key,
            capacity,
            lease,
        })
        .await
    }

    /// Returns who has permits, but no more than this many of them.
    ///
    /// # Errors
    /// As [`set_capacity`](Self::set_capacity).
    pub(crate) async fn permits_of(
        &self,
        key: &Key,
        lease: Duration,
        most: u32,
    ) -> Result<ListedPermits, Error> {
        let key = key.clone();
        self.ask_one(ListPermits { key, lease, most }).await
    }

    /// Gives back the permits of a claim. Returns whether it had any.
    ///
    /// # Errors
    /// As [`set_capacity`](Self::set_capacity).
    pub(crate) async fn give_back(&self, claim: Claim) -> Result<bool, Error> {
        let release = Release {
            claim,
            rest: None,
            wakes: Wakes::All,
        };
        let answers = self.hear_all(release).await?;
        Ok(answers.iter().any(|answer| *answer != ReleaseAnswer::Gone))
    }
}
