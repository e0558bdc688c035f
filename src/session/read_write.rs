//! Readers and writers: reads inside a write hold, the refusal of upgrades, and who has the lock.
//!
//! A read inside a write hold of the same owner goes past the line: others in it may wait for that
//! hold. The script grants it only while the write hold is on the server, so it is no way in for
//! another caller. An owner that reads and asks to write would wait for itself, and is refused.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::{self, AcquireRequest, Attempt};
use super::{RawGuard, Session, jobs, labels};
use crate::claim::{Among, How};
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::hold::{Hold, Want};
use crate::holder::{Holders, ReadWriteHolder};
use crate::identity::Caller;
use crate::key::Key;
use crate::quorum::Order;

/// How many holders are listed: for each, the label of its locker is asked for.
const MOST_HOLDERS: usize = 1_000;

/// Returns the error of an owner that reads and asks to write.
pub(super) fn upgrade(key: &Key) -> Error {
    Error::config(
        "write",
        format!(
            "this owner holds {key:?} for reading, so a writer would wait for itself: release the read guard first"
        ),
    )
}

/// Returns how a reader or a writer asks that does not wait if it is refused.
pub(super) fn among(session: &Session) -> Among {
    Among {
        locker: Arc::clone(&session.id_text),
        under: None,
        hint: None,
        comes: Duration::ZERO,
    }
}

/// Reads inside this write hold of the caller's owner. Returns `None` if that hold is being
/// released: then the caller comes again.
///
/// # Errors
/// [`Error::Lost`] if the server does not have the write hold.
pub(super) async fn read_inside(
    session: &Arc<Session>,
    key: &Key,
    caller: &Caller,
    want: Want,
    write: Arc<Hold>,
) -> Result<Option<RawGuard>, Error> {
    let owned = Arc::clone(session);
    let key = key.clone();
    let owner = caller.owner.clone();
    let origin = caller.origin;
    jobs::on_engine(session, async move {
        let sent = Instant::now();
        let how = How::Among(Among {
            under: Some(Arc::clone(&write.claim.field)),
            ..among(&owned)
        });
        let request = AcquireRequest {
            key: &key,
            owner: &owner,
            origin,
            permits: 0,
        };
        let requests = slice::from_ref(&request);
        match attempt::attempt(&owned, requests, want, Order::AllAtOnce, how).await {
            Attempt::Granted(granted) => Ok(granted
                .iter()
                .map(|grant| attempt::register(&owned, grant))
                .next()),
            // The server would have granted it inside the write hold.
            Attempt::Held { .. } if write.lose(Loss::NotOwner) => {
                Err(Error::lost(&key, Loss::NotOwner))
            }
            Attempt::Held { .. } | Attempt::Split | Attempt::Outrun => Ok(None),
            Attempt::Refused(error) => Err(error),
            Attempt::Unavailable(nodes) => {
                let lasts = owned.outage.known_before(sent, Instant::now());
                Err(owned.quorum.unavailable(nodes, lasts))
            }
        }
    })
    .await
}

impl Session {
    /// # Errors
    /// [`Error::Config`] if this locker cannot have read-write locks.
    pub(crate) fn check_read_write(&self) -> Result<(), Error> {
        self.check_format("rw", "a read-write lock is a hash")?;
        let servers = self.quorum.nodes().len();
        if servers <= 1 {
            return Ok(());
        }
        let reason = format!(
            "a read-write lock is on one server, and this locker has {servers} independent ones: connect another \
             locker to one of them, to a cluster or to a master with Sentinels for it, or use a lock (get)"
        );
        Err(Error::config("rw", reason))
    }

    /// Returns who has a read-write lock, according to the server.
    pub(crate) async fn holders(self: &Arc<Self>, key: &Key) -> Result<Holders, Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let asked = key.clone();
        jobs::on_engine(self, async move {
            let mut holders = Vec::new();
            for holder in session
                .quorum
                .holders_of(&asked)
                .await?
                .into_iter()
                .take(MOST_HOLDERS)
            {
                let label = match labels::has_labels(&session) {
                    true => session.quorum.label_of(&holder.field).await,
                    false => None,
                };
                holders.push(ReadWriteHolder {
                    owner: holder.field,
                    count: holder.count,
                    remaining: holder.remaining,
                    label,
                });
            }
            Ok(Holders::new(holders))
        })
        .await
    }

    /// Releases a read-write lock from those who have it now.
    pub(crate) async fn expel(self: &Arc<Self>, key: &Key) -> Result<bool, Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let key = key.clone();
        jobs::on_engine(self, async move {
            let before = session.lines.holds_of(&key);
            let found = session.quorum.holders_of(&key).await;
            // Before the command is sent: others may acquire the lock once it is.
            let named = |hold: &Arc<Hold>| {
                found
                    .iter()
                    .flatten()
                    .any(|holder| *holder.field == *hold.claim.field.as_bytes())
            };
            let (mut deposed, mut standing) = (false, before);
            loop {
                for hold in &standing {
                    deposed |= hold.lose(Loss::ForceUnlocked);
                }
                // A reader may have come in beside one of them before it was lost.
                standing = session.lines.holds_of(&key);
                standing.retain(|hold| hold.is_held() && named(hold));
                if standing.is_empty() {
                    break;
                }
            }
            // Fields that are no text are no owner's, neither of this crate nor of Redisson.
            let fields: Arc<[String]> = found?
                .into_iter()
                .filter_map(|holder| String::from_utf8(holder.field).ok())
                .collect();
            let expelled = !fields.is_empty() && session.quorum.expel(&key, fields).await?;
            Ok(expelled || deposed)
        })
        .await
    }
}
