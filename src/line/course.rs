//! What is in flight for a line, and what follows: when to ask the servers, to listen, to wait, and
//! to give up.
//!
//! # Invariants
//! - At most one effect is in flight, so at most one command of a line has no answer.
//! - Nothing is asked for while a hold of this locker may have the lock.
//! - Every wait has an end, and after every wait the line looks again.

use std::sync::Arc;
use std::time::Duration;

use super::waitlist::AfterPass;
use super::{AcquireOutcome, Effect, Event, LastRound, Line, Moment, RawHold, WakeSources, Wants};
use crate::claim::Listing;
use crate::clock::Instant;

/// The pause before an attempt grows with each failed one in a row, up to this many round trips.
const MOST_COLLISIONS: u32 = 8;

/// How long others may be faster at the first node before all nodes are asked: the lock on the
/// first node may be a leftover.
const OUTRUN: Duration = Duration::from_millis(500);

/// How a line came to where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Course {
    pub(super) phase: Phase,
    /// How many attempts in a row met others that wanted the lock at the same time and got some
    /// nodes, or the first one.
    collisions: u32,
    /// Since when others have been faster at the first node, while nothing is known about the other
    /// nodes. Boxed, as below.
    outrun: Option<Box<Instant>>,
    /// Whether a turn of others ended before the channel was subscribed: a message may have been
    /// missed.
    deaf: bool,
    /// Whether something has changed here since the last acquire began: what its answer says of
    /// others may be older.
    changed: bool,
    /// Whether it has stopped waiting for its subscription: once that is there, a message may have
    /// been missed.
    unsubscribed: bool,
    /// Whether a holder whose lock outlasts every lease has been logged.
    named: bool,
    /// When a server was last asked to keep the hint that a writer waits. Boxed, since few lines
    /// have one.
    pub(super) hinted: Option<Box<Instant>>,
    /// Whether the last acquire asked for a place in the list.
    pub(super) listing: bool,
    /// Whether a caller got the lock since its locker began to listen.
    pub(super) was_granted: bool,
    /// Whether a caller has come since the last acquire began: it has no place in the queue yet.
    pub(super) unplaced: bool,
}

/// What is in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    #[default]
    Idle,
    /// A waiter is notified of a loss: the line looks next.
    Looks,
    /// A waiter has got the lock, and the outcome of what was asked for it is the next event. A
    /// change before that must not be looked at: the outcome would be taken for that of the effect
    /// that followed.
    Granted,
    /// A hold here has the lock. Its release and its loss are changes; the time limit is a safety
    /// net.
    Blocked {
        until: Instant,
    },
    Listens {
        until: Instant,
        /// A turn of others ends then.
        in_turn: bool,
    },
    Asks {
        sent: Instant,
    },
    HandsOver,
    /// The holder, which has the lock for this time.
    Names {
        ttl: Option<Duration>,
    },
    /// Callers that came before the round are notified of an outage. With callers left, a pause
    /// follows.
    GivesUp {
        pause: Duration,
    },
    Rests(Rest),
    MakesWay {
        until: Instant,
    },
}

/// A wait for lockers elsewhere, or between two attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rest {
    until: Instant,
    /// Messages are a reason to end it.
    hears: bool,
    /// Others have the lock, or had it offered: the engine need not stay awake, and if no client
    /// acts in this time, the lockers before this one in the list do not.
    others: bool,
    then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Then {
    Look,
    MakeWay,
    MakeWayUnlessCalled,
}

impl Course {
    /// Records that a waiter has the lock. Its release may come before the next step, which finds
    /// it first.
    pub(super) fn granted(&mut self) {
        // With nothing in flight, no outcome follows that could be taken for another one.
        if self.phase != Phase::Idle {
            self.phase = Phase::Granted;
        }
    }

    /// Returns whether the line waits for a hold of its locker, or is about to look: it asks for
    /// nothing before it has looked.
    pub(super) fn is_unasked(&self) -> bool {
        matches!(
            self.phase,
            Phase::Looks | Phase::Granted | Phase::Blocked { .. }
        )
    }

    /// Returns each point in time that it remembers.
    #[cfg(test)]
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Instant> {
        let time = match &mut self.phase {
            Phase::Blocked { until }
            | Phase::Listens { until, .. }
            | Phase::Rests(Rest { until, .. })
            | Phase::MakesWay { until } => Some(until),
            Phase::Asks { sent } => Some(sent),
            _ => None,
        };
        time.into_iter()
            .chain(self.outrun.as_deref_mut())
            .chain(self.hinted.as_deref_mut())
    }

    /// Notes what an answer says about others that want the lock too.
    fn note(&mut self, answer: AcquireOutcome, sent: Instant) {
        self.collisions = match answer {
            AcquireOutcome::Held {
                contested: true, ..
            }
            | AcquireOutcome::Split
            | AcquireOutcome::Outrun => (self.collisions + 1).min(MOST_COLLISIONS),
            // The others wait for the same holder.
            AcquireOutcome::Held {
                contested: false, ..
            } => self.collisions,
            AcquireOutcome::Granted
            | AcquireOutcome::Refused
            | AcquireOutcome::Unavailable { .. } => 0,
        };
        self.outrun = match answer {
            AcquireOutcome::Outrun => self.outrun.take().or(Some(Box::new(sent))),
            // All nodes were asked, so the first one alone decides nothing.
            _ => None,
        };
    }

    /// Returns whether the first node is asked alone.
    fn is_first_alone(&self, now: Instant) -> bool {
        // If several lockers are woken by one message and ask all nodes at once, each may get the
        // nodes near it, and none a majority. So one that has met others asks the first node alone.
        let lasts = self.outrun.as_deref().map(|&since| now.since(since));
        self.collisions > 0 && lasts.is_none_or(|lasts| lasts < OUTRUN)
    }
}

impl<H: RawHold, C: Wants, R> Line<H, C, R> {
    /// Takes in an event. Returns what has to be done now.
    pub(crate) fn on(&mut self, event: Event, moment: &Moment<'_>) -> Option<Effect<R>> {
        if !self.heeds(event) {
            return None;
        }
        let effect = self.follow(event, moment);
        self.withdraw_hint();
        effect
    }

