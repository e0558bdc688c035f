//! The wheel: which hold is to be looked at when, and what is to be done then.
//!
//! A tick begins at a third of the lease after the start of the last success, lasts one command timeout, and fails at
//! most once. An entry never leaves the wheel while its renewal is under way: it stands at the end of the tick or of
//! validity, whichever is first, before its batch is sent, so that no answer has to come for a loss to be noticed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio_util::time::{DelayQueue, delay_queue};

use super::batch::{Answer, Answers, Due};
use super::{Judge, Order, Verdict};
use crate::clock::Instant;
use crate::error::Loss;
use crate::hold::{Hold, HoldState};
use crate::lease;
use crate::options::Settings;
use crate::script::Renewal;
use crate::stats::Counters;

/// Reconnects are followed by a renewal of everything, over this time at the most.
const SPREAD: Duration = Duration::from_secs(1);

/// All entries, by the generation of their holds, and the queue of their due times.
pub(super) struct Wheel {
    queue: DelayQueue<u64>,
    entries: HashMap<u64, RenewEntry>,
    grid: Duration,
    command_timeout: Duration,
    renewal_failures: u32,
    counters: Arc<Counters>,
}

/// One hold in the wheel. It does not keep the hold alive.
struct RenewEntry {
    hold: Weak<Hold>,
    place: delay_queue::Key,
    /// Before the last renewal that succeeded was sent.
    base: Instant,
    /// When the next tick begins.
    renew_at: Instant,
    /// The end of the tick that is under way.
    tick_until: Option<Instant>,
    /// When it was last renewed out of turn.
    hinted: Option<Instant>,
    /// Whether the tick is out of turn: a message or a reconnect asked for it, and its failure counts for nothing.
    extra: bool,
}

impl Wheel {
    pub(super) fn new(settings: &Settings, counters: Arc<Counters>) -> Self {
        Self {
            queue: DelayQueue::new(),
            entries: HashMap::new(),
            grid: lease::grid(settings.lease),
            command_timeout: settings.command_timeout,
            renewal_failures: settings.renewal_failures,
            counters,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn carry_out(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Watch(hold) => self.insert(&hold),
                Order::Renew(generation) => self.renew_soon(generation, Duration::ZERO),
                Order::Forget(generation) => self.forget(generation),
            }
        }
    }

    /// Takes a hold in, unless it has been released meanwhile.
    fn insert(&mut self, hold: &Weak<Hold>) {
        let Some(held) = hold.upgrade().filter(|hold| hold.is_held()) else { return };
        let now = Instant::now();
        let base = held.since;
        let renew_at = self.tick_at(&held, base, 0, now);
        let place = self.queue.insert(held.generation, now.until(next_look(&held, renew_at)));
        let entry =
            RenewEntry { hold: hold.clone(), place, base, renew_at, tick_until: None, hinted: None, extra: false };
        self.entries.insert(held.generation, entry);
    }

