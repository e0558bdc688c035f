//! The lines of all keys in one table, with the timers that wake them, and what is carried out for
//! them.
//!
//! With one table for holds and waiters, "enter the hold of this owner, or join the line" is one
//! step under one shard's lock, and so is "register the grant, and let the waiters of the same
//! owner enter". Two tables would leave a race between them.
//!
//! A waiter is data, not a future, and a line has no task: whoever passes an event to a line
//! carries out what follows. So progress never depends on whether a caller polls. Commands to
//! servers are jobs of the engine, whose outcome is the next event.
//!
//! # Invariants
//! - A slot exists while its key has a hold, a waiter, something in flight, or something to
//!   remember: memory does not grow with the number of keys ever used.
//! - Holds of a slot that exclude each other are not both held: one is lost or being released.
//! - An owner has one hold of a kind in a slot, unless it took several past the line at once.
//! - The subscription and the timer of a line change under the shard's lock, in the order of its
//!   steps. All else is carried out after it is released: holds and waiters are dropped and woken,
//!   tokens fire, jobs are given.
//! - Tokens of holds that were found lost fire last: their wakers may block, and what the line
//!   wants is then in flight.
//! - The mutexes of a hold, the timers, the channels, the lists that were refused and the engine's
//!   watch are taken after the shard's lock, and nothing under them.

mod crowd;
#[path = "../tests/model/fuzz.rs"]
#[cfg(test)]
mod fuzz;
mod key_state;
mod timers;
mod world;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::one::RefMut;
use tokio::sync::oneshot;

use self::key_state::KeyState;
pub(crate) use self::timers::{Timed, Timers};
pub(crate) use self::world::World;
use crate::claim::{ReleaseAnswer, Releaser};
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::foreign::Span;
use crate::hold::{Hold, Want};
use crate::identity::Origin;
use crate::key::{Key, OfKeys};
use crate::kind::LockKind;
use crate::line::{self, Effect, Event, LastRound, Line, Stays, Wants};
use crate::owner::Owner;
use crate::stats::Census;

/// All slots of a locker.
pub(crate) struct Lines<W: World> {
    slots: DashMap<Key, KeyState<W>, OfKeys>,
    timers: Arc<Timers>,
    ids: AtomicU64,
    /// The number of holds in all slots, of each kind, so that nothing has to count them.
    holds: [AtomicUsize; LockKind::ALL.len()],
    /// The number of waiters in all slots, of each kind.
    waiters: [AtomicUsize; LockKind::ALL.len()],
    world: W,
}

/// One caller in line.
pub(crate) type CallWaiter<G> = line::Waiter<LockRequest<G>>;

/// What a caller wants, and where it gets it.
#[derive(Debug)]
pub(crate) struct LockRequest<G> {
    pub(crate) origin: Origin,
    pub(crate) want: Want,
    /// That of what the engine does for it.
    pub(crate) span: Span,
    /// What stands for it on the server may come yet: an ask for it had no answer. Set under the
    /// shard's lock.
    pub(crate) in_doubt: AtomicBool,
    pub(crate) reply: oneshot::Sender<Result<LineAnswer<G>, Error>>,
}

/// What a caller in line gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LineAnswer<G> {
    Granted(G),
    /// Its wait time is over, and another owner holds the lock.
    TimeOver,
    /// Its owner has got the lock in the other role meanwhile: it has to come again.
    SentBack,
}

impl<G> Wants for LockRequest<G> {
    fn lease(&self) -> Duration {
        self.want.terms.lease
    }

    fn shares(&self) -> bool {
        self.want.kind.shares()
    }
}

/// What an owner finds at a key.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It holds the lock, and has entered again: the hold and its new count.
    Reentered(Arc<Hold>, u32),
    /// Its hold is lost, and a guard of it still lives.
    Lost(Loss),
    /// It has this write hold, and wants to read.
    Inside(Arc<Hold>),
    /// It has a read hold, and wants to write: it would wait for itself.
    Upgrade,
    /// It wants to read, and may come in beside this hold of another reader.
    Beside(Arc<Hold>),
    /// Another owner of this locker provably holds it.
    HeldHere,
    /// Nothing here prevents an attempt.
    Open,
}

/// The result of [`Lines::arrive`].
#[derive(Debug)]
pub(crate) enum Arrival {
    Reentered(Arc<Hold>, u32),
    Lost(Loss),
    Inside(Arc<Hold>),
    Upgrade,
    Beside(Arc<Hold>),
    Queued,
}

/// The waiter for which a line asks.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) id: u64,
    pub(crate) owner: Owner,
    pub(crate) origin: Origin,
    pub(crate) want: Want,
    pub(crate) span: Span,
    pub(crate) in_doubt: bool,
}

/// The waiters that get a grant.
#[derive(Debug)]
pub(crate) struct Admitted<G> {
    /// The waiter for which it was acquired, if it is still in line.
    pub(crate) waiter: Option<CallWaiter<G>>,
    /// The waiters of the same owner, who have entered the hold with it.
    pub(crate) same_owner: Vec<CallWaiter<G>>,
}