    fn follow(&mut self, event: Event, moment: &Moment<'_>) -> Option<Effect<R>> {
        let now = moment.now;
        match (self.hear(event, moment)?, self.course.phase) {
            (Event::Stopped, _) => self.stop(moment),
            (Event::Answered(answer), Phase::Asks { sent }) => self.answered(answer, sent, moment),
            // The grant came before this, and replaced the phase that knew when it was asked for.
            (Event::Answered(answer), Phase::Granted) => self.answered(answer, now, moment),
            // Each server confirms by itself, and only a majority counts.
            (Event::Subscribed, Phase::Listens { .. }) if moment.sources.confirmed => {
                (self.course.deaf, self.course.unsubscribed) = (false, false);
                self.look(moment)
            }
            // The subscription takes too long, and the line asks without it. A message that arrives
            // before it is there is missed: `hear` makes up for that.
            (Event::Due, Phase::Listens { until, in_turn }) if until <= now => {
                (self.course.deaf, self.course.unsubscribed) = (in_turn, true);
                self.look(moment)
            }
            // The timer was that of an earlier wait.
            (Event::Due, Phase::Listens { until, .. }) => Some(Effect::WakeAt {
                until,
                others: false,
            }),
            (Event::HandedOver, Phase::HandsOver | Phase::Granted) => self.look(moment),
            (Event::Named(named), Phase::Names { ttl }) => {
                self.course.named |= named;
                self.wait(ttl, moment)
            }
            (Event::GaveUp(next), Phase::GivesUp { pause }) => match next {
                // Callers that came while the round was in flight get a round of their own.
                Some(next) => self.rest(pause.min(next), false, Then::Look, moment),
                None => self.look(moment),
            },
            // No round of this line has failed just now, so only the age of each caller counts.
            (Event::Outage, Phase::Blocked { .. } | Phase::Rests(_)) => {
                Some(Effect::GiveUp { came_by: None })
            }
            // A caller that arrives in a pause gets its place at the end of that.
            (Event::Changed, Phase::Rests(rest)) if moment.queues && !rest.hears => {
                self.go_on(rest, moment)
            }
            // Others are not waited for any more, but the pause that keeps lockers apart may still
            // follow.
            (Event::Changed, Phase::Rests(rest)) if !self.queue.is_empty() => {
                self.end(rest, moment)
            }
            (
                Event::Changed,
                Phase::Idle | Phase::Looks | Phase::Blocked { .. } | Phase::Rests(_),
            ) => self.look(moment),
            // Callers that are left after an outage still have time of their own, so the wait
            // continues: otherwise each announcement would cost a round.
            (
                Event::Due | Event::GaveUp(_),
                Phase::Blocked { until } | Phase::MakesWay { until },
            ) => {
                if until <= now {
                    return self.look(moment);
                }
                Some(Effect::WakeAt {
                    until,
                    others: false,
                })
            }
            (Event::Due | Event::GaveUp(_), Phase::Rests(rest)) => self.go_on(rest, moment),
            // Something else is in flight, and the line looks when that has ended.
            (Event::Changed, _) => {
                self.course.changed = true;
                None
            }
            _ => None,
        }
    }

    /// Takes in what was heard, whatever is in flight. Returns what happens to the line by that.
    fn hear(&mut self, event: Event, moment: &Moment<'_>) -> Option<Event> {
        let now = moment.now;
        let is_late =
            self.course.unsubscribed && !matches!(self.course.phase, Phase::Listens { .. });
        match (event, &mut self.wake_state) {
            // A message may have come after the last answer and before the subscription.
            (Event::Subscribed, Some(_)) if is_late && moment.sources.confirmed => {
                self.course.unsubscribed = false;
                self.hear(Event::Missed, moment)
            }
            (Event::Heard(node), Some(wake_state)) => wake_state
                .hear(node, moment.majority, now)
                .then_some(Event::Due),
            (Event::Missed, Some(wake_state)) => {
                wake_state.missed();
                Some(Event::Due)
            }
            (Event::WokenUp(wake_up), Some(wake_state)) => {
                let ended = wake_state.wake_up(wake_up, now);
                self.end_turn(ended, now);
                Some(Event::Due)
            }
            // A release has called a locker without callers. If it may be in the list, it goes,
            // which wakes the next one; otherwise somebody else has sent this.
            (Event::WokenUp(_), None) => {
                self.passes |= self.listed.begin_pass();
                None
            }
            (Event::Heard(_) | Event::Missed, None) => None,
            (Event::Passed(is_off), _) => match self.listed.end_pass(is_off) {
                AfterPass::Nothing => None,
                AfterPass::Another => {
                    self.passes = true;
                    None
                }
                // The pass may have taken off a locker that waits again: no release would wake it.
                AfterPass::Ask => self.hear(Event::Missed, moment),
            },
            _ => Some(event),
        }
    }

    /// Finds out what to do next.
    fn look(&mut self, moment: &Moment<'_>) -> Option<Effect<R>> {
        let now = moment.now;
        // The servers have to hear of callers that wait for a hold here, in time.
        let until = match self.course.phase {
            Phase::Blocked { until } | Phase::Rests(Rest { until, .. }) => Some(until),
            _ => None,
        };
        self.course.phase = Phase::Looks;
        // First: until the release is sent, no client can get the lock.
        if let Some(release) = self.passed.take() {
            self.course.phase = Phase::HandsOver;
            return Some(Effect::Release(release, self.successor(now)));
        }
        let Some(head) = self.queue.first() else {
            return self.done(now);
        };
        let shares = head.call.shares();
        if self
            .holds
            .iter()
            .any(|hold| hold.is_in_other_role(&head.owner, shares))
        {
            return Some(Effect::SendBack(head.id));
        }
        if let Some(until) = self.blocked_until(shares, until, moment) {
            self.course.phase = Phase::Blocked { until };
            return Some(Effect::WakeAt {
                until,
                others: false,
            });
        }
        // A guard of its owner still lives inside: it must not get the lock as if nothing had
        // happened.
        if let Some(loss) = self.loss_of(&head.owner, now) {
            return Some(Effect::Lost(head.id, loss));
        }
        let lease = head.call.lease();
        let head = head.id;
        // The release of this locker has just woken another one, which this ask would get ahead of.
        if self
            .wake_state
            .as_mut()
            .is_some_and(|wake_state| wake_state.take_passed_on())
            && !(moment.queues && self.course.unplaced)
        {
            return self.rest_for_others(moment.look(), Then::Look, moment);
        }
        let WakeSources {
            confirmed, named, ..
        } = moment.sources;
        let lister = moment.lister;
        // It is the turn of others, or somebody waited here a moment ago. The locker is put into
        // the list at once: otherwise it would never be there as long as it is always the first to
        // ask.
        let is_contended =
            self.given(now).is_some() || lister.is_some() && (confirmed || self.turn.others_wait());
        if self.wake_state.is_none() && is_contended {
            return Some(self.listen(moment));
        }
        let begun = self
            .wake_state
            .as_mut()
            .map(|wake_state| wake_state.begin(now));
        self.end_turn(begun.and_then(|begun| begun.taken), now);
        let listing = begun
            // A locker that cannot hear its call must not be in the list: it would cost each
            // release a wait.
            .zip(lister.filter(|_| confirmed && named))
            .map(|(begun, locker)| Listing {
                locker: Arc::clone(locker),
                looked: begun.looked,
                lifetime: moment.lifetime(lease),
            });
        self.course.listing = listing.is_some();
        self.hint(shares, moment);
        // Before the answer, which may never come: the server may have put it in all the same.
        if let Some(Listing { lifetime, .. }) = &listing {
            self.listed.enter(now + *lifetime);
        }
        // The list keeps them apart.
        let first_alone = self.course.is_first_alone(now) && listing.is_none();
        (self.course.changed, self.course.unplaced) = (false, false);
        self.course.phase = Phase::Asks { sent: now };
        Some(Effect::Ask {
            head,
            first_alone,
            listing,
            listens: self.wake_state.is_some(),
        })
    }

    /// Returns how long the holds here keep a head from asking, at most.
    fn blocked_until(
        &self,
        shares: bool,
        blocked: Option<Instant>,
        moment: &Moment<'_>,
    ) -> Option<Instant> {
        let now = moment.now;
        let blocks = |hold: &&H| hold.blocks(now) && !(shares && hold.shares());
        let mut blocking = self.holds.iter().filter(blocks).peekable();
        blocking.peek()?;
        // Release and loss come as changes. This only bounds the wait (invariant 6).
        let until = now + moment.recheck;
        if moment.queues {
            let until = blocked.unwrap_or(until);
            return (!self.course.unplaced && now < until).then_some(until);
        }
        if moment.hint.is_none() || !blocking.all(RawHold::shares) {
            return Some(until);
        }
        // A writer behind the readers of its own locker asks now and then all the same: the hint
        // that it leaves keeps out the readers of others.
        let hinted = **self.course.hinted.as_ref()? + moment.recheck;
        (now < hinted).then_some(hinted)
    }

