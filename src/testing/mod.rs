//! A server in memory, for tests of code that takes locks. It needs no Redis. See [`Server`].

#[cfg(test)]
#[path = "../../tests/unit/beside.rs"]
mod beside;
mod interpreter;
mod machine;
mod route;
mod server;

pub(crate) use self::interpreter::Resp;
pub(crate) use self::machine::{ConnectionEvent, Request, RequestId};
pub use self::server::{Server, Snapshot};
