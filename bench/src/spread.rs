//! The median of several rounds, and how far they lie apart.

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_bears_one_bad_round() {
        assert_eq!(Spread::of([2.0, 900.0, 1.0]), Spread { median: 2.0, min: 1.0, max: 900.0 });
        assert_eq!(Spread::of([1.0, 2.0]).median, 1.5);
    }
}
