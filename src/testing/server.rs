//! A server in this process, that lockers connect to as they do to a Redis.
//!
//! # Invariants
//! - Whatever is sent is done at once and in one piece, or, while the server stands still, when it goes on, in the
//!   order in which it was sent.
//! - What was sent to a server that forgets before it goes on is never done, and never answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::store::{Failure, Store};
use crate::clock::wall_micros;
use crate::command::{Answer, Command};
use crate::key::Key;
use crate::random;

/// A server in memory, for tests of code that takes locks: it needs no Redis.
///
/// Lockers of this process connect to it by [`LockerBuilder::memory`](crate::LockerBuilder::memory), several of them to
/// one server, or one of them to several. It does what the scripts do on a Redis, which is tested against one. Clones
/// are the same server.
///
/// # Time
/// A locker over servers in memory lives in the runtime in which [`connect`](crate::LockerBuilder::connect) is called,
/// and all of its time is that of tokio there: validity, renewals, timeouts, and the leases on the server. In a test
/// with paused time (`#[tokio::test(start_paused = true)]`) an hour passes in a moment, a renewal is never late, and a
/// token fires in the millisecond in which the lease can be over. Lockers that share a server are connected in one
/// runtime. One that is made by [`blocking_connect`](crate::LockerBuilder::blocking_connect) has a thread of its own,
/// and goes by the machine's clock.
///
/// # What it does not have
/// Replicas, users and their rights, and a limit of its memory. Its answers are there at once.
///
/// # Examples
/// A job stops when its lock is lost. Somebody deletes the lock before the third renewal, which finds it gone:
/// ```
/// use std::time::Duration;
///
/// use lockhound::{Locker, Loss, testing::Server};
/// use tokio::time::{Instant, sleep};
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)] // in your tests: #[tokio::test(start_paused = true)]
/// async fn main() -> Result<(), lockhound::Error> {
///     let server = Server::new();
///     let locks = Locker::builder().memory(&server).lease(Duration::from_secs(30)).connect().await?;
///     let started = Instant::now();
///     let job = tokio::spawn(async move {
///         let guard = locks.get("report").lock().await?;
///         guard.lost().cancelled().await;
///         Ok::<_, lockhound::Error>(guard.loss())
///     });
///     sleep(Duration::from_secs(25)).await;
///     server.delete("report");
///     assert_eq!(job.await.unwrap()?, Some(Loss::NotOwner));
///     // Renewals come at thirds of the lease, with others that are due at about the same time.
///     assert_eq!(started.elapsed().as_secs(), 29);
///     Ok(())
/// }
/// ```
///
/// Whoever wants a lock rides out a server that is away for 20 s:
/// ```
/// use std::time::Duration;
///
/// use lockhound::{Locker, testing::Server};
/// use tokio::time::{Instant, sleep};
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)]
/// async fn main() -> Result<(), lockhound::Error> {
///     let server = Server::new();
///     let locks = Locker::builder().memory(&server).outage_tolerance(Duration::from_secs(60)).connect().await?;
///     let started = Instant::now();
///     server.stop();
///     let back = server.clone();
///     tokio::spawn(async move {
///         sleep(Duration::from_secs(20)).await;
///         back.go_on();
///     });
///     locks.get("report").lock().await?.unlock().await?;
///     assert!((20..22).contains(&started.elapsed().as_secs()));
///     Ok(())
/// }
/// ```
///
/// Two workers never both charge, though the one that does is slow and its lock is taken from it:
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
///
/// use lockhound::{Lock, Locker, testing::Server};
/// use tokio::time::sleep;
///
/// static CHARGED: AtomicU32 = AtomicU32::new(0);
///
/// async fn charge_once(lock: Lock) -> Result<(), lockhound::Error> {
///     let guard = lock.lock().await?;
///     if CHARGED.load(Ordering::SeqCst) == 0 {
///         sleep(Duration::from_secs(90)).await;
///         guard.check()?;
///         CHARGED.fetch_add(1, Ordering::SeqCst);
///     }
///     guard.unlock().await
/// }
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)]
/// async fn main() -> Result<(), lockhound::Error> {
///     let server = Server::new();
///     // Two processes, as far as the server can tell.
///     let one = Locker::builder().memory(&server).connect().await?.get("charge:42");
///     let two = Locker::builder().memory(&server).connect().await?.get("charge:42");
///     let workers = [tokio::spawn(charge_once(one)), tokio::spawn(charge_once(two))];
///     sleep(Duration::from_secs(5)).await;
///     server.delete("charge:42");
///     let [first, second] = workers.map(|worker| async { worker.await.unwrap() });
///     assert!(first.await.is_err(), "it was told, and has not charged");
///     second.await?;
///     assert_eq!(CHARGED.load(Ordering::SeqCst), 1);
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    name: Arc<str>,
    state: Mutex<State>,
}

struct State {
    store: Store,
    clock_offset_us: i64,
    is_stopped: bool,
    /// What was sent while it stood still.
    waiting: VecDeque<Work>,
    /// How many of the next answers to commands are lost, and those that were: nobody hears of them.
    loses: u32,
    lost: Vec<Reply>,
    ears: BTreeMap<u64, Ear>,
    next_ear: u64,
}

type Work = Box<dyn FnOnce(&mut State) + Send>;
type Reply = oneshot::Sender<Result<Answer, Failure>>;