impl<W: World> Lines<W> {
    pub(crate) fn new(world: W) -> Self {
        Self {
            slots: DashMap::default(),
            timers: Arc::default(),
            ids: AtomicU64::new(0),
            holds: Default::default(),
            waiters: Default::default(),
            world,
        }
    }

    /// Returns a number for a waiter or a timer.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// Passes an event to the line of this key, if there is one, and carries out what follows.
    pub(crate) fn step(&self, key: &Key, event: Event) {
        self.go_on(key, Some(event));
    }

    /// The same if there is an event.
    fn go_on(&self, key: &Key, mut next: Option<Event>) {
        while let Some(event) = next.take()
            && let Some(slot) = self.slots.get_mut(key)
        {
            next = self.run_once(key, slot, event);
        }
    }

    /// The same for a line whose shard is locked already.
    fn run(&self, key: &Key, slot: RefMut<'_, Key, KeyState<W>>, event: Event) {
        let next = self.run_once(key, slot, event);
        self.go_on(key, next);
    }

    /// Passes an event to a line, and carries out what follows. Returns the next event.
    fn run_once(
        &self,
        key: &Key,
        mut slot: RefMut<'_, Key, KeyState<W>>,
        event: Event,
    ) -> Option<Event> {
        let (mut effect, now) = self.advance(key, &mut slot, event);
        let lost = slot.found_lost();
        if !lost.is_empty() && effect.is_none() {
            // The line may have waited for them.
            (effect, _) = self.advance(key, &mut slot, Event::Changed);
        }
        let passes = slot.line.take_pass();
        self.let_go(key, slot, now);
        if passes && let Some(event) = self.world.carry(key, Effect::Pass) {
            self.step(key, event);
        }
        let next = effect.and_then(|effect| self.world.carry(key, effect));
        if lost.is_empty() {
            return next;
        }
        // Wakers may block, so nothing of the line waits for them.
        self.go_on(key, next);
        fire(&lost);
        None
    }

    /// Passes an event to a line, if it matters there. Returns what has to be done without the
    /// shard's lock, and the time.
    fn advance(
        &self,
        key: &Key,
        slot: &mut KeyState<W>,
        mut event: Event,
    ) -> (Option<Effect<W::Unconfirmed, Head>>, Instant) {
        // `moment` takes the mutexes of what is around, and a line at rest needs nothing of it.
        if !slot.line.heeds(event) {
            return (None, self.world.now());
        }
        loop {
            let moment = self.world.moment(key);
            let now = moment.now;
            match slot.line.on(event, &moment) {
                Some(Effect::Listen { until }) => {
                    self.plan(key, slot, until, now);
                    if !self.world.listen(key) {
                        return (None, now);
                    }
                    // The channel was subscribed already, so no confirmation will follow.
                    event = Event::Subscribed;
                }
                Some(Effect::WakeAt { until, others }) => {
                    self.plan(key, slot, until, now);
                    if others {
                        self.world.waits_for_others();
                    }
                    return (None, now);
                }
                Some(Effect::Hush { lingers }) => {
                    self.world.stop_listening(key, lingers);
                    return (None, now);
                }
                effect => {
                    return (
                        effect.and_then(|effect| effect.known(|id| slot.head(id))),
                        now,
                    );
                }
            }
        }
    }

    /// Releases the shard's lock, and removes the slot if nothing needs it.
    fn let_go(&self, key: &Key, mut slot: RefMut<'_, Key, KeyState<W>>, now: Instant) {
        match slot.line.stays(now) {
            Stays::InUse => {}
            Stays::Until(at) => self.plan(key, &mut slot, at, now),
            Stays::No => {
                if let Some((at, id)) = slot.alarm.take() {
                    self.timers.remove(at, id, now);
                }
                drop(slot);
                // A caller may have come since the shard was unlocked.
                self.slots.remove_if(key, |_, slot| slot.line.is_empty());
            }
        }
    }

    /// Has the line woken at this time, or earlier.
    fn plan(&self, key: &Key, slot: &mut KeyState<W>, until: Instant, now: Instant) {
        // A timer that comes early only has the line look once more.
        if slot.alarm.is_some_and(|(at, _)| at <= until) {
            return;
        }
        if let Some((at, id)) = slot.alarm.replace((until, self.next_id())) {
            self.timers.remove(at, id, now);
        }
        if let Some((at, id)) = slot.alarm {
            self.timers.put(at, id, key, Timed::Line);
        }
    }

    /// Wakes a line, whose timer of this number has come.
    pub(crate) fn wake(&self, key: &Key, id: u64) {
        let Some(mut slot) = self.slots.get_mut(key) else {
            return;
        };
        // A timer that was replaced may be on its way already.
        if slot.alarm.take_if(|(_, planned)| *planned == id).is_some() {
            self.run(key, slot, Event::Due);
        }
    }

    /// Returns the waiters at the front of a line, but no more than this many of them.
    pub(crate) fn front(&self, key: &Key, most: usize) -> Vec<Head> {
        let slot = self.slots.get(key);
        slot.map_or_else(Vec::new, |slot| slot.front(most))
    }

    /// Records that an ask had no answer which was for the waiters up to this number.
    pub(crate) fn doubt(&self, key: &Key, last: u64) {
        if let Some(slot) = self.slots.get(key) {
            slot.doubt(last);
        }
    }

