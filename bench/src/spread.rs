//! The median of several rounds, and how far they lie apart, or how far it is to be believed.

use serde::Serialize;

/// One figure over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(rounds: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = rounds.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let median = match (values.len() / 2, values.len() % 2) {
            (0, 0) => f64::NAN,
            (half, 0) => f64::midpoint(values[half - 1], values[half]),
            (half, _) => values[half],
        };
        let end = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        Self { median, min: end(values.first()), max: end(values.last()) }
    }

    /// The median, and in place of the range the values between which the true one lies, 19 times of 20: it is the toss
    /// of a coin whether a round is above that.
    pub(crate) fn of_median(rounds: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = rounds.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        let cut = ((count - 1.96 * count.sqrt()) / 2.0 - 1.0).max(0.0) as usize;
        // As many from either end: the median stays.
        Self::of(values[cut..values.len() - cut].iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_bears_one_bad_round() {
        assert_eq!(Spread::of([2.0, 900.0, 1.0]), Spread { median: 2.0, min: 1.0, max: 900.0 });
        assert_eq!(Spread::of([1.0, 2.0]).median, 1.5);
    }

    #[test]
    fn the_more_rounds_the_narrower_the_interval_of_their_median() {
        // Of a hundred rounds the 40th and the 61st, as tables of the binomial distribution have it.
        let hundred = Spread::of_median((1..=100).map(f64::from));
        assert_eq!(hundred, Spread { median: 50.5, min: 40.0, max: 61.0 });
        assert_eq!(Spread::of_median([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert!(Spread::of_median([]).median.is_nan());
    }
}
