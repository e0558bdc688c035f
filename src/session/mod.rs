//! The session of a locker: the flows between a caller, the lines, the watchdog and the servers.
//!
//! # A lock and its release
//! 1. `acquire.rs` enters the hold that the owner has, or puts the caller in line: one step under
//!    the shard's lock. A line with nothing in flight answers with an effect, and the caller's
//!    thread carries it out (`carry.rs`): it gives the acquire to the job runner.
//! 2. The job (`ask.rs`, `attempt.rs`) takes a new generation, reads the clock and asks the quorum.
//!    Its outcome is the next event of the line. While a hold of this locker may have the lock, the
//!    line asks for nothing: the answer to the release, or the loss, makes it look again.
//! 3. *Granted*: the job registers a `Hold`, has the alarm and the watchdog look after it, and
//!    sends the waiter its [`RawGuard`]. Waiters of the same owner enter with it. The watchdog
//!    takes back a grant that no caller claims for a sixth of the lease: a caller that is never
//!    polled again must not keep the lock.
//! 4. *Held by another owner*: the line subscribes, waits for the confirmation, and asks once more,
//!    since it has not heard a release in between. Then it waits for a message, for the end of the
//!    holder's lease, or for a sixth of its own; in `Format::Plain`, whose clients send no
//!    messages, for a `poll_interval` at most.
//! 5. *Unknown*: the book (`standing/`) undoes what the attempt may have taken, behind the acquire
//!    on the same connection. The next attempt follows after a random pause, with another
//!    generation.
//! 6. Dropping the last guard (`leave.rs`) gives the release to the job runner, or to the line if
//!    it may be handed over (`hand_over.rs`). `release.rs` sends it to all servers until each has
//!    answered. `unconfirmed.rs` answers the caller as soon as a majority makes the outcome
//!    certain, after a command timeout at the latest, and lets the line resume.
//!
//! # Invariants
//! - Everything that talks to a server runs as a task of the engine, to its end. Callers wait for
//!   what such a task sends them.
//! - Whatever a task may have taken on a server belongs to a [`RawGuard`], which releases it on
//!   drop, or to an undo.
//! - Once `closed` or `failure` is set, nothing new is granted. What a racing task grants is given
//!   back.

mod acquire;
mod ask;
mod attempt;
mod bells;
mod carry;
mod closing;
mod connect;
mod election;
#[cfg(test)]
#[cfg(feature = "testing")]
#[path = "../../tests/unit/embedded/mod.rs"]
mod embedded;
mod extending;
mod fair;
mod hand_over;
mod holders;
mod jobs;
mod joint;
mod labels;
mod latch;
mod leave;
mod levels;
mod losses;
mod multi;
mod outage;
mod permits;
mod queues;
mod raw_guard;
mod read_write;
mod reentries;
mod refusals;
mod release;
mod run;
mod servers;
mod shared;
mod state;
mod task;
mod try_lock;
mod unconfirmed;
mod waits;
mod warned;
mod watching;

pub(crate) use self::election::{Herald, LeaderWatch};
pub(crate) use self::joint::{RawGuards, Views};
pub(crate) use self::raw_guard::RawGuard;
use self::raw_guard::View;
pub(crate) use self::shared::SharedSession;
pub(crate) use self::state::Session;
use self::state::panicked;
