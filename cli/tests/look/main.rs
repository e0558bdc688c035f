//! What `lockhound` tells of the locks on servers, and what it does to them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod acting;
mod common;
mod doctor;
mod listing;
mod terminal;
