//! Permits of a semaphore on one server: a counter of what is free, and a sorted set with a member
//! for each permit that is taken, beside a client that does Redisson's own steps.
//!
//! Late copies, undos, answers and validity are as in `main.rs`. Releases and renewals that were
//! sent may be executed any number of times, for ever, and an acquire twice. Who asks when, and in
//! which order, is in `permits_waits.rs`.
//!
//! # The steps
//!
//! Each is one script. `counter` has the permits that are free, `records` a member for each permit
//! that is taken: a claim of n permits has the members `field`, `field:2` .. `field:n`, all with
//! the score `now + lease + slack`. `now` is the server's TIME, in whole milliseconds.
//!
//! ```text
//! prune                       Removes the members with a score of at most `now - slack`.
//!                             Adds their number to the counter, if there is one.
//! acquire                     Prunes.
//!   n, field, lease, slack,   No counter, but a capacity: counter = capacity - ZCARD, which may
//!   capacity or nothing       be below zero.
//!                             No counter: answers *unset*.
//!                             has = how many of the n members are there.
//!                             counter >= n - has, or has = n: takes n - has off the counter,
//!                             writes all n members, and answers *granted*.
//!                             Otherwise removes the members that are there, adds `has` to the
//!                             counter, and answers *refused*, and when the next member runs out.
//!                             Publishes the counter if it was raised and is above zero.
//!                             Gives the records the lifetime of the counter, or none.
//! release, also the undo      Removes the n members.
//!   n, field                  None was there: answers *gone*.
//!                             Adds the number of those that were there to the counter, if there
//!                             is one, publishes it if it is above zero, and answers *released*.
//! renew                       All n members are there: raises their scores, and answers *renewed*.
//!   n, field, lease, slack    Otherwise answers *gone*, and changes nothing.
//! set_capacity                Prunes. counter = capacity - ZCARD. Publishes it if it is above
//!   capacity                  zero. Gives the records the lifetime of the counter, or none.
//! ```
//!
//! Acquire is sent at most once for a field. One without an answer is undone until that is
//! answered, and then once more. Validity counts from before the send, without slack. A claim whose
//! renewal answers *gone* is lost, and is released all the same: a part may be left.
//!
//! Two rules of all steps:
//! - **The counter changes by the number of members that a command added or removed**, never by
//!   what the caller wants. So a copy, an undo of nothing, and a release after a prune add nothing.
//! - **If the second write is refused, the first is taken back.** Each second write is a `pcall`;
//!   an error is returned after the members or the number were restored. An acquire and a prune
//!   write the counter first, since a full server refuses the first write of a script only. A
//!   release removes first, so it succeeds on a full server.
//!
//! # Why not otherwise
//!
//! - Redisson's acquire of n permits removes at most n members that ran out, so it may leave a part
//!   of a claim of ours. One member does not stand for the others: neither for a copy of an
//!   acquire (`FirstMemberStandsForAll`) nor for a renewal (`RenewalOfAPart`). `ZADD XX CH`
//!   does not count a member with an equal score, so a renewal has to ask for the scores.
//! - Redisson writes and compares scores by the clock of its machine. If that is ahead, it removes
//!   members of ours too early (`NoSlack`); if it is behind, we would remove its own too early
//!   (`PrunesWithoutSlack`). So there is slack on both sides, and permits of a crashed holder come
//!   back after the lease and twice the slack.
//! - A counter that starts at zero at least has too many permits once the holders have left, if
//!   more are taken than the capacity (`LostCounterNotBelowZero`).
//! - A client that may remove members and not change the counter would destroy the permits of
//!   others with each prune, though it never held one (`HalfAPrune`).
//! - An acquire prunes more than it wants: the counter may be below zero (`PrunesWhatIsWanted`).
//! - A JVM may give the counter a lifetime. Records that outlive it are given back to the next
//!   counter, which has them already (`RecordsOutlive`); those that end before it are never given
//!   back (`RecordsEndEarly`).
//!
//! # What is not promised
//!
//! - Redisson's clients create a counter that was lost, with each release and prune. Permits are
//!   missing then until the capacity is set. There are too many if more were taken than the
//!   capacity, or after their `trySetPermits`, which takes no account of members.
//! - The clock of a JVM may be ahead by the slack and the tick that validity is shorter, and behind
//!   by the slack, which is that of the locker that prunes.
//! - A JVM that changes the lifetime of the counter alone leaves the records the one that they
//!   have, until the next acquire or capacity (`Action::Limit`). Before that, neither ends here.
//! - A failover that forgets an acquire: a renewal finds no members (`ALL_LOST`).
//! - Without a counter and without a handle that has a capacity, nobody gets a permit.