    /// Returns the first capacity that a waiter's handle says.
    pub(crate) fn capacity(&self, key: &Key) -> Option<NonZeroU32> {
        self.slots.get(key)?.capacity()
    }

    /// Enters this owner's hold again, or returns why it cannot.
    pub(crate) fn enter(&self, key: &Key, owner: &Owner, want: Want, now: Instant) -> Entry {
        let Some(slot) = self.slots.get(key) else {
            return Entry::Open;
        };
        let entry = slot.enter(owner, want, now);
        let lost = slot.found_lost();
        drop(slot);
        if !lost.is_empty() {
            self.step(key, Event::Changed);
            fire(&lost);
        }
        entry
    }

    /// Enters the owner's hold again, or puts the waiter in line.
    pub(crate) fn arrive(
        &self,
        key: &Key,
        waiter: CallWaiter<W::RawGuard>,
        now: Instant,
    ) -> Arrival {
        let mut slot = self.slots.entry(key.clone()).or_default();
        let (arrival, starts) = match slot.enter(&waiter.owner, waiter.call.want, now) {
            Entry::Reentered(hold, count) => (Arrival::Reentered(hold, count), false),
            Entry::Lost(loss) => (Arrival::Lost(loss), false),
            Entry::Inside(hold) => (Arrival::Inside(hold), false),
            Entry::Upgrade => (Arrival::Upgrade, false),
            Entry::Beside(hold) => (Arrival::Beside(hold), false),
            Entry::HeldHere | Entry::Open => {
                self.waiters[waiter.call.want.kind.counted as usize]
                    .fetch_add(1, Ordering::Relaxed);
                (Arrival::Queued, slot.line.arrive(waiter))
            }
        };
        // What the look found lost has to be fired too, without the shard's lock. A caller of a
        // fair lock gets its place when it comes.
        let starts = starts || key.is_fair() && matches!(arrival, Arrival::Queued);
        if starts || !slot.found_lost().is_empty() {
            self.run(key, slot, Event::Changed);
        }
        arrival
    }

    /// Registers the hold of a reader that joins this one, in one step: whoever makes this one lost
    /// finds the other too. Returns `None` if that one is not open any more, or if the reader has
    /// to arrive once more.
    pub(crate) fn join(
        &self,
        beside: &Hold,
        owner: &Owner,
        origin: Origin,
        generation: u64,
        now: Instant,
    ) -> Option<(Arc<Hold>, Admitted<W::RawGuard>)> {
        let slot = self.slots.get_mut(&beside.claim.key)?;
        let is_its = |hold: &Arc<Hold>| hold.is_owned_by(owner) && hold.is_held();
        // A writer that waits, or another branch of its owner, has come first.
        if slot.line.has_writers() || slot.line.holds().iter().any(is_its) {
            return None;
        }
        let reader = (owner.clone(), origin, generation);
        self.take_in(slot, beside, None, reader, now)
    }

    /// Does the same for the head of the line, if that is a reader with the same terms.
    pub(crate) fn join_first(
        &self,
        beside: &Hold,
        generation: u64,
        now: Instant,
    ) -> Option<(Arc<Hold>, Admitted<W::RawGuard>)> {
        let slot = self.slots.get_mut(&beside.claim.key)?;
        let head = slot.line.waiters().first()?;
        let joins = head.call.shares() && head.call.want.terms == beside.terms;
        // Its owner may have a hold that is lost, or that it has to find.
        let is_its = |hold: &Arc<Hold>| hold.is_owned_by(&head.owner);
        if !joins || slot.line.holds().iter().any(is_its) {
            return None;
        }
        let (id, reader) = (head.id, (head.owner.clone(), head.call.origin, generation));
        self.take_in(slot, beside, Some(id), reader, now)
    }

    fn take_in(
        &self,
        mut slot: RefMut<'_, Key, KeyState<W>>,
        beside: &Hold,
        waiter: Option<u64>,
        (owner, origin, generation): (Owner, Origin, u64),
        now: Instant,
    ) -> Option<(Arc<Hold>, Admitted<W::RawGuard>)> {
        let kind = beside.claim.kind;
        // Its grant proves that no caller reads, and it may be about to make these lost.
        let writes = |hold: &Arc<Hold>| kind.excludes(hold.claim.kind) && hold.is_held();
        if slot.line.holds().iter().any(writes) {
            return None;
        }
        let hold = Arc::new(beside.beside(owner, origin, generation, now)?);
        let waiter = slot.line.grant(Arc::clone(&hold), waiter, now).ok()?;
        Some((Arc::clone(&hold), self.registered(slot, &hold, waiter, now)))
    }

    /// Registers a grant, unless the waiter that it is for has gone.
    pub(crate) fn admit(
        &self,
        hold: &Arc<Hold>,
        waiter: Option<u64>,
        now: Instant,
    ) -> Admitted<W::RawGuard> {
        let key = &hold.claim.key;
        let mut slot = self.slots.entry(key.clone()).or_default();
        let Ok(waiter) = slot.line.grant(Arc::clone(hold), waiter, now) else {
            self.let_go(key, slot, now);
            return Admitted {
                waiter: None,
                same_owner: Vec::new(),
            };
        };
        self.registered(slot, hold, waiter, now)
    }

