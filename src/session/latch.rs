//! Latches: calls that set and count them, and callers that wait until they are open.
//!
//! # A count
//! 1. Each call has an id of its own. It is sent until it is answered, always with that id, and for
//!    an `outage_tolerance` at most.
//! 2. `count_down.lua` and `set_latch.lua` carry out the first copy of a call. The server remembers
//!    the id, so the copies behind it do nothing and have the same answer.
//! 3. The last count deletes the key, and publishes a message.
//! 4. A caller that waits watches the latch, and is open once it reads no count.
//!
//! The id stays for longer than a copy can be on its way, and not only until the latch opens: a
//! copy that arrives later would count for the next round, or set a latch that no client counts
//! down.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::watching::KeyWatch;
use super::{Session, jobs, waits};
use crate::clock::Instant;
use crate::error::Error;
use crate::key::Key;
use crate::lease;
use crate::op::{CountDown, LatchCall, Op, ReadLatch, SetLatch};
use crate::random;

/// How much longer than an `outage_tolerance` the server remembers the id of a call: a command may
/// be in a buffer for as long after its last copy was sent.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// Sees when a latch is open.
#[derive(Debug)]
pub(crate) struct LatchWatch {
    watch: KeyWatch,
    key: Key,
    /// When the read in flight was sent.
    reads: Option<Instant>,
}

impl Session {
    /// # Errors
    /// [`Error::Config`] if this locker cannot have latches.
    pub(crate) fn check_latch(&self) -> Result<(), Error> {
        self.check_format("latch", "a latch is")?;
        self.check_one_server("latch", "a latch is", |_| {
            "a count that one of them has missed would never be made up".to_owned()
        })
    }

    /// Sets a latch. Returns whether this call has set it.
    pub(crate) async fn set_latch(self: &Arc<Self>, key: &Key, count: u64) -> Result<bool, Error> {
        self.enter()?;
        let set = SetLatch(self.latch_call(key), count);
        jobs::on_engine(self, until_answered(Arc::clone(self), set)).await
    }

    /// Counts a latch down. Returns what is left.
    pub(crate) async fn count_down(self: &Arc<Self>, key: &Key) -> Result<u64, Error> {
        self.enter()?;
        let count = CountDown(self.latch_call(key));
        jobs::on_engine(self, until_answered(Arc::clone(self), count)).await
    }

    /// Returns the count of a latch.
    pub(crate) async fn latch(self: &Arc<Self>, key: &Key) -> Result<u64, Error> {
        self.enter()?;
        let session = Arc::clone(self);
        let read = ReadLatch(key.clone());
        jobs::on_engine(self, async move { session.quorum.ask_one(read).await }).await
    }

    /// Watches a latch.
    ///
    /// # Errors
    /// [`Error::Closed`] and others that end every call.
    pub(crate) fn watch_latch(self: &Arc<Self>, key: &Key) -> Result<LatchWatch, Error> {
        let messages = key.to_latch_messages(self.quorum.is_cluster());
        let watch = self.watch(vec![messages])?;
        self.latch_waiters.fetch_add(1, Ordering::Relaxed);
        Ok(LatchWatch {
            watch,
            key: key.clone(),
            reads: None,
        })
    }

    fn latch_call(&self, key: &Key) -> LatchCall {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        LatchCall {
            key: key.clone(),
            id: format!("{}:{generation}", self.id).into(),
            remembered: REMEMBERED + self.settings.outage_tolerance,
        }
    }
}

/// Sends a call of a latch until it is answered.
///
/// # Errors
/// [`Error::Unavailable`] if that takes longer than an `outage_tolerance`; the refusal of a server;
/// [`Error::Closed`].
async fn until_answered<O>(session: Arc<Session>, call: O) -> Result<O::Output, Error>
where
    O: Op<Output: Default + 'static> + Clone + Send + 'static,
{
    let began = session.now();
    loop {
        let error = match session.quorum.ask_one(call.clone()).await {
            Err(error @ Error::Unavailable { .. }) => error,
            answered => return answered,
        };
        let waited = session.now().since(began);
        if waited >= session.settings.outage_tolerance {
            return Err(error.after(waited));
        }
        let pause = random::retry_pause();
        waits::pause_until(&session, session.now() + pause).await;
        session.check_open()?;
    }
}

impl LatchWatch {
    /// Waits until the latch is open, or until the deadline. Returns whether it is open.
    ///
    /// # Errors
    /// Those of [`Session::latch`], and [`Error::Unavailable`] if there has been no answer for an
    /// `outage_tolerance`, or none at the deadline.
    pub(crate) async fn opened(&mut self, deadline: Option<Instant>) -> Result<bool, Error> {
        let session = Arc::clone(self.watch.session());
        if let Some(opened) = session.in_time(deadline, self.open()).await {
            return opened.map(|()| true);
        }
        if let Some(error) = self.watch.failure() {
            return Err(error);
        }
        if let (Some(since), Some(deadline)) = (self.reads, deadline) {
            waits::gave_up(&session, since, deadline)?;
        }
        Ok(false)
    }

    async fn open(&mut self) -> Result<(), Error> {
        loop {
            let read = self.read().await;
            if let Ok(0) = read {
                return Ok(());
            }
            self.watch.rest(read.map(|_| ())).await?;
        }
    }

    async fn read(&mut self) -> Result<u64, Error> {
        let session = Arc::clone(self.watch.session());
        let sent = session.now();
        self.reads = Some(sent);
        let count = session.latch(&self.key).await;
        self.reads = None;
        if count.is_ok() {
            let recheck = lease::recheck_interval(session.settings.lease);
            self.watch.answered(sent + recheck);
        }
        count
    }
}

impl Drop for LatchWatch {
    fn drop(&mut self) {
        let waiters = &self.watch.session().latch_waiters;
        waiters.fetch_sub(1, Ordering::Relaxed);
    }
}
