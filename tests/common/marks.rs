//! The keys under which servers remember fences: the lock's name chooses one of 1,024.

use super::Server;

/// Returns the key of a lock's mark.
pub fn mark(key: &str) -> String {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    let hash = key.bytes().fold(14_695_981_039_346_656_037, fnv);
    format!("lockhound_fence:{{{}}}", hash % 1_024)
}

/// Returns all marks on a server.
pub fn marks(server: &Server) -> Vec<String> {
    server.command(&["KEYS", "lockhound_fence:*"])
}
