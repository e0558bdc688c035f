//! The holds and the local line of waiters of each key, in one table.
//!
//! With one table for both, "enter the hold of this owner, or join the line" is one step under one shard's lock, and so
//! is "register the grant, and let the waiters of the same owner enter". Two tables would leave a race between them.
//!
//! A waiter is data, not a future: the engine acquires for the head of each line and sends it the grant, so progress
//! never depends on whether the caller polls.
//!
//! # Invariants
//! - A slot exists while its key has a hold, a waiter or a driver: memory does not grow with the number of keys ever
//!   used.
//! - While a line has waiters it has exactly one driver: the caller that joins a line without a driver starts one, and
//!   the driver leaves only under the shard's lock, when the line is empty.
//! - At most one hold of an owner is in a slot; at most one hold of a slot is neither lost nor being released.
//! - A release is passed to a driver only while the driver waits for the hold, or is about to: it takes the release
//!   before it does anything else.
//! - Holds and waiters that are taken out of a slot are dropped and woken after the shard's lock is released. A hold's
//!   mutex is taken after the shard's lock.

mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use dashmap::mapref::one::RefMut;
use tokio::sync::{Notify, oneshot};

use self::slot::Slot;
use crate::clock::Instant;
use crate::error::{Error, Loss};
use crate::hold::{Hold, Terms};
use crate::identity::Origin;
use crate::key::{Key, OfKeys};
pub(crate) use crate::line::Others;
use crate::line::{self, Effect, Event, LastRound, Moment, News};
use crate::owner::Owner;

/// How many waiters are taken out of a line under one lock of its shard.
const CHUNK: usize = 256;

/// All slots of a locker. `G` is a waiter's grant: the proof of one guard. `R` is a release that is to be sent.
#[derive(Debug)]
pub(crate) struct Gate<G, R = ()> {
    slots: DashMap<Key, Slot<G, R>, OfKeys>,
    ids: AtomicU64,
    /// The number of holds in all slots, so that nothing has to count them.
    holds: AtomicUsize,
    /// The number of waiters in all slots.
    waiters: AtomicUsize,
}

/// One caller in line.
pub(crate) type Waiter<G> = line::Waiter<Call<G>>;

/// What a caller wants, and where it gets it.
#[derive(Debug)]
pub(crate) struct Call<G> {
    pub(crate) origin: Origin,
    pub(crate) terms: Terms,
    /// Gets `None` if the caller's wait time is over and another owner holds the lock.
    pub(crate) reply: oneshot::Sender<Result<Option<G>, Error>>,
}

/// What an owner finds at a key.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It holds the lock, and has entered again: the hold and its new count.
    Reentered(Arc<Hold>, u32),
    /// Its hold is lost, and a guard of it still lives.
    Lost(Loss),
    /// Another owner of this locker provably holds it.
    HeldHere,
    /// Nothing here prevents an attempt.
    Open,
}

/// The result of [`Gate::arrive`].
#[derive(Debug)]
pub(crate) enum Arrival {
    Reentered(Arc<Hold>, u32),
    Lost(Loss),
    /// The waiter is in line. With a value, the caller has to start the driver.
    Queued(Option<Arc<Notify>>),
}

/// The waiter for which the driver acquires.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) id: u64,
    pub(crate) owner: Owner,
    pub(crate) origin: Origin,
    pub(crate) terms: Terms,
}

/// The waiters that get a grant.
#[derive(Debug)]
pub(crate) struct Admitted<G> {
    /// The waiter for which it was acquired, if it is still in line.
    pub(crate) waiter: Option<Waiter<G>>,
    /// The waiters of the same owner, who have entered the hold with it.
    pub(crate) same_owner: Vec<Waiter<G>>,
}

impl<G, R> Gate<G, R> {
    pub(crate) fn new() -> Self {
        Self {
            slots: DashMap::default(),
            ids: AtomicU64::new(0),
            holds: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
        }
    }

    /// Returns a number for a waiter.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters this owner's hold again, or returns why it cannot.
    pub(crate) fn enter(&self, key: &Key, owner: &Owner, now: Instant) -> Entry {
        let Some(slot) = self.slots.get(key) else { return Entry::Open };
        let entry = slot.enter(owner, now);
        let lost = slot.found_lost();
        drop(slot);
        fire(&lost);
        entry
    }

