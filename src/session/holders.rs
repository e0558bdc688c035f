//! Asks the servers who holds a key, and releases it whoever does.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Session, jobs, labels};
use crate::error::{Error, Loss};
use crate::foreign::log;
use crate::hold::Hold;
use crate::holder::Holder;
use crate::key::Key;
use crate::lua::sha1;

impl Session {
    /// Returns whether an attempt would find a key held, according to the servers.
    pub(crate) async fn is_locked(self: &Arc<Self>, key: &Key) -> Result<bool, Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let asked = key.clone();
        jobs::on_engine(self, async move {
            Ok(session.quorum.inspect(&asked).await?.is_some())
        })
        .await
    }

    /// Returns who holds a key, according to the servers, with the label of its locker.
    pub(crate) async fn holder(self: &Arc<Self>, key: &Key) -> Result<Option<Holder>, Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let asked = key.clone();
        let operation = async move {
            match session.quorum.inspect(&asked).await? {
                Some(holder) if labels::has_labels(&session) => {
                    Ok(Some(session.quorum.labelled(holder).await))
                }
                holder => Ok(holder),
            }
        };
        jobs::on_engine(self, operation).await
    }

    /// Releases a key, whoever holds it.
    pub(crate) async fn force_unlock(self: &Arc<Self>, key: &Key) -> Result<bool, Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let forced = key.clone();
        jobs::on_engine(self, async move {
            let mut deposed = false;
            let before = session.lines.holds_of(&forced);
            // A holder that is notified of its loss releases, and then the next one here may have
            // the lock: it must not be among those that are named. Nor is it late: others may
            // acquire the lock once the command is sent.
            let depose = |names: Option<&BTreeSet<String>>| {
                let is_named = |hold: &Hold| {
                    names.is_some_and(|names| names.contains(&sha1(hold.claim.field.as_bytes())))
                };
                let now = session.lines.holds_of(&forced);
                for hold in before
                    .iter()
                    .chain(now.iter().filter(|hold| is_named(hold)))
                {
                    deposed |= hold.lose(Loss::ForceUnlocked);
                }
            };
            let answer = session.quorum.force(&forced, depose).await;
            if forced.is_fair()
                && let Err(error) = session.quorum.call_next(&forced).await
            {
                log!(debug, key = %forced.shown(), %error, "could not notify the next waiter: it polls");
            }
            // The release of a guard that was deposed here may have come first.
            Ok(answer? || deposed)
        })
        .await
    }
}
