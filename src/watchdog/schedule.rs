//! When the entries of the wheel are handled: lines of time, each with the entries that are due
//! together.
//!
//! It has lines and not a timer for each entry (a `DelayQueue`), since a renewal moves its entry
//! twice, and pushing it into a line costs less than moving a timer.
//!
//! A line costs one look-up for all of its entries. A place is never removed: an entry that gets a
//! new place increments its `placing`, and older places are skipped when their lines are due.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Instant;

/// The most keys in one script. More than about a hundred gain nothing, and other clients wait for
/// the script.
pub(super) const BATCH: usize = 100;

/// How many batches of a long line are sent at once. A single batch would find cold caches, here
/// and on the server, and cost half as much again; more would make other clients wait.
const FLIGHT: usize = 4;

/// The resolution of tokio's timers.
const STEP: Duration = Duration::from_millis(1);

/// The event for which an entry waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Until {
    /// Something ends: the whole line is handled when it is due.
    End,
    /// A renewal begins. It may begin up to a grid's width later, so long lines are cut into
    /// batches.
    Tick,
}

/// The place of an entry in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryRef {
    pub(super) generation: u64,
    /// The number of this place among those of its entry.
    pub(super) placing: u32,
}

/// All lines, by their time.
#[derive(Debug)]
pub(super) struct Schedule {
    lines: BTreeMap<(Instant, Until), Vec<EntryRef>>,
    grid: Duration,
    places: usize,
}

impl Schedule {
    pub(super) fn new(grid: Duration) -> Self {
        Self {
            lines: BTreeMap::new(),
            grid,
            places: 0,
        }
    }

    pub(super) fn put(&mut self, at: Instant, until: Until, place: EntryRef) {
        self.lines
            .entry((at.round_up(STEP), until))
            .or_default()
            .push(place);
        self.places += 1;
    }

    /// Returns when the first line is due.
    pub(super) fn first(&self) -> Option<Instant> {
        self.lines.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes out the first line if it is due, and returns its time and its places. Of a long line
    /// of ticks it takes only a few batches; the others follow, spread over the rest of the grid's
    /// width, so that the server does not get them all at once.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Instant, Vec<EntryRef>)> {
        let line = self
            .lines
            .first_entry()
            .filter(|line| line.key().0 <= now)?;
        let ((at, until), mut places) = line.remove_entry();
        let flights = places.len().div_ceil(BATCH * FLIGHT);
        if until == Until::Tick && flights > 1 {
            let batches = places.len().div_ceil(BATCH).div_ceil(flights);
            let rest = places.split_off((batches * BATCH).min(places.len()));
            let left = at.until(at.round_down(self.grid) + self.grid);
            let step = left / u32::try_from(flights).unwrap_or(u32::MAX);
            // The rest gets a line of its own even if the width is used up, so that answers arrive
            // before it.
            let next = (at + step.max(STEP)).round_up(STEP);
            self.lines.entry((next, until)).or_default().extend(rest);
        }
        self.places -= places.len();
        Some((at, places))
    }

    /// Returns the number of places, outdated ones included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places
    }

    /// Removes outdated places if there are many, so that they do not accumulate in lines that are
    /// far away.
    pub(super) fn tidy(&mut self, entries: usize, stands: impl Fn(&EntryRef) -> bool) {
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

    fn place(generation: u64) -> EntryRef {
        EntryRef {
            generation,
            placing: 0,
        }
    }

    /// Returns an empty schedule, and a time on its grid.
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
        assert_eq!(
            schedule.take(at),
            Some((at, vec![place(1)])),
            "what ends goes first"
        );
        assert_eq!(schedule.take(at), Some((at, vec![place(2)])));
        assert_eq!(schedule.take(later), None, "rounded up, as timers are");
        assert_eq!(
            schedule.take(at + STEP * 2),
            Some((at + STEP * 2, vec![place(3)]))
        );
        assert_eq!((schedule.first(), schedule.places), (None, 0));
    }

    #[test]
    fn a_long_line_of_ticks_is_spread_over_the_grid() {
        let (mut schedule, at) = empty();
        (0..3_000).for_each(|n| schedule.put(at, Until::Tick, place(n)));
        let mut taken = Vec::new();
        let mut seen = 0;
        while let Some((at, places)) = schedule.first().and_then(|first| schedule.take(first)) {
            seen += places.len();
            taken.push((at, places.len()));
        }
        assert_eq!((seen, taken.len(), schedule.places), (3_000, 8, 0));
        assert!(
            taken.iter().all(|(_, places)| [300, 400].contains(places)),
            "full batches: {taken:?}"
        );
        let apart =
            |pair: &[(Instant, usize)]| pair[0].0.until(pair[1].0).abs_diff(GRID / 8) <= STEP * 2;
        assert!(taken.windows(2).all(apart), "{taken:?}");
        assert!(taken.iter().all(|(when, _)| at.until(*when) < GRID));
    }

    #[test]
    fn flights_are_about_equal_and_go_on_after_the_grids_width() {
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
    fn a_line_of_ends_is_not_spread() {
        let (mut schedule, at) = empty();
        (0..1_000).for_each(|n| schedule.put(at, Until::End, place(n)));
        assert_eq!(
            schedule.take(at).map(|(_, places)| places.len()),
            Some(1_000)
        );
    }

    #[test]
    fn places_are_tidied_above_thrice_the_entries_plus_a_thousand() {
        let (mut schedule, at) = empty();
        (0..1_302)
            .for_each(|n| schedule.put(at + STEP * u32::from(n >= 1_000), Until::End, place(n)));
        let mut left = |entries| {
            schedule.tidy(entries, |place| place.generation >= 1_000);
            (schedule.places, schedule.lines.len())
        };
        assert_eq!(left(101), (1_302, 2));
        assert_eq!(left(100), (302, 1), "empty lines are removed too");
    }

    #[test]
    fn outdated_places_do_not_accumulate() {
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
