//! What each metric counts, for the recorder: exporters show it to whoever reads the numbers.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

use crate::foreign::contained;

const COUNTERS: [(&str, &str); 7] = [
    ("lockhound_attempts_total", "calls that have ended"),
    (
        "lockhound_suspicious_reentries_total",
        "re-entries; some are correct",
    ),
    ("lockhound_renewals_total", "leases renewed"),
    (
        "lockhound_renewal_errors_total",
        "renewals that failed for a whole command_timeout",
    ),
    ("lockhound_undone_acquires_total", "acquires undone"),
    (
        "lockhound_mismatched_replies_total",
        "replies that belong to another command",
    ),
    ("lockhound_losses_total", "locks lost"),
];

const GAUGES: [(&str, &str); 8] = [
    (
        "lockhound_holds",
        "locks that are held, being released, or lost while a guard still lives",
    ),
    ("lockhound_waiters", "callers that wait for a lock"),
    (
        "lockhound_latch_waiters",
        "callers that wait for a latch; they are not in lockhound_waiters",
    ),
    (
        "lockhound_pending",
        "operations, releases and undos that wait for an answer",
    ),
    ("lockhound_pending_undos", "the undos among them"),
    ("lockhound_servers", "servers; of a cluster, masters"),
    (
        "lockhound_servers_voting",
        "those that are there and have a vote",
    ),
    (
        "lockhound_server_up",
        "1 if the server is there (a configured Sentinel: has a say), 0 if not",
    ),
];

const HISTOGRAMS: [(&str, Unit, &str); 5] = [
    (
        "lockhound_wait_seconds",
        Unit::Seconds,
        "seconds of a call that may wait, until it ended",
    ),
    (
        "lockhound_hold_seconds",
        Unit::Seconds,
        "seconds of a hold, recorded when its last guard ends",
    ),
    (
        "lockhound_renewal_lateness_seconds",
        Unit::Seconds,
        "seconds, one value for each lock",
    ),
    (
        "lockhound_renewal_batch_locks",
        Unit::Count,
        "locks in a script of renewals",
    ),
    (
        "lockhound_renewal_round_trip_seconds",
        Unit::Seconds,
        "seconds from a script of renewals to its answer",
    ),
];

/// Describes all metrics to the recorder. The guide has the same texts.
pub(super) fn describe() {
    contained(|| {
        for (name, what) in COUNTERS {
            describe_counter!(name, Unit::Count, what);
        }
        for (name, what) in GAUGES {
            describe_gauge!(name, Unit::Count, what);
        }
        for (name, unit, what) in HISTOGRAMS {
            describe_histogram!(name, unit, what);
        }
    });
}
