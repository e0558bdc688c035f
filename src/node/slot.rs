//! Computes which slot of a cluster a key is in.
//!
//! As in the *Redis cluster specification*: the slot is the CRC-16, modulo 16,384, of a key or of
//! the text in its first braces.

use std::collections::HashMap;
use std::sync::LazyLock;

use fred::util::redis_keyslot;

/// The number of slots in every cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The number of a slot.
pub(crate) type Slot = u16;

/// Returns the slot of a key.
pub(crate) fn slot_of(key: &str) -> Slot {
    redis_keyslot(key.as_bytes())
}

/// Returns the key of the mark for all locks in a slot: it has the lowest number that falls into
/// the slot, in braces. This rule must never change, since the keys are on servers.
pub(crate) fn mark_of(slot: Slot) -> String {
    static NUMBERS: LazyLock<HashMap<Slot, u32>> = LazyLock::new(|| {
        let mut numbers = HashMap::with_capacity(SLOTS.into());
        for number in 0.. {
            numbers
                .entry(slot_of(&number.to_string()))
                .or_insert(number);
            if numbers.len() == usize::from(SLOTS) {
                break;
            }
        }
        numbers
    });
    format!("lockhound_fence:{{{}}}", NUMBERS[&slot])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_that_of_what_stands_in_braces() {
        // From the specification, and from a server's CLUSTER KEYSLOT.
        assert_eq!(
            (slot_of("123456789"), slot_of("{user1000}.following")),
            (12_739, slot_of("user1000"))
        );
        assert_eq!(slot_of("foo{}{bar}"), slot_of("foo{}{bar}"));
        assert_ne!(slot_of("foo{}{bar}"), slot_of("bar"));
        assert_eq!(slot_of("foo{{bar}}zap"), slot_of("{bar"));
    }

    /// A version with other marks would start other sequences of fences.
    #[test]
    fn every_slot_has_a_mark_of_its_own_that_falls_into_it() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(&mark_of(slot)), slot);
        }
        let marks = [0, 1, 12_739, SLOTS - 1].map(mark_of);
        assert_eq!(
            marks.map(|mark| mark.trim_start_matches("lockhound_fence:").to_owned()),
            ["{3560}", "{22179}", "{26349}", "{39296}"]
        );
    }
}
