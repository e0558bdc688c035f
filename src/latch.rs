//! Latches, which open once they have been counted down.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Error;
use crate::foreign;
use crate::key::Key;
use crate::session::SharedSession;

/// A latch with a name: callers in all processes wait until it has been counted down to zero.
///
/// Cheap to clone; the handle by itself holds nothing.
///
/// It is shared with Redisson's `RCountDownLatch` of that name: programs in Rust and on the JVM
/// count down the same latch, and wait for it.
///
/// # Rounds
/// [`try_set`](Self::try_set) begins a round, and the last count ends it. A latch that was never
/// set, or has been counted down, is open: no caller waits for it, and a count does nothing. So set
/// the latch before others can wait for it. It has no lease: a latch that is never counted down
/// stays set until somebody deletes its key.
///
/// Give each round a name of its own, such as `deploy:77`. A latch that is set again at once may be
/// closed again before a caller that waits has read that it was open, and that caller waits for the
/// second round too.
///
/// # What is promised
/// - A call counts, or sets, once at most. It is sent again until it is answered, with an id that
///   the server remembers for an hour and an
///   [`outage_tolerance`](crate::LockerBuilder::outage_tolerance), so a copy that arrives late does
///   nothing, in this round or another.
/// - A call that returns [`Error::Unavailable`] may have counted, or may count later. It counts
///   once at most, but perhaps in a later round of that name.
/// - A caller waits only while the latch has a count. It is woken by a message, and polls
///   after a sixth of its locker's lease, since messages get lost. So it also sees a latch whose
///   key was deleted, on which Redisson's callers sleep for ever.
///
/// # What it does not do
/// - It does not know who has counted: a process that crashes before it counts leaves the others
///   waiting. Bound the wait with [`wait_for`](Self::wait_for).
/// - It is on one server, on a master with Sentinels, or in a cluster. Over several independent
///   servers, and in [`Format::Plain`](crate::Format::Plain), every call is [`Error::Config`]: a
///   count that one of the servers has missed would never be made up.
/// - Each call leaves its id on the server for that long, also a count of an open latch: some 140
///   bytes, so 100,000 calls within an hour take 14 MB.
/// - A failover that forgets a count never opens the latch, and one that forgets the set has it
///   open: [`replica_acks`](crate::LockerBuilder::replica_acks) closes that gap.
///
/// # Examples
/// ```no_run
/// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
/// let ready = locks.latch("deploy:77");
/// ready.try_set(3).await?; // before the three begin
///
/// // each of the three, once it is ready:
/// ready.count_down().await?;
///
/// // whoever needs all of them:
/// ready.wait().await
/// # }
/// ```
#[derive(Clone)]
pub struct Latch {
    shared: Arc<SharedSession>,
    key: Key,
}

impl Latch {
    pub(crate) fn new(shared: Arc<SharedSession>, key: Key) -> Self {
        Self { shared, key }
    }

