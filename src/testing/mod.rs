//! A server in memory: what the Lua scripts do, in plain Rust, for tests that have no Redis and a clock of their own.

mod keyspace;
mod remembering;
mod store;

pub(crate) use self::keyspace::Value;
pub(crate) use self::store::{Failure, Store, sha1};