    /// Notes that a server is about to be asked to keep the hint that a writer waits.
    fn hint(&mut self, shares: bool, moment: &Moment<'_>) {
        if let Some(lasts) = moment.hint.filter(|_| !shares) {
            self.course.hinted = Some(Box::new(moment.now));
            self.listed.enter(moment.now + lasts);
        }
    }

    /// Begins to listen, or waits once more until that is confirmed. Messages are heard from here
    /// on.
    fn listen(&mut self, moment: &Moment<'_>) -> Effect<R> {
        let now = moment.now;
        let given = self.given(moment.now);
        let mut turn = None;
        if self.wake_state.is_none() {
            let wake_state = self.wake_state.insert(Box::default());
            if let Some(given) = given {
                wake_state.leave_turn(given, moment.sources.owed);
            }
            turn = wake_state.due(now);
            self.listed.begin_wait();
        }
        // The lock may be free after the turn, with a subscription or without.
        let most = now + moment.patience;
        let until = turn.map_or(most, |turn| turn.min(most));
        self.course.phase = Phase::Listens {
            until,
            in_turn: turn.is_some(),
        };
        Effect::Listen { until }
    }

    fn answered(
        &mut self,
        answer: AcquireOutcome,
        sent: Instant,
        moment: &Moment<'_>,
    ) -> Option<Effect<R>> {
        self.last_round = match answer {
            AcquireOutcome::Unavailable { .. } => LastRound::Failed,
            // One node is no majority.
            AcquireOutcome::Outrun => self.last_round,
            _ => LastRound::Answered,
        };
        self.course.note(answer, sent);
        if let (AcquireOutcome::Held { ttl, place, .. }, Some(wake_state)) =
            (answer, &mut self.wake_state)
        {
            let ends = ttl.filter(|_| !moment.ends_apart);
            wake_state.held(place, ends, moment.now);
        }
        match answer {
            AcquireOutcome::Granted | AcquireOutcome::Refused => self.look(moment),
            // A release between the answer and the subscription was not heard: once subscribed, it
            // tries again, and only then waits.
            AcquireOutcome::Held { .. } if self.wake_state.is_none() || self.course.deaf => {
                Some(self.listen(moment))
            }
            AcquireOutcome::Held {
                ttl, lasts: true, ..
            } if !self.course.named => {
                self.course.phase = Phase::Names { ttl };
                Some(Effect::Name)
            }
            AcquireOutcome::Held { ttl, .. } => self.wait(ttl, moment),
            // A caller that tries again at a different moment than the others finds it free.
            AcquireOutcome::Split => self.rest(moment.retry, false, Then::Look, moment),
            AcquireOutcome::Outrun => {
                // The other may get no further than the first node, and its release there alone
                // wakes no waiter.
                let lasts = self
                    .course
                    .outrun
                    .as_deref()
                    .map_or(Duration::ZERO, |&since| moment.now.since(since));
                let look = lasts
                    .max(moment.round_trip * MOST_COLLISIONS)
                    .mul_f64(0.5 + moment.chance);
                // There is always a pause, however near the nodes are: the lock on the first node
                // may be a leftover.
                let look = look
                    .min(OUTRUN.saturating_sub(lasts))
                    .max(Duration::from_millis(1));
                self.rest(look, self.wake_state.is_some(), Then::MakeWay, moment)
            }
            AcquireOutcome::Unavailable { ends_in: Some(end) } => {
                // Not beyond the end of the tolerance, when the callers have to be told.
                self.rest(moment.retry.min(end), false, Then::Look, moment)
            }
            AcquireOutcome::Unavailable { ends_in: None } => {
                self.course.phase = Phase::GivesUp {
                    pause: moment.retry,
                };
                Some(Effect::GiveUp {
                    came_by: Some(sent),
                })
            }
        }
    }

    /// Waits for the holder: for a message, the end of its lease, or until it is time to check.
    fn wait(&mut self, ttl: Option<Duration>, moment: &Moment<'_>) -> Option<Effect<R>> {
        // A change here while it asked: the answer may be older.
        if self.course.changed {
            return self.look(moment);
        }
        // The lease has run out once its last millisecond is over. No message arrives then.
        let delay = self
            .wake_state
            .as_ref()
            .map_or(Duration::ZERO, |wake_state| wake_state.delay());
        let ttl = ttl.map_or(moment.look(), |ttl| ttl + Duration::from_millis(1) + delay);
        self.rest_for_others(ttl.min(moment.look()), Then::MakeWayUnlessCalled, moment)
    }

    fn rest_for_others(
        &mut self,
        time: Duration,
        then: Then,
        moment: &Moment<'_>,
    ) -> Option<Effect<R>> {
        let rest = Rest {
            until: moment.now + time,
            hears: true,
            others: true,
            then,
        };
        match self.go_on(rest, moment) {
            Some(Effect::WakeAt { until, .. }) => Some(Effect::WakeAt {
                until,
                others: true,
            }),
            effect => effect,
        }
    }

    fn rest(
        &mut self,
        time: Duration,
        hears: bool,
        then: Then,
        moment: &Moment<'_>,
    ) -> Option<Effect<R>> {
        let rest = Rest {
            until: moment.now + time,
            hears,
            others: false,
            then,
        };
        self.go_on(rest, moment)
    }

    /// Continues with a rest, or ends it if its time is over or there is a reason to ask.
    fn go_on(&mut self, rest: Rest, moment: &Moment<'_>) -> Option<Effect<R>> {
        let now = moment.now;
        if self.queue.is_empty() {
            // The last caller has gone while it asked.
            return self.look(moment);
        }
        let due = self
            .wake_state
            .as_ref()
            .filter(|_| rest.hears)
            .and_then(|wake_state| wake_state.due(now));
        if due.is_none_or(|due| due > now) && rest.until > now {
            self.course.phase = Phase::Rests(rest);
            let until = due.map_or(rest.until, |due| due.min(rest.until));
            return Some(Effect::WakeAt {
                until,
                others: false,
            });
        }
        // No client has acted in all of this time. With a place, the ask drops the lockers before
        // this one.
        if let Some(wake_state) = &mut self.wake_state
            && due.is_none_or(|due| due > now)
            && rest.others
            && moment.poll.is_none()
        {
            wake_state.oversleep(now);
        }
        self.end(rest, moment)
    }

    fn end(&mut self, rest: Rest, moment: &Moment<'_>) -> Option<Effect<R>> {
        let is_called = self
            .wake_state
            .as_ref()
            .is_some_and(|wake_state| wake_state.is_called());
        match rest.then {
            Then::Look => self.look(moment),
            // A call is for this locker alone, so there is no client to keep apart from.
            Then::MakeWayUnlessCalled if is_called => self.look(moment),
            Then::MakeWay | Then::MakeWayUnlessCalled => self.make_way(moment),
        }
    }

    /// Pauses after a wake-up if this locker has met others.
    fn make_way(&mut self, moment: &Moment<'_>) -> Option<Effect<R>> {
        // All are woken at once. Random pauses, as long as the nodes are far away, keep them apart.
        let most = (moment.round_trip * self.course.collisions).min(OUTRUN);
        if most.is_zero() {
            return self.look(moment);
        }
        let until = moment.now + most.mul_f64(moment.chance);
        self.course.phase = Phase::MakesWay { until };
        Some(Effect::WakeAt {
            until,
            others: false,
        })
    }