    /// Counts a hold that the line has just taken in.
    fn registered(
        &self,
        slot: RefMut<'_, Key, KeyState<W>>,
        hold: &Arc<Hold>,
        waiter: Option<CallWaiter<W::RawGuard>>,
        now: Instant,
    ) -> Admitted<W::RawGuard> {
        // Before the shard is unlocked: a removal must not be counted first.
        self.holds[hold.claim.kind.counted as usize].fetch_add(1, Ordering::Relaxed);
        Admitted {
            waiter: self.counted(waiter),
            same_owner: self.let_in(slot, hold, now),
        }
    }

    /// Replaces the released hold by the grant of its hand-over, in one step. The key is never free
    /// here in between, whether or not the waiter is still in line.
    pub(crate) fn transfer(
        &self,
        from: &Arc<Hold>,
        hold: &Arc<Hold>,
        waiter: u64,
        now: Instant,
    ) -> Admitted<W::RawGuard> {
        let mut slot = self.slots.entry(hold.claim.key.clone()).or_default();
        let (released, waiter) = slot.line.transfer(from, Arc::clone(hold), waiter, now);
        // A lock may be handed over to a candidate, and both are counted apart.
        self.holds[hold.claim.kind.counted as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(released) = &released {
            self.holds[released.claim.kind.counted as usize].fetch_sub(1, Ordering::Relaxed);
        }
        let same_owner = self.let_in(slot, hold, now);
        // Its drop may run a waker, so it waits for the end of the shard's lock.
        drop(released);
        Admitted {
            waiter: self.counted(waiter),
            same_owner,
        }
    }

    /// Passes a release to the line of its key for a hand-over, if the line waits for this hold and
    /// the lock has not been handed over too often. Otherwise returns the release.
    pub(crate) fn release(
        &self,
        hold: &Arc<Hold>,
        release: W::Unconfirmed,
        now: Instant,
    ) -> Option<W::Unconfirmed> {
        let key = &hold.claim.key;
        let Some(mut slot) = self.slots.get_mut(key) else {
            return Some(release);
        };
        let unsent = slot.line.release(hold, release, now);
        if unsent.is_none() {
            self.run(key, slot, Event::Changed);
        }
        unsent
    }

    /// Called when the release of a lock with this lease is about to be sent. Returns what the
    /// server has to know of those who wait, if there is a list.
    pub(crate) fn begin_release(&self, key: &Key, lease: Duration) -> Option<Releaser> {
        let mut slot = self.slots.get_mut(key);
        let moment = self.world.moment(key);
        if moment.heeds_releases() {
            self.world.begin_release(key);
        }
        match &mut slot {
            Some(slot) => slot.line.begin_release(lease, &moment),
            // No caller waits here. Lockers elsewhere may, and the release has to wake them.
            None => Line::<Arc<Hold>, LockRequest<W::RawGuard>, W::Unconfirmed>::default()
                .begin_release(lease, &moment),
        }
    }

    /// Takes in a server's answer to a release that has notified others.
    pub(crate) fn released(&self, key: &Key, release: &ReleaseAnswer) {
        // Even without a caller here, it remembers what the answer says of others.
        let mut slot = self.slots.entry(key.clone()).or_default();
        slot.line.released(release, &self.world.moment(key));
        self.run(key, slot, Event::Due);
    }

    /// Returns whether others have a turn that this locker gave them, and whose outcome is not
    /// known, or had it at that time or later.
    pub(crate) fn has_given_turn(&self, key: &Key, since: Instant) -> bool {
        self.slots
            .get(key)
            .is_some_and(|slot| slot.line.has_given_turn(since))
    }

    /// Records that the lock was free although others have a turn.
    pub(crate) fn end_given_turn(&self, key: &Key, now: Instant) {
        if let Some(mut slot) = self.slots.get_mut(key) {
            slot.line.end_given_turn(now);
        }
    }

    #[cfg(test)]
    pub(crate) fn world(&self) -> &W {
        &self.world
    }

    /// Returns whether the last release of this key woke or told others.
    #[cfg(test)]
    pub(crate) fn others_wait(&self, key: &Key) -> bool {
        self.slots
            .get(key)
            .is_some_and(|slot| slot.line.others_wait())
    }

    /// Takes out a hold that was released, or that was lost and whose last guard is gone.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let key = &hold.claim.key;
        let Some(mut slot) = self.slots.get_mut(key) else {
            return;
        };
        let taken = slot.line.remove(hold);
        if taken.is_some() {
            self.holds[hold.claim.kind.counted as usize].fetch_sub(1, Ordering::Relaxed);
        }
        self.run(key, slot, Event::Changed);
        // As above: after the shard's lock.
        drop(taken);
    }

    /// Takes out a waiter whose caller is gone or gets an answer.
    pub(crate) fn leave(&self, key: &Key, id: u64) -> Option<CallWaiter<W::RawGuard>> {
        let mut slot = self.slots.get_mut(key)?;
        let waiter = self.counted(slot.line.leave(id))?;
        self.left(key, slot);
        self.world.left(key, &waiter);
        Some(waiter)
    }

