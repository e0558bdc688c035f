//! The names of keys beside a lock, as the library derives them. They are on servers, so they can
//! never change.

use uuid::Uuid;

/// The number of marks outside of clusters, which all locks share.
const MARKS: u64 = 1_024;
/// The number of slots in every cluster.
const SLOTS: u16 = 16_384;

/// Returns a key of this crate that is in the lock's slot.
pub(super) fn beside(prefix: &str, key: &str) -> String {
    if key.contains('{') {
        format!("{prefix}={key}")
    } else {
        format!("{prefix}{{{key}}}")
    }
}

/// Redisson's `prefixName`.
pub(super) fn prefixed(prefix: &str, key: &str) -> String {
    if key.contains('{') {
        format!("{prefix}{key}")
    } else {
        format!("{prefix}{{{key}}}")
    }
}

/// Redisson's records of taken permits.
pub(super) fn permit_records(key: &str) -> String {
    if key.contains('{') {
        format!("{key}:timeout")
    } else {
        format!("{{{key}}}:timeout")
    }
}

/// Returns the key with the last fence of all locks that share it: by the FNV-1a of the name.
pub(super) fn mark(key: &str) -> String {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    format!("lockhound_fence:{{{}}}", hash % MARKS)
}

/// Does the same in a cluster, which has a mark for each slot: with the lowest number that falls
/// into it.
pub(super) fn mark_in_cluster(key: &str) -> Option<String> {
    let slot = slot_of(key);
    let number = (0_u32..).find(|number| slot_of(&number.to_string()) == slot)?;
    Some(format!("lockhound_fence:{{{number}}}"))
}

/// Returns the slot of a key, as the *Redis cluster specification* says: the CRC-16 (XMODEM) of the
/// key, or of the text in its first braces.
fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    let crc = |crc: u16, byte: u8| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    };
    tag.unwrap_or(key).bytes().fold(0, crc) % SLOTS
}

/// Returns the id of the locker, or of the Redisson client, that this owner belongs to. A waiter
/// may be a locker's id alone.
pub(super) fn locker_of(owner: &str) -> Option<&str> {
    let id = owner.split_once(':').map_or(owner, |(id, _)| id);
    (id.len() == 36 && Uuid::try_parse(id).is_ok()).then_some(id)
}

/// Returns whether a text names somebody who holds a lock: `uuid:thread` of Redisson, or
/// `uuid:task-id:generation`.
pub(super) fn is_owner(text: &str) -> bool {
    let rest = text.get(37..).unwrap_or_default();
    locker_of(text).is_some() && !rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_that_of_what_stands_in_braces() {
        // From the specification, and from a server's CLUSTER KEYSLOT.
        assert_eq!(slot_of("123456789"), 12_739);
        assert_eq!(slot_of("{user1000}.following"), slot_of("user1000"));
        assert_eq!(slot_of("foo{}{bar}"), 8_363);
    }

    #[test]
    fn only_a_uuid_with_something_behind_it_owns_a_lock() {
        let id = "5cb1f0b5-0000-4000-8000-000000000000";
        for (text, is) in [
            (format!("{id}:21"), true),
            (format!("{id}:21:7"), true),
            (format!("{id}:"), false),
            (id.to_owned(), false),
            ("somebody:1".to_owned(), false),
        ] {
            assert_eq!(is_owner(&text), is, "{text}");
        }
    }
}