    /// Enters the owner's hold again, or puts the waiter in line.
    pub(crate) fn arrive(&self, key: &Key, waiter: Waiter<G>, now: Instant) -> Arrival {
        let mut slot = self.slots.entry(key.clone()).or_default();
        let arrival = match slot.enter(&waiter.owner, now) {
            Entry::Reentered(hold, count) => Arrival::Reentered(hold, count),
            Entry::Lost(loss) => Arrival::Lost(loss),
            Entry::HeldHere | Entry::Open => {
                slot.line.arrive(waiter);
                self.waiters.fetch_add(1, Ordering::Relaxed);
                Arrival::Queued(slot.start())
            }
        };
        let lost = slot.found_lost();
        drop(slot);
        fire(&lost);
        arrival
    }

    /// Passes an event to the line of this key. Returns what its driver has to do now, with what is known of the waiter
    /// that it does it for.
    pub(crate) fn step(&self, key: &Key, event: Event, moment: &Moment) -> Option<Effect<R, Head>> {
        let Some(mut slot) = self.slots.get_mut(key) else { return Some(Effect::Done { is_listed: false }) };
        let effect = slot.line.on(event, moment).and_then(|effect| effect.known(|id| slot.head(id)));
        if matches!(effect, Some(Effect::Done { .. })) {
            slot.driver = None;
        }
        let lost = slot.found_lost();
        drop(slot);
        fire(&lost);
        if matches!(effect, Some(Effect::Done { .. })) {
            self.tidy(key);
        }
        effect
    }

    /// Calls this with what is heard of others, if the line of this key listens. It runs under the shard's lock.
    pub(crate) fn seat(&self, key: &Key, hear: &mut dyn FnMut(&mut News)) {
        if let Some(mut slot) = self.slots.get_mut(key)
            && let Some(news) = slot.line.seat()
        {
            hear(news);
        }
    }

    /// Registers a grant, unless the waiter that it is for has gone.
    pub(crate) fn admit(&self, hold: &Arc<Hold>, waiter: Option<u64>, now: Instant) -> Admitted<G> {
        let mut slot = self.slots.entry(hold.claim.key.clone()).or_default();
        let Ok(waiter) = slot.line.grant(Arc::clone(hold), waiter) else {
            drop(slot);
            self.tidy(&hold.claim.key);
            return Admitted { waiter: None, same_owner: Vec::new() };
        };
        self.holds.fetch_add(1, Ordering::Relaxed);
        Admitted { waiter: self.counted(waiter), same_owner: self.let_in(slot, hold, now) }
    }

    /// Replaces the released hold by the grant of its hand-over, in one step. The key is never free here in between,
    /// whether or not the waiter is still in line.
    pub(crate) fn succeed(&self, from: &Arc<Hold>, hold: &Arc<Hold>, waiter: u64, now: Instant) -> Admitted<G> {
        let mut slot = self.slots.entry(hold.claim.key.clone()).or_default();
        let (released, waiter) = slot.line.succeed(from, Arc::clone(hold), waiter, now);
        if released.is_none() {
            self.holds.fetch_add(1, Ordering::Relaxed);
        }
        let same_owner = self.let_in(slot, hold, now);
        drop(released);
        Admitted { waiter: self.counted(waiter), same_owner }
    }

    /// Passes a release to the driver of its key for a hand-over, if the driver waits for this hold and the lock has
    /// not been handed over too often. Otherwise returns the release.
    pub(crate) fn pass(&self, hold: &Arc<Hold>, release: R, now: Instant) -> Option<R> {
        let Some(mut slot) = self.slots.get_mut(&hold.claim.key) else { return Some(release) };
        let unsent = slot.line.release(hold, release, now);
        if unsent.is_none() {
            slot.wake();
        }
        unsent
    }

    /// Notes who else waits for this key, according to the answer to a release.
    pub(crate) fn note_others(&self, key: &Key, others: Others) {
        if let Some(mut slot) = self.slots.get_mut(key) {
            slot.line.note_others(others);
        }
    }

