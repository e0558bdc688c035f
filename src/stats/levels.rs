//! What goes up and down: the gauges. The recorder has the sum over all lockers of the process.

#[cfg(feature = "metrics")]
use crate::foreign::contained;
use crate::kind::LockKind;
use crate::sync::{Arc, Mutex};

/// The name of a gauge, and the kind that it counts if there is one for each.
pub(crate) type LevelName = (&'static str, Option<LockKind>);

/// Numbers that a locker reports, as they were reported last. Its share is taken back when it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Levels<const N: usize>(Mutex<GaugeShare<N>>);

#[derive(Debug)]
struct GaugeShare<const N: usize> {
    names: [LevelName; N],
    counts: [usize; N],
}

impl<const N: usize> Default for Levels<N> {
    fn default() -> Self {
        Self(Mutex::new(GaugeShare {
            names: [("", None); N],
            counts: [0; N],
        }))
    }
}

impl<const N: usize> Levels<N> {
    /// Reports these numbers under these names, the same each time. It may block in the recorder.
    pub(crate) fn tell(&self, names: [LevelName; N], counts: [usize; N]) {
        let before = {
            let mut told = self.0.lock();
            told.names = names;
            std::mem::replace(&mut told.counts, counts)
        };
        for at in 0..N {
            change(names[at], before[at], counts[at]);
        }
    }

    #[cfg(test)]
    pub(crate) fn told(&self) -> [usize; N] {
        self.0.lock().counts
    }
}

impl<const N: usize> Drop for Levels<N> {
    fn drop(&mut self) {
        let GaugeShare { names, counts } = self.0.get_mut();
        for at in 0..N {
            if counts[at] > 0 {
                change(names[at], counts[at], 0);
            }
        }
    }
}

/// Tells the recorder by how much a number has changed.
fn change((_name, _kind): LevelName, _before: usize, _now: usize) {
    #[cfg(feature = "metrics")]
    contained(|| {
        let exact = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let kind = |kind: LockKind| metrics::Label::from_static_parts("kind", kind.name());
        let labels: Vec<_> = _kind.map(kind).into_iter().collect();
        metrics::gauge!(_name, labels).increment(exact(_now) - exact(_before));
    });
}

/// Tells the recorder whether a server is there.
pub(crate) fn tell_server(_node: &Arc<str>, _is_up: bool) {
    #[cfg(feature = "metrics")]
    contained(|| {
        metrics::gauge!("lockhound_server_up", "node" => Arc::clone(_node))
            .set(f64::from(u8::from(_is_up)));
    });
}
