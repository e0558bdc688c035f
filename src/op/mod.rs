//! What a server is asked for. An operation is one file: its values, its script with keys and
//! arguments, how the reply reads, what replicas have to acknowledge, and what is different on a
//! cluster.
//!
//! A script that arrives twice or late does no harm. Scripts check whether a field exists, counts
//! are absolute, and only two of them create a lock: an acquire, which is sent at most once per
//! generation, and a hand-over, which finds its holder only once. All kinds of locks have the same
//! operations with the same answers, so higher layers do not know how a kind is stored.

mod acquire;
mod count;
mod election;
mod extend;
mod fair;
mod hand_over;
mod inspect;
mod label;
mod latch;
mod memory;
mod permits;
mod raise;
mod read_write;
mod refusal;
mod release;
mod renew;
mod reply;
mod retake;
mod sending;
mod slots;
mod word;

pub(crate) use self::acquire::{Acquire, AcquireAnswer, ListPlace};
pub(crate) use self::count::WriteCount;
#[cfg(test)]
pub(crate) use self::election::LeaderValue;
pub(crate) use self::election::{KeyLeader, Proclaim, ReadLeader};
pub(crate) use self::extend::Extend;
pub(crate) use self::fair::{CallNext, Queued};
pub(crate) use self::hand_over::{HandOver, HandOverAnswer};
pub(crate) use self::inspect::{Force, Inspect, KeyHolder, NameHolders};
pub(crate) use self::label::{ReadLabel, WriteLabel};
pub(crate) use self::latch::{CountDown, LatchCall, ReadLatch, SetLatch};
pub(crate) use self::memory::{
    Announced, AskAbout, Opening, Remembrance, ServerIdentity, Testimony, Vet,
};
pub(crate) use self::permits::{ListPermits, ListedPermits, Served, SetCapacity};
pub(crate) use self::raise::{Raise, RaiseAnswer};
pub(crate) use self::read_write::{Expel, LeaveHint, ListHolders, ListedHolder};
pub(crate) use self::release::{LeaveList, Release};
pub(crate) use self::renew::{Renew, RenewAnswer};
pub(crate) use self::retake::Retake;
pub(crate) use self::sending::{Op, ask};