    /// Ends what is in flight. What it may have taken is given back by whoever asked for it.
    fn stop(&mut self, moment: &Moment<'_>) -> Option<Effect<R>> {
        let Some(release) = self.passed.take() else {
            return self.look(moment);
        };
        self.course.phase = Phase::HandsOver;
        // No caller is left to hand the lock to.
        Some(Effect::Release(release, None))
    }

    fn done(&mut self, now: Instant) -> Option<Effect<R>> {
        let course = std::mem::take(&mut self.course);
        let wake_state = self.wake_state.take();
        let heard = wake_state.as_ref();
        // The list has the locker, or may have it if an answer did not come. A writer leaves its
        // hint before it listens.
        if course.hinted.is_some() || heard.is_some_and(|it| it.is_listed() || self.listed.waits())
        {
            self.pass(now);
        }
        let lingers = course.was_granted;
        wake_state.map(|_| Effect::Hush { lingers })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::claim::ReleaseAnswer;
    use crate::error::Loss;
    use crate::line::{Stays, Waiter, WakeState, WakeUp, WhoElse};
    use crate::owner::Owner;

    const MS: Duration = Duration::from_millis(1);
    const RETRY: Duration = Duration::from_millis(30);
    const POLL: Duration = Duration::from_millis(20);
    const RECHECK: Duration = Duration::from_millis(5_000);
    const PATIENCE: Duration = Duration::from_millis(1_000);
    const FAR: Duration = Duration::from_millis(20);

    #[derive(Debug, Clone, PartialEq)]
    struct Plain {
        id: u8,
        blocks: bool,
        lost_of: Option<Owner>,
    }

    impl RawHold for Plain {
        fn is(&self, other: &Self) -> bool {
            self.id == other.id
        }

        fn blocks(&self, _: Instant) -> bool {
            self.blocks
        }

        fn loss_of(&self, owner: &Owner, _: Instant) -> Option<Loss> {
            self.lost_of
                .as_ref()
                .filter(|lost| *lost == owner)
                .map(|_| Loss::Expired)
        }
    }

    fn held(id: u8) -> Plain {
        Plain {
            id,
            blocks: true,
            lost_of: None,
        }
    }

    /// A line, and the time.
    struct Tested {
        line: Line<Plain, (), u8>,
        moment: Moment<'static>,
    }

    static LOCKER: LazyLock<Arc<str>> = LazyLock::new(|| "locker".into());

    impl Tested {
        /// A line with these waiters.
        fn with(waiters: &[u64]) -> Self {
            let mut line = Line::default();
            let now = Instant::now();
            for &id in waiters {
                line.arrive(Waiter {
                    id,
                    owner: Owner::task(id),
                    since: now,
                    call: (),
                });
            }
            let moment = Moment {
                now,
                chance: 0.5,
                retry: RETRY,
                poll: None,
                recheck: RECHECK,
                lease: RECHECK * 6,
                patience: PATIENCE,
                majority: 1,
                round_trip: FAR,
                counts: true,
                lister: Some(&LOCKER),
                hint: None,
                ends_apart: false,
                queues: false,
                sources: WakeSources::default(),
            };
            Self { line, moment }
        }

        fn on(&mut self, event: Event) -> Option<Effect<u8>> {
            self.line.on(event, &self.moment)
        }

        /// Asserts that it asks for this waiter.
        fn asks(&mut self, event: Event, head: u64) {
            self.asks_of(event, head, false);
        }

        /// Asserts that it asks for this waiter, the first node alone or not. Returns whether it
        /// reports that the lockers before it do not act.
        fn asks_of(&mut self, event: Event, head: u64, alone: bool) -> bool {
            match self.on(event) {
                Some(Effect::Ask {
                    head: for_,
                    first_alone,
                    listing,
                    ..
                }) => {
                    assert_eq!((for_, first_alone), (head, alone), "{event:?}");
                    listing.is_some_and(|listing| listing.looked)
                }
                effect => panic!("{event:?} does not make it ask for {head}: {effect:?}"),
            }
        }

        fn answered(&mut self, answer: AcquireOutcome) -> Option<Effect<u8>> {
            self.on(Event::Answered(answer))
        }

        fn later(&mut self, time: Duration) {
            self.moment.now = self.moment.now + time;
        }

        fn heard(&mut self) -> &mut WakeState {
            self.line.wake_state.as_mut().expect("it listens")
        }

        /// Has it ask and listen, and ask again. Returns what it does then.
        fn waits(&mut self, ttl: Option<Duration>) -> Option<Effect<u8>> {
            self.asks(Event::Changed, 1);
            assert_eq!(self.answered(HELD), self.listens(PATIENCE));
            self.confirmed();
            self.asks(Event::Subscribed, 1);
            self.heard_held(ttl)
        }

        fn heard_held(&mut self, ttl: Option<Duration>) -> Option<Effect<u8>> {
            self.answered(AcquireOutcome::Held {
                ttl,
                place: None,
                contested: false,
                lasts: ttl.is_none(),
            })
        }

        /// Returns an effect that waits for so long.
        fn sleep(&self, time: Duration, others: bool) -> Option<Effect<u8>> {
            Some(Effect::WakeAt {
                until: self.moment.now + time,
                others,
            })
        }

        /// Returns an effect that listens, and waits for so long.
        fn listens(&self, time: Duration) -> Option<Effect<u8>> {
            Some(Effect::Listen {
                until: self.moment.now + time,
            })
        }

        /// Both channels are subscribed from here on.
        fn confirmed(&mut self) {
            self.moment.sources = WakeSources {
                asked: true,
                confirmed: true,
                owed: false,
                named: true,
            };
        }
    }

    const HELD: AcquireOutcome = AcquireOutcome::Held {
        ttl: Some(RECHECK),
        place: None,
        contested: false,
        lasts: false,
    };

    #[test]
    fn a_line_asks_for_its_head_until_nobody_is_left() {
        let mut tested = Tested::with(&[1, 2]);
        tested.asks(Event::Changed, 1);
        assert!(tested.line.leave(1).is_some());
        for event in [
            Event::Changed,
            Event::Due,
            Event::Outage,
            Event::Subscribed,
            Event::HandedOver,
        ] {
            assert_eq!(tested.on(event), None, "one ask at a time: {event:?}");
        }
        tested.asks(Event::Answered(AcquireOutcome::Refused), 2);
        assert!(tested.line.leave(2).is_some());
        assert!(!tested.line.is_empty(), "its ask has no answer");
        assert_eq!(tested.answered(AcquireOutcome::Granted), None);
        assert!(tested.line.is_empty());
    }

    #[test]
    fn nothing_is_asked_for_while_a_hold_here_may_have_the_lock() {
        let mut tested = Tested::with(&[1, 2]);
        tested.asks(Event::Changed, 1);
        let now = tested.moment.now;
        assert!(tested.line.grant(held(7), Some(1), now).is_ok());
        assert_eq!(
            tested.answered(AcquireOutcome::Granted),
            tested.sleep(RECHECK, false)
        );
        let until = tested.sleep(RECHECK, false);
        tested.later(RECHECK / 2);
        assert_eq!(tested.on(Event::Due), until);
        assert_eq!(
            tested.on(Event::Outage),
            Some(Effect::GiveUp { came_by: None })
        );
        assert_eq!(
            tested.on(Event::GaveUp(Some(MS))),
            until,
            "callers that are left keep waiting"
        );
        tested.later(RECHECK / 2);
        assert_eq!(tested.on(Event::Due), tested.sleep(RECHECK, false));
        assert!(tested.line.remove(&held(7)).is_some());
        tested.asks(Event::Changed, 2);
    }

    #[test]
    fn a_release_becomes_a_hand_over_only_if_nothing_is_under_way() {
        let mut tested = Tested::with(&[1, 2]);
        let now = tested.moment.now;
        assert_eq!(
            tested.line.release(&held(7), 3, now),
            Some(3),
            "it is no hold of this line"
        );
        assert!(tested.line.grant(held(7), None, now).is_ok());
        assert_eq!(
            tested.line.release(&held(7), 3, now),
            Some(3),
            "no task carries the line out yet"
        );
        assert_eq!(tested.on(Event::Changed), tested.sleep(RECHECK, false));
        assert_eq!(tested.line.release(&held(7), 3, now), None);
        assert_eq!(
            tested.line.release(&held(7), 4, now),
            Some(4),
            "one at a time"
        );
        assert_eq!(tested.on(Event::Changed), Some(Effect::Release(3, Some(1))));
        assert_eq!(tested.on(Event::Changed), None, "it has no answer");
        let (released, waiter) = tested.line.transfer(&held(7), held(8), 1, now);
        assert_eq!(
            (released, waiter.map(|waiter| waiter.id)),
            (Some(held(7)), Some(1))
        );
        assert_eq!(
            tested.line.release(&held(8), 5, now),
            None,
            "it may come before the line is told"
        );
        assert_eq!(tested.on(Event::Changed), None, "the outcome arrives first");
        assert_eq!(
            tested.on(Event::HandedOver),
            Some(Effect::Release(5, Some(2)))
        );
        assert!(tested.line.remove(&held(8)).is_some());
        tested.asks(Event::HandedOver, 2);
        assert!(tested.line.grant(held(9), Some(2), now).is_ok());
        tested.line.turn.note_others(WhoElse::Told);
        assert_eq!(
            tested.line.release(&held(9), 6, now),
            Some(6),
            "others have a turn"
        );
    }

    #[test]
    fn a_lock_is_not_handed_over_to_nobody_or_beside_another_hold() {
        for case in 0..3 {
            let mut tested = Tested::with(&[1]);
            let now = tested.moment.now;
            assert!(tested.line.grant(held(7), None, now).is_ok());
            assert!(tested.on(Event::Changed).is_some());
            assert_eq!(tested.line.release(&held(7), 3, now), None);
            let blocks = case == 1;
            let lost_of = Some(Owner::task(1)).filter(|_| case == 2);
            match case {
                0 => assert!(tested.line.leave(1).is_some()),
                _ => assert!(
                    tested
                        .line
                        .grant(
                            Plain {
                                id: 8,
                                blocks,
                                lost_of
                            },
                            None,
                            now
                        )
                        .is_ok()
                ),
            }
            assert_eq!(
                tested.on(Event::Changed),
                Some(Effect::Release(3, None)),
                "{case}"
            );
        }
    }

    #[test]
    fn a_waiter_whose_owner_lost_a_hold_is_told_and_the_next_comes() {
        let mut tested = Tested::with(&[1, 2]);
        let lost = Plain {
            id: 7,
            blocks: false,
            lost_of: Some(Owner::task(1)),
        };
        let now = tested.moment.now;
        assert!(tested.line.grant(lost, None, now).is_ok());
        assert_eq!(
            tested.on(Event::Changed),
            Some(Effect::Lost(1, Loss::Expired))
        );
        assert!(tested.line.leave(1).is_some());
        tested.asks(Event::Changed, 2);
    }

    #[test]
    fn a_wait_ends_with_a_message_or_the_lease_or_the_recheck() {
        for (ttl, time) in [(1_000, 1_001), (60_000, 5_000)] {
            let mut tested = Tested::with(&[1]);
            let effect = tested.waits(Some(MS * ttl));
            assert_eq!(effect, tested.sleep(MS * time, true));
            let until = tested.sleep(MS * time, false);
            assert_eq!(tested.on(Event::Due), until, "a message about nothing");
            tested.later(MS * time);
            tested.asks(Event::Due, 1);
        }
        let mut tested = Tested::with(&[1]);
        assert!(tested.waits(Some(RECHECK)).is_some());
        let now = tested.moment.now;
        tested.heard().message(now);
        tested.asks(Event::Due, 1);
        tested.heard().wake_up(WakeUp::Watch, now);
        let effect = tested.heard_held(Some(RECHECK));
        assert_eq!(
            effect,
            tested.sleep(MS * 20, true),
            "it watches the one before it"
        );
    }

    #[test]
    fn a_line_whose_last_caller_goes_while_it_asks_does_not_wait() {
        for ttl in [Some(RECHECK), None] {
            let mut tested = Tested::with(&[1]);
            tested.asks(Event::Changed, 1);
            assert!(tested.answered(HELD).is_some());
            tested.confirmed();
            tested.asks(Event::Subscribed, 1);
            assert!(tested.line.leave(1).is_some());
            assert_eq!(tested.on(Event::Changed), None);
            let mut effect = tested.heard_held(ttl);
            if effect == Some(Effect::Name) {
                effect = tested.on(Event::Named(true));
            }
            assert_eq!(effect, Some(Effect::Hush { lingers: false }));
        }
    }

    #[test]
    fn a_wait_in_which_nobody_acts_makes_the_locker_report_it() {
        for (poll, looked) in [(None, true), (Some(POLL), false)] {
            let mut tested = Tested::with(&[1]);
            tested.moment.poll = poll;
            assert!(tested.waits(Some(RECHECK)).is_some());
            let now = tested.moment.now;
            tested.heard().held(Some(2), Some(RECHECK), now);
            tested.later(RECHECK);
            assert_eq!(tested.asks_of(Event::Due, 1, false), looked);
        }
    }

    /// Their clients send no message.
    #[test]
    fn locks_of_clients_that_tell_nobody_are_polled() {
        let mut tested = Tested::with(&[1]);
        tested.moment.poll = Some(POLL);
        let effect = tested.waits(Some(RECHECK));
        assert_eq!(effect, tested.sleep(POLL, true));
    }

    #[test]
    fn a_locker_that_met_others_asks_one_node_alone_and_makes_way() {
        let mut tested = Tested::with(&[1]);
        tested.moment.lister = None;
        assert!(tested.waits(Some(RECHECK)).is_some());
        tested.later(RECHECK);
        tested.asks(Event::Due, 1);
        for _ in 0..10 {
            assert_eq!(
                tested.answered(AcquireOutcome::Split),
                tested.sleep(RETRY, false)
            );
            tested.later(RETRY);
            tested.asks_of(Event::Due, 1, true);
        }
        assert!(
            tested.heard_held(Some(RECHECK)).is_some(),
            "it still has met others"
        );
        let now = tested.moment.now;
        tested.heard().message(now);
        let until = now + FAR * 8 / 2;
        let makes_way = Some(Effect::WakeAt {
            until,
            others: false,
        });
        assert_eq!(
            tested.on(Event::Due),
            makes_way,
            "eight round trips at most, by chance"
        );
        assert_eq!(
            (tested.on(Event::Changed), tested.on(Event::Due)),
            (None, makes_way)
        );
        tested.later(FAR * 4);
        tested.asks_of(Event::Due, 1, true);
        assert!(tested.heard_held(Some(RECHECK)).is_some());
        tested.heard().held(Some(1), None, now);
        tested.heard().wake_up(WakeUp::Go, now);
        tested.asks_of(Event::Due, 1, true);
        assert!(tested.line.grant(held(7), Some(1), now).is_ok());
        assert_eq!(
            tested.answered(AcquireOutcome::Granted),
            Some(Effect::Hush { lingers: true })
        );
        tested.line.arrive(Waiter {
            id: 9,
            owner: Owner::task(9),
            since: now,
            call: (),
        });
        assert!(tested.line.remove(&held(7)).is_some());
        tested.asks(Event::Changed, 9);
    }

    #[test]
    fn all_nodes_are_asked_if_others_won_at_the_first_for_too_long() {
        let mut tested = Tested::with(&[1]);
        let begun = tested.moment.now;
        tested.asks(Event::Changed, 1);
        let mut asked = 1;
        loop {
            let Some(Effect::WakeAt {
                until,
                others: false,
            }) = tested.answered(AcquireOutcome::Outrun)
            else {
                panic!("there is a pause, however near the nodes are");
            };
            tested.moment.now = until;
            let Some(Effect::WakeAt {
                until,
                others: false,
            }) = tested.on(Event::Due)
            else {
                panic!("it has met others")
            };
            tested.moment.now = until;
            match tested.on(Event::Due) {
                Some(Effect::Ask {
                    first_alone: true, ..
                }) => asked += 1,
                Some(Effect::Ask {
                    head: 1,
                    first_alone: false,
                    ..
                }) => break,
                effect => panic!("{effect:?}"),
            }
        }
        assert!((2..10).contains(&asked), "{asked}");
        assert!(tested.moment.now.since(begun) >= OUTRUN);
        assert_eq!(
            tested.answered(AcquireOutcome::Split),
            tested.sleep(RETRY, false)
        );
    }

    #[test]
    fn callers_are_given_up_once_an_outage_has_lasted_too_long() {
        let mut tested = Tested::with(&[1]);
        let sent = tested.moment.now;
        tested.asks(Event::Changed, 1);
        let ends_in = Some(MS * 7);
        assert_eq!(
            tested.answered(AcquireOutcome::Unavailable { ends_in }),
            tested.sleep(MS * 7, false)
        );
        assert_eq!(tested.line.last_round(), LastRound::Failed);
        assert_eq!(
            tested.on(Event::Outage),
            Some(Effect::GiveUp { came_by: None })
        );
        assert_eq!(tested.on(Event::GaveUp(None)), tested.sleep(MS * 7, false));
        tested.later(MS * 7);
        tested.asks(Event::Due, 1);
        let sent = sent + MS * 7;
        tested.later(MS * 100);
        let gives_up = Some(Effect::GiveUp {
            came_by: Some(sent),
        });
        assert_eq!(
            tested.answered(AcquireOutcome::Unavailable { ends_in: None }),
            gives_up
        );
        assert_eq!(
            tested.on(Event::GaveUp(Some(MS))),
            tested.sleep(MS, false),
            "they get a round of their own"
        );
        tested.later(MS);
        tested.asks(Event::Due, 1);
        assert!(
            tested
                .answered(AcquireOutcome::Unavailable { ends_in: None })
                .is_some()
        );
        assert!(tested.line.leave(1).is_some());
        assert_eq!(tested.on(Event::GaveUp(None)), None);
    }

    #[test]
    fn a_holder_whose_lock_lasts_is_named_once() {
        let mut tested = Tested::with(&[1]);
        assert_eq!(tested.waits(None), Some(Effect::Name));
        for (named, effect) in [(false, Some(Effect::Name)), (true, None)] {
            assert_eq!(tested.on(Event::Named(named)), tested.sleep(RECHECK, true));
            tested.later(RECHECK);
            tested.asks(Event::Due, 1);
            let waits = tested.heard_held(None);
            assert_eq!(waits, effect.or(tested.sleep(RECHECK, true)));
        }
    }

    #[test]
    fn a_locker_listens_before_it_asks_if_others_may_wait() {
        for (confirmed, told, listed) in [
            (true, false, true),
            (false, true, true),
            (false, false, true),
            (true, true, false),
        ] {
            let mut tested = Tested::with(&[1]);
            tested.moment.sources.confirmed = confirmed;
            tested.moment.lister = tested.moment.lister.filter(|_| listed);
            if told {
                tested.line.turn.note_others(WhoElse::Listed { before: 1 });
            }
            let listens = listed && (confirmed || told);
            let expected = tested.listens(PATIENCE).filter(|_| listens);
            assert_eq!(
                tested
                    .on(Event::Changed)
                    .filter(|effect| matches!(effect, Effect::Listen { .. })),
                expected
            );
        }
    }

    /// Has this locker release a lock, so that others have a turn.
    fn gives_a_turn(tested: &mut Tested) {
        assert!(
            tested
                .line
                .begin_release(RECHECK, &tested.moment)
                .is_some_and(|releaser| releaser.offers.is_some())
        );
        tested
            .line
            .released(&ReleaseAnswer::Released(1), &tested.moment);
        assert!(tested.line.has_given_turn(tested.moment.now));
    }

    #[test]
    fn a_locker_whose_release_woke_others_waits_for_them() {
        let mut tested = Tested::with(&[1]);
        gives_a_turn(&mut tested);
        assert_eq!(tested.on(Event::Changed), tested.listens(MS * 10));
        tested.confirmed();
        assert_eq!(tested.on(Event::Subscribed), tested.sleep(MS * 10, true));
        tested.later(MS * 10);
        tested.asks(Event::Due, 1);
    }

    /// The subscription is waited for no longer than the turn lasts.
    #[test]
    fn a_line_that_may_have_missed_a_message_listens_before_waiting() {
        let mut tested = Tested::with(&[1]);
        gives_a_turn(&mut tested);
        assert_eq!(tested.on(Event::Changed), tested.listens(MS * 10));
        assert_eq!(tested.on(Event::Subscribed), None, "not by a majority");
        tested.later(MS * 10);
        tested.asks(Event::Due, 1);
        assert_eq!(tested.heard_held(Some(RECHECK)), tested.listens(PATIENCE));
        tested.confirmed();
        tested.asks(Event::Subscribed, 1);
        assert_eq!(
            tested.heard_held(Some(RECHECK)),
            tested.sleep(RECHECK, true)
        );
    }

    #[test]
    fn a_subscription_is_waited_for_no_longer_than_a_command_takes() {
        let mut tested = Tested::with(&[1]);
        tested.asks(Event::Changed, 1);
        let until = tested.moment.now + PATIENCE;
        assert_eq!(tested.answered(HELD), Some(Effect::Listen { until }));
        tested.later(PATIENCE / 2);
        assert_eq!(
            tested.on(Event::Due),
            Some(Effect::WakeAt {
                until,
                others: false
            })
        );
        tested.later(PATIENCE / 2);
        tested.asks(Event::Due, 1);
    }

    /// A message may have been missed since the last ask.
    #[test]
    fn a_line_asks_once_a_late_subscription_is_confirmed() {
        let mut tested = Tested::with(&[1]);
        tested.asks(Event::Changed, 1);
        assert_eq!(tested.answered(HELD), tested.listens(PATIENCE));
        tested.later(PATIENCE);
        tested.asks(Event::Due, 1);
        assert_eq!(
            tested.heard_held(Some(RECHECK)),
            tested.sleep(RECHECK, true)
        );
        assert_eq!(tested.on(Event::Subscribed), None, "not by a majority");
        tested.confirmed();
        tested.asks(Event::Subscribed, 1);
        assert_eq!(tested.on(Event::Subscribed), None, "once");
        assert_eq!(
            tested.heard_held(Some(RECHECK)),
            tested.sleep(RECHECK, true)
        );
    }

    /// Each one's message says nothing by itself: the lock is not free on a majority.
    #[test]
    fn a_majoritys_messages_since_the_last_ask_are_a_reason_to_ask() {
        let mut tested = Tested::with(&[1]);
        (tested.moment.majority, tested.moment.lister) = (2, None);
        assert!(tested.waits(Some(RECHECK)).is_some());
        for node in [0, 0] {
            assert_eq!(tested.on(Event::Heard(node)), None, "the same server twice");
        }
        tested.later(RECHECK);
        tested.asks(Event::Due, 1);
        assert!(tested.heard_held(Some(RECHECK)).is_some());
        assert_eq!(
            tested.on(Event::Heard(2)),
            None,
            "the other one was heard before the last ask"
        );
        tested.asks(Event::Heard(1), 1);
    }

    #[test]
    fn a_locker_is_taken_off_a_list_in_which_nobody_waits_for_it() {
        let mut tested = Tested::with(&[1]);
        assert_eq!(tested.on(Event::WokenUp(WakeUp::Go)), None);
        assert!(
            !tested.line.take_pass(),
            "it never asked to be put into that list"
        );
        assert!(tested.waits(Some(RECHECK)).is_some());
        assert!(tested.line.leave(1).is_some());
        assert_eq!(
            tested.on(Event::Changed),
            Some(Effect::Hush { lingers: false })
        );
        assert!(tested.line.take_pass() && !tested.line.take_pass());
        assert!(
            tested.line.is_idle() && !tested.line.is_empty(),
            "it may be there until the server has answered"
        );
        tested.on(Event::WokenUp(WakeUp::Go));
        assert!(!tested.line.take_pass(), "one is in flight");
        assert_eq!(tested.on(Event::Passed(false)), None);
        tested.on(Event::WokenUp(WakeUp::Go));
        assert!(tested.line.take_pass());
        assert_eq!(tested.on(Event::Passed(true)), None);
        assert!(tested.line.is_empty());
    }

    /// A server may execute the two in either order. The others would pass the lock on among
    /// themselves until the re-check.
    #[test]
    fn a_line_asks_again_after_a_pass_under_way_when_it_asked() {
        let mut tested = Tested::with(&[1]);
        assert!(tested.waits(Some(RECHECK)).is_some() && tested.line.leave(1).is_some());
        assert!(tested.on(Event::Changed).is_some() && tested.line.take_pass());
        let id = 2;
        let owner = Owner::task(2);
        let since = tested.moment.now;
        assert!(tested.line.arrive(Waiter {
            id,
            owner,
            since,
            call: ()
        }));
        assert!(matches!(
            tested.on(Event::Changed),
            Some(Effect::Listen { .. })
        ));
        tested.asks(Event::Subscribed, 2);
        assert_eq!(tested.on(Event::Passed(true)), None);
        assert!(
            tested
                .heard_held(Some(RECHECK))
                .is_none_or(|effect| matches!(effect, Effect::Ask { head: 2, .. }))
        );
    }

    /// Clients of other languages poll.
    #[test]
    fn the_number_of_subscribers_says_nothing_where_waiters_poll() {
        for counts in [true, false] {
            let mut tested = Tested::with(&[]);
            tested.moment.counts = counts;
            tested
                .line
                .released(&ReleaseAnswer::Released(1), &tested.moment);
            assert_eq!(tested.line.others_wait(), counts);
        }
    }

    #[test]
    fn a_line_is_kept_for_as_long_as_it_remembers_something() {
        let mut tested = Tested::with(&[]);
        let now = tested.moment.now;
        assert!(tested.line.grant(held(7), None, now).is_ok());
        gives_a_turn(&mut tested);
        assert_eq!(tested.line.stays(now), Stays::InUse);
        assert!(tested.line.remove(&held(7)).is_some());
        let minute = Duration::from_secs(60);
        assert_eq!(tested.line.stays(now), Stays::Until(now + minute));
        assert_eq!(tested.line.stays(now + minute), Stays::No);
        assert!(tested.line.is_empty());
    }

    /// A caller that took the lock past the line has released it while the line asked. Its message
    /// is taken for that of an own release, and no other client is told. With `replica_acks` the
    /// answer to the ask comes by another connection than that to the release, and so may come
    /// after it.
    #[test]
    fn a_hold_that_ends_while_the_line_asks_is_no_reason_to_wait() {
        let mut tested = Tested::with(&[1]);
        assert!(tested.waits(Some(RECHECK)).is_some());
        tested.later(RECHECK);
        tested.asks(Event::Due, 1);
        let now = tested.moment.now;
        assert!(tested.line.grant(held(7), None, now).is_ok());
        tested.line.begin_release(RECHECK, &tested.moment);
        assert_eq!(tested.on(Event::Heard(0)), None);
        tested
            .line
            .released(&ReleaseAnswer::Released(1), &tested.moment);
        assert_eq!(tested.on(Event::Due), None);
        assert!(tested.line.remove(&held(7)).is_some());
        assert_eq!(tested.on(Event::Changed), None, "it asks");
        let effect = tested.heard_held(Some(RECHECK * 6));
        assert!(
            matches!(effect, Some(Effect::Ask { head: 1, .. })),
            "the lock is free: {effect:?}"
        );
        assert_eq!(
            tested.heard_held(Some(RECHECK * 6)),
            tested.sleep(RECHECK, true),
            "once"
        );
    }

    /// A line that only remembers what others did with their turns knows nothing of who waits now.
    #[test]
    fn a_line_that_begins_anew_asks_for_a_free_lock_at_once() {
        let mut tested = Tested::with(&[]);
        let now = tested.moment.now;
        assert!(tested.line.grant(held(7), None, now).is_ok());
        gives_a_turn(&mut tested);
        assert!(tested.line.remove(&held(7)).is_some());
        tested.later(Duration::from_secs(50));
        assert_eq!(
            tested.line.stays(tested.moment.now),
            Stays::Until(now + Duration::from_secs(60))
        );
        let id = 1;
        let owner = Owner::task(1);
        let since = tested.moment.now;
        assert!(tested.line.arrive(Waiter {
            id,
            owner,
            since,
            call: ()
        }));
        tested.asks(Event::Changed, 1);
    }

    #[test]
    fn a_line_whose_ask_has_no_outcome_leaves_nothing() {
        let mut tested = Tested::with(&[1]);
        let now = tested.moment.now;
        tested.asks(Event::Changed, 1);
        assert!(tested.line.grant(held(7), None, now).is_ok());
        assert_eq!(tested.line.release(&held(7), 3, now), Some(3), "it asks");
        assert!(tested.line.leave(1).is_some());
        assert_eq!(tested.on(Event::Stopped), None);
        assert!(tested.line.remove(&held(7)).is_some() && tested.line.is_empty());
    }

    /// It was passed between the grant and the outcome, which never comes.
    #[test]
    fn a_passed_release_is_sent_though_the_ask_has_no_outcome() {
        let mut tested = Tested::with(&[1, 2]);
        let now = tested.moment.now;
        tested.asks(Event::Changed, 1);
        assert!(tested.line.grant(held(7), Some(1), now).is_ok());
        assert_eq!(tested.line.release(&held(7), 3, now), None);
        assert_eq!(tested.on(Event::Changed), None);
        assert_eq!(tested.on(Event::Stopped), Some(Effect::Release(3, None)));
        assert!(tested.line.remove(&held(7)).is_some());
        tested.asks(Event::HandedOver, 2);
    }

    /// A line of a fair lock with these waiters.
    fn in_queue(waiters: &[u64]) -> Tested {
        let mut tested = Tested::with(waiters);
        let moment = &mut tested.moment;
        (moment.queues, moment.ends_apart) = (true, true);
        (moment.counts, moment.lister) = (false, None);
        tested
    }

    fn comes(tested: &mut Tested, id: u64) {
        tested.line.arrive(Waiter {
            id,
            owner: Owner::task(id),
            since: tested.moment.now,
            call: (),
        });
    }

    #[test]
    fn a_fair_caller_keeps_its_place_behind_a_hold_of_its_locker() {
        let mut tested = in_queue(&[1]);
        tested.asks(Event::Changed, 1);
        let now = tested.moment.now;
        assert!(tested.line.grant(held(7), Some(1), now).is_ok());
        assert_eq!(tested.answered(AcquireOutcome::Granted), None);
        comes(&mut tested, 2);
        tested.asks(Event::Changed, 2);
        assert_eq!(tested.answered(HELD), tested.listens(PATIENCE));
        tested.confirmed();
        let blocked = tested.sleep(RECHECK, false);
        assert_eq!(tested.on(Event::Subscribed), blocked, "it has its place");
        comes(&mut tested, 3);
        tested.asks(Event::Changed, 2);
        assert_eq!(
            tested.heard_held(Some(RECHECK * 6)),
            tested.sleep(RECHECK, true)
        );
        tested.later(RECHECK);
        tested.asks(Event::Due, 2);
    }

    /// The one that is next is called, here or elsewhere.
    #[test]
    fn a_fair_release_that_has_called_somebody_is_no_reason_to_ask() {
        for (called, came) in [(true, false), (true, true), (false, false)] {
            let mut tested = in_queue(&[2]);
            let now = tested.moment.now;
            assert!(tested.line.grant(held(7), None, now).is_ok());
            tested.asks(Event::Changed, 2);
            assert_eq!(tested.answered(HELD), tested.listens(PATIENCE));
            tested.confirmed();
            assert!(tested.on(Event::Subscribed).is_some());
            if came {
                assert_eq!(
                    tested.on(Event::WokenUp(WakeUp::Go)),
                    tested.sleep(RECHECK, false),
                    "the release has no answer yet"
                );
            }
            let release = ReleaseAnswer::Released(called.into());
            tested.line.released(&release, &tested.moment);
            assert!(tested.line.remove(&held(7)).is_some());
            if called && !came {
                assert_eq!(tested.on(Event::Changed), tested.sleep(RECHECK, true));
                tested.asks(Event::WokenUp(WakeUp::Go), 2);
            } else {
                tested.asks(Event::Changed, 2);
            }
        }
    }

    #[test]
    fn callers_of_a_fair_lock_that_come_in_an_outage_end_no_pause() {
        let mut tested = in_queue(&[1]);
        tested.asks(Event::Changed, 1);
        let away = AcquireOutcome::Unavailable {
            ends_in: Some(PATIENCE),
        };
        assert_eq!(tested.answered(away), tested.sleep(RETRY, false));
        comes(&mut tested, 2);
        assert_eq!(tested.on(Event::Changed), tested.sleep(RETRY, false));
        tested.later(RETRY);
        tested.asks(Event::Due, 1);
    }

    /// A hold of a reader.
    #[derive(Debug, Clone, PartialEq)]
    struct Reads(u8);

    impl RawHold for Reads {
        fn is(&self, other: &Self) -> bool {
            self == other
        }

        fn blocks(&self, _: Instant) -> bool {
            true
        }

        fn loss_of(&self, _: &Owner, _: Instant) -> Option<Loss> {
            None
        }

        fn shares(&self) -> bool {
            true
        }
    }

    /// Whether a caller reads.
    impl Wants for bool {
        fn lease(&self) -> Duration {
            RECHECK * 6
        }

        fn shares(&self) -> bool {
            *self
        }
    }

    /// A line of readers and writers, and the time.
    fn among(callers: &[bool]) -> (Line<Reads, bool, u8>, Moment<'static>) {
        let mut line = Line::default();
        let Tested { mut moment, .. } = Tested::with(&[]);
        (moment.hint, moment.counts, moment.lister) = (Some(RECHECK * 2), false, None);
        for (id, reads) in (1..).zip(callers) {
            line.arrive(Waiter {
                id,
                owner: Owner::task(id),
                since: moment.now,
                call: *reads,
            });
        }
        (line, moment)
    }

    fn asks(effect: Option<&Effect<u8>>) -> Option<u64> {
        match effect {
            Some(Effect::Ask { head, .. }) => Some(*head),
            _ => None,
        }
    }

    const HELD_BY_OTHERS: Event = Event::Answered(AcquireOutcome::Held {
        ttl: Some(RECHECK),
        place: None,
        contested: false,
        lasts: false,
    });

    #[test]
    fn readers_ask_beside_readers_and_a_writer_now_and_then_behind() {
        let (mut line, mut moment) = among(&[true, true, false]);
        assert_eq!(asks(line.on(Event::Changed, &moment).as_ref()), Some(1));
        for reader in [1, 2] {
            assert!(line.grant(Reads(1), Some(reader), moment.now).is_ok());
            let next = line.on(Event::Answered(AcquireOutcome::Granted), &moment);
            assert_eq!(
                asks(next.as_ref()),
                Some(reader + 1),
                "the writer leaves its hint"
            );
        }
        assert!(line.on(HELD_BY_OTHERS, &moment).is_some());
        let until = moment.now + RECHECK;
        moment.now = moment.now + PATIENCE;
        let waits = Some(Effect::WakeAt {
            until,
            others: false,
        });
        assert_eq!(
            line.on(Event::Due, &moment),
            waits,
            "its own readers are there"
        );
        moment.now = until;
        assert_eq!(
            asks(line.on(Event::Due, &moment).as_ref()),
            Some(3),
            "it renews the hint"
        );
    }

    /// The ask may leave the hint after that.
    #[test]
    fn a_hint_is_withdrawn_once_none_waits_and_nothing_is_asked_for() {
        let (mut line, moment) = among(&[false, true]);
        assert_eq!(asks(line.on(Event::Changed, &moment).as_ref()), Some(1));
        assert!(line.leave(1).is_some() && line.has_spare_hint());
        assert_eq!(line.on(Event::Changed, &moment), None);
        assert!(!line.take_pass(), "the answer is yet to come");
        assert!(line.on(HELD_BY_OTHERS, &moment).is_some());
        assert!(line.take_pass() && !line.take_pass() && !line.has_spare_hint());
    }

    /// It does not listen before it knows that the lock is held.
    #[test]
    fn a_hint_of_a_writer_that_asked_once_and_left_is_withdrawn() {
        let (mut line, moment) = among(&[false]);
        assert_eq!(asks(line.on(Event::Changed, &moment).as_ref()), Some(1));
        assert!(line.leave(1).is_some());
        assert_eq!(
            line.on(Event::Answered(AcquireOutcome::Refused), &moment),
            None
        );
        assert!(line.take_pass());
    }

    #[test]
    fn a_hint_of_a_writer_that_listens_and_leaves_is_withdrawn() {
        let (mut line, moment) = among(&[false]);
        assert_eq!(asks(line.on(Event::Changed, &moment).as_ref()), Some(1));
        assert!(line.on(HELD_BY_OTHERS, &moment).is_some());
        assert!(line.leave(1).is_some());
        let hush = Some(Effect::Hush { lingers: false });
        assert_eq!(line.on(Event::Stopped, &moment), hush);
        assert!(line.take_pass());
    }
}
