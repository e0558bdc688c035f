//! Lines under random interleavings of all that happens to them: callers, holds, messages, timers,
//! outages, panics, and outcomes that come at any time. After each step a line with waiters has
//! something under way or a timer that ends, at most one effect with an outcome is under way, and
//! at the end nothing is left. With readers, nobody asks beside a write hold here, and a hint that
//! a writer waits is there only for one that does.

use std::collections::BTreeSet;

use super::*;
use crate::claim::Claim;
use crate::hold::Terms;
use crate::identity::{CallContext, Known};
use crate::key::{FAIR as FAIR_FAMILY, READ_WRITE};
use crate::kind::{FAIR, Format, Kind, LockRole, READ, WRITE};
use crate::line::{AcquireOutcome, Moment, WakeSources, WakeUp};
use crate::sync::Mutex;

const TERMS: Terms = Terms {
    lease: Duration::from_secs(30),
    renewed: true,
    max_hold: None,
};
const MS: Duration = Duration::from_millis(1);

type Reply = oneshot::Receiver<Result<LineAnswer<()>, Error>>;

struct Wild {
    now: Mutex<Instant>,
    sources: Mutex<WakeSources>,
    majority: usize,
    lister: Option<Arc<str>>,
    listening: Mutex<BTreeSet<Key>>,
    effects: Mutex<Vec<Owed>>,
    chance: Mutex<f64>,
}

#[derive(Debug)]
enum Owed {
    Effect(Effect<Unsent, Head>),
    /// The outcome of an effect with one.
    Outcome(Event),
    /// A release that is sent by itself.
    Alone(Arc<Hold>, bool),
}

#[derive(Debug)]
struct Unsent(Arc<Hold>);

impl Owed {
    /// Whether the line goes on when it ends.
    fn is_exclusive(&self) -> bool {
        match self {
            Self::Effect(effect) => {
                matches!(
                    effect,
                    Effect::Ask { .. } | Effect::Release(..) | Effect::Name
                )
            }
            Self::Outcome(event) => {
                !matches!(event, Event::Passed(_) | Event::Changed | Event::GaveUp(_))
            }
            Self::Alone(..) => false,
        }
    }

    fn goes_on(&self) -> bool {
        self.is_exclusive()
            || matches!(
                self,
                Self::Effect(Effect::Lost(..) | Effect::SendBack(_) | Effect::GiveUp { .. })
            )
            || matches!(self, Self::Outcome(Event::Changed | Event::GaveUp(_)))
    }
}

impl World for Wild {
    type RawGuard = ();
    type Unconfirmed = Unsent;

    fn now(&self) -> Instant {
        *self.now.lock()
    }

    fn moment(&self, key: &Key) -> Moment<'_> {
        let has_readers = key.has_readers();
        Moment {
            now: *self.now.lock(),
            chance: *self.chance.lock(),
            retry: MS * 30,
            poll: None,
            recheck: MS * 5_000,
            lease: MS * 30_000,
            patience: MS * 1_000,
            majority: self.majority,
            round_trip: MS * 2,
            counts: self.majority == 1 && !has_readers && !key.is_fair(),
            lister: self.lister.as_ref(),
            hint: has_readers.then_some(MS * 10_000),
            ends_apart: key.is_fair(),
            queues: key.is_fair(),
            sources: *self.sources.lock(),
        }
    }

    fn listen(&self, key: &Key) -> bool {
        self.listening.lock().insert(key.clone());
        self.sources.lock().confirmed
    }

    fn stop_listening(&self, key: &Key, _: bool) {
        assert!(self.listening.lock().remove(key), "it listens");
    }

    fn begin_release(&self, _: &Key) {}

    fn waits_for_others(&self) {}

    fn carry(&self, _: &Key, effect: Effect<Unsent, Head>) -> Option<Event> {
        self.effects.lock().push(Owed::Effect(effect));
        None
    }
}

