//! Permits of semaphores: asks for many callers at once, sets the capacity, and finds out who has
//! them.
//!
//! Callers of one locker are served in their order: an ask is for those at the front of the line,
//! and the server stops at the first for whom there is too little. Between lockers there is no
//! order, so one that wants many permits may be passed by others that want few.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::attempt::{self, AcquireRequest, Attempt};
use super::warned::Warning;
use super::{Session, jobs, labels, waits};
use crate::claim::{Claim, How};
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::foreign::log;
use crate::hold::{Hold, Want};
use crate::holder::{PermitHolder, Usage};
use crate::key::Key;
use crate::kind::{PERMITS, SEMAPHORE};
use crate::line::AcquireOutcome;
use crate::lines::Head;
use crate::op::Served;
use crate::quorum::Order;

/// For how many callers an ask is.
const CALLERS: usize = 16;

/// How many permits are listed: for each holder, the label of its locker is asked for.
const MOST_LISTED: u32 = 1_000;

/// Returns how permits are asked for.
pub(super) fn how(session: &Session, want: Want) -> How {
    How::Permits {
        capacity: want.capacity.map(NonZeroU32::get),
        of_locker: session.settings.lease,
    }
}

/// Asks for permits for the callers at the front of the line, and passes them the grants.
pub(super) async fn ask(session: &Arc<Session>, key: &Key) -> AcquireOutcome {
    let mut front = session.lines.front(key, CALLERS);
    let Some(want) = front.first().map(|head| head.want) else {
        // All have left meanwhile.
        return AcquireOutcome::Refused;
    };
    // An ask has one lease.
    let others = |head: &Head| head.want.terms != want.terms;
    front.truncate(front.iter().position(others).unwrap_or(CALLERS));
    fn request<'a>(key: &'a Key, head: &'a Head) -> AcquireRequest<'a> {
        AcquireRequest {
            key,
            owner: &head.owner,
            origin: head.origin,
            permits: head.want.permits,
        }
    }
    let requests: Vec<_> = front.iter().map(|head| request(key, head)).collect();
    // One that waits behind others may be the only one that knows it.
    let capacity = want.capacity.or_else(|| session.lines.capacity(key));
    let want = Want { capacity, ..want };
    let how = how(session, want);
    let (attempt, served) =
        attempt::attempt_in_order(session, &requests, want, Order::AllAtOnce, how).await;
    let granted = match attempt {
        Attempt::Granted(granted) => granted,
        Attempt::Held { .. } | Attempt::Split | Attempt::Outrun => Vec::new(),
        Attempt::Refused(error) => {
            // The caller leaves first: the line asks next for whoever is its head.
            jobs::refuse(session.lines.leave(key, front[0].id), &error);
            return AcquireOutcome::Refused;
        }
        Attempt::Unavailable(_) => {
            return AcquireOutcome::Unavailable {
                ends_in: waits::outage_ends_in(session),
            };
        }
    };
    let refused = front.get(granted.len());
    for (granted, head) in granted.into_iter().zip(&front) {
        attempt::deliver(session, granted, head.id);
    }
    if let Some(served) = &served {
        compare_capacity(session, key, want, served);
    }
    let (Some(head), Some(served)) = (refused, served) else {
        return AcquireOutcome::Granted;
    };
    if let Err(error) = check_refused(key, head.want, &served) {
        jobs::refuse(session.lines.leave(key, head.id), &error);
        return AcquireOutcome::Refused;
    }
    AcquireOutcome::Held {
        ttl: served.due,
        place: None,
        contested: false,
        // Without a capacity it waits until somebody sets one.
        lasts: served.total.is_none(),
    }
}

/// Returns how many permits there are, if that is known: what JVMs take of one kind has no record.
fn total_of(key: &Key, served: &Served) -> Option<i64> {
    served.total.filter(|_| !key.is_semaphore())
}

