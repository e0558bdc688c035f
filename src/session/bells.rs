//! The bells of callers that watch keys: which of them rings for a key.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use crate::foreign;
use crate::key::Key;
use crate::sync::Mutex;

/// The bells of a session, by the keys that they ring for.
#[derive(Debug, Default)]
pub(super) struct Bells(Mutex<HashMap<Key, Vec<Weak<Bell>>>>);

/// Rings when there may be something new.
#[derive(Debug, Default)]
pub(super) struct Bell(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    rung: bool,
    /// The caller that waits for it.
    waits: Option<oneshot::Sender<()>>,
}

impl Bell {
    fn ring(&self) {
        let mut ring = self.0.lock();
        ring.rung = true;
        let waits = ring.waits.take();
        drop(ring);
        waits.into_iter().for_each(foreign::hang_up);
    }

    /// Silences the bell. Returns whether it had rung; otherwise `waits` hears of the next time.
    pub(super) fn silence(&self, waits: Option<oneshot::Sender<()>>) -> bool {
        let mut ring = self.0.lock();
        let rung = std::mem::take(&mut ring.rung);
        let earlier = std::mem::replace(&mut ring.waits, waits.filter(|_| !rung));
        drop(ring);
        earlier.into_iter().for_each(foreign::hang_up);
        rung
    }
}

impl Bells {
    /// Has a bell ring for these keys. `first` is called for each that no other bell rings for yet,
    /// under the mutex: the last bell of a key may leave at the same time.
    pub(super) fn add(&self, bell: &Arc<Bell>, keys: &[Key], first: impl Fn(&Key)) {
        let mut bells = self.0.lock();
        for key in keys {
            let bells = bells.entry(key.clone()).or_default();
            if bells.is_empty() {
                first(key);
            }
            bells.push(Arc::downgrade(bell));
        }
    }

    /// Removes a bell. `last` is called for each key that no bell rings for any more.
    pub(super) fn remove(&self, bell: &Arc<Bell>, keys: &[Key], last: impl Fn(&Key)) {
        let mut bells = self.0.lock();
        for key in keys {
            let Some(others) = bells.get_mut(key) else {
                continue;
            };
            others.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(bell)));
            if others.is_empty() {
                bells.remove(key);
                last(key);
            }
        }
    }

    /// Rings for this key.
    pub(super) fn ring(&self, key: &Key) {
        let bells = self.0.lock().get(key).cloned().unwrap_or_default();
        bells
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|bell| bell.ring());
    }

    /// Rings all bells: their session ends.
    pub(super) fn ring_all(&self) {
        let bells: Vec<_> = self.0.lock().values().flatten().cloned().collect();
        bells
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|bell| bell.ring());
    }
}
