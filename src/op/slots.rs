//! Locks in several slots of a cluster. A script may have keys of one slot only.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::claim::Claim;
use crate::error::Error;
use crate::key::Key;
use crate::node::slot_of;

/// Returns the error for a lock that is in another slot than the channel of its messages: odd
/// braces do that to Redisson's names.
pub(super) fn torn(key: &Key) -> Option<Error> {
    if !is_torn(key) {
        return None;
    }
    let problem = format!(
        "{key:?} cannot be a lock of a cluster: the channel of its messages would be in another slot; give it no \
         braces, or pairs of which the first has something inside"
    );
    Some(Error::config("key", problem))
}

fn is_torn(key: &Key) -> bool {
    slot_of(&key.stored()) != slot_of(key.channel())
}

/// Groups these claims by slot, in the order of the slots: callers that want the same locks take
/// them in the same order.
pub(super) fn by_slot(claims: &[Claim]) -> Vec<Vec<usize>> {
    let mut slots: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, claim) in claims.iter().enumerate() {
        slots
            .entry(slot_of(&claim.key.stored()))
            .or_default()
            .push(at);
    }
    slots.into_values().collect()
}

pub(super) fn chosen(claims: &[Claim], members: &[usize]) -> Arc<[Claim]> {
    members.iter().map(|&at| claims[at].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Format;

    fn claims(names: &[&str]) -> Vec<Claim> {
        let claim = |name: &&str| Claim {
            kind: Format::Redisson.kind(),
            key: Key::from(*name),
            field: "f".into(),
            permits: 0,
        };
        names.iter().map(claim).collect()
    }

    #[test]
    fn locks_are_grouped_by_slot_in_the_order_of_slots() {
        // Slots 3,300, 7,365 and 15,495.
        assert_eq!(
            by_slot(&claims(&["{a}1", "{b}1", "{a}2", "{c}", "{b}2"])),
            [vec![1, 4], vec![3], vec![0, 2]]
        );
        assert_eq!(
            by_slot(&claims(&["{c}", "{a}", "{b}"])),
            [vec![2], vec![0], vec![1]]
        );
        assert_eq!(by_slot(&[]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn odd_braces_tear_a_lock_and_its_channel_apart() {
        for name in ["x", "{x}", "a{b}c", "{{x}}", "{a}{b}"] {
            assert!(!is_torn(&name.into()), "{name}");
        }
        for name in ["a}b", "a{b", "{}x", "}{"] {
            assert!(is_torn(&name.into()), "{name}");
        }
    }
}