    /// Tells a line that waiters have left, if none is there any more, or the last writer has gone,
    /// or if those behind may want fewer permits.
    fn left(&self, key: &Key, slot: RefMut<'_, Key, KeyState<W>>) {
        if slot.line.waiters().is_empty() || slot.line.has_spare_hint() || key.has_permits() {
            self.run(key, slot, Event::Changed);
        }
    }

    /// Returns whether a waiter is in line.
    pub(crate) fn has_waiter(&self, key: &Key, id: u64) -> bool {
        self.slots
            .get(key)
            .is_some_and(|slot| slot.head(id).is_some())
    }

    /// Returns whether this key has waiters.
    pub(crate) fn is_awaited(&self, key: &Key) -> bool {
        self.slots
            .get(key)
            .is_some_and(|slot| !slot.line.waiters().is_empty())
    }

    /// Returns whether this key is known to be held: here, or according to the last round.
    pub(crate) fn is_known_held(&self, key: &Key, now: Instant) -> bool {
        self.slots.get(key).is_some_and(|slot| {
            slot.line.last_round() == LastRound::Answered
                || slot.line.holds().iter().any(|hold| hold.blocks(now))
        })
    }

    /// Returns whether a hold of a key satisfies the condition, which runs under the shard's lock.
    pub(crate) fn has_hold(&self, key: &Key, which: impl Fn(&Hold) -> bool) -> bool {
        self.slots
            .get(key)
            .is_some_and(|slot| slot.line.holds().iter().any(|hold| which(hold)))
    }

    /// Returns the holds of a key.
    pub(crate) fn holds_of(&self, key: &Key) -> Vec<Arc<Hold>> {
        self.slots
            .get(key)
            .map(|slot| slot.line.holds().to_vec())
            .unwrap_or_default()
    }

    /// Returns all holds.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.slots
            .iter()
            .flat_map(|slot| slot.line.holds().to_vec())
            .collect()
    }

    /// Returns the numbers of holds and of waiters of each kind.
    pub(crate) fn census(&self) -> Census {
        LockKind::ALL.map(|kind| {
            (
                self.holds[kind as usize].load(Ordering::Relaxed),
                self.waiters[kind as usize].load(Ordering::Relaxed),
            )
        })
    }

    fn counted(&self, waiter: Option<CallWaiter<W::RawGuard>>) -> Option<CallWaiter<W::RawGuard>> {
        if let Some(waiter) = &waiter {
            self.waiters[waiter.call.want.kind.counted as usize].fetch_sub(1, Ordering::Relaxed);
        }
        waiter
    }

    /// Gives back the room that a peak has left.
    pub(crate) fn shrink(&self) {
        let room = self.slots.capacity();
        if room > 1_024 && self.slots.len() < room / 8 {
            self.slots.shrink_to_fit();
        }
    }

    /// Returns whether no key has a hold, a waiter, or anything in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| slot.line.is_idle())
    }
}

