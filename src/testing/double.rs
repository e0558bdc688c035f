//! Numbers as Lua has them: doubles.

/// Lua's `tonumber`, without hexadecimal numbers.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Converts a number to a double, since Lua has no other numbers.
#[expect(clippy::cast_precision_loss, reason = "so it is in Lua")]
pub(super) fn exact(number: u64) -> f64 {
    number as f64
}

/// Converts a number to an integer, and saturates at zero and at the largest.
#[expect(clippy::cast_possible_truncation, reason = "it is what is wanted")]
pub(super) fn whole(number: f64) -> u64 {
    u64::try_from(number as i64).unwrap_or_default()
}
