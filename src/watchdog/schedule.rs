//! When the entries of the wheel are to be looked at: lines of time, each with the entries that are due together.
//!
//! Lines, and not a timer for each entry (a `DelayQueue`): a renewal moves its entry twice, and pushing it into a line
//! costs less than moving a timer.
//!
//! A line costs one look-up for all of its entries, however many there are. A place is never taken back: an entry that
//! is placed anew counts its placings up, and what stands in an older place is passed over when its line comes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Instant;

/// Beyond about a hundred keys a script gains nothing, and other clients wait for it.
pub(super) const BATCH: usize = 100;

/// How many batches of a long line go at once. Each alone would find the caches cold, here and on the server, and cost
/// half as much again; more would make others wait.
const FLIGHT: usize = 4;

/// Timers of tokio are no finer.
const STEP: Duration = Duration::from_millis(1);

/// What an entry waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Until {
    /// Something ends: all of a line is looked at when it comes.
    End,
    /// A renewal begins, and may as well begin up to a grid's width later: long lines are cut into batches.
    Tick,
}

/// An entry's stand in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) generation: u64,
    /// Which placing of this entry it is.
    pub(super) placing: u32,
}

/// All lines, by their time.
#[derive(Debug)]
pub(super) struct Schedule {
    lines: BTreeMap<(Instant, Until), Vec<Place>>,
    grid: Duration,
    places: usize,
}

impl Schedule {
    pub(super) fn new(grid: Duration) -> Self {
        Self { lines: BTreeMap::new(), grid, places: 0 }
    }

    pub(super) fn put(&mut self, at: Instant, until: Until, place: Place) {
        self.lines.entry((at.round_up(STEP), until)).or_default().push(place);
        self.places += 1;
    }

    /// When the first line is due.
    pub(super) fn first(&self) -> Option<Instant> {
        self.lines.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first line out, if it is due by now: when that was, and its places. Of a long line of ticks that is a
    /// few batches; the others follow, spread over what is left of the grid's width, so that no line becomes a storm.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Instant, Vec<Place>)> {
        let line = self.lines.first_entry().filter(|line| line.key().0 <= now)?;
        let ((at, until), mut places) = line.remove_entry();
        let flights = places.len().div_ceil(BATCH * FLIGHT);
        if until == Until::Tick && flights > 1 {
            let batches = places.len().div_ceil(BATCH).div_ceil(flights);
            let rest = places.split_off((batches * BATCH).min(places.len()));
            let left = at.until(at.round_down(self.grid) + self.grid);
            let step = left / u32::try_from(flights).unwrap_or(u32::MAX);
            // A line of its own even where the width is used up: answers go before it.
            let next = (at + step.max(STEP)).round_up(STEP);
            self.lines.entry((next, until)).or_default().extend(rest);
        }
        self.places -= places.len();
        Some((at, places))
    }

    /// How many places there are, those among them that were left.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places
    }

    /// Sees to it that places which nobody stands in any more do not gather in lines that are far away.
    pub(super) fn tidy(&mut self, entries: usize, stands: impl Fn(&Place) -> bool) {
        if self.places <= 3 * entries + 1_000 {
            return;
        }
        self.lines.retain(|_, places| {
            places.retain(&stands);
            places.shrink_to_fit();
            !places.is_empty()
        });
        self.places = self.lines.values().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Duration = Duration::from_millis(300);

    fn place(generation: u64) -> Place {
        Place { generation, placing: 0 }
    }

    /// An empty schedule, and a time on a line of its grid.
    fn empty() -> (Schedule, Instant) {
        (Schedule::new(GRID), Instant::now().round_up(GRID))
    }

    #[test]
    fn nothing_is_taken_early_and_everything_in_order() {
        let (mut schedule, at) = empty();
        let later = at + Duration::from_micros(1_500);
        schedule.put(later, Until::Tick, place(3));
        schedule.put(at, Until::Tick, place(2));
        schedule.put(at, Until::End, place(1));
        assert_eq!(schedule.first(), Some(at));
        assert_eq!(schedule.take(at.before(STEP)), None);
        assert_eq!(schedule.take(at), Some((at, vec![place(1)])), "what ends goes first");
        assert_eq!(schedule.take(at), Some((at, vec![place(2)])));
        assert_eq!(schedule.take(later), None, "rounded up, as timers are");
        assert_eq!(schedule.take(at + STEP * 2), Some((at + STEP * 2, vec![place(3)])));
        assert_eq!((schedule.first(), schedule.places), (None, 0));
    }

    #[test]
    fn a_long_line_of_ticks_is_spread_over_the_grid() {
        let (mut schedule, at) = empty();
        (0..3_000).for_each(|n| schedule.put(at, Until::Tick, place(n)));
        let (mut taken, mut seen) = (Vec::new(), 0);
        while let Some((at, places)) = schedule.first().and_then(|first| schedule.take(first)) {
            seen += places.len();
            taken.push((at, places.len()));
        }
        assert_eq!((seen, taken.len(), schedule.places), (3_000, 8, 0));
        assert!(taken.iter().all(|(_, places)| [300, 400].contains(places)), "full batches: {taken:?}");
        let apart = |pair: &[(Instant, usize)]| pair[0].0.until(pair[1].0).abs_diff(GRID / 8) <= STEP * 2;
        assert!(taken.windows(2).all(apart), "{taken:?}");
        assert!(taken.iter().all(|(when, _)| at.until(*when) < GRID));
    }

    #[test]
    fn flights_are_about_equal_and_behind_the_grid_they_go_on() {
        let (mut schedule, at) = empty();
        let late = at.before(STEP);
        (0..901).for_each(|n| schedule.put(late, Until::Tick, place(n)));
        let mut sizes = Vec::new();
        while let Some((_, places)) = schedule.take(at + GRID) {
            sizes.push(places.len());
        }
        assert_eq!(sizes, [400, 300, 201]);
    }

    #[test]
    fn what_ends_is_not_delayed_for_others() {
        let (mut schedule, at) = empty();
        (0..1_000).for_each(|n| schedule.put(at, Until::End, place(n)));
        assert_eq!(schedule.take(at).map(|(_, places)| places.len()), Some(1_000));
    }

    #[test]
    fn places_are_tidied_where_there_are_three_times_as_many_as_entries_and_a_thousand() {
        let (mut schedule, at) = empty();
        (0..1_302).for_each(|n| schedule.put(at + STEP * u32::from(n >= 1_000), Until::End, place(n)));
        let mut left = |entries| {
            schedule.tidy(entries, |place| place.generation >= 1_000);
            (schedule.places, schedule.lines.len())
        };
        assert_eq!(left(101), (1_302, 2));
        assert_eq!(left(100), (302, 1), "lines in which nobody stands go too");
    }

    #[test]
    fn places_that_were_left_do_not_gather() {
        let (mut schedule, at) = empty();
        let far = at + Duration::from_secs(86_400);
        for n in 0..100_000 {
            schedule.put(far, Until::End, place(n));
            schedule.tidy(1, |place| place.generation == n);
        }
        assert!(schedule.places <= 1_003, "{}", schedule.places);
        assert!(schedule.lines.values().map(Vec::capacity).sum::<usize>() < 5_000);
    }
}
