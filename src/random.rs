//! Random names and times. In a runtime that hosts lockers they come from the generator of its
//! thread, which a simulation seeds.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use uuid::{Builder, Uuid};

use crate::clock;

/// The pauses between two attempts while servers do not answer or callers share the votes, and
/// before a refusal that follows another one.
const RETRY_PAUSES: Range<Duration> = Duration::from_millis(50)..Duration::from_millis(200);

/// Returns a unique name.
pub(crate) fn uuid() -> Uuid {
    if clock::is_of_timers() {
        return Builder::from_random_bytes(fastrand::u128(..).to_be_bytes()).into_uuid();
    }
    Uuid::new_v4()
}

/// Returns a random pause between two attempts.
pub(crate) fn retry_pause() -> Duration {
    within(&RETRY_PAUSES)
}

/// Returns a random time within this range, which is not empty.
pub(crate) fn within(range: &Range<Duration>) -> Duration {
    range.start + (range.end - range.start).mul_f64(fastrand::f64())
}

/// Returns a random time within this range.
pub(crate) fn duration(range: &RangeInclusive<Duration>) -> Duration {
    let least = *range.start();
    let most = *range.end();
    if least == most {
        least
    } else {
        least + (most - least).mul_f64(fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeded() -> [Uuid; 2] {
        fastrand::seed(7);
        [uuid(), uuid()]
    }

    #[test]
    fn names_are_unique() {
        let names = [seeded(), seeded()].concat();
        assert!(
            names
                .iter()
                .all(|name| names.iter().filter(|other| *other == name).count() == 1),
            "{names:?}"
        );
    }

    #[cfg(feature = "testing")]
    #[tokio::test]
    async fn in_a_host_the_same_seed_makes_the_same_names() {
        clock::Clock::of(&tokio::runtime::Handle::current());
        let names = seeded();
        assert_eq!(names, seeded());
        assert!(
            names[0] != names[1] && names[0].get_version_num() == 4,
            "{names:?}"
        );
    }
}