    /// Waits until entries are due, and says which of them are to be renewed. Cancel-safe: what has left the queue has
    /// been dealt with.
    pub(super) async fn expired(&mut self, renewals: &mut Vec<Due>, judge: &Judge) {
        if self.queue.is_empty() {
            // Orders come through the inbox, which wakes the task.
            return std::future::pending().await;
        }
        std::future::poll_fn(|cx| {
            let mut any = false;
            while let Poll::Ready(Some(expired)) = self.queue.poll_expired(cx) {
                any = true;
                self.due(expired.into_inner(), renewals, judge);
            }
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Looks at every entry: time has passed that no timer knows of.
    pub(super) fn sweep(&mut self, renewals: &mut Vec<Due>, judge: &Judge) {
        let generations: Vec<u64> = self.entries.keys().copied().collect();
        for generation in generations {
            if let Some(entry) = self.entries.get(&generation) {
                self.queue.try_remove(&entry.place);
                self.due(generation, renewals, judge);
            }
        }
    }

    /// Deals with an entry that has left the queue.
    fn due(&mut self, generation: u64, renewals: &mut Vec<Due>, judge: &Judge) {
        let Some(mut entry) = self.entries.remove(&generation) else { return };
        let Some(hold) = entry.hold.upgrade() else { return };
        let now = Instant::now();
        let look = hold.at(now + lease::ARM_EARLY);
        if look.newly_lost {
            judge(Verdict::Lost(Arc::clone(&hold)));
        }
        let claims = hold.claims();
        let revoke = !hold.is_held() || claims.revoke_at.is_some_and(|at| now >= at);
        if revoke && hold.revoke() {
            judge(Verdict::Revoked(hold));
            return;
        }
        if !hold.is_held() {
            return;
        }
        if entry.tick_until.is_some_and(|until| now >= until) {
            entry.tick_until = None;
            self.counters.renewal_failed();
            let failed = if std::mem::take(&mut entry.extra) { hold.failed_ticks() } else { hold.tick_failed() };
            if failed >= self.renewal_failures {
                if hold.lose(Loss::RenewalFailed) {
                    judge(Verdict::Lost(hold));
                }
                return;
            }
            let (key, owner, generation) = (&hold.key, hold.owner(), hold.generation);
            if failed > 0 {
                tracing::warn!(%key, %owner, generation, failed, "a renewal failed: the lock is in jeopardy");
            } else {
                tracing::debug!(%key, %owner, generation, "a renewal out of turn failed");
            }
            entry.renew_at = self.tick_at(&hold, entry.base, failed, now);
        }
        if entry.tick_until.is_none() && hold.terms.renewed && hold.claims().claimed && now >= entry.renew_at {
            self.counters.renewal_begun(now.since(entry.renew_at));
            let until = now + self.command_timeout;
            entry.tick_until = Some(until);
            renewals.push(Due {
                generation,
                renewal: Renewal { key: hold.key.clone(), lease: hold.terms.lease, field: hold.field.clone() },
                until,
            });
        }
        let next = next_look(&hold, entry.tick_until.unwrap_or(entry.renew_at));
        entry.place = self.queue.insert(generation, now.until(next));
        self.entries.insert(generation, entry);
    }

    /// Takes in what a node said to a batch.
    pub(super) fn answered(&mut self, batch: Answers, judge: &Judge) {
        let now = Instant::now();
        for (generation, answer) in batch.answers {
            let Some(hold) = self.entries.get(&generation).and_then(|entry| entry.hold.upgrade()) else { continue };
            match answer {
                Answer::Renewed => self.renewed(&hold, batch.node, batch.sent, now, judge),
                // For a hold that is not held any more, gone means nothing: it was released while this was under way.
                Answer::Gone if hold.gone(batch.node) => {
                    self.forget(generation);
                    judge(Verdict::Lost(hold));
                }
                Answer::Gone if hold.is_held() => judge(Verdict::VoteLost(hold, batch.node)),
                Answer::Gone => {}
            }
        }
    }

    fn renewed(&mut self, hold: &Arc<Hold>, node: usize, sent: Instant, now: Instant, judge: &Judge) {
        let look = hold.at(now);
        if look.newly_lost {
            self.forget(hold.generation);
            judge(Verdict::Lost(Arc::clone(hold)));
            return;
        }
        let jeopardy = look.state == HoldState::Jeopardy;
        if !hold.renewed(node, sent, now) {
            return;
        }
        self.counters.renewed();
        tracing::trace!(key = %hold.key, owner = %hold.owner(), generation = hold.generation, "renewed");
        if jeopardy {
            tracing::info!(key = %hold.key, owner = %hold.owner(), "renewed again: the lock is safe");
        }
        let renew_at = self.tick_at(hold, sent, 0, now);
        if let Some(entry) = self.entries.get_mut(&hold.generation) {
            entry.base = sent;
            entry.tick_until = None;
            entry.extra = false;
            entry.renew_at = renew_at;
            self.queue.reset(&entry.place, now.until(next_look(hold, renew_at)));
        }
    }

    /// When the tick after so many failures begins: on the grid, so that batches fill, and never in the past.
    fn tick_at(&self, hold: &Hold, base: Instant, failed: u32, now: Instant) -> Instant {
        let interval = lease::tick_interval(hold.terms.lease, self.renewal_failures);
        (base + interval * (failed + 1)).round_down(self.grid.min(interval / 10)).max(now)
    }

    /// Renews a hold within this time, unless that was done out of turn a moment ago.
    fn renew_soon(&mut self, generation: u64, within: Duration) {
        let Some(entry) = self.entries.get_mut(&generation) else { return };
        let Some(hold) = entry.hold.upgrade().filter(|hold| hold.terms.renewed) else { return };
        let now = Instant::now();
        let pause = hold.terms.lease / 10;
        if entry.tick_until.is_some() || entry.hinted.is_some_and(|last| now.since(last) < pause) {
            return;
        }
        entry.hinted = Some(now);
        entry.extra |= now + within < entry.renew_at;
        entry.renew_at = entry.renew_at.min(now + within);
        self.queue.reset(&entry.place, now.until(next_look(&hold, entry.renew_at)));
    }

    /// Renews everything, spread a little: after a reconnect nobody knows what became of what was under way.
    pub(super) fn renew_all(&mut self) {
        let generations: Vec<u64> = self.entries.keys().copied().collect();
        for generation in generations {
            let Some(hold) = self.entries.get(&generation).and_then(|entry| entry.hold.upgrade()) else { continue };
            let spread = SPREAD.min(lease::tick_interval(hold.terms.lease, self.renewal_failures) / 2);
            if let Some(entry) = self.entries.get_mut(&generation) {
                entry.hinted = None;
            }
            self.renew_soon(generation, spread.mul_f64(fastrand::f64()));
        }
    }

    fn forget(&mut self, generation: u64) {
        if let Some(entry) = self.entries.remove(&generation) {
            self.queue.try_remove(&entry.place);
        }
    }
}

/// When a hold has to be looked at next: when something is planned, when its validity ends, or when a grant that nobody
/// took is to be taken back.
fn next_look(hold: &Hold, planned: Instant) -> Instant {
    let end = hold.valid_until().before(lease::ARM_EARLY);
    let planned = if hold.terms.renewed { planned.min(end) } else { end };
    // What no caller has a guard of is not renewed.
    let claims = hold.claims();
    let planned = if claims.claimed { planned } else { end };
    claims.revoke_at.map_or(planned, |at| planned.min(at))
}

impl Drop for Wheel {
    fn drop(&mut self) {
        for hold in self.entries.values().filter_map(|entry| entry.hold.upgrade()) {
            hold.lose(Loss::RenewalFailed);
        }
    }
}