struct Fuzz {
    lines: Lines<Wild>,
    key: Key,
    random: fastrand::Rng,
    owed: Vec<Owed>,
    waiters: Vec<(u64, Reply)>,
    holds: Vec<Arc<Hold>>,
    log: Vec<String>,
    stops: bool,
    /// Whether the server has the hint that a writer waits.
    hinted: bool,
    /// A withdrawal has failed, or what was under way has panicked: the hint ends by itself.
    leaves_hint: bool,
}

impl Fuzz {
    fn new(seed: u64, key: Key) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let is_alone = !key.has_readers() && !key.is_fair();
        let several = random.u8(..4) == 0 && is_alone;
        let lister = (!several && is_alone && random.bool()).then(|| "me".into());
        let world = Wild {
            now: Mutex::new(Instant::now()),
            sources: Mutex::default(),
            majority: if several { 2 } else { 1 },
            lister,
            listening: Mutex::default(),
            effects: Mutex::default(),
            chance: Mutex::new(0.5),
        };
        let lines = Lines::new(world);
        let stops = random.u8(..4) == 0;
        let (owed, waiters, holds, log) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            lines,
            key,
            random,
            owed,
            waiters,
            holds,
            log,
            stops,
            hinted: false,
            leaves_hint: false,
        }
    }

    fn kind(&mut self) -> &'static Kind {
        match (self.key.has_readers(), self.random.bool()) {
            (false, _) if self.key.is_fair() => &FAIR,
            (false, _) => Format::Redisson.kind(),
            (true, true) => &READ,
            (true, false) => &WRITE,
        }
    }

    fn now(&self) -> Instant {
        *self.lines.world.now.lock()
    }

    fn owner(&mut self) -> Owner {
        Owner::task(self.random.u64(..3))
    }

    fn hold(&mut self, owner: &Owner, kind: &'static Kind) -> Arc<Hold> {
        let mut hold = Hold::for_test(owner.clone(), TERMS, &[0], 1);
        hold.claim = Claim {
            kind,
            key: self.key.clone(),
            field: "f".into(),
            permits: 0,
        };
        // Its caller claims it now or never.
        if kind.role != LockRole::Alone && self.random.bool() {
            assert!(hold.take_guard());
        }
        let hold = Arc::new(hold);
        self.holds.push(Arc::clone(&hold));
        hold
    }

    /// Returns whether a hold keeps a lock of this kind out.
    fn excludes(&self, kind: &'static Kind) -> bool {
        let excludes = |hold: &Arc<Hold>| hold.blocks(self.now()) && hold.claim.kind.excludes(kind);
        self.lines.holds_of(&self.key).iter().any(excludes)
    }

    fn event(&mut self, event: Event) {
        self.log.push(format!("{event:?}"));
        self.lines.step(&self.key, event);
    }

    fn take_effects(&mut self) {
        let mut effects = std::mem::take(&mut *self.lines.world.effects.lock());
        for owed in &effects {
            if let Owed::Effect(Effect::Ask { head, .. }) = owed
                && !matches!(head.want.kind.role, LockRole::Alone | LockRole::InTurn)
            {
                // A writer asks behind readers, so that it leaves a hint, and a caller of a fair
                // lock for its place.
                assert!(!self.excludes(&READ), "asks\n{}", self.log.join("\n"));
            }
        }
        self.owed.append(&mut effects);
    }

    fn admitted(&mut self, hold: &Arc<Hold>, admitted: &Admitted<()>, head: bool) {
        if head && admitted.waiter.is_none() {
            let at = self
                .holds
                .iter()
                .position(|one| Arc::ptr_eq(one, hold))
                .expect("here");
            // A hand-over to nobody is given back.
            if self
                .lines
                .holds_of(&self.key)
                .iter()
                .any(|one| Arc::ptr_eq(one, hold))
            {
                self.leave_hold(at);
            } else {
                self.holds.swap_remove(at);
            }
        }
    }

    fn carry_on(&mut self) {
        if self.owed.is_empty() {
            return;
        }
        let at = self.random.usize(..self.owed.len());
        let owed = self.owed.swap_remove(at);
        self.log.push(format!("carry {owed:?}"));
        let now = self.now();
        let key = self.key.clone();
        if self.stops && owed.is_exclusive() && self.random.u8(..20) == 0 {
            // What is under way ends by a panic.
            if let Owed::Effect(Effect::Release(Unsent(hold), _)) = owed {
                self.owed.push(Owed::Alone(hold, true));
            }
            self.leaves_hint = true;
            drop(self.lines.drain(&key, |_| true));
            self.event(Event::Stopped);
            return;
        }
        match owed {
            Owed::Outcome(event) => self.event(event),
            Owed::Alone(hold, sent) => {
                if !sent {
                    self.lines.begin_release(&key, TERMS.lease);
                    self.owed.push(Owed::Alone(hold, true));
                    return;
                }
                let told = match self.random.u8(..4) {
                    0 => ReleaseAnswer::Released(self.random.u64(..3)),
                    1 => ReleaseAnswer::PassedOn {
                        place: self.random.bool().then(|| self.random.u64(..3)),
                        turn: self.random.bool().then_some(MS * 10),
                        others: self.random.u64(..2),
                        waiting: self.random.u64(..3),
                    },
                    2 => ReleaseAnswer::Unlisted("error".into()),
                    _ => ReleaseAnswer::Gone,
                };
                if told != ReleaseAnswer::Gone {
                    self.lines.released(&key, &told);
                }
                self.lines.remove(&hold);
                self.holds.retain(|one| !Arc::ptr_eq(one, &hold));
            }
            Owed::Effect(effect) => match effect {
                Effect::Ask { head, .. } => {
                    let ttl =
                        Some(MS * self.random.u32(1..30_000)).filter(|_| self.random.u8(..5) > 0);
                    let kind = head.want.kind;
                    let is_alone = kind.role == LockRole::Alone;
                    // What is not granted leaves a hint, if it has come to the server.
                    self.hinted |= kind.role == LockRole::Write;
                    let answer = match self.random.u8(..8) {
                        0..3 if !self.excludes(kind) => {
                            self.hinted &= kind.role != LockRole::Write;
                            let hold = self.hold(&head.owner, kind);
                            let admitted = self.lines.admit(&hold, Some(head.id), now);
                            self.admitted(&hold, &admitted, true);
                            AcquireOutcome::Granted
                        }
                        3 => {
                            drop(self.lines.leave(&key, head.id));
                            AcquireOutcome::Refused
                        }
                        4 if is_alone => AcquireOutcome::Split,
                        5 if is_alone => AcquireOutcome::Outrun,
                        6 => AcquireOutcome::Unavailable {
                            ends_in: self.random.bool().then_some(MS * 7),
                        },
                        _ => AcquireOutcome::Held {
                            ttl,
                            place: (is_alone && self.random.bool()).then(|| self.random.u64(..3)),
                            contested: is_alone && self.random.bool(),
                            lasts: ttl.is_none(),
                        },
                    };
                    self.owed.push(Owed::Outcome(Event::Answered(answer)));
                }
                Effect::Release(Unsent(hold), head) => {
                    match head {
                        Some(head) if self.random.bool() => {
                            let next = self.hold(&head.owner, head.want.kind);
                            let admitted = self.lines.transfer(&hold, &next, head.id, now);
                            self.holds.retain(|one| !Arc::ptr_eq(one, &hold));
                            self.admitted(&next, &admitted, true);
                        }
                        Some(_) if self.random.bool() => {
                            self.lines.remove(&hold);
                            self.holds.retain(|one| !Arc::ptr_eq(one, &hold));
                        }
                        _ => self.owed.push(Owed::Alone(hold, false)),
                    }
                    self.owed.push(Owed::Outcome(Event::HandedOver));
                }
                Effect::Name => {
                    let named = self.random.bool();
                    self.owed.push(Owed::Outcome(Event::Named(named)));
                }
                Effect::Lost(id, _) | Effect::SendBack(id) => {
                    drop(self.lines.leave(&key, id));
                    self.owed.push(Owed::Outcome(Event::Changed));
                }
                Effect::GiveUp { .. } => {
                    let mut left = false;
                    let random = &mut self.random;
                    drop(self.lines.drain(&key, |_| {
                        let due = random.bool();
                        left |= !due;
                        due
                    }));
                    self.owed
                        .push(Owed::Outcome(Event::GaveUp(left.then_some(MS * 20))));
                }
                Effect::Pass => {
                    let off = self.random.bool();
                    self.hinted &= !off;
                    self.leaves_hint |= !off;
                    self.owed.push(Owed::Outcome(Event::Passed(off)));
                }
                Effect::Hush { .. } | Effect::Listen { .. } | Effect::WakeAt { .. } => {
                    unreachable!("{effect:?}")
                }
            },
        }
    }

    fn leave_hold(&mut self, at: usize) {
        let (hold, now) = (Arc::clone(&self.holds[at]), self.now());
        if !self
            .lines
            .holds_of(&self.key)
            .iter()
            .any(|one| Arc::ptr_eq(one, &hold))
        {
            return;
        }
        self.log.push("leave a hold".into());
        match hold.leave(now) {
            crate::hold::Leave::Last => {
                if let Some(Unsent(hold)) =
                    self.lines.release(&hold, Unsent(Arc::clone(&hold)), now)
                {
                    self.owed.push(Owed::Alone(hold, false));
                }
            }
            crate::hold::Leave::Lost { last: true, .. } => {
                self.lines.remove(&hold);
                self.holds.retain(|one| !Arc::ptr_eq(one, &hold));
            }
            crate::hold::Leave::Lost { .. } => self.event(Event::Changed),
            crate::hold::Leave::Nested(_) => {}
        }
    }

    fn time(&mut self) {
        let by = MS * [0, 1, 5, 30, 400, 5_000, 40_000][self.random.usize(..7)];
        *self.lines.world.now.lock() = self.now() + by;
        self.log.push(format!("time {by:?}"));
        self.fire();
    }

    fn fire(&mut self) {
        let now = self.now();
        for _ in 0..50 {
            let due = self.lines.timers.due(now);
            if due.is_empty() {
                return;
            }
            for (_, number, key, timed) in due {
                assert_eq!(timed, Timed::Line);
                self.lines.wake(&key, number);
            }
        }
        panic!("the timers spin");
    }

    fn op(&mut self) {
        let (key, now) = (self.key.clone(), self.now());
        *self.lines.world.chance.lock() = self.random.f64();
        match self.random.u8(..30) {
            0..6 => {
                let owner = self.owner();
                let (reply, answer) = oneshot::channel();
                let origin = Origin {
                    context: CallContext::Task(1),
                    waker: 0,
                    known: Known::Calling,
                };
                let id = self.lines.next_id();
                let kind = self.kind();
                let inside = owner.clone();
                let want = Want::new(kind, TERMS);
                let waiter = CallWaiter {
                    id,
                    owner,
                    since: now,
                    call: LockRequest {
                        origin,
                        want,
                        span: Span::default(),
                        in_doubt: AtomicBool::default(),
                        reply,
                    },
                };
                let arrival = self.lines.arrive(&key, waiter, now);
                self.log.push(format!("arrive {id} {arrival:?}"));
                match arrival {
                    Arrival::Queued => self.waiters.push((id, answer)),
                    // A read inside the write of its owner goes past the line.
                    Arrival::Inside(_) => {
                        let hold = self.hold(&inside, &READ);
                        drop(self.lines.admit(&hold, None, now));
                    }
                    _ => {}
                }
            }
            6..9 if !self.waiters.is_empty() => {
                let at = self.random.usize(..self.waiters.len());
                let (id, _) = self.waiters.swap_remove(at);
                self.log.push(format!("leave {id}"));
                drop(self.lines.leave(&key, id));
            }
            9..18 => self.carry_on(),
            18..21 if !self.holds.is_empty() => {
                let at = self.random.usize(..self.holds.len());
                self.leave_hold(at);
            }
            21 => {
                let (owner, kind) = (self.owner(), self.kind());
                if !self.excludes(kind) {
                    self.log.push(format!("past the line: {kind:?}"));
                    let hold = self.hold(&owner, kind);
                    drop(self.lines.admit(&hold, None, now));
                }
            }
            22 if !self.holds.is_empty() => {
                let at = self.random.usize(..self.holds.len());
                if self.holds[at].lose(Loss::NotOwner) {
                    self.log.push("lose".into());
                    self.owed.push(Owed::Outcome(Event::Changed));
                }
            }
            23 => {
                let heard = Event::Heard(self.random.usize(..3));
                self.event(heard);
            }
            // A lock with readers has no list from which a locker is called.
            24 if !key.has_readers() => {
                let wake_up = match self.random.u8(..3) {
                    0 => WakeUp::Go,
                    1 => WakeUp::Watch,
                    _ => WakeUp::Turn(MS * 10),
                };
                self.event(Event::WokenUp(wake_up));
            }
            25 => self.event(Event::Missed),
            26 => {
                let confirmed = self.random.bool();
                let asked = confirmed || self.random.bool();
                *self.lines.world.sources.lock() = WakeSources {
                    asked,
                    confirmed,
                    owed: self.random.bool(),
                    named: self.random.bool(),
                };
                self.event(Event::Subscribed);
            }
            27 => self.event(Event::Outage),
            _ => self.time(),
        }
        self.take_effects();
        self.check();
    }

    fn check(&self) {
        let log = || self.log[self.log.len().saturating_sub(40)..].join("\n");
        let exclusive = self.owed.iter().filter(|owed| owed.is_exclusive()).count();
        assert!(
            exclusive <= 1,
            "two are under way\n{:?}\n{}",
            self.owed,
            log()
        );
        let Some(slot) = self.lines.slots.get(&self.key) else {
            assert!(self.lines.world.listening.lock().is_empty(), "{}", log());
            let kept = self.hinted && !self.leaves_hint;
            assert!(!kept, "a hint without a line\n{}", log());
            return;
        };
        if let Some((at, number)) = slot.alarm {
            assert!(
                self.lines.timers.has(at, number),
                "a stale alarm\n{}",
                log()
            );
        }
        let now = self.now();
        let is_writer = |waiter: &CallWaiter<()>| waiter.call.want.kind.role == LockRole::Write;
        let is_due = |owed: &Owed| {
            let passes = matches!(owed, Owed::Effect(Effect::Pass));
            passes || owed.goes_on() || matches!(owed, Owed::Outcome(Event::Passed(_)))
        };
        let is_kept = self.hinted && !self.leaves_hint;
        // One that entered with a write past the line has its hint withdrawn at the line's next
        // event, which is the end of that write at the latest.
        let passed_by = slot.line.has_spare_hint() && !slot.line.holds().is_empty();
        let kept = is_kept && !passed_by && !self.owed.iter().any(is_due);
        let waits = slot.line.waiters().range(0).any(is_writer);
        assert!(
            !kept || waits,
            "a hint without a writer {:?}\n{}",
            slot.line,
            log()
        );
        let goes_on = self.owed.iter().any(Owed::goes_on);
        let bound = now + MS * 5_001;
        let wakes = slot.alarm.is_some_and(|(at, _)| at <= bound);
        let stuck = !slot.line.waiters().is_empty() && !goes_on && !wakes;
        assert!(!stuck, "stuck: {:?} {:?}\n{}", slot.line, self.owed, log());
    }

    /// Ends everything. Nothing may be left.
    fn end(mut self) {
        for (id, _) in std::mem::take(&mut self.waiters) {
            drop(self.lines.leave(&self.key.clone(), id));
        }
        for _ in 0..10_000 {
            self.take_effects();
            if self.owed.is_empty() && self.holds.is_empty() {
                break;
            }
            for at in (0..self.holds.len()).rev() {
                if at < self.holds.len() {
                    self.leave_hold(at);
                }
            }
            self.take_effects();
            self.carry_on();
        }
        drop(self.lines.drain(&self.key.clone(), |_| true));
        for _ in 0..20 {
            *self.lines.world.now.lock() = self.now() + MS * 20_000;
            self.fire();
            self.take_effects();
            while !self.owed.is_empty() {
                self.carry_on();
                self.take_effects();
            }
        }
        let log = || self.log[self.log.len().saturating_sub(60)..].join("\n");
        let left = self
            .lines
            .slots
            .get(&self.key)
            .map(|slot| format!("{:?}", slot.line));
        assert!(left.is_none(), "{left:?} {:?}\n{}", self.holds.len(), log());
        assert_eq!(self.lines.timers.len(), 0, "{}", log());
        assert!(self.lines.world.listening.lock().is_empty());
        assert_eq!(
            self.lines.census(),
            [(0, 0); LockKind::ALL.len()],
            "{}",
            log()
        );
    }
}

