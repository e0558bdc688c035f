//! The shapes of replies that several scripts have.

use std::time::Duration;

use crate::fence::Fence;
use crate::node::{Reply, is_forbidden};
use crate::shown::cut;

/// Returns whether a script found nothing to release.
pub(super) fn is_gone(reply: &Reply) -> bool {
    *reply == Reply::Int(-1)
}

/// Returns whether the server does not have the memory for the vote, and has done nothing.
pub(super) fn is_forgotten(reply: &Reply) -> bool {
    array(reply) == Some(&[Reply::Int(-1)])
}

/// Returns why the list cannot be used, if that lasts: the user has no right to it. Other errors
/// (the server is out of memory, or the key of the list is something else) do not last; all
/// subscribers were notified this time.
pub(super) fn forbidden(error: &[u8]) -> Option<String> {
    let error = cut(error);
    is_forbidden(&error).then_some(error)
}

pub(super) fn fence(reply: &Reply) -> Option<Fence> {
    int(reply).and_then(Fence::read)
}

/// Converts the answer of PTTL, which is -1 for a key without a lease, and 0 for one with less than
/// a millisecond left.
pub(super) fn remaining(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().map(Duration::from_millis)
}

pub(super) fn duration(reply: &Reply) -> Option<Duration> {
    int(reply).and_then(remaining)
}

pub(super) fn yes_or_no(reply: &Reply) -> Option<bool> {
    match int(reply)? {
        n @ (0 | 1) => Some(n == 1),
        _ => None,
    }
}

pub(super) fn array(reply: &Reply) -> Option<&[Reply]> {
    if let Reply::Array(items) = reply {
        Some(items)
    } else {
        None
    }
}

pub(super) fn int(reply: &Reply) -> Option<i64> {
    if let Reply::Int(number) = reply {
        Some(*number)
    } else {
        None
    }
}

pub(super) fn text(reply: &Reply) -> Option<String> {
    if let Reply::Bytes(bytes) = reply {
        String::from_utf8(bytes.to_vec()).ok()
    } else {
        None
    }
}

pub(super) fn texts(reply: &Reply) -> Option<Vec<String>> {
    array(reply)?.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_may_be_none_or_over_at_once() {
        assert_eq!(remaining(-1), None);
        assert_eq!(remaining(0), Some(Duration::ZERO));
    }
}