/// Fires the tokens of the holds that were found lost while a shard was locked.
fn fire(lost: &[Arc<Hold>]) {
    for hold in lost {
        hold.fire();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hold::Terms;
    use crate::identity::{CallContext, Known};
    use crate::line::{AcquireOutcome, Moment, WakeSources};
    use crate::sync::Mutex;

    const TERMS: Terms = Terms {
        lease: Duration::from_secs(30),
        renewed: true,
        max_hold: None,
    };

    const LOCK: Want = Want::of_lock(TERMS);

    /// Records what is to be carried out.
    pub(super) struct Recorder {
        now: Instant,
        sources: WakeSources,
        waits: AtomicUsize,
        effects: Mutex<Vec<Effect<u8, Head>>>,
    }

    impl World for Recorder {
        type RawGuard = ();
        type Unconfirmed = u8;

        fn now(&self) -> Instant {
            self.now
        }

        fn moment(&self, _: &Key) -> Moment<'_> {
            let ms = Duration::from_millis(1);
            Moment {
                now: self.now,
                chance: 0.5,
                retry: ms,
                poll: None,
                recheck: ms,
                lease: ms,
                patience: ms,
                majority: 1,
                round_trip: ms,
                counts: true,
                lister: None,
                hint: None,
                ends_apart: false,
                queues: false,
                sources: self.sources,
            }
        }

        fn listen(&self, _: &Key) -> bool {
            self.sources.confirmed
        }

        fn stop_listening(&self, _: &Key, _: bool) {}

        fn begin_release(&self, _: &Key) {}

        fn waits_for_others(&self) {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }

        fn carry(&self, _: &Key, effect: Effect<u8, Head>) -> Option<Event> {
            self.effects.lock().push(effect);
            None
        }
    }

    pub(super) fn lines() -> Lines<Recorder> {
        Lines::new(Recorder {
            now: Instant::now(),
            sources: WakeSources::default(),
            waits: AtomicUsize::new(0),
            effects: Mutex::default(),
        })
    }

    impl Lines<Recorder> {
        /// Returns what had to be carried out last, once.
        fn effect(&self) -> Option<Effect<u8, Head>> {
            self.world.effects.lock().pop()
        }

        /// Returns the waiter for which a line asked last, once.
        fn asks(&self) -> Option<u64> {
            match self.effect()? {
                Effect::Ask { head, .. } => Some(head.id),
                effect => panic!("{effect:?}"),
            }
        }
    }

    pub(super) type Reply = oneshot::Receiver<Result<LineAnswer<()>, Error>>;

    pub(super) fn waiter(lines: &Lines<Recorder>, owner: &Owner) -> (CallWaiter<()>, Reply) {
        let (reply, answer) = oneshot::channel();
        let origin = Origin {
            context: CallContext::Task(1),
            waker: 0,
            known: Known::Calling,
        };
        let id = lines.next_id();
        let owner = owner.clone();
        let since = Instant::now();
        let waiter = CallWaiter {
            id,
            owner,
            since,
            call: LockRequest {
                origin,
                want: Want::of_lock(TERMS),
                span: Span::default(),
                in_doubt: AtomicBool::default(),
                reply,
            },
        };
        (waiter, answer)
    }

    pub(super) fn hold(owner: &Owner) -> Arc<Hold> {
        Arc::new(Hold::for_test(owner.clone(), TERMS, &[0], 1))
    }

    #[test]
    fn the_first_waiter_starts_the_ask_and_the_last_ends_the_slot() {
        let lines = lines();
        let key = Key::from("k");
        let owner = Owner::new();
        let now = Instant::now();
        let (first, _answer) = waiter(&lines, &owner);
        let (second, _answer) = waiter(&lines, &Owner::new());
        let first_id = first.id;
        let second_id = second.id;
        assert!(matches!(lines.arrive(&key, first, now), Arrival::Queued));
        assert_eq!(lines.asks(), Some(first_id));
        assert!(matches!(lines.arrive(&key, second, now), Arrival::Queued));
        assert!(lines.effect().is_none(), "one ask at a time");
        assert!(lines.leave(&key, first_id).is_some());
        lines.step(&key, Event::Answered(AcquireOutcome::Refused));
        assert_eq!(lines.asks(), Some(second_id));
        assert!(lines.leave(&key, second_id).is_some());
        assert!(!lines.is_idle(), "its ask has no answer");
        lines.step(&key, Event::Answered(AcquireOutcome::Refused));
        assert!(lines.is_idle() && lines.slots.is_empty() && lines.effect().is_none());
    }

    #[test]
    fn a_grant_admits_the_same_owners_waiters_and_blocks_the_others() {
        let lines = lines();
        let key = Key::from("k");
        let owner = Owner::new();
        let other = Owner::new();
        let now = Instant::now();
        let (head, _a) = waiter(&lines, &owner);
        let head_id = head.id;
        lines.arrive(&key, head, now);
        assert_eq!(lines.asks(), Some(head_id));
        let (same, _b) = waiter(&lines, &owner);
        lines.arrive(&key, same, now);
        let (foreign, _c) = waiter(&lines, &other);
        let foreign_id = foreign.id;
        lines.arrive(&key, foreign, now);
        let hold = hold(&owner);
        let Admitted { waiter, same_owner } = lines.admit(&hold, Some(head_id), now);
        assert_eq!(
            (waiter.map(|w| w.id), same_owner.len(), hold.guards()),
            (Some(head_id), 1, 2)
        );
        lines.step(&key, Event::Answered(AcquireOutcome::Granted));
        assert!(lines.effect().is_none(), "it is held here");
        assert!(matches!(
            lines.enter(&key, &other, LOCK, now),
            Entry::HeldHere
        ));
        assert!(matches!(
            lines.enter(&key, &owner, LOCK, now),
            Entry::Reentered(_, 3)
        ));
        assert_eq!(lines.census()[0], (1, 1));
        lines.remove(&hold);
        assert_eq!(lines.asks(), Some(foreign_id));
        assert_eq!(lines.drain(&key, |_| true).len(), 1);
        assert_eq!(lines.census()[0], (0, 0));
    }

    #[test]
    fn a_line_is_woken_at_the_earliest_time_that_it_wanted() {
        let lines = lines();
        let key = Key::from("k");
        let now = Instant::now();
        let hold = hold(&Owner::new());
        lines.admit(&hold, None, now);
        lines.arrive(&key, waiter(&lines, &Owner::new()).0, now);
        let planned = || {
            lines
                .slots
                .get(&key)
                .and_then(|slot| slot.alarm)
                .expect("it waits for the hold")
        };
        let (at, id) = planned();
        assert_eq!(at, lines.world.now + Duration::from_millis(1));
        lines.wake(&key, id + 1);
        assert_eq!(planned(), (at, id), "it is not the timer of that number");
        lines.wake(&key, id);
        assert_eq!(planned().0, at, "not yet: it is woken once more");
        assert_eq!(lines.drain_all().len(), 1);
        lines.remove(&hold);
        assert!(lines.slots.is_empty());
    }

    /// The answer to a release may come after all callers have gone. The pass then ends when the
    /// server answers, and until then there is no time at which the line has something to do.
    #[test]
    fn a_line_is_not_woken_repeatedly_while_a_pass_has_no_answer() {
        let (lines, key) = (lines(), Key::from("k"));
        lines.released(
            &key,
            &ReleaseAnswer::PassedOn {
                place: Some(0),
                turn: None,
                others: 0,
                waiting: 1,
            },
        );
        assert!(
            matches!(lines.effect(), Some(Effect::Pass)),
            "it is in flight"
        );
        assert!(
            lines
                .slots
                .get(&key)
                .is_some_and(|slot| slot.alarm.is_none())
        );
        lines.step(&key, Event::Passed(false));
        assert!(lines.slots.is_empty(), "the list is over");
    }

    #[test]
    fn a_line_that_waits_for_lockers_elsewhere_says_so() {
        let mut lines = lines();
        let key = Key::from("k");
        lines.world.sources.confirmed = true;
        let held = |ttl| {
            Event::Answered(AcquireOutcome::Held {
                ttl: Some(ttl),
                place: None,
                contested: false,
                lasts: false,
            })
        };
        lines.arrive(&key, waiter(&lines, &Owner::new()).0, Instant::now());
        for waits in [0, 1] {
            assert!(lines.asks().is_some(), "also once it listens");
            assert_eq!(lines.world.waits.load(Ordering::Relaxed), 0);
            lines.step(&key, held(TERMS.lease));
            assert_eq!(lines.world.waits.load(Ordering::Relaxed), waits);
        }
    }

    /// Others have a turn, whose outcome says when the next one is offered.
    #[test]
    fn a_line_that_remembers_something_is_kept_for_a_minute() {
        let lines = lines();
        let key = Key::from("k");
        let now = Instant::now();
        let hold = hold(&Owner::new());
        lines.admit(&hold, None, now);
        assert!(
            lines.begin_release(&key, TERMS.lease).is_none(),
            "there is no list"
        );
        lines.released(&key, &ReleaseAnswer::Released(1));
        assert!(lines.others_wait(&key) && lines.has_given_turn(&key, lines.world.now));
        lines.remove(&hold);
        assert!(lines.is_idle() && !lines.slots.is_empty());
        let forgotten = lines
            .slots
            .get(&key)
            .and_then(|slot| slot.alarm)
            .expect("it is forgotten once");
        assert_eq!(forgotten.0, lines.world.now + Duration::from_secs(60));
    }

    /// The owner's last release has no answer yet; the owner got the lock again past the line, and
    /// now enters a second time.
    #[test]
    fn a_hold_behind_one_that_is_being_released_is_entered() {
        let lines = lines();
        let key = Key::from("k");
        let owner = Owner::new();
        let now = Instant::now();
        let released = hold(&owner);
        let held = hold(&owner);
        lines.admit(&released, None, now);
        released.leave(now);
        lines.admit(&held, None, now);
        assert!(
            matches!(lines.enter(&key, &owner, LOCK, now), Entry::Reentered(hold, 2) if Arc::ptr_eq(&hold, &held))
        );
    }

    #[test]
    fn a_grant_whose_waiter_is_gone_is_not_registered() {
        let lines = lines();
        let owner = Owner::new();
        let Admitted { waiter, same_owner } = lines.admit(&hold(&owner), Some(99), Instant::now());
        assert!(waiter.is_none() && same_owner.is_empty());
        assert!(lines.holds_of(&"k".into()).is_empty());
    }

    /// Has this many wait for a held key. Returns the hold, whose last guard is gone.
    fn blocked(lines: &Lines<Recorder>, waiters: &[&Owner]) -> (Key, Arc<Hold>, Instant) {
        let key = Key::from("k");
        let now = Instant::now();
        let released = hold(&Owner::new());
        lines.admit(&released, None, now);
        assert_eq!(
            lines.release(&released, 7, now),
            Some(7),
            "no caller waits for it yet"
        );
        for owner in waiters {
            lines.arrive(&key, waiter(lines, owner).0, now);
        }
        assert!(lines.effect().is_none());
        released.leave(now);
        assert_eq!(
            lines.release(&hold(&Owner::new()), 7, now),
            Some(7),
            "no hold of this key"
        );
        (key, released, now)
    }

    #[test]
    fn a_release_goes_to_the_head_of_the_line_at_that_moment() {
        let lines = lines();
        let first = Owner::new();
        let second = Owner::new();
        let (key, released, now) = blocked(&lines, &[&first, &second]);
        let head = lines
            .slots
            .get(&key)
            .and_then(|slot| slot.line.waiters().first().map(|head| head.id));
        assert!(
            lines.leave(&key, head.expect("two wait")).is_some(),
            "the first has gone meanwhile"
        );
        assert_eq!(lines.release(&released, 7, now), None);
        assert!(
            matches!(lines.effect(), Some(Effect::Release(7, Some(head))) if head.owner == second)
        );
        assert_eq!(lines.release(&released, 8, now), Some(8), "one at a time");
        lines.step(&key, Event::HandedOver);
        assert!(lines.effect().is_none(), "it is being released");
    }

    #[test]
    fn a_lock_is_not_handed_over_to_an_owner_whose_hold_is_lost() {
        let lines = lines();
        let owner = Owner::new();
        let (_, released, now) = blocked(&lines, &[&owner]);
        let lost = hold(&Owner::new());
        lines.admit(&lost, None, now);
        assert!(lost.take_guard());
        lost.give_to(owner);
        lost.lose(Loss::Expired);
        assert_eq!(lines.release(&released, 7, now), None);
        assert!(matches!(lines.effect(), Some(Effect::Release(7, None))));
        assert_eq!(lines.census()[0].1, 1, "it is still in line");
    }

    #[test]
    fn a_hand_over_replaces_the_hold_even_if_its_waiter_is_gone() {
        for stays in [true, false] {
            let lines = lines();
            let next = Owner::new();
            let other = Owner::new();
            let (key, released, now) = blocked(&lines, &[&next, &other, &next]);
            assert_eq!(lines.release(&released, 7, now), None);
            let Some(Effect::Release(7, Some(head))) = lines.effect() else {
                panic!("it is handed over")
            };
            assert!(stays || lines.leave(&key, head.id).is_some());
            let held = hold(&next);
            let Admitted { waiter, same_owner } = lines.transfer(&released, &held, head.id, now);
            assert_eq!(
                (waiter.map(|w| w.id), same_owner.len()),
                (stays.then_some(head.id), 1)
            );
            assert_eq!(
                (lines.census()[0], held.guards()),
                ((1, 1), 2),
                "the caller of `succeed` drops the guard of a waiter that is gone"
            );
            lines.step(&key, Event::HandedOver);
            assert!(lines.effect().is_none());
        }
    }

    /// The caller releases before the line is told the outcome.
    #[test]
    fn a_lock_released_at_once_is_handed_over_after_the_outcome() {
        let lines = lines();
        let key = Key::from("k");
        let now = Instant::now();
        for _ in 0..3 {
            lines.arrive(&key, waiter(&lines, &Owner::new()).0, now);
        }
        let Some(Effect::Ask { head, .. }) = lines.effect() else {
            panic!("it is free")
        };
        let acquired = hold(&head.owner);
        lines.admit(&acquired, Some(head.id), now);
        acquired.leave(now);
        assert_eq!(lines.release(&acquired, 7, now), None);
        assert!(lines.effect().is_none());
        lines.step(&key, Event::Answered(AcquireOutcome::Granted));
        let Some(Effect::Release(7, Some(head))) = lines.effect() else {
            panic!("it is handed over")
        };
        let next = hold(&head.owner);
        lines.transfer(&acquired, &next, head.id, now);
        next.leave(now);
        assert_eq!(
            lines.release(&next, 8, now),
            None,
            "it may come while the hand-over is sent"
        );
    }

    #[test]
    fn a_lock_is_released_after_eight_hand_overs() {
        let lines = lines();
        let key = Key::from("k");
        let now = Instant::now();
        let mut held = hold(&Owner::new());
        lines.admit(&held, None, now);
        let mut handed_over = 0;
        for _ in 0..20 {
            lines.arrive(&key, waiter(&lines, &Owner::new()).0, now);
            held.leave(now);
            if lines.release(&held, 7, now).is_some() {
                break;
            }
            let Some(Effect::Release(7, Some(head))) = lines.effect() else {
                panic!("it is handed over")
            };
            let next = hold(&head.owner);
            lines.transfer(&held, &next, head.id, now);
            lines.step(&key, Event::HandedOver);
            (held, handed_over) = (next, handed_over + 1);
        }
        assert_eq!(handed_over, 8);
        lines.released(&key, &ReleaseAnswer::Released(0));
        assert_eq!(
            lines.release(&held, 7, now),
            None,
            "no other client was told"
        );
    }

    #[test]
    fn a_lost_hold_shuts_its_owner_out_and_nobody_else() {
        let lines = lines();
        let key = Key::from("k");
        let owner = Owner::new();
        let other = Owner::new();
        let now = Instant::now();
        let hold = hold(&owner);
        lines.admit(&hold, None, now);
        assert!(hold.take_guard());
        hold.lose(Loss::NotOwner);
        assert!(matches!(
            lines.enter(&key, &owner, LOCK, now),
            Entry::Lost(Loss::NotOwner)
        ));
        assert!(matches!(lines.enter(&key, &other, LOCK, now), Entry::Open));
        let (head, _answer) = waiter(&lines, &other);
        let id = head.id;
        lines.arrive(&key, head, now);
        assert_eq!(lines.asks(), Some(id));
        lines.remove(&hold);
        assert!(matches!(lines.enter(&key, &owner, LOCK, now), Entry::Open));
    }

    /// Its owner was given the hold of another owner while it waited in line.
    #[test]
    fn a_waiter_whose_owner_has_a_lost_hold_gets_the_loss() {
        let lines = lines();
        let key = Key::from("k");
        let owner = Owner::new();
        let now = Instant::now();
        let hold = hold(&Owner::new());
        lines.admit(&hold, None, now);
        let (head, _answer) = waiter(&lines, &owner);
        let id = head.id;
        lines.arrive(&key, head, now);
        assert!(hold.take_guard());
        hold.give_to(owner);
        assert!(lines.effect().is_none());
        hold.lose(Loss::Expired);
        lines.step(&key, Event::Changed);
        assert!(matches!(lines.effect(), Some(Effect::Lost(told, Loss::Expired)) if told == id));
        lines.remove(&hold);
        assert_eq!(lines.asks(), Some(id));
    }
}