    /// Returns whether the last release of this key woke or told others.
    #[cfg(test)]
    pub(crate) fn others_wait(&self, key: &Key) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.line.others_wait())
    }

    /// Lets the waiters of a hold's owner enter.
    fn let_in(&self, mut slot: RefMut<'_, Key, Slot<G, R>>, hold: &Arc<Hold>, now: Instant) -> Vec<Waiter<G>> {
        let (owner, mut same) = (hold.owner(), Vec::new());
        let mut let_in = |slot: &mut Slot<G, R>, from| {
            let ids: Vec<u64> = slot.line.waiters().of(&owner, from).take(CHUNK).map(|waiter| waiter.id).collect();
            let entered = ids.iter().filter(|_| hold.enter_unclaimed(now).is_ok());
            same.extend(entered.filter_map(|&id| self.counted(slot.line.leave(id))));
            ids.last().filter(|_| ids.len() == CHUNK).map(|last| last + 1)
        };
        let mut more = let_in(&mut slot, 0);
        drop(slot);
        // More than one chunk of waiters takes several steps. A caller that arrives in between enters by itself, and
        // waiters stay in line if the hold has ended in between.
        while let Some(from) = more
            && let Some(mut slot) = self.slots.get_mut(&hold.claim.key)
        {
            more = let_in(&mut slot, from);
        }
        same
    }

    /// Takes out a hold that was released, or that was lost and whose last guard is gone. Wakes the driver.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let mut taken = None;
        if let Some(mut slot) = self.slots.get_mut(&hold.claim.key) {
            taken = slot.line.remove(hold);
            if taken.is_some() {
                self.holds.fetch_sub(1, Ordering::Relaxed);
            }
            slot.wake();
        }
        drop(taken);
        self.tidy(&hold.claim.key);
    }

    /// Takes out a waiter whose caller is gone or gets an answer.
    pub(crate) fn leave(&self, key: &Key, id: u64) -> Option<Waiter<G>> {
        let mut slot = self.slots.get_mut(key)?;
        let waiter = self.counted(slot.line.leave(id))?;
        if slot.line.waiters().is_empty() {
            slot.wake();
        }
        Some(waiter)
    }

    /// Takes out those waiters that satisfy the condition and are in line now.
    pub(crate) fn drain(&self, key: &Key, mut which: impl FnMut(&Waiter<G>) -> bool) -> Vec<Waiter<G>> {
        let (mut out, mut from, mut end) = (Vec::new(), 0, None);
        // It works in chunks, so that a long line does not block other keys of the shard.
        while let Some(mut slot) = self.slots.get_mut(key) {
            let Some(last) = end.or(slot.line.waiters().last()) else {
                slot.wake();
                break;
            };
            let chunk: Vec<(u64, bool)> = slot
                .line
                .waiters()
                .range(from)
                .take_while(|waiter| waiter.id <= last)
                .take(CHUNK)
                .map(|waiter| (waiter.id, which(waiter)))
                .collect();
            let chosen = chunk.iter().filter(|(_, chosen)| *chosen);
            out.extend(chosen.filter_map(|&(id, _)| self.counted(slot.line.leave(id))));
            if slot.line.waiters().is_empty() {
                slot.wake();
            }
            let Some((id, _)) = chunk.last().filter(|_| chunk.len() == CHUNK) else { break };
            (from, end) = (id + 1, Some(last));
        }
        out
    }

    /// Takes out all waiters.
    pub(crate) fn drain_all(&self) -> Vec<Waiter<G>> {
        let keys: Vec<Key> = self.slots.iter().map(|slot| slot.key().clone()).collect();
        keys.iter().flat_map(|key| self.drain(key, |_| true)).collect()
    }

    /// Wakes the driver of a line to look again.
    pub(crate) fn wake(&self, key: &Key) {
        if let Some(slot) = self.slots.get(key) {
            slot.wake();
        }
    }

    /// Returns whether this key has waiters.
    pub(crate) fn is_awaited(&self, key: &Key) -> bool {
        self.slots.get(key).is_some_and(|slot| !slot.line.waiters().is_empty())
    }

    /// Returns whether this key is known to be held: here, or according to the last round.
    pub(crate) fn is_known_held(&self, key: &Key, now: Instant) -> bool {
        self.slots.get(key).is_some_and(|slot| {
            slot.line.last_round() == LastRound::Answered || slot.line.holds().iter().any(|hold| hold.blocks(now))
        })
    }

    /// Returns whether a hold of a key satisfies the condition, which runs under the shard's lock.
    pub(crate) fn has_hold(&self, key: &Key, which: impl Fn(&Hold) -> bool) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.line.holds().iter().any(|hold| which(hold)))
    }

    /// Returns the holds of a key.
    pub(crate) fn holds_of(&self, key: &Key) -> Vec<Arc<Hold>> {
        self.slots.get(key).map(|slot| slot.line.holds().to_vec()).unwrap_or_default()
    }

    /// Returns all holds.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.slots.iter().flat_map(|slot| slot.line.holds().to_vec()).collect()
    }

    /// Returns the numbers of holds and of waiters.
    pub(crate) fn census(&self) -> (usize, usize) {
        (self.holds.load(Ordering::Relaxed), self.waiters.load(Ordering::Relaxed))
    }

    fn counted(&self, waiter: Option<Waiter<G>>) -> Option<Waiter<G>> {
        if waiter.is_some() {
            self.waiters.fetch_sub(1, Ordering::Relaxed);
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

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn tidy(&self, key: &Key) {
        self.slots.remove_if(key, |_, slot| slot.line.is_empty() && slot.driver.is_none());
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
    use crate::identity::{Known, Place};
    use crate::line::Answer;

    const TERMS: Terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };

    fn waiter(gate: &Gate<()>, owner: &Owner) -> (Waiter<()>, oneshot::Receiver<Result<Option<()>, Error>>) {
        waiter_of(gate, owner)
    }

    fn waiter_of<R>(gate: &Gate<(), R>, owner: &Owner) -> (Waiter<()>, oneshot::Receiver<Result<Option<()>, Error>>) {
        let (reply, answer) = oneshot::channel();
        let origin = Origin { place: Place::Task(1), waker: 0, known: Known::Calling };
        let (id, owner, since) = (gate.next_id(), owner.clone(), Instant::now());
        let waiter = Waiter { id, owner, since, call: Call { origin, terms: TERMS, reply } };
        (waiter, answer)
    }

    fn hold(owner: &Owner) -> Arc<Hold> {
        Arc::new(Hold::for_test(owner.clone(), TERMS, &[0], 1))
    }

    /// Passes an event to a line, and returns what its driver has to do.
    fn step<R>(gate: &Gate<(), R>, key: &Key, event: Event, now: Instant) -> Effect<R, Head> {
        let ms = Duration::from_millis(1);
        let (chance, retry, recheck, round_trip) = (0.5, ms, ms, ms);
        let (is_told, contended, lists) = (true, false, false);
        let moment = Moment { now, chance, retry, recheck, is_told, round_trip, contended, lists };
        gate.step(key, event, &moment).expect("there is something to do")
    }

    fn look<R>(gate: &Gate<(), R>, key: &Key, now: Instant) -> Effect<R, Head> {
        step(gate, key, Event::Changed, now)
    }

    #[test]
    fn the_first_waiter_starts_the_driver_and_the_slot_goes_with_the_last() {
        let (gate, key, owner) = (Gate::new(), Key::from("k"), Owner::new());
        let now = Instant::now();
        let (first, _answer) = waiter(&gate, &owner);
        let (second, _answer) = waiter(&gate, &Owner::new());
        let (first_id, second_id) = (first.id, second.id);
        assert!(matches!(gate.arrive(&key, first, now), Arrival::Queued(Some(_))));
        assert!(matches!(gate.arrive(&key, second, now), Arrival::Queued(None)));
        assert!(matches!(look(&gate, &key, now), Effect::Ask { head, .. } if head.id == first_id));
        assert!(gate.leave(&key, first_id).is_some());
        let refused = Event::Answered(Answer::Refused);
        assert!(matches!(step(&gate, &key, refused, now), Effect::Ask { head, .. } if head.id == second_id));
        assert!(gate.leave(&key, second_id).is_some());
        assert!(!gate.is_empty(), "the driver has not left yet");
        assert!(matches!(step(&gate, &key, refused, now), Effect::Done { .. }));
        assert!(gate.is_empty());
    }

    #[test]
    fn a_grant_admits_the_same_owners_waiters_and_blocks_the_others() {
        let (gate, key, owner, other) = (Gate::new(), Key::from("k"), Owner::new(), Owner::new());
        let now = Instant::now();
        let (head, _a) = waiter(&gate, &owner);
        let head_id = head.id;
        gate.arrive(&key, head, now);
        let (same, _b) = waiter(&gate, &owner);
        gate.arrive(&key, same, now);
        let (foreign, _c) = waiter(&gate, &other);
        gate.arrive(&key, foreign, now);
        let hold = hold(&owner);
        let Admitted { waiter, same_owner } = gate.admit(&hold, Some(head_id), now);
        assert_eq!((waiter.map(|w| w.id), same_owner.len(), hold.guards()), (Some(head_id), 1, 2));
        assert!(matches!(look(&gate, &key, now), Effect::Sleep { hears: false, .. }));
        assert!(matches!(gate.enter(&key, &other, now), Entry::HeldHere));
        assert!(matches!(gate.enter(&key, &owner, now), Entry::Reentered(_, 3)));
        assert_eq!(gate.census(), (1, 1));
        gate.remove(&hold);
        assert!(matches!(look(&gate, &key, now), Effect::Ask { .. }));
        assert_eq!(gate.drain(&key, |_| true).len(), 1);
        assert_eq!(gate.census(), (0, 0));
    }

    /// More waiters than one chunk, with those of other owners between them.
    #[test]
    fn a_grant_admits_all_of_very_many_waiters_of_its_owner() {
        let (gate, key, owner) = (Gate::new(), Key::from("k"), Owner::new());
        let now = Instant::now();
        let mut ids = [Vec::new(), Vec::new()];
        for number in 0..4 * CHUNK {
            let other = number % 2;
            let (waiter, _) = waiter(&gate, &if other == 0 { owner.clone() } else { Owner::new() });
            ids[other].push(waiter.id);
            gate.arrive(&key, waiter, now);
        }
        let hold = hold(&owner);
        let Admitted { waiter, same_owner } = gate.admit(&hold, Some(ids[0][0]), now);
        assert_eq!(waiter.map(|waiter| waiter.id), Some(ids[0][0]));
        assert_eq!(same_owner.iter().map(|waiter| waiter.id).collect::<Vec<_>>(), ids[0][1..]);
        assert_eq!((gate.census(), hold.guards() as usize), ((1, ids[1].len()), ids[0].len()));
        let left = gate.drain(&key, |_| true);
        assert_eq!(left.iter().map(|waiter| waiter.id).collect::<Vec<_>>(), ids[1]);
    }

    #[test]
    fn a_drain_takes_out_the_chosen_waiters_and_leaves_the_others_in_order() {
        let (gate, key, now) = (Gate::new(), Key::from("k"), Instant::now());
        for _ in 0..4 * CHUNK {
            gate.arrive(&key, waiter(&gate, &Owner::new()).0, now);
        }
        let out = gate.drain(&key, |waiter| waiter.id % 3 == 0);
        assert_eq!(gate.census(), (0, 4 * CHUNK - out.len()));
        assert!(gate.is_awaited(&key));
        let rest = gate.drain(&key, |_| true);
        let ids = |waiters: Vec<Waiter<()>>| waiters.into_iter().map(|waiter| waiter.id).collect::<Vec<_>>();
        let all = 0..4 * CHUNK as u64;
        assert_eq!(ids(out), all.clone().filter(|id| id % 3 == 0).collect::<Vec<_>>());
        assert_eq!(ids(rest), all.filter(|id| id % 3 != 0).collect::<Vec<_>>());
        assert_eq!(gate.census(), (0, 0));
        assert!(matches!(look(&gate, &key, now), Effect::Done { .. }));
        assert!(gate.is_empty());
    }

    /// The owner's last release has no answer yet; the owner got the lock again past the line, and now enters a second
    /// time.
    #[test]
    fn a_hold_behind_one_that_is_being_released_is_entered() {
        let (gate, key, owner) = (Gate::<()>::new(), Key::from("k"), Owner::new());
        let now = Instant::now();
        let (released, held) = (hold(&owner), hold(&owner));
        gate.admit(&released, None, now);
        released.leave(now);
        gate.admit(&held, None, now);
        assert!(matches!(gate.enter(&key, &owner, now), Entry::Reentered(hold, 2) if Arc::ptr_eq(&hold, &held)));
    }

    #[test]
    fn a_grant_whose_waiter_is_gone_is_not_registered() {
        let (gate, owner) = (Gate::<()>::new(), Owner::new());
        let Admitted { waiter, same_owner } = gate.admit(&hold(&owner), Some(99), Instant::now());
        assert!(waiter.is_none() && same_owner.is_empty());
        assert!(gate.holds_of(&"k".into()).is_empty());
    }

    /// Passes the release of a held key to a driver that waits for it.
    fn passed(gate: &Gate<(), u8>, waiters: &[&Owner]) -> (Key, Arc<Hold>, Instant) {
        let (key, now) = (Key::from("k"), Instant::now());
        let released = hold(&Owner::new());
        gate.admit(&released, None, now);
        for owner in waiters {
            gate.arrive(&key, waiter_of(gate, owner).0, now);
        }
        assert_eq!(gate.pass(&released, 7, now), Some(7), "no driver waits for it yet");
        assert!(matches!(look(gate, &key, now), Effect::Sleep { hears: false, .. }));
        released.leave(now);
        assert_eq!(gate.pass(&hold(&Owner::new()), 7, now), Some(7), "no hold of this key");
        assert_eq!(gate.pass(&released, 7, now), None);
        assert_eq!(gate.pass(&released, 8, now), Some(8), "one at a time");
        (key, released, now)
    }

    #[test]
    fn a_passed_release_comes_first_with_the_head_of_the_line_at_that_moment() {
        let (gate, first, second) = (Gate::new(), Owner::new(), Owner::new());
        let (key, _, now) = passed(&gate, &[&first, &second]);
        assert!(gate.leave(&key, 0).is_some(), "the first has gone meanwhile");
        assert!(matches!(look(&gate, &key, now), Effect::Release(7, Some(head)) if head.owner == second));
        assert!(
            matches!(step(&gate, &key, Event::HandedOver, now), Effect::Sleep { hears: false, .. }),
            "it is being released"
        );
    }

    #[test]
    fn the_driver_gets_a_passed_release_even_if_the_line_is_empty() {
        let gate = Gate::new();
        let (key, released, now) = passed(&gate, &[&Owner::new()]);
        assert_eq!(gate.drain(&key, |_| true).len(), 1);
        assert!(matches!(look(&gate, &key, now), Effect::Release(7, None)));
        gate.remove(&released);
        assert!(matches!(step(&gate, &key, Event::HandedOver, now), Effect::Done { .. }));
        assert!(gate.is_empty());
    }

    #[test]
    fn a_lock_is_not_handed_over_to_an_owner_whose_hold_is_lost() {
        let (gate, owner) = (Gate::new(), Owner::new());
        let (key, _, now) = passed(&gate, &[&owner]);
        let lost = hold(&owner);
        gate.admit(&lost, None, now);
        assert!(lost.take_guard() && lost.lose(Loss::Expired));
        assert!(matches!(look(&gate, &key, now), Effect::Release(7, None)));
    }

    #[test]
    fn a_hand_over_replaces_the_hold_even_if_its_waiter_is_gone() {
        for stays in [true, false] {
            let (gate, next, other) = (Gate::new(), Owner::new(), Owner::new());
            let (key, released, now) = passed(&gate, &[&next, &other, &next]);
            let Effect::Release(7, Some(head)) = look(&gate, &key, now) else { panic!("it was passed on") };
            assert!(stays || gate.leave(&key, head.id).is_some());
            let held = hold(&next);
            let Admitted { waiter, same_owner } = gate.succeed(&released, &held, head.id, now);
            assert_eq!((waiter.map(|w| w.id), same_owner.len()), (stays.then_some(head.id), 1));
            assert_eq!(
                (gate.census(), held.guards()),
                ((1, 1), 2),
                "the caller of `succeed` drops the guard of a waiter that is gone"
            );
            assert!(matches!(step(&gate, &key, Event::HandedOver, now), Effect::Sleep { hears: false, .. }));
        }
    }

    /// The caller releases before the driver looks again.
    #[test]
    fn a_lock_that_is_released_at_once_is_passed_to_the_driver_that_acquired_it() {
        let (gate, key, now) = (Gate::<(), u8>::new(), Key::from("k"), Instant::now());
        for _ in 0..3 {
            gate.arrive(&key, waiter_of(&gate, &Owner::new()).0, now);
        }
        let Effect::Ask { head, .. } = look(&gate, &key, now) else { panic!("it is free") };
        let acquired = hold(&head.owner);
        gate.admit(&acquired, Some(head.id), now);
        acquired.leave(now);
        assert_eq!(gate.pass(&acquired, 7, now), None);
        let answered = Event::Answered(Answer::Granted);
        let Effect::Release(7, Some(head)) = step(&gate, &key, answered, now) else { panic!("it was passed on") };
        let next = hold(&head.owner);
        gate.succeed(&acquired, &next, head.id, now);
        next.leave(now);
        assert_eq!(gate.pass(&next, 8, now), None, "it may come while the hand-over is sent");
    }

    #[test]
    fn a_lock_is_released_after_eight_hand_overs() {
        let (gate, key, now) = (Gate::<(), u8>::new(), Key::from("k"), Instant::now());
        let mut held = hold(&Owner::new());
        gate.admit(&held, None, now);
        let (mut handed_over, mut event) = (0, Event::Changed);
        for _ in 0..20 {
            gate.arrive(&key, waiter_of(&gate, &Owner::new()).0, now);
            assert!(matches!(step(&gate, &key, event, now), Effect::Sleep { hears: false, .. }));
            held.leave(now);
            if gate.pass(&held, 7, now).is_some() {
                break;
            }
            let Effect::Release(7, Some(head)) = look(&gate, &key, now) else { panic!("it was passed on") };
            let next = hold(&head.owner);
            gate.succeed(&held, &next, head.id, now);
            (held, handed_over, event) = (next, handed_over + 1, Event::HandedOver);
        }
        assert_eq!(handed_over, 8);
        gate.note_others(&key, Others::Nobody);
        assert_eq!(gate.pass(&held, 7, now), None, "nobody else was told");
    }

    #[test]
    fn a_lost_hold_shuts_its_owner_out_and_nobody_else() {
        let (gate, key, owner, other) = (Gate::<()>::new(), Key::from("k"), Owner::new(), Owner::new());
        let now = Instant::now();
        let hold = hold(&owner);
        gate.admit(&hold, None, now);
        assert!(hold.take_guard());
        hold.lose(Loss::NotOwner);
        assert!(matches!(gate.enter(&key, &owner, now), Entry::Lost(Loss::NotOwner)));
        assert!(matches!(gate.enter(&key, &other, now), Entry::Open));
        let (head, _answer) = waiter(&gate, &other);
        gate.arrive(&key, head, now);
        assert!(matches!(look(&gate, &key, now), Effect::Ask { .. }));
        gate.remove(&hold);
        assert!(matches!(gate.enter(&key, &owner, now), Entry::Open));
    }

    /// Its owner was given the hold of another owner while it waited in line.
    #[test]
    fn a_waiter_whose_owner_has_a_lost_hold_gets_the_loss() {
        let (gate, key, owner) = (Gate::new(), Key::from("k"), Owner::new());
        let now = Instant::now();
        let hold = hold(&Owner::new());
        gate.admit(&hold, None, now);
        let (head, _answer) = waiter(&gate, &owner);
        let id = head.id;
        gate.arrive(&key, head, now);
        assert!(hold.take_guard());
        hold.give_to(owner);
        assert!(matches!(look(&gate, &key, now), Effect::Sleep { hears: false, .. }));
        hold.lose(Loss::Expired);
        assert!(matches!(look(&gate, &key, now), Effect::Lost(told, Loss::Expired) if told == id));
        gate.remove(&hold);
        assert!(matches!(look(&gate, &key, now), Effect::Ask { head, .. } if head.id == id));
    }
}
