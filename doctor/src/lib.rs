#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod ask;
mod cases;
mod cluster;
mod examine;
mod found;
mod promise;
mod report;
mod rights;
mod sentinels;
mod shown;
mod table;
mod told;
mod verdicts;

pub use self::examine::{examine, examine_keys};
pub use self::found::{
    Clock, ClusterView, Eviction, Finding, Forgets, MissingRight, Mode, Persistence, Replica,
    Rights, Role, RoundTrips, SentinelReport, ServerReport, Slots, UnknownRight, Version,
};
pub use self::promise::{Answer, Promise, Reason, Verdict};
pub use self::report::Report;