use stateright::{Model, Property};

use crate::checked::{Checked, breaks, keeps_its_promises};

/// The most claims of a model, each with a field of its own.
const CLAIMS: usize = 3;

const EXCLUSION: &str = "no more permits are believed to be held than there are";
const BELIEF: &str = "the server has all permits that a client believes to hold";
const SUM: &str = "what is free and what is taken are the capacity";
const FREED: &str = "only permits that are held keep a caller out";
const LEAK: &str = "nothing is left once everybody has left";

#[derive(Debug, Clone, Copy)]
struct Permits {
    claims: &'static [Terms],
    /// Whether holders crash.
    crashes: bool,
    /// How often an acquire is executed once more.
    copies: u8,
    /// To what the capacity is set, any number of times.
    resizes: &'static [u8],
    /// By how many ticks the clock of Redisson's client is ahead, if there is one.
    jvm: Option<i8>,
    loss: Loss,
    mutant: Option<Mutant>,
}

#[derive(Debug, Clone, Copy)]
struct Terms {
    permits: u8,
    /// The capacity that its handle has, if any.
    capacity: u8,
    /// Ticks on the server. The client trusts it for one less.
    lease: u8,
}

/// What happens once to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Nothing,
    Counter,
    Records,
    /// Both, as in a failover that forgets.
    All,
    /// A permit is pruned too early, by a clock that is further ahead than the slack.
    Permit,
    /// All but the first client lose the right to a command.
    Zadd,
    Zrem,
    Incrby,
    /// What has a lifetime ends. If it is the counter, a JVM sets it again.
    Lifetime,
}

const fn terms(permits: u8, capacity: u8) -> Terms {
    Terms {
        permits,
        capacity,
        lease: 2,
    }
}

/// Three callers contend for two permits.
const SINGLE: Permits = Permits {
    claims: &[terms(1, 2), terms(1, 2), terms(1, 2)],
    crashes: false,
    copies: 0,
    resizes: &[],
    jvm: None,
    loss: Loss::Nothing,
    mutant: None,
};
/// One wants both of them, which take longer to run out.
const MANY: Permits = Permits {
    claims: &[
        Terms {
            lease: 3,
            ..terms(2, 2)
        },
        terms(1, 2),
    ],
    crashes: true,
    copies: 1,
    ..SINGLE
};
/// Three callers, so that two others can take what is added wrongly.
const CROWD: Permits = Permits {
    claims: &[terms(1, 2), terms(2, 2), terms(1, 2)],
    crashes: true,
    ..SINGLE
};
const RESIZED: Permits = Permits {
    claims: &[terms(2, 2), terms(1, 2)],
    resizes: &[1, 2],
    crashes: true,
    ..SINGLE
};
/// Two programs differ in the capacity.
const DIFFERENT: Permits = Permits {
    claims: &[terms(1, 1), terms(1, 2)],
    ..SINGLE
};
/// Its clock is ahead of the server's.
const BESIDE_JVM: Permits = Permits {
    claims: &[terms(2, 2), terms(1, 2)],
    jvm: Some(2),
    crashes: true,
    copies: 1,
    ..SINGLE
};
/// It removes one of two members.
const PARTS: Permits = Permits {
    claims: &[terms(2, 3)],
    ..BESIDE_JVM
};
/// Its clock is behind the server's.
const BEHIND: Permits = Permits {
    jvm: Some(-1),
    copies: 0,
    ..BESIDE_JVM
};
/// The third of them has a handle with a smaller capacity.
const COUNTER_LOST: Permits = Permits {
    claims: &[terms(1, 2), terms(1, 2), terms(1, 1)],
    loss: Loss::Counter,
    ..SINGLE
};
const LOST_BESIDE_JVM: Permits = Permits {
    claims: &[terms(1, 2), terms(1, 2)],
    jvm: Some(0),
    loss: Loss::Counter,
    resizes: &[2],
    ..SINGLE
};
const RECORDS_LOST: Permits = Permits {
    claims: &[terms(1, 2), terms(1, 2)],
    loss: Loss::Records,
    resizes: &[1, 2],
    ..SINGLE
};
const ALL_LOST: Permits = Permits {
    loss: Loss::All,
    crashes: true,
    ..MANY
};
const LIMITED: Permits = Permits {
    claims: &[terms(1, 2), terms(2, 2)],
    loss: Loss::Lifetime,
    resizes: &[1, 2],
    ..SINGLE
};
const PERMIT_LOST: Permits = Permits {
    claims: &[terms(2, 3), terms(1, 3)],
    loss: Loss::Permit,
    ..MANY
};
/// A client may add no member, or remove none, or not change the counter.
const WITHOUT_RIGHTS: [Permits; 3] = [
    Permits {
        loss: Loss::Zadd,
        ..RESIZED
    },
    Permits {
        loss: Loss::Zrem,
        ..RESIZED
    },
    Permits {
        loss: Loss::Incrby,
        ..RESIZED
    },
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// An undo adds its permits to the counter, whatever the set had.
    UndoAddsBlindly,
    /// So does a release.
    ReleaseAddsBlindly,
    /// An acquire without an answer is undone once.
    UndoneOnce,
    /// An acquire takes its permits without asking whether it has them.
    TakesTwice,
    /// It asks for the first of them only.
    FirstMemberStandsForAll,
    /// It takes what is free, though that is less than it wants.
    TakesAPart,
    /// A renewal creates members.
    RenewalCreates,
    /// It renews what is left of a claim, and answers that it did.
    RenewalOfAPart,
    /// A counter that was lost starts with the capacity.
    LostCounterStartsFull,
    /// It does not start below zero.
    LostCounterNotBelowZero,
    /// A release creates the counter.
    ReleaseCreatesCounter,
    /// Each acquire sets the capacity of its handle.
    CapacityEachTime,
    /// The new capacity is free, whatever is taken.
    ResizeIgnoresTaken,
    /// Expired members are removed by a client's clock.
    PrunesByClientsClock,
    /// As many of them as are wanted, which is Redisson's way.
    PrunesWhatIsWanted,
    /// They are removed, and not added to the counter.
    PruneGivesNothingBack,
    /// Members have no slack for Redisson's clients that are ahead.
    NoSlack,
    /// Members are removed without slack for Redisson's clients that are behind.
    PrunesWithoutSlack,
    /// A release adds first, and its removal is refused.
    AddsFirst,
    /// The second write of a release is refused, and the first is kept.
    HalfARelease,
    /// The same of an acquire.
    HalfAnAcquire,
    /// The same of a prune.
    HalfAPrune,
    /// Records get no lifetime from the counter.
    RecordsOutlive,
    /// They keep theirs under a counter that has none.
    RecordsEndEarly,
}