/// A connection that is told what the server tells by itself.
struct Ear {
    channels: BTreeSet<String>,
    tell: Box<dyn Fn(News) + Send>,
}

/// What a server tells by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// A message on this channel.
    Message(String),
    /// It was started anew: no channel is subscribed, and what was under way is not done.
    Restarted,
}

impl Server {
    /// Starts an empty server.
    #[allow(clippy::new_without_default, reason = "each is another server, which a default would hide")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("memory:{}", NEXT.fetch_add(1, Ordering::Relaxed)).into();
        let state = State {
            store: empty(),
            clock_offset_us: 0,
            is_stopped: false,
            waiting: VecDeque::new(),
            loses: 0,
            lost: Vec::new(),
            ears: BTreeMap::new(),
            next_ear: 0,
        };
        Self(Arc::new(Shared { name, state: Mutex::new(state) }))
    }

    /// Makes the server stand still: it answers nothing, and leases run out all the same. What it is sent meanwhile it
    /// does when it goes on.
    pub fn stop(&self) {
        self.state().is_stopped = true;
    }

    /// Lets a server go on that stands still.
    pub fn go_on(&self) {
        let mut state = self.state();
        state.is_stopped = false;
        while let Some(work) = state.waiting.pop_front() {
            work(&mut state);
        }
    }

    /// Starts the server anew: it has forgotten everything, and all connections to it are made anew.
    pub fn restart(&self) {
        let mut state = self.state();
        state.store = empty();
        state.is_stopped = false;
        // Their connections are gone: whoever waits is told at once.
        state.waiting.clear();
        state.lost.clear();
        for ear in state.ears.values_mut() {
            ear.channels.clear();
            (ear.tell)(News::Restarted);
        }
    }

    /// Loses the next answers, so many: what the server is sent it does, and whoever sent it does not hear of it.
    pub fn lose_replies(&self, count: u32) {
        self.state().loses = count;
    }

    /// Deletes a key, as an operator would: its lock is lost.
    pub fn delete(&self, key: &str) {
        self.state().store.keys.delete(key);
    }

    /// Returns the owner that stands in a lock's key, as [`Holder::owner`](crate::Holder::owner) has it; `None` if it
    /// is free.
    pub fn holder(&self, key: &str) -> Option<String> {
        let mut state = self.state();
        let inspect = Command::Inspect(Key::from(key));
        let standing = state.run(&inspect).ok().and_then(Answer::inspect).flatten();
        standing.map(|standing| String::from_utf8_lossy(&standing.owner).into_owned())
    }

    /// Sets the server's wall clock: so many milliseconds ahead of the machine's, or behind it.
    pub fn set_clock_offset(&self, millis: i64) {
        self.state().clock_offset_us = millis.saturating_mul(1_000);
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.0.name
    }

    /// Connects; what the server tells by itself goes to `tell`, which must not ask it anything.
    pub(crate) fn connect(&self, tell: impl Fn(News) + Send + 'static) -> u64 {
        let mut state = self.state();
        let number = state.next_ear;
        state.next_ear += 1;
        state.ears.insert(number, Ear { channels: BTreeSet::new(), tell: Box::new(tell) });
        number
    }

    pub(crate) fn disconnect(&self, ear: u64) {
        // It is dropped after the mutex is released.
        let _gone = self.state().ears.remove(&ear);
    }

    /// Sends a command.
    pub(crate) fn run(&self, command: Command) -> oneshot::Receiver<Result<Answer, Failure>> {
        let (reply, answer) = oneshot::channel();
        self.send(move |state| {
            let answer = state.run(&command);
            if state.loses > 0 {
                state.loses -= 1;
                state.lost.push(reply);
            } else {
                // Whoever has given up does not want to know.
                let _: Result<_, _> = reply.send(answer);
            }
        });
        answer
    }

    /// Changes what a connection is subscribed to.
    pub(crate) fn resubscribe(&self, ear: u64, add: Vec<String>, remove: Vec<String>) -> oneshot::Receiver<()> {
        let (reply, answer) = oneshot::channel();
        self.send(move |state| {
            if let Some(Ear { channels, .. }) = state.ears.get_mut(&ear) {
                remove.iter().for_each(|channel| _ = channels.remove(channel));
                channels.extend(add);
            }
            let _: Result<_, _> = reply.send(());
        });
        answer
    }

    /// Asks for nothing but an answer.
    pub(crate) fn ping(&self) -> oneshot::Receiver<()> {
        let (reply, answer) = oneshot::channel();
        self.send(move |_| _ = reply.send(()));
        answer
    }

    fn send(&self, work: impl FnOnce(&mut State) + Send + 'static) {
        let mut state = self.state();
        if state.is_stopped {
            state.waiting.push_back(Box::new(work));
        } else {
            work(&mut state);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn run(&mut self, command: &Command) -> Result<Answer, Failure> {
        let now_us = wall_micros().saturating_add_signed(self.clock_offset_us);
        let (store, ears) = (&mut self.store, &self.ears);
        store.run(now_us, command, &mut |channel| {
            let told = ears.values().filter(|ear| ear.channels.contains(channel));
            told.map(|ear| (ear.tell)(News::Message(channel.to_owned()))).count() as u64
        })
    }
}

/// What a server has that was started just now.
fn empty() -> Store {
    Store::new(&random::uuid().simple().to_string(), &"0".repeat(40))
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.0.name).finish()
    }
}