/// Warns if the capacity of the handle is not that of the semaphore.
pub(super) fn compare_capacity(session: &Session, key: &Key, want: Want, served: &Served) {
    let (Some(total), Some(capacity)) = (total_of(key, served), want.capacity) else {
        return;
    };
    if i64::from(capacity.get()) != total
        && session
            .warned
            .is_due(key, Warning::Capacity, Instant::now())
    {
        log!(
            warn, key = %key.shown(), capacity, total,
            "this semaphore has another capacity than its handle says, and keeps it: call set_capacity to change it"
        );
    }
}

/// # Errors
/// [`Error::Config`] for a caller that was refused and wants more permits than there are: it would
/// wait for ever.
pub(super) fn check_refused(key: &Key, want: Want, served: &Served) -> Result<(), Error> {
    match total_of(key, served) {
        Some(total) if i64::from(want.permits) > total => Err(Error::config(
            "permits",
            format!(
                "{} permits of {key:?} were asked for, and there are {total}: ask for fewer, or call set_capacity",
                want.permits
            ),
        )),
        _ => Ok(()),
    }
}

impl Session {
    /// # Errors
    /// [`Error::Config`] if this locker cannot have semaphores.
    pub(crate) fn check_permits(&self, capacity: Option<u32>) -> Result<(), Error> {
        self.check_format("permits", "a semaphore is")?;
        self.check_one_server("permits", "a semaphore is", |servers| {
            let permits = u64::from(capacity.unwrap_or(10));
            let majority = self.quorum.majority() as u64;
            let holders = permits * servers / majority;
            format!(
                "with {permits} permits on each, {holders} holders could have one from each of {majority} servers"
            )
        })
    }

    /// Sets how many permits there are.
    pub(crate) async fn set_capacity(
        self: &Arc<Self>,
        key: &Key,
        capacity: u32,
    ) -> Result<(), Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let key = key.clone();
        jobs::on_engine(self, async move {
            let lease = session.settings.lease;
            if session.quorum.set_capacity(&key, capacity, lease).await? {
                return Ok(());
            }
            let problem = format!(
                "{key:?} has a capacity, and JVMs may have permits of it that leave no record, so it cannot be \
                 changed to {capacity}: use Redisson's addPermits, or permits({key:?}) on both sides"
            );
            Err(Error::config("set_capacity", problem))
        })
        .await
    }

    /// Returns who has the permits of a semaphore, according to the server.
    pub(crate) async fn usage(self: &Arc<Self>, key: &Key) -> Result<Usage, Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let key = key.clone();
        jobs::on_engine(self, async move {
            let lease = session.settings.lease;
            let listed = session.quorum.permits_of(&key, lease, MOST_LISTED).await?;
            let mut usage = Usage::new(listed.free, listed.taken, listed.members);
            usage.knows_capacity = !key.is_semaphore();
            if labels::has_labels(&session) {
                for holder in &mut usage.holders {
                    holder.label = session.quorum.label_of(&holder.owner).await;
                }
            }
            Ok(usage)
        })
        .await
    }

    /// Gives back the permits of this holder. Returns whether it had any.
    pub(crate) async fn force_release(
        self: &Arc<Self>,
        key: &Key,
        holder: &PermitHolder,
    ) -> Result<bool, Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let key = key.clone();
        let holder = holder.clone();
        jobs::on_engine(self, async move {
            // Before the command is sent: others may have the permits once it is.
            let is_its = |hold: &Arc<Hold>| *hold.claim.field.as_bytes() == *holder.owner;
            let mut deposed = false;
            for hold in session
                .lines
                .holds_of(&key)
                .iter()
                .filter(|hold| is_its(hold))
            {
                deposed |= hold.lose(Loss::ForceUnlocked);
            }
            let claim = Claim {
                kind: if key.is_semaphore() {
                    &SEMAPHORE
                } else {
                    &PERMITS
                },
                key,
                field: holder.hex().into(),
                // All that it has: not each of them may be listed.
                permits: 0,
            };
            Ok(session.quorum.give_back(claim).await? || deposed)
        })
        .await
    }
}