/// What a claim is for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Phase {
    #[default]
    New,
    /// With the validity that it has when it is granted now.
    Asked(u8),
    Held(u8),
    /// It was granted, and is released until that is answered.
    Releases,
    /// It may have been granted: a release is sent until it is answered, and then once more.
    Undoes,
    UndoesAgain,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Claim {
    phase: Phase,
    /// What validity a renewal gives that is under way.
    renews: Option<u8>,
    deceived: bool,
    // On the wire.
    acquires: u8,
    releases: bool,
    renewals: bool,
    // On the server.
    /// How many of its members are there. Redisson's client removes the first member first.
    members: u8,
    /// Ticks until a script of ours removes them.
    left: u8,
    /// Ghost: nothing undoes it.
    stray: bool,
}

/// A permit of Redisson's client, and until when it believes in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Foreign {
    left: Option<u8>,
    valid: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    claims: [Claim; CLAIMS],
    jvm: Foreign,
    free: Option<i8>,
    /// Whether the counter has a lifetime, and whether the records do.
    limited: [bool; 2],
    /// Whether that of the counter was changed since the records got it.
    changed: bool,
    lost: bool,
    /// Ghost: the capacity that was set last.
    capacity: Option<u8>,
    /// Ghost: the capacity, or what was taken when it was lowered and still is.
    bound: u8,
    /// Ghost: permits are missing until the capacity is set.
    damaged: bool,
    /// Ghost: a caller was refused though enough was free.
    wronged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    Lose,
    /// A JVM gives the counter a lifetime, or takes it.
    Limit,
    Resize(u8),
    Ask(usize),
    /// Whether the answer arrives.
    Acquire(usize, bool),
    Release(usize, bool),
    Renew(usize, bool),
    SendRenewal(usize),
    Leave(usize),
    Crash(usize),
    JvmAcquires,
    JvmEnds,
    JvmRenews,
    JvmDies,
}

/// The lease of Redisson's client.
const JVM_LEASE: u8 = 2;
/// What members get in addition to their lease, and once more before a script of ours removes them.
const SLACK: u8 = 1;

