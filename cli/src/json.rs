//! Locks as JSON, for programs: the same shape from each subcommand.
//!
//! ```json
//! {"key": "orders:42", "kind": "lock", "mode": null, "left": null,
//!  "holders": [{"owner": "5cb1..:21:7", "label": "web-1:4711", "count": 1, "remaining_ms": 28910}],
//!  "fence": 1764401234567890, "waiters": [{"owner": "77aa..", "label": "web-2:33"}]}
//! ```
//!
//! - `kind`: `lock`, `fair`, `read-write`, `permits`, `semaphore`, `latch`, `election`, `plain` or
//!   `counter`; null if the key is free.
//! - `mode`: `read` or `write`, of a read-write lock.
//! - `left`: how many permits are free, or what a latch waits for.
//! - `label`: null if it is not known. `remaining_ms`: null if there is no lease.
//! - `fence`: the last fence of this lock, or of one that shares its mark; null if there is none.
//! - `waiters`: in their order, as far as servers know them.

use serde_json::{Value, json};

use crate::look::{Holding, Seen, Waiting};

/// Returns a lock as JSON.
pub(crate) fn of(seen: &Seen) -> Value {
    json!({
        "key": seen.key,
        "kind": seen.kind.map(|kind| kind.to_string()),
        "mode": seen.mode,
        "left": seen.left,
        "holders": seen.holders.iter().map(holder).collect::<Vec<_>>(),
        "fence": seen.fence,
        "waiters": seen.waiters.iter().map(waiter).collect::<Vec<_>>(),
    })
}

/// Returns locks as an array.
pub(crate) fn all(locks: &[Seen]) -> Value {
    locks.iter().map(of).collect()
}

fn holder(holder: &Holding) -> Value {
    let remaining = holder.remaining.map(|left| left.as_millis());
    json!({
        "owner": holder.owner,
        "label": holder.label,
        "count": holder.count,
        "remaining_ms": remaining.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
    })
}

fn waiter(waiter: &Waiting) -> Value {
    json!({ "owner": waiter.owner, "label": waiter.label })
}
