//! Who had permits of a semaphore and when, and the check that there were never more than there
//! are.
//!
//! A call takes its permits at some time before it returns, and gives them back at some time after
//! its release is called. Permits that are taken late and given back early are in nobody's way, so
//! there is no order to search for: some order explains all calls if and only if the times fit in
//! which permits were certainly taken.

use std::collections::BTreeMap;

/// Permits of one call, and when they were certainly taken: from its return to the call of their
/// release, or to the last check that found them held.
#[derive(Debug, Clone)]
pub struct Taken {
    pub key: String,
    pub who: String,
    pub permits: u32,
    pub from: u64,
    pub until: u64,
}

/// Checks each semaphore by itself: all of them have this capacity.
///
/// # Errors
/// Those that had too many at once.
pub fn check(capacity: u32, taken: &[Taken]) -> Result<(), String> {
    let mut semaphores: BTreeMap<&str, Vec<&Taken>> = BTreeMap::new();
    for taken in taken {
        semaphores.entry(&taken.key).or_default().push(taken);
    }
    for taken in semaphores.values() {
        // The most are taken at once when some call returns.
        for last in taken {
            let at_once: Vec<_> = taken
                .iter()
                .filter(|other| other.from <= last.from && last.from < other.until)
                .collect();
            let sum: u32 = at_once.iter().map(|taken| taken.permits).sum();
            if sum > capacity {
                return Err(format!("{sum} permits of {capacity}: {at_once:#?}"));
            }
        }
    }
    Ok(())
}