impl Permits {
    const fn with(self, mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
            ..self
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn all(&self) -> impl Iterator<Item = (usize, Terms)> {
        self.claims.iter().copied().enumerate()
    }

    /// Returns how long members live that are written now.
    fn life(&self, at: usize) -> u8 {
        let slack = if self.is(Mutant::NoSlack) { 0 } else { SLACK };
        self.claims[at].lease + slack + SLACK
    }
}

impl State {
    fn taken(&self) -> u8 {
        let ours: u8 = self.claims.iter().map(|claim| claim.members).sum();
        ours + u8::from(self.jvm.left.is_some())
    }

    /// Returns how many of the taken permits have not run out.
    fn lives(&self) -> u8 {
        let ours = self.claims.iter().filter(|claim| claim.left > 0);
        let ours: u8 = ours.map(|claim| claim.members).sum();
        ours + u8::from(self.jvm.left.is_some_and(|left| left > 0))
    }

    fn add(&mut self, permits: u8) {
        self.free = self.free.map(|free| free + permits.cast_signed());
    }

    fn take(&mut self, permits: u8) {
        self.free = self.free.map(|free| free - permits.cast_signed());
    }

    /// Returns whether this client has lost this right.
    fn denies(&self, permits: &Permits, at: usize, right: Loss) -> bool {
        self.lost && permits.loss == right && at > 0
    }

    /// Removes up to so many members of which no more than that is left, and returns their number.
    fn remove(&mut self, left: u8, limit: u8) -> u8 {
        let mut removed = 0;
        for claim in &mut self.claims {
            if claim.left <= left {
                let members = claim.members.min(limit - removed);
                claim.members -= members;
                removed += members;
            }
        }
        if removed < limit && self.jvm.left.is_some_and(|found| found <= left) {
            self.jvm.left = None;
            removed += 1;
        }
        removed
    }

    /// Removes members that ran out. Returns whether the client may do that.
    fn prune(&mut self, permits: &Permits, at: usize) -> bool {
        let left = match permits.mutant {
            Some(Mutant::PrunesByClientsClock) => 3 * SLACK + 1,
            Some(Mutant::PrunesWithoutSlack) => SLACK,
            _ => 0,
        };
        let limit = if permits.is(Mutant::PrunesWhatIsWanted) {
            permits.claims[at].permits
        } else {
            u8::MAX
        };
        let mut pruned = *self;
        let removed = pruned.remove(left, limit);
        if removed == 0 {
            return true;
        }
        let adds = !self.denies(permits, at, Loss::Incrby);
        if adds && !permits.is(Mutant::PruneGivesNothingBack) {
            pruned.add(removed);
        }
        if adds || permits.is(Mutant::HalfAPrune) {
            *self = pruned;
        }
        adds
    }

    /// Sets the counter, of which so much is the capacity.
    fn fill(&mut self, capacity: u8) {
        self.free = Some(capacity.cast_signed() - self.taken().cast_signed());
        self.capacity = Some(capacity);
        self.bound = self.taken().max(capacity);
        self.damaged = false;
    }

    /// Gives the records the lifetime of the counter.
    fn limit_records(&mut self, permits: &Permits) {
        let [counter, records] = &mut self.limited;
        let skips = match *counter {
            true => Mutant::RecordsOutlive,
            false => Mutant::RecordsEndEarly,
        };
        if !permits.is(skips) {
            *records = *counter;
        }
        self.changed = false;
    }

    /// Returns what the script answers; nothing if it ends with an error.
    fn acquire(&mut self, permits: &Permits, at: usize) -> Option<bool> {
        let Terms {
            permits: wants,
            capacity,
            ..
        } = permits.claims[at];
        if !self.prune(permits, at) {
            return None;
        }
        if self.free.is_none() && capacity > 0 {
            self.fill(capacity);
            let full = capacity.cast_signed();
            self.free = match permits.mutant {
                Some(Mutant::LostCounterStartsFull) => Some(full),
                Some(Mutant::LostCounterNotBelowZero) => self.free.map(|free| free.max(0)),
                _ => self.free,
            };
        }
        if permits.is(Mutant::CapacityEachTime) {
            self.free = Some(capacity.cast_signed() - self.taken().cast_signed());
        }
        let Some(free) = self.free else {
            return Some(false);
        };
        let has = match permits.mutant {
            Some(Mutant::TakesTwice) => 0,
            Some(Mutant::FirstMemberStandsForAll) if self.claims[at].members < wants => 0,
            _ => self.claims[at].members,
        };
        let misses = wants - has;
        let fits = free >= misses.cast_signed() || misses == 0;
        let part = permits.is(Mutant::TakesAPart) && free > 0;
        if self.denies(permits, at, Loss::Incrby) {
            return None;
        }
        if !fits && !part {
            let others = self.lives().saturating_sub(self.claims[at].members);
            let enough = self.capacity.is_some_and(|all| others + wants <= all);
            self.wronged |= enough && !self.damaged;
            // What Redisson's client has left of it is no use.
            let rest = std::mem::take(&mut self.claims[at].members);
            self.add(rest);
            return Some(false);
        }
        let takes = if fits { misses } else { free.cast_unsigned() };
        self.take(takes);
        if self.denies(permits, at, Loss::Zadd) {
            if !permits.is(Mutant::HalfAnAcquire) {
                self.add(takes);
            }
            return None;
        }
        self.claims[at].members = has + takes;
        self.claims[at].left = permits.life(at);
        Some(true)
    }

