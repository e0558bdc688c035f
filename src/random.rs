//! Random names. In a runtime that hosts lockers they come from the generator of its thread, which a simulation seeds.

use uuid::{Builder, Uuid};

use crate::clock;

/// A name that nobody else has.
pub(crate) fn uuid() -> Uuid {
    if clock::is_of_timers() {
        return Builder::from_random_bytes(fastrand::u128(..).to_be_bytes()).into_uuid();
    }
    Uuid::new_v4()
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[tokio::test]
    async fn names_are_random_and_in_a_seeded_host_the_same_again() {
        fastrand::seed(7);
        let elsewhere = uuid();
        Clock::of(&tokio::runtime::Handle::current());
        let again = || {
            fastrand::seed(7);
            [uuid(), uuid()]
        };
        let (first, second) = (again(), again());
        assert_eq!(first, second);
        assert!(first[0] != first[1] && first[0] != elsewhere);
        assert_eq!(first[0].get_version_num(), 4);
    }
}
