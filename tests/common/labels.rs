//! The keys under which lockers write what they call themselves.

use lockhound::Locker;

use super::{Server, eventually, ms};

/// The prefix of the keys.
pub const PREFIX: &str = "lockhound_label:";

/// Returns the key of a locker's label.
pub fn label_of(locks: &Locker) -> String {
    format!("{PREFIX}{}", locks.id())
}

/// Returns all keys of a server but the labels.
pub fn keys_without_labels(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = server.command(&["KEYS", "*"]);
    keys.retain(|key| !key.starts_with(PREFIX));
    keys
}

/// Waits until a locker that has taken a lock has written its label to these servers.
pub async fn labelled(locks: &Locker, servers: &[Server]) {
    let label = label_of(locks);
    eventually(ms(10_000), "it has a label", || {
        servers.iter().all(|server| server.exists(&label))
    })
    .await;
}