    /// Returns the name of the latch.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Sets the count of an open latch.
    ///
    /// Returns whether this call has set it: `false` if it was set already, and then it keeps its
    /// count.
    ///
    /// It waits through outages of the servers, for as long as
    /// [`outage_tolerance`](crate::LockerBuilder::outage_tolerance).
    ///
    /// # Errors
    /// - [`Error::Unavailable`]: the server gave no answer. The latch may be set, or may yet be.
    /// - [`Error::Config`]: the count is zero or more than `i64::MAX`, which is the most that Redis
    ///   and Java can hold; also for an empty name, in [`Format::Plain`](crate::Format::Plain) and
    ///   over several servers.
    /// - [`Error::Server`]: the server refused the command, for example because the name holds
    ///   something other than a latch. If it had not answered an earlier copy, that one may have
    ///   been carried out.
    /// - [`Error::Closed`], [`Error::Forked`] and [`Error::WatchdogPanicked`]. A locker that was
    ///   closed meanwhile may have carried it out.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if the future is dropped.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let ready = locks.latch("deploy:77");
    /// assert!(ready.try_set(3).await?);
    /// assert!(!ready.try_set(5).await?); // so all members may call it: the first one sets it
    /// assert_eq!(ready.count().await?, 3);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn try_set(&self, count: u64) -> Result<bool, Error> {
        self.begin().await?;
        if !(1..=i64::MAX.cast_unsigned()).contains(&count) {
            let reason = format!(
                "the count is {count}: give a latch one or more, and at most {}",
                i64::MAX
            );
            return Err(Error::config("try_set", reason));
        }
        let set = self.shared.session().set_latch(&self.key, count).await;
        set.map_err(|error| self.named(error))
    }

    /// Counts down by one, and returns the count that is left.
    ///
    /// Zero says that the latch is open: by this call, or because it was already.
    ///
    /// It waits through outages of the servers, for as long as
    /// [`outage_tolerance`](crate::LockerBuilder::outage_tolerance). It counts once however often
    /// it was sent; the count that it returns is that of the last copy, so others may have counted
    /// meanwhile.
    ///
    /// # Errors
    /// As [`try_set`](Self::try_set): after [`Error::Unavailable`] it may have counted, or may yet.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if the future is dropped.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let ready = locks.latch("deploy:77");
    /// ready.try_set(2).await?;
    /// assert_eq!(ready.count_down().await?, 1);
    /// assert_eq!(ready.count_down().await?, 0); // open
    /// assert_eq!(ready.count_down().await?, 0); // does nothing: it is open already
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn count_down(&self) -> Result<u64, Error> {
        self.begin().await?;
        let left = self.shared.session().count_down(&self.key).await;
        left.map_err(|error| self.named(error))
    }

    /// Returns the count; zero if the latch is open.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without an answer; otherwise as [`try_set`](Self::try_set).
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn count(&self) -> Result<u64, Error> {
        self.begin().await?;
        let count = self.shared.session().latch(&self.key).await;
        count.map_err(|error| self.named(error))
    }

    /// Waits until the latch is open.
    ///
    /// Returns at once if it is, and also if its key was deleted or the server has lost it: if that
    /// would do harm, check the results, and not the latch.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server has not answered for an
    /// [`outage_tolerance`](crate::LockerBuilder::outage_tolerance); [`Error::Closed`], also if the
    /// locker is closed meanwhile; otherwise as [`try_set`](Self::try_set).
    ///
    /// # Cancel safety
    /// Cancel safe: it holds nothing, and has no place in a line.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let ready = locks.latch("deploy:77");
    /// ready.wait().await?; // returns: a latch that was never set is open
    /// ready.try_set(1).await?;
    /// let waiting = ready.clone();
    /// let waiter = tokio::spawn(async move { waiting.wait().await });
    /// ready.count_down().await?;
    /// waiter.await.expect("no panic")
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn wait(&self) -> Result<(), Error> {
        self.wait_until(None).await.map(|_| ())
    }

    /// Waits until the latch is open, for at most this long.
    ///
    /// Returns whether it is. A time of zero reads it once.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`Error::Unavailable`] if the time is over and the last read
    /// had no answer. A time that is too short for an answer (20 ms and two round trips) is only
    /// such an error if a read failed before.
    ///
    /// # Cancel safety
    /// As [`wait`](Self::wait).
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// use std::time::Duration;
    ///
    /// let ready = locks.latch("deploy:77");
    /// ready.try_set(3).await?;
    /// if !ready.wait_for(Duration::from_secs(60)).await? {
    ///     println!("{} of three are missing", ready.count().await?); // one may have crashed
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn wait_for(&self, time: Duration) -> Result<bool, Error> {
        if time.is_zero() {
            return Ok(self.count().await? == 0);
        }
        let deadline = self.shared.session().now() + time;
        self.wait_until(Some(deadline)).await
    }

    /// Counts down by one, and waits until the latch is open.
    ///
    /// The members of a group call it to continue together.
    ///
    /// # Errors
    /// As [`count_down`](Self::count_down) and [`wait`](Self::wait). After an error of the wait it
    /// has counted, and after one of the count it may have: [`wait`](Self::wait) keeps waiting.
    ///
    /// # Cancel safety
    /// Once polled, it counts even if the future is dropped.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), lockhound::Error> {
    /// # let server = lockhound::testing::Server::new();
    /// # let locks = lockhound::Locker::builder().memory(&server).connect().await?;
    /// let start = locks.latch("round:1");
    /// start.try_set(2).await?;
    /// let (one, two) = (start.clone(), start);
    /// tokio::try_join!(one.count_down_and_wait(), two.count_down_and_wait())?; // none goes ahead
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "testing"))] fn main() {}
    /// ```
    pub async fn count_down_and_wait(&self) -> Result<(), Error> {
        match self.count_down().await? {
            0 => Ok(()),
            _ => self.wait().await,
        }
    }

    async fn wait_until(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        self.begin().await?;
        let mut watch = self.shared.session().watch_latch(&self.key)?;
        // Boxed: it is large, and a caller waits for long.
        let opened = Box::pin(watch.opened(deadline)).await;
        opened.map_err(|error| self.named(error))
    }

    async fn begin(&self) -> Result<(), Error> {
        foreign::give_way().await;
        Error::check_name(&self.key)?;
        self.shared.session().check_latch()
    }

    fn named(&self, error: Error) -> Error {
        error.of(slice::from_ref(&self.key))
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
