//! Replicas, Sentinels and clusters, and what an examination says of all deployments.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod bad_sentinels;
mod cluster;
mod cluster_identity;
mod examination;
mod names;
mod passwords;
mod replicas;
mod sentinel;
