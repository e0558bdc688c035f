//! A server in memory, for tests of code that takes locks. It needs no Redis. See [`Server`].

mod double;
mod keyspace;
mod labels;
mod leases;
#[cfg(feature = "testing")]
mod machine;
mod remembering;
#[cfg(feature = "testing")]
mod route;
#[cfg(feature = "testing")]
mod server;
mod store;
mod waiting;

#[cfg(test)]
pub(crate) use self::keyspace::Value;
#[cfg(feature = "testing")]
pub(crate) use self::machine::{News, Number, Reply, Request};
#[cfg(feature = "testing")]
pub use self::server::{Server, Snapshot};
pub(crate) use self::store::Failure;
#[cfg(test)]
pub(crate) use self::store::{Ears, Store};