#[test]
fn no_line_is_stuck_or_leaves_anything_whatever_happens() {
    whatever_happens_to(&Key::from("k"));
}

#[test]
fn no_line_of_a_fair_lock_is_ever_stuck_or_leaves_anything() {
    whatever_happens_to(&Key::new("k", &FAIR_FAMILY));
}

#[test]
fn no_line_of_readers_and_writers_is_stuck_or_leaves_anything() {
    whatever_happens_to(&Key::new("k", &READ_WRITE));
}

fn whatever_happens_to(key: &Key) {
    for seed in 0..3_000 {
        let ran = std::panic::catch_unwind(|| {
            let mut fuzz = Fuzz::new(seed, key.clone());
            for _ in 0..fuzz.random.usize(20..200) {
                fuzz.op();
            }
            fuzz.end();
        });
        assert!(ran.is_ok(), "seed {seed}");
    }
}

/// A waker may block, or wait for this very lock. The line has been told that it asks, so nobody
/// else asks for it.
#[test]
fn a_waker_that_blocks_a_caller_blocks_no_other_caller() {
    use std::sync::mpsc::{Receiver, Sender, channel};

    struct Blocks(Mutex<Sender<()>>, Mutex<Receiver<()>>);

    impl std::task::Wake for Blocks {
        fn wake(self: Arc<Self>) {
            self.0.lock().send(()).expect("the test listens");
            let _: Result<_, _> = self.1.lock().recv();
        }
    }

    let fuzz = Fuzz::new(1, Key::from("k"));
    let (lines, key, now) = (Arc::new(fuzz.lines), fuzz.key, Instant::now());
    let hold = Arc::new(Hold::for_test(Owner::new(), TERMS, &[0], 1));
    drop(lines.admit(&hold, None, now));
    assert!(hold.take_guard());
    let arrives = |now| {
        let (reply, answer) = oneshot::channel();
        let origin = Origin {
            context: CallContext::Task(1),
            waker: 0,
            known: Known::Calling,
        };
        let call = LockRequest {
            origin,
            want: Want::of_lock(TERMS),
            span: Span::default(),
            in_doubt: AtomicBool::default(),
            reply,
        };
        (
            CallWaiter {
                id: lines.next_id(),
                owner: Owner::new(),
                since: now,
                call,
            },
            answer,
        )
    };
    let (first, _answer) = arrives(now);
    assert!(matches!(lines.arrive(&key, first, now), Arrival::Queued));
    assert!(
        lines.world.effects.lock().is_empty(),
        "a hold here has the lock"
    );
    let (token, (woken, wakes), (go_on, waits)) = (hold.token(), channel(), channel());
    let waker = std::task::Waker::from(Arc::new(Blocks(Mutex::new(woken), Mutex::new(waits))));
    let mut cancelled = Box::pin(token.cancelled());
    assert!(
        cancelled
            .as_mut()
            .poll(&mut std::task::Context::from_waker(&waker))
            .is_pending()
    );
    // The lease is over, and the first to notice is a caller.
    let later = now + MS * 60_000;
    *lines.world.now.lock() = later;
    let ((second, _answer), its) = (arrives(later), Arc::clone(&lines));
    let caller = std::thread::spawn(move || drop(its.arrive(&Key::from("k"), second, later)));
    wakes
        .recv_timeout(Duration::from_secs(10))
        .expect("the token fires");
    let asked = !lines.world.effects.lock().is_empty();
    drop(go_on);
    caller.join().expect("no panic");
    assert!(asked, "the line says that it asks, and nobody does");
}