    /// Returns whether the client gets an answer, and no error.
    fn release(&mut self, permits: &Permits, at: usize) -> bool {
        let members = self.claims[at].members;
        let blindly = match self.claims[at].phase {
            Phase::Undoes | Phase::UndoesAgain => Mutant::UndoAddsBlindly,
            _ => Mutant::ReleaseAddsBlindly,
        };
        let back = if permits.is(blindly) {
            permits.claims[at].permits
        } else {
            members
        };
        if self.denies(permits, at, Loss::Zrem) {
            if permits.is(Mutant::AddsFirst) {
                self.add(back);
            }
            return false;
        }
        if back > 0 && self.denies(permits, at, Loss::Incrby) {
            if permits.is(Mutant::HalfARelease) {
                self.claims[at].members = 0;
            }
            return false;
        }
        (self.claims[at].members, self.claims[at].stray) = (0, false);
        if self.free.is_none() && back > 0 && permits.is(Mutant::ReleaseCreatesCounter) {
            self.free = Some(0);
        }
        self.add(back);
        true
    }

    fn renew(&mut self, permits: &Permits, at: usize) -> Option<bool> {
        if self.denies(permits, at, Loss::Zadd) {
            return None;
        }
        let wants = permits.claims[at].permits;
        if permits.is(Mutant::RenewalCreates) {
            self.claims[at].members = wants;
        }
        let claim = &mut self.claims[at];
        let renews =
            claim.members == wants || claim.members > 0 && permits.is(Mutant::RenewalOfAPart);
        if renews {
            claim.left = permits.life(at);
        }
        Some(renews)
    }

    fn tick(&mut self) {
        for claim in &mut self.claims {
            claim.left = claim.left.saturating_sub(1);
            claim.renews = claim.renews.map(|valid| valid.saturating_sub(1));
            claim.phase = match claim.phase {
                Phase::Asked(valid) => Phase::Asked(valid.saturating_sub(1)),
                Phase::Held(valid) if valid > 1 => Phase::Held(valid - 1),
                // It is lost, and what may stand on the server is released all the same.
                Phase::Held(_) => {
                    claim.releases = true;
                    Phase::Releases
                }
                phase => phase,
            };
        }
        self.jvm.left = self.jvm.left.map(|left| left.saturating_sub(1));
        self.jvm.valid = self.jvm.valid.saturating_sub(1);
    }

    fn lose(&mut self, permits: &Permits) {
        self.lost = true;
        match permits.loss {
            Loss::Counter => self.free = None,
            Loss::Lifetime if self.changed => self.lost = false,
            Loss::Lifetime => {
                let [counter, records] = self.limited;
                if records {
                    self.lose_records();
                }
                if counter {
                    self.free = self.capacity.map(u8::cast_signed);
                }
                self.lost = counter || records;
            }
            Loss::Records | Loss::All => {
                self.lose_records();
                self.jvm = Foreign::default();
                self.damaged = self.free.is_some();
                if permits.loss == Loss::All {
                    (self.free, self.capacity, self.bound) = (None, None, 0);
                    self.damaged = false;
                }
            }
            Loss::Permit => {
                for claim in &mut self.claims {
                    claim.deceived |= claim.members > 0;
                }
                let removed = self.remove(u8::MAX, 1);
                self.add(removed);
            }
            _ => {}
        }
    }

    fn lose_records(&mut self) {
        for claim in &mut self.claims {
            claim.deceived |= claim.members > 0;
            claim.members = 0;
        }
    }

    fn ends(&mut self, at: usize, phase: Phase) {
        self.claims[at].phase = phase;
        self.claims[at].releases |= phase != Phase::Over;
    }

