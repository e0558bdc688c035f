//! The median of several rounds, with their range or its 95 % interval.

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
        Self {
            median,
            min: end(values.first()),
            max: end(values.last()),
        }
    }

    /// Returns the median, with its 95 % interval in place of the range: each round is above the
    /// true median with probability one half.
    pub(crate) fn of_median(rounds: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = rounds.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        let cut = ((count - 1.96 * count.sqrt()) / 2.0 - 1.0).max(0.0) as usize;
        // The same number from either end, which keeps the median.
        Self::of(values[cut..values.len() - cut].iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_round_does_not_change_the_median() {
        assert_eq!(
            Spread::of([2.0, 900.0, 1.0]),
            Spread {
                median: 2.0,
                min: 1.0,
                max: 900.0
            }
        );
        assert_eq!(Spread::of([1.0, 2.0]).median, 1.5);
    }

    #[test]
    fn the_interval_of_the_median_gets_narrower_with_more_rounds() {
        // For a hundred rounds the 40th and the 61st, as in tables of the binomial distribution.
        let hundred = Spread::of_median((1..=100).map(f64::from));
        assert_eq!(
            hundred,
            Spread {
                median: 50.5,
                min: 40.0,
                max: 61.0
            }
        );
        assert_eq!(
            Spread::of_median([3.0, 1.0, 2.0]),
            Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            }
        );
        assert!(Spread::of_median([]).median.is_nan());
    }
}
