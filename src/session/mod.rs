//! The session of a locker: the flows between a caller, the lines, the watchdog and the servers.
//!
//! # Invariants
//! - Everything that talks to a server runs as a task of the engine, to its end. Callers wait for what such a task
//!   sends them.
//! - Whatever a task may have taken on a server belongs to a [`Grip`], which releases it on drop, or to an undo.
//! - Once `closed` or `failure` is set, nothing new is granted. What a racing task grants is given back.

mod acquire;
mod alive;
mod ask;
mod attempt;
mod carry;
mod closing;
mod connect;
mod crew;
mod extending;
mod grip;
#[cfg(test)]
#[cfg(feature = "testing")]
mod guests;
mod hand_over;
mod holders;
mod jobs;
mod joint;
mod labels;
mod leave;
mod levels;
mod losses;
mod multi;
mod outage;
mod reentries;
mod refusals;
mod release;
mod run;
mod servers;
mod state;
mod try_lock;
mod unconfirmed;
mod waits;
mod warned;

pub(crate) use self::alive::Alive;
pub(crate) use self::grip::Grip;
use self::grip::View;
pub(crate) use self::joint::{Grips, Views};
pub(crate) use self::state::Session;
use self::state::panicked;