    fn execute(&mut self, permits: &Permits, action: Action) {
        match action {
            Action::Acquire(at, heard) => {
                self.claims[at].acquires -= 1;
                let answer = self.acquire(permits, at);
                self.limit_records(permits);
                let granted = answer == Some(true);
                match self.claims[at].phase {
                    Phase::Asked(valid) if heard && answer.is_some() => match (granted, valid) {
                        (true, 1..) => self.claims[at].phase = Phase::Held(valid),
                        (true, 0) => self.ends(at, Phase::Releases),
                        (false, _) => self.claims[at].phase = Phase::Over,
                    },
                    Phase::UndoesAgain | Phase::Over if !permits.is(Mutant::UndoneOnce) => {
                        self.claims[at].stray |= granted;
                    }
                    _ => {}
                }
            }
            Action::Release(at, heard) => {
                let answered = self.release(permits, at) && heard;
                let phase = match self.claims[at].phase {
                    phase if !answered => phase,
                    Phase::Undoes if !permits.is(Mutant::UndoneOnce) => Phase::UndoesAgain,
                    Phase::Releases | Phase::Undoes | Phase::UndoesAgain => Phase::Over,
                    phase => phase,
                };
                self.claims[at].phase = phase;
            }
            Action::Renew(at, heard) => {
                let Some(renewed) = self.renew(permits, at) else {
                    return;
                };
                let Some(left) = self.claims[at].renews.filter(|_| heard) else {
                    return;
                };
                self.claims[at].renews = None;
                match self.claims[at].phase {
                    Phase::Held(valid) if renewed => {
                        self.claims[at].phase = Phase::Held(valid.max(left));
                        self.claims[at].deceived = false;
                    }
                    Phase::Held(_) => self.ends(at, Phase::Releases),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// A step of Redisson's client, whose clock is so much ahead.
    fn jvm(&mut self, ahead: i8, action: Action) {
        let over = (ahead + SLACK.cast_signed()).cast_unsigned();
        let life = JVM_LEASE + over;
        // It creates a counter that is not there.
        let prune = |state: &mut Self, limit| {
            let removed = state.remove(over, limit);
            state.damaged |= removed > 0 && state.free.is_none();
            if removed > 0 {
                state.free = Some(state.free.unwrap_or(0) + removed.cast_signed());
            }
        };
        match action {
            Action::JvmAcquires => {
                prune(self, 1);
                if self.free.is_some_and(|free| free >= 1) {
                    self.take(1);
                    self.jvm = Foreign {
                        left: Some(life),
                        valid: JVM_LEASE,
                    };
                }
            }
            Action::JvmRenews => {
                prune(self, u8::MAX);
                if self.jvm.left.is_some() && self.jvm.valid > 0 {
                    self.jvm = Foreign {
                        left: Some(life),
                        valid: JVM_LEASE,
                    };
                }
            }
            Action::JvmEnds => {
                self.jvm.valid = 0;
                if self.jvm.left.take().is_some() {
                    self.damaged |= self.free.is_none();
                    self.free = Some(self.free.unwrap_or(0) + 1);
                }
            }
            Action::JvmDies => self.jvm.valid = 0,
            _ => {}
        }
    }

    fn believes(&self, at: usize) -> bool {
        matches!(self.claims[at].phase, Phase::Held(_)) && !self.claims[at].deceived
    }

    fn believed(&self, permits: &Permits) -> u8 {
        let ours: u8 = permits
            .all()
            .filter(|(at, _)| self.believes(*at))
            .map(|(_, terms)| terms.permits)
            .sum();
        ours + u8::from(self.jvm.valid > 0)
    }

    fn adds_up(&self) -> bool {
        let (Some(free), Some(capacity)) = (self.free, self.capacity) else {
            return true;
        };
        let sum = free + self.taken().cast_signed();
        sum == capacity.cast_signed() || self.damaged && sum < capacity.cast_signed()
    }

    fn is_left(&self) -> bool {
        let is_quiet =
            |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Over) && !claim.stray;
        self.claims
            .iter()
            .any(|claim| is_quiet(claim) && claim.members > 0)
    }
}

impl Model for Permits {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            claims: Default::default(),
            jvm: Foreign::default(),
            free: None,
            limited: [false; 2],
            changed: false,
            lost: false,
            capacity: None,
            bound: 0,
            damaged: false,
            wronged: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if self.loss != Loss::Nothing && !state.lost {
            actions.push(Action::Lose);
        }
        if self.loss == Loss::Lifetime && state.free.is_some() {
            actions.push(Action::Limit);
        }
        actions.extend(
            self.resizes
                .iter()
                .map(|capacity| Action::Resize(*capacity)),
        );
        for (at, _) in self.all() {
            let claim = &state.claims[at];
            if claim.phase == Phase::New {
                actions.push(Action::Ask(at));
            }
            if matches!(claim.phase, Phase::Asked(_) | Phase::Held(_)) {
                actions.push(Action::Leave(at));
                if self.crashes {
                    actions.push(Action::Crash(at));
                }
            }
            if matches!(claim.phase, Phase::Held(_)) && claim.renews.is_none() {
                actions.push(Action::SendRenewal(at));
            }
            for heard in [true, false] {
                if claim.acquires > 0 {
                    actions.push(Action::Acquire(at, heard));
                }
                if claim.releases {
                    actions.push(Action::Release(at, heard));
                }
                if claim.renewals {
                    actions.push(Action::Renew(at, heard));
                }
            }
        }
        if self.jvm.is_none() {
            return;
        }
        if state.jvm.left.is_none() && state.jvm.valid == 0 {
            actions.push(Action::JvmAcquires);
        } else {
            actions.extend([Action::JvmEnds, Action::JvmRenews]);
        }
        if state.jvm.valid > 0 {
            actions.push(Action::JvmDies);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Tick => state.tick(),
            Action::Lose => state.lose(self),
            Action::Limit => {
                state.limited[0] ^= true;
                state.changed = true;
            }
            Action::Resize(capacity) => {
                // An operator, who has all rights.
                state.prune(self, 0);
                state.fill(capacity);
                if self.is(Mutant::ResizeIgnoresTaken) {
                    state.free = Some(capacity.cast_signed());
                }
                state.limit_records(self);
            }
            Action::Ask(at) => {
                let claim = &mut state.claims[at];
                claim.phase = Phase::Asked(self.claims[at].lease - 1);
                claim.acquires = 1 + self.copies;
            }
            Action::SendRenewal(at) => {
                state.claims[at].renews = Some(self.claims[at].lease - 1);
                state.claims[at].renewals = true;
            }
            Action::Leave(at) => {
                let phase = match state.claims[at].phase {
                    Phase::Held(_) => Phase::Releases,
                    _ => Phase::Undoes,
                };
                state.ends(at, phase);
            }
            Action::Crash(at) => {
                state.ends(at, Phase::Over);
                state.claims[at].stray = true;
            }
            Action::Acquire(..) | Action::Release(..) | Action::Renew(..) => {
                state.execute(self, action);
            }
            _ => state.jvm(self.jvm?, action),
        }
        if let Some(capacity) = state.capacity {
            state.bound = state.bound.min(state.taken()).max(capacity);
        }
        for claim in &mut state.claims {
            if claim.members == 0 {
                claim.left = 0;
            }
            if !matches!(claim.phase, Phase::Held(_)) {
                claim.renews = None;
            }
        }
        // The set is gone with its last member.
        state.limited[1] &= state.taken() > 0;
        (state != *last).then_some(state)
    }

    /// Mutants add or take without an end.
    fn within_boundary(&self, state: &State) -> bool {
        state.free.is_none_or(|free| (-4..=4).contains(&free)) && state.taken() <= 4
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |permits: &Self, state: &State| {
                state.believed(permits) <= state.bound
            }),
            Property::always(BELIEF, |permits: &Self, state: &State| {
                let ours = permits.all().all(|(at, terms)| {
                    !state.believes(at) || state.claims[at].members == terms.permits
                });
                ours && (state.jvm.valid == 0 || state.jvm.left.is_some())
            }),
            Property::always(SUM, |_, state: &State| state.adds_up()),
            Property::always(FREED, |_, state: &State| !state.wronged),
            Property::always(LEAK, |_, state: &State| !state.is_left()),
            Property::sometimes("all permits are held", |permits: &Self, state: &State| {
                Some(state.believed(permits)) == state.capacity
            }),
        ]
    }
}

impl Checked for Permits {}

#[test]
fn callers_keep_the_promises() {
    keeps_its_promises(SINGLE);
    keeps_its_promises(MANY);
    keeps_its_promises(CROWD);
}

#[test]
fn they_keep_them_though_the_capacity_changes() {
    keeps_its_promises(RESIZED);
    keeps_its_promises(DIFFERENT);
}

#[test]
fn they_keep_them_beside_a_client_of_redisson() {
    keeps_its_promises(BESIDE_JVM);
    keeps_its_promises(PARTS);
    keeps_its_promises(BEHIND);
}

#[test]
fn they_keep_them_though_keys_are_lost() {
    keeps_its_promises(COUNTER_LOST);
    keeps_its_promises(LOST_BESIDE_JVM);
    keeps_its_promises(RECORDS_LOST);
    keeps_its_promises(ALL_LOST);
    keeps_its_promises(PERMIT_LOST);
    keeps_its_promises(LIMITED);
}

#[test]
fn they_keep_them_though_a_client_loses_a_right() {
    for permits in WITHOUT_RIGHTS {
        keeps_its_promises(permits);
    }
}

// ---- Its mutants ----

/// What was never granted, or is already given back, must not be added.
#[test]
fn a_release_has_to_add_what_it_removed() {
    breaks(CROWD.with(Mutant::UndoAddsBlindly), &[SUM, EXCLUSION]);
    breaks(CROWD.with(Mutant::ReleaseAddsBlindly), &[SUM, EXCLUSION]);
}

#[test]
fn an_acquire_without_an_answer_has_to_be_undone_twice() {
    breaks(SINGLE.with(Mutant::UndoneOnce), &[LEAK]);
}

#[test]
fn an_acquire_has_to_take_what_it_misses() {
    breaks(MANY.with(Mutant::TakesTwice), &[SUM, FREED]);
    breaks(PARTS.with(Mutant::FirstMemberStandsForAll), &[SUM]);
}

/// Its client believes to have all.
#[test]
fn an_acquire_has_to_take_all_or_none() {
    breaks(MANY.with(Mutant::TakesAPart), &[BELIEF, EXCLUSION]);
}

#[test]
fn a_renewal_must_not_create() {
    breaks(CROWD.with(Mutant::RenewalCreates), &[SUM, EXCLUSION]);
}

#[test]
fn a_renewal_has_to_compare_all_members() {
    breaks(PERMIT_LOST.with(Mutant::RenewalOfAPart), &[BELIEF]);
}

#[test]
fn a_counter_that_was_lost_has_to_start_without_what_is_taken() {
    breaks(
        COUNTER_LOST.with(Mutant::LostCounterStartsFull),
        &[SUM, EXCLUSION],
    );
    breaks(COUNTER_LOST.with(Mutant::LostCounterNotBelowZero), &[SUM]);
}

#[test]
fn a_release_must_not_create_the_counter() {
    breaks(
        COUNTER_LOST.with(Mutant::ReleaseCreatesCounter),
        &[SUM, FREED],
    );
}

#[test]
fn the_first_capacity_has_to_stay() {
    breaks(DIFFERENT.with(Mutant::CapacityEachTime), &[SUM, EXCLUSION]);
}

#[test]
fn a_new_capacity_has_to_leave_out_what_is_taken() {
    breaks(RESIZED.with(Mutant::ResizeIgnoresTaken), &[SUM, EXCLUSION]);
}

#[test]
fn the_servers_clock_has_to_decide_what_ran_out() {
    breaks(
        SINGLE.with(Mutant::PrunesByClientsClock),
        &[BELIEF, EXCLUSION],
    );
}

#[test]
fn records_have_to_end_with_the_counter() {
    breaks(LIMITED.with(Mutant::RecordsOutlive), &[SUM, EXCLUSION]);
    breaks(LIMITED.with(Mutant::RecordsEndEarly), &[SUM, FREED]);
}

/// Others ran out, and nobody else prunes them.
#[test]
fn all_that_ran_out_has_to_be_given_back() {
    breaks(MANY.with(Mutant::PruneGivesNothingBack), &[SUM, FREED]);
    breaks(RESIZED.with(Mutant::PrunesWhatIsWanted), &[FREED]);
}

#[test]
fn clocks_of_redisson_need_slack_on_both_sides() {
    breaks(BESIDE_JVM.with(Mutant::NoSlack), &[BELIEF, EXCLUSION]);
    breaks(
        BEHIND.with(Mutant::PrunesWithoutSlack),
        &[BELIEF, EXCLUSION],
    );
}

#[test]
fn a_script_must_undo_its_first_write_if_the_second_is_refused() {
    let [adds_none, removes_none, counts_nothing] = WITHOUT_RIGHTS;
    breaks(removes_none.with(Mutant::AddsFirst), &[SUM, EXCLUSION]);
    breaks(adds_none.with(Mutant::HalfAnAcquire), &[SUM, FREED]);
    breaks(counts_nothing.with(Mutant::HalfARelease), &[SUM, FREED]);
    breaks(counts_nothing.with(Mutant::HalfAPrune), &[SUM]);
}
