#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// Items of a feature name it in the documentation, which docs.rs builds with nightly.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod alarm;
mod claim;
mod clock;
mod credentials;
mod election;
mod engine;
mod error;
mod fence;
mod foreign;
mod guard;
pub mod guide;
mod handle;
mod hold;
mod holder;
mod identity;
mod key;
mod kind;
mod label;
mod latch;
mod lease;
mod line;
mod lines;
mod lock;
mod locker;
mod lua;
mod multi;
mod node;
mod notify;
mod op;
mod options;
mod owner;
mod presence;
mod quorum;
mod random;
mod rights;
mod rw;
mod semaphore;
pub mod servers;
mod session;
mod shown;
mod standing;
pub mod stats;
mod sync;
mod tasks;
#[cfg(feature = "testing")]
pub mod testing;
mod watchdog;

// Unit tests run the contract on a kind of lock that only they have.
#[cfg(test)]
extern crate self as lockhound;
#[cfg(test)]
#[path = "../tests/contract/behaviours.rs"]
mod behaviours;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

pub use credentials::{CredentialProvider, Credentials};
pub use election::{Election, Leader, Leadership, Observer};
pub use error::{ConfigError, Error, Loss, NodeFailure, ServerError, ServerErrorKind};
pub use fence::Fence;
pub use guard::Guard;
pub use hold::HoldState;
pub use holder::{Holder, Holders, LockMode, NodeHolder, PermitHolder, ReadWriteHolder, Usage};
pub use key::Key;
pub use kind::Format;
pub use latch::Latch;
pub use lock::{Lock, Section};
pub use locker::{Locker, LockerBuilder};
pub use multi::{MultiGuard, MultiLock, MultiSection};
#[cfg(feature = "tls")]
pub use node::Tls;
pub use options::{FenceSource, Reentry};
pub use owner::Owner;
pub use rw::{ReadGuard, ReadLock, RwLock, WriteGuard, WriteLock};
pub use semaphore::{HeldPermits, Permit, Semaphore};
pub use tokio_util::sync::CancellationToken;
