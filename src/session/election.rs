//! The value of a leader, and who leads.
//!
//! # A value, from its leader to an observer
//! 1. A candidate gets the lock, as any caller. Its field names this attempt and no other, so the
//!    field stands for the term.
//! 2. `proclaim.lua` writes the value beside the lock, if the lock has the leader's field, and
//!    publishes a message. Each value of a term has a number, so a late copy of an earlier one
//!    writes nothing.
//! 3. The leader writes it again whenever a third of its lease is over: a server may have been
//!    away, or have lost it. The value lives for two leases, so nothing stays behind a leader that
//!    has died.
//! 4. An observer watches the lock's channel and that of the values. `leader.lua` reads both keys
//!    at once, and reports the value only if it was written under the field that the lock has.
//!
//! A user without the right to the value leads all the same: observers see a leader without one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;

use super::warned::Warning;
use super::watching::KeyWatch;
use super::{Session, jobs, waits};
use crate::error::{Error, Loss};
use crate::foreign::log;
use crate::hold::Hold;
use crate::key::Key;
use crate::lease;
use crate::op::{KeyLeader, Proclaim};
use crate::quorum::Settled;
use crate::random;
use crate::sync::Mutex;
use crate::tasks::Stop;

/// How many leases a value stays behind its last write.
const LIFETIME: u32 = 2;

/// What a leader proclaims, again and again while it leads. Ends when it is dropped.
pub(crate) struct Herald {
    session: Arc<Session>,
    hold: Arc<Hold>,
    words: Arc<Mutex<Words>>,
    again: Option<Stop>,
}

/// The last value of a term.
#[derive(Debug, Clone)]
struct Words {
    number: u64,
    value: Arc<str>,
}

/// Sees who leads.
#[derive(Debug)]
pub(crate) struct LeaderWatch {
    watch: KeyWatch,
    key: Key,
}

impl Words {
    fn replace(&mut self, value: Arc<str>) {
        self.number += 1;
        self.value = value;
    }
}

impl Session {
    /// # Errors
    /// [`Error::Config`] if this locker cannot have elections.
    pub(crate) fn check_election(&self) -> Result<(), Error> {
        self.check_format("election", "an election is a lock")
    }

    /// Has a leader proclaim this value for as long as it leads. That it cannot is logged, and does
    /// not end its leadership.
    pub(crate) async fn herald(self: &Arc<Self>, hold: &Arc<Hold>, value: Arc<str>) -> Herald {
        let words = Arc::new(Mutex::new(Words { number: 1, value }));
        let again = again(
            Arc::downgrade(self),
            Arc::clone(hold),
            Arc::downgrade(&words),
        );
        let herald = Herald {
            session: Arc::clone(self),
            hold: Arc::clone(hold),
            words,
            again: Some(Stop(self.engine.spawn(again))),
        };
        let written = herald.write().await;
        let key = &hold.claim.key;
        // A loss is told by the leadership itself.
        if let Err(error) = written.map_err(|error| error.of(std::slice::from_ref(key)))
            && matches!(error, Error::Server { .. } | Error::Unavailable { .. })
            && self.warned.is_due(key, Warning::Unproclaimed, self.now())
        {
            log!(warn, key = %key.shown(), %error, "a leader could not write its value, and leads without one");
        }
        herald
    }

    /// Waits before another campaign, when the servers are away.
    pub(crate) async fn pause_campaign(&self) {
        let pause = random::retry_pause();
        waits::pause_until(self, self.now() + pause).await;
    }

    /// Returns who leads, according to the servers.
    pub(crate) async fn leader(self: &Arc<Self>, key: &Key) -> Result<Option<KeyLeader>, Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let key = key.clone();
        jobs::on_engine(self, async move { session.quorum.leader(&key).await }).await
    }

    /// Watches who leads.
    ///
    /// # Errors
    /// [`Error::Closed`] and others that end every call.
    pub(crate) fn watch_leader(self: &Arc<Self>, election: &Key) -> Result<LeaderWatch, Error> {
        let watch = self.watch(vec![election.clone(), election.to_leader()])?;
        Ok(LeaderWatch {
            watch,
            key: election.to_lock(),
        })
    }
}

impl Herald {
    /// Proclaims another value.
    ///
    /// # Errors
    /// See [`Leadership::proclaim`](crate::Leadership::proclaim).
    pub(crate) async fn proclaim(&self, value: Arc<str>) -> Result<(), Error> {
        self.session.enter()?;
        self.hold
            .at(self.session.now())
            .check(&self.hold.claim.key)?;
        self.words.lock().replace(value);
        self.write().await
    }

    /// Writes the value that is the last one now.
    async fn write(&self) -> Result<(), Error> {
        let words = self.words.lock().clone();
        let session = Arc::clone(&self.session);
        let hold = Arc::clone(&self.hold);
        jobs::on_engine(
            &self.session,
            async move { write(&session, &hold, words).await },
        )
        .await
    }
}

impl Drop for Herald {
    fn drop(&mut self) {
        let again = self.again.take();
        // Its task does not exist in this process, and its runtime may be locked forever.
        if self.session.is_forked() {
            std::mem::forget(again);
        }
    }
}

async fn write(session: &Session, hold: &Arc<Hold>, words: Words) -> Result<(), Error> {
    let proclaim = Proclaim {
        claim: hold.claim.clone(),
        term: hold.fence,
        number: words.number,
        value: words.value,
        lifetime: hold.terms.lease * LIFETIME,
    };
    match session.quorum.proclaim(proclaim).await {
        Settled::Done => Ok(()),
        Settled::Gone => {
            hold.lose(Loss::NotOwner);
            let key = &hold.claim.key;
            hold.at(session.now()).check(key)?;
            // It is being released.
            Err(Error::lost(key, Loss::Released))
        }
        Settled::Refused(error) => Err(error),
        Settled::Unanswered(nodes) => Err(session.quorum.unavailable(nodes, Duration::ZERO)),
    }
}

/// Writes a value again while its leader leads. Started with its leadership; ends with it; no task
/// awaits it.
async fn again(session: Weak<Session>, hold: Arc<Hold>, words: Weak<Mutex<Words>>) {
    loop {
        sleep(hold.terms.lease / 3).await;
        let (Some(session), Some(words)) = (session.upgrade(), words.upgrade()) else {
            return;
        };
        if !hold.is_held() {
            return;
        }
        let words = words.lock().clone();
        // A write that fails is repeated the next time. A loss is noticed by `write` itself.
        let _: Result<(), Error> = write(&session, &hold, words).await;
    }
}

impl LeaderWatch {
    /// Returns who leads now.
    ///
    /// # Errors
    /// As [`Session::leader`].
    pub(crate) async fn read(&mut self) -> Result<Option<KeyLeader>, Error> {
        let session = Arc::clone(self.watch.session());
        // Before the send: the lease counts from some later moment.
        let sent = session.now();
        let leader = session.leader(&self.key).await?;
        let recheck = lease::recheck_interval(session.settings.lease);
        let left = leader.as_ref().and_then(|leader| leader.remaining);
        // PTTL cuts a part of a millisecond off.
        let ends = left.map_or(recheck, |left| left + Duration::from_millis(1));
        self.watch.answered(sent + ends.min(recheck));
        Ok(leader)
    }

    /// See [`KeyWatch::rest`].
    pub(crate) async fn rest(&mut self, read: Result<(), Error>) -> Result<(), Error> {
        self.watch.rest(read).await
    }
}
