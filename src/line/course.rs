//! What is under way for a line, and what follows: when to ask the servers, to listen, to wait, and to give up.
//!
//! # Invariants
//! - At most one effect is under way, so at most one command of a line has no answer.
//! - Nothing is asked for while a hold of this locker may have the lock.
//! - Every wait has an end, and after every wait the line looks again.

use std::time::Duration;

use super::{Answer, Effect, Event, Held, LastRound, Line, Moment};
use crate::clock::Instant;

/// The pause before an attempt grows with each failed one in a row, up to this many round trips.
const MOST_COLLISIONS: u32 = 8;

/// How long others may be faster at the first node before all nodes are asked: the lock on the first node may be a
/// leftover.
const OUTRUN: Duration = Duration::from_millis(500);

/// How a line came to where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Course {
    pub(super) phase: Phase,
    /// How many attempts in a row met others that wanted the lock at the same time and got some nodes, or the first
    /// one.
    collisions: u32,
    /// Since when others have been faster at the first node, while nothing is known about the other nodes.
    outrun: Option<Instant>,
    /// Whether a turn of others ended before the channel was subscribed: a message may have been missed.
    deaf: bool,
    /// Whether a holder whose lock outlasts every lease has been logged.
    named: bool,
}

/// What is under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    #[default]
    Idle,
    /// A waiter is told of a loss: the line looks next.
    Looks,
    /// A waiter has got the lock, and the outcome of what was asked for it is the next event. A change before that must
    /// not be looked at: the outcome would be taken for that of the effect that followed.
    Granted,
    /// A hold here has the lock. Its release and its loss are changes; the time limit is a safety net.
    Blocked {
        until: Instant,
    },
    Listens,
    Asks {
        sent: Instant,
    },
    HandsOver,
    /// The holder, which has the lock for this time.
    Names {
        ttl: Option<Duration>,
    },
    /// Callers that came before the round are told of an outage. With callers left, a pause follows.
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
    /// Others have the lock, or had it offered: the engine need not stay awake, and if nobody acts in this time, the
    /// lockers before this one in the list do not.
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
    /// Records that a waiter has the lock. Its release may come before the next step, which finds it first.
    pub(super) fn granted(&mut self) {
        if self.phase != Phase::Idle {
            self.phase = Phase::Granted;
        }
    }

    /// Returns whether the line waits for a hold of its locker, or is about to look: it asks for nothing before it has
    /// looked.
    pub(super) fn is_unasked(&self) -> bool {
        matches!(self.phase, Phase::Looks | Phase::Granted | Phase::Blocked { .. })
    }

    /// Notes what an answer says about others that want the lock too.
    fn note(&mut self, answer: Answer, sent: Instant) {
        self.collisions = match answer {
            Answer::Held { contested: true, .. } | Answer::Split | Answer::Outrun => {
                (self.collisions + 1).min(MOST_COLLISIONS)
            }
            // The others wait for the same holder.
            Answer::Held { contested: false, .. } => self.collisions,
            Answer::Granted | Answer::Refused | Answer::Unavailable { .. } => 0,
        };
        self.outrun = match answer {
            Answer::Outrun => self.outrun.or(Some(sent)),
            _ => None,
        };
    }

    /// Returns whether the first node is asked alone. If several lockers are woken by one message and ask all nodes at
    /// once, each may get the nodes near it, and then none has a majority. So a locker that has met others asks the
    /// first node alone.
    fn is_first_alone(&self, now: Instant) -> bool {
        let outrun = self.outrun.is_some_and(|since| now.since(since) >= OUTRUN);
        self.collisions > 0 && !outrun
    }
}

impl<H: Held, C, R> Line<H, C, R> {
    /// Takes in an event. Returns what has to be done now.
    pub(crate) fn on(&mut self, event: Event, moment: &Moment) -> Option<Effect<R>> {
        let now = moment.now;
        match (event, self.course.phase) {
            (Event::Stopped, _) => self.stop(),
            (Event::Answered(answer), Phase::Asks { sent }) => self.answered(answer, sent, moment),
            (Event::Answered(answer), Phase::Granted) => self.answered(answer, now, moment),
            (Event::Subscribed { deaf }, Phase::Listens) => {
                self.course.deaf = deaf;
                self.look(moment)
            }
            (Event::HandedOver, Phase::HandsOver | Phase::Granted) => self.look(moment),
            (Event::Named(named), Phase::Names { ttl }) => {
                self.course.named |= named;
                self.wait(ttl, moment)
            }
            (Event::GaveUp(next), Phase::GivesUp { pause }) => match next {
                // Callers that came while the round was under way get a round of their own.
                Some(next) => self.rest(pause.min(next), false, Then::Look, moment),
                None => self.look(moment),
            },
            (Event::Outage, Phase::Blocked { .. } | Phase::Rests(_)) => Some(Effect::GiveUp { came_by: None }),
            (Event::Changed, Phase::Rests(rest)) if !self.queue.is_empty() => self.end(rest, moment),
            (Event::Changed, Phase::Idle | Phase::Looks | Phase::Blocked { .. } | Phase::Rests(_)) => self.look(moment),
            // Callers that are left after an outage still have time of their own, so the wait goes on: otherwise each
            // announcement would cost a round.
            (Event::Due | Event::GaveUp(_), Phase::Blocked { until }) => {
                if until <= now {
                    return self.look(moment);
                }
                Some(Effect::Sleep { until, hears: false, others: false })
            }
            (Event::Due | Event::GaveUp(_), Phase::Rests(rest)) => self.go_on(rest, moment),
            (Event::Due | Event::Changed, Phase::MakesWay { until }) => {
                if until <= now {
                    return self.look(moment);
                }
                Some(Effect::Pause(until))
            }
            // Something else is under way, and the line looks when that has ended.
            _ => None,
        }
    }

    /// Finds out what to do next.
    fn look(&mut self, moment: &Moment) -> Option<Effect<R>> {
        let now = moment.now;
        self.course.phase = Phase::Looks;
        if let Some(release) = self.passed.take() {
            self.course.phase = Phase::HandsOver;
            return Some(Effect::Release(release, self.successor(now)));
        }
        let Some(head) = self.queue.first() else {
            self.course = Course::default();
            return Some(self.done());
        };
        if self.holds.iter().any(|hold| hold.blocks(now)) {
            let until = now + moment.recheck;
            self.course.phase = Phase::Blocked { until };
            return Some(Effect::Sleep { until, hears: false, others: false });
        }
        if let Some(loss) = self.loss_of(&head.owner, now) {
            return Some(Effect::Lost(head.id, loss));
        }
        let head = head.id;
        if self.seat.as_mut().is_some_and(|news| news.take_passed_on()) {
            return self.rest_for_others(moment.look(), Then::Look, moment);
        }
        // The locker is put into the list at once: otherwise it would never be there as long as it is always the first
        // to ask.
        if self.seat.is_none() && (moment.contended || moment.lists && self.turn.others_wait()) {
            return Some(self.listen());
        }
        let first_alone = self.course.is_first_alone(now);
        self.course.phase = Phase::Asks { sent: now };
        let begun = self.seat.as_mut().map(|news| news.begin(now));
        Some(Effect::Ask { head, first_alone, begun })
    }

    /// Messages are heard from here on.
    fn listen(&mut self) -> Effect<R> {
        self.course.phase = Phase::Listens;
        self.seat.get_or_insert_default();
        Effect::Listen
    }

    fn answered(&mut self, answer: Answer, sent: Instant, moment: &Moment) -> Option<Effect<R>> {
        self.last_round = match answer {
            Answer::Unavailable { .. } => LastRound::Failed,
            // One node is no majority.
            Answer::Outrun => self.last_round,
            _ => LastRound::Answered,
        };
        self.course.note(answer, sent);
        if let (Answer::Held { ttl, place, .. }, Some(news)) = (answer, &mut self.seat) {
            news.held(place, ttl, moment.now);
        }
        match answer {
            Answer::Granted | Answer::Refused => self.look(moment),
            // A release between the answer and the subscription was not heard: once subscribed, it tries again, and
            // only then waits.
            Answer::Held { .. } if self.seat.is_none() || self.course.deaf => Some(self.listen()),
            Answer::Held { ttl, lasts: true, .. } if !self.course.named => {
                self.course.phase = Phase::Names { ttl };
                Some(Effect::Name)
            }
            Answer::Held { ttl, .. } => self.wait(ttl, moment),
            // A caller that tries again at a different moment than the others finds it free.
            Answer::Split => self.rest(moment.retry, false, Then::Look, moment),
            Answer::Outrun => {
                // The other may get no further than the first node, and its release there alone wakes nobody.
                let lasts = self.course.outrun.map_or(Duration::ZERO, |since| moment.now.since(since));
                let look = lasts.max(moment.round_trip * MOST_COLLISIONS).mul_f64(0.5 + moment.chance);
                // There is always a pause, however near the nodes are: the lock on the first node may be a leftover.
                let look = look.min(OUTRUN.saturating_sub(lasts)).max(Duration::from_millis(1));
                self.rest(look, self.seat.is_some(), Then::MakeWay, moment)
            }
            Answer::Unavailable { ends_in: Some(end) } => self.rest(moment.retry.min(end), false, Then::Look, moment),
            Answer::Unavailable { ends_in: None } => {
                self.course.phase = Phase::GivesUp { pause: moment.retry };
                Some(Effect::GiveUp { came_by: Some(sent) })
            }
        }
    }

    /// Waits for the holder: for a message, the end of its lease, or until it is time to check.
    fn wait(&mut self, ttl: Option<Duration>, moment: &Moment) -> Option<Effect<R>> {
        // The lease has run out once its last millisecond is over. No message comes then.
        let delay = self.seat.as_ref().map_or(Duration::ZERO, |news| news.delay());
        let ttl = ttl.map_or(moment.look(), |ttl| ttl + Duration::from_millis(1) + delay);
        self.rest_for_others(ttl.min(moment.look()), Then::MakeWayUnlessCalled, moment)
    }

    fn rest_for_others(&mut self, time: Duration, then: Then, moment: &Moment) -> Option<Effect<R>> {
        let rest = Rest { until: moment.now + time, hears: true, others: true, then };
        match self.go_on(rest, moment) {
            Some(Effect::Sleep { until, hears, .. }) => Some(Effect::Sleep { until, hears, others: true }),
            effect => effect,
        }
    }

    fn rest(&mut self, time: Duration, hears: bool, then: Then, moment: &Moment) -> Option<Effect<R>> {
        let rest = Rest { until: moment.now + time, hears, others: false, then };
        self.go_on(rest, moment)
    }

    /// Goes on with a rest, or ends it if its time is over or there is a reason to ask.
    fn go_on(&mut self, rest: Rest, moment: &Moment) -> Option<Effect<R>> {
        let now = moment.now;
        let due = self.seat.as_ref().filter(|_| rest.hears).and_then(|news| news.due(now));
        if due.is_none_or(|due| due > now) && rest.until > now {
            self.course.phase = Phase::Rests(rest);
            let until = due.map_or(rest.until, |due| due.min(rest.until));
            return Some(Effect::Sleep { until, hears: rest.hears, others: false });
        }
        if let Some(news) = &mut self.seat
            && due.is_none_or(|due| due > now)
            && rest.others
            && moment.is_told
        {
            news.oversleep(now);
        }
        self.end(rest, moment)
    }

    fn end(&mut self, rest: Rest, moment: &Moment) -> Option<Effect<R>> {
        let is_called = self.seat.as_ref().is_some_and(|news| news.is_called());
        match rest.then {
            Then::Look => self.look(moment),
            Then::MakeWayUnlessCalled if is_called => self.look(moment),
            Then::MakeWay | Then::MakeWayUnlessCalled => self.make_way(moment),
        }
    }

    /// Pauses after a wake-up if this locker has met others. All are woken at once: random pauses, as long as the nodes
    /// are far away, keep them apart.
    fn make_way(&mut self, moment: &Moment) -> Option<Effect<R>> {
        let most = (moment.round_trip * self.course.collisions).min(OUTRUN);
        if most.is_zero() {
            return self.look(moment);
        }
        let until = moment.now + most.mul_f64(moment.chance);
        self.course.phase = Phase::MakesWay { until };
        Some(Effect::Pause(until))
    }

    /// Ends what is under way. What it may have taken is given back by whoever asked for it.
    fn stop(&mut self) -> Option<Effect<R>> {
        self.course = Course::default();
        match self.passed.take() {
            Some(release) => Some(Effect::Release(release, None)),
            None => self.queue.is_empty().then(|| self.done()),
        }
    }

    fn done(&mut self) -> Effect<R> {
        Effect::Done { is_listed: self.seat.take().is_some_and(|news| news.is_listed()) }
    }
}

impl Moment {
    /// Returns how long a line waits for a message before it asks again.
    fn look(&self) -> Duration {
        if self.is_told { self.recheck } else { self.recheck.min(self.retry) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Loss;
    use crate::line::{Given, News, Others, Waiter, WakeUp};
    use crate::owner::Owner;

    const MS: Duration = Duration::from_millis(1);
    const RETRY: Duration = Duration::from_millis(30);
    const RECHECK: Duration = Duration::from_millis(5_000);
    const FAR: Duration = Duration::from_millis(20);

    #[derive(Debug, Clone, PartialEq)]
    struct Plain {
        id: u8,
        blocks: bool,
        lost_of: Option<Owner>,
    }

    impl Held for Plain {
        fn is(&self, other: &Self) -> bool {
            self.id == other.id
        }

        fn blocks(&self, _: Instant) -> bool {
            self.blocks
        }

        fn loss_of(&self, owner: &Owner, _: Instant) -> Option<Loss> {
            self.lost_of.as_ref().filter(|lost| *lost == owner).map(|_| Loss::Expired)
        }
    }

    fn held(id: u8) -> Plain {
        Plain { id, blocks: true, lost_of: None }
    }

    /// A line, and the time.
    struct Tested {
        line: Line<Plain, (), u8>,
        moment: Moment,
    }

    impl Tested {
        /// A line with these waiters.
        fn with(waiters: &[u64]) -> Self {
            let mut line = Line::default();
            let now = Instant::now();
            for &id in waiters {
                line.arrive(Waiter { id, owner: Owner::task(id), since: now, call: () });
            }
            let moment = Moment {
                now,
                chance: 0.5,
                retry: RETRY,
                recheck: RECHECK,
                is_told: true,
                round_trip: FAR,
                contended: false,
                lists: true,
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

        /// Asserts that it asks for this waiter, the first node alone or not. Returns whether it reports that the
        /// lockers before it do not act.
        fn asks_of(&mut self, event: Event, head: u64, alone: bool) -> bool {
            match self.on(event) {
                Some(Effect::Ask { head: for_, first_alone, begun }) => {
                    assert_eq!((for_, first_alone), (head, alone), "{event:?}");
                    begun.is_some_and(|begun| begun.looked)
                }
                effect => panic!("{event:?} does not make it ask for {head}: {effect:?}"),
            }
        }

        fn answered(&mut self, answer: Answer) -> Option<Effect<u8>> {
            self.on(Event::Answered(answer))
        }

        fn later(&mut self, time: Duration) {
            self.moment.now = self.moment.now + time;
        }

        fn heard(&mut self) -> &mut News {
            self.line.seat().expect("it listens")
        }

        /// Has it ask and listen, and ask again. Returns what it does then.
        fn waits(&mut self, ttl: Option<Duration>) -> Option<Effect<u8>> {
            self.asks(Event::Changed, 1);
            assert_eq!(self.answered(HELD), Some(Effect::Listen));
            self.asks(SUBSCRIBED, 1);
            self.heard_held(ttl)
        }

        fn heard_held(&mut self, ttl: Option<Duration>) -> Option<Effect<u8>> {
            self.answered(Answer::Held { ttl, place: None, contested: false, lasts: ttl.is_none() })
        }

        /// Returns an effect that sleeps for so long.
        fn sleep(&self, time: Duration, hears: bool, others: bool) -> Option<Effect<u8>> {
            Some(Effect::Sleep { until: self.moment.now + time, hears, others })
        }
    }

    const SUBSCRIBED: Event = Event::Subscribed { deaf: false };
    const HELD: Answer = Answer::Held { ttl: Some(RECHECK), place: None, contested: false, lasts: false };

    const DONE: Option<Effect<u8>> = Some(Effect::Done { is_listed: false });

    #[test]
    fn a_line_asks_for_its_head_until_nobody_is_left() {
        let mut tested = Tested::with(&[1, 2]);
        tested.asks(Event::Changed, 1);
        assert!(tested.line.leave(1).is_some());
        for event in [Event::Changed, Event::Due, Event::Outage, SUBSCRIBED, Event::HandedOver] {
            assert_eq!(tested.on(event), None, "one ask at a time: {event:?}");
        }
        tested.asks(Event::Answered(Answer::Refused), 2);
        assert!(tested.line.leave(2).is_some());
        assert!(!tested.line.is_empty(), "its ask has no answer");
        assert_eq!(tested.answered(Answer::Granted), DONE);
        assert!(tested.line.is_empty());
    }

    #[test]
    fn nothing_is_asked_for_while_a_hold_here_may_have_the_lock() {
        let mut tested = Tested::with(&[1, 2]);
        tested.asks(Event::Changed, 1);
        assert!(tested.line.grant(held(7), Some(1)).is_ok());
        assert_eq!(tested.answered(Answer::Granted), tested.sleep(RECHECK, false, false));
        let until = tested.sleep(RECHECK, false, false);
        tested.later(RECHECK / 2);
        assert_eq!(tested.on(Event::Due), until);
        assert_eq!(tested.on(Event::Outage), Some(Effect::GiveUp { came_by: None }));
        assert_eq!(tested.on(Event::GaveUp(Some(MS))), until, "callers that are left go on waiting");
        tested.later(RECHECK / 2);
        assert_eq!(tested.on(Event::Due), tested.sleep(RECHECK, false, false));
        assert!(tested.line.remove(&held(7)).is_some());
        tested.asks(Event::Changed, 2);
    }

    #[test]
    fn a_release_becomes_a_hand_over_only_while_nothing_is_under_way() {
        let mut tested = Tested::with(&[1, 2]);
        let now = tested.moment.now;
        assert_eq!(tested.line.release(&held(7), 3, now), Some(3), "it is no hold of this line");
        assert!(tested.line.grant(held(7), None).is_ok());
        assert_eq!(tested.line.release(&held(7), 3, now), Some(3), "nobody carries the line out yet");
        assert_eq!(tested.on(Event::Changed), tested.sleep(RECHECK, false, false));
        assert_eq!(tested.line.release(&held(7), 3, now), None);
        assert_eq!(tested.line.release(&held(7), 4, now), Some(4), "one at a time");
        assert_eq!(tested.on(Event::Changed), Some(Effect::Release(3, Some(1))));
        assert_eq!(tested.on(Event::Changed), None, "it has no answer");
        let (released, waiter) = tested.line.succeed(&held(7), held(8), 1, now);
        assert_eq!((released, waiter.map(|waiter| waiter.id)), (Some(held(7)), Some(1)));
        assert_eq!(tested.line.release(&held(8), 5, now), None, "it may come before the line is told");
        assert_eq!(tested.on(Event::Changed), None, "the outcome comes first");
        assert_eq!(tested.on(Event::HandedOver), Some(Effect::Release(5, Some(2))));
        assert!(tested.line.remove(&held(8)).is_some());
        tested.asks(Event::HandedOver, 2);
        assert!(tested.line.grant(held(9), Some(2)).is_ok());
        tested.line.note_others(Others::Told);
        assert_eq!(tested.line.release(&held(9), 6, now), Some(6), "others have a turn");
    }

    #[test]
    fn a_lock_is_not_handed_over_to_nobody_or_beside_another_hold() {
        for case in 0..3 {
            let mut tested = Tested::with(&[1]);
            let now = tested.moment.now;
            assert!(tested.line.grant(held(7), None).is_ok());
            assert!(tested.on(Event::Changed).is_some());
            assert_eq!(tested.line.release(&held(7), 3, now), None);
            let (blocks, lost_of) = (case == 1, Some(Owner::task(1)).filter(|_| case == 2));
            match case {
                0 => assert!(tested.line.leave(1).is_some()),
                _ => assert!(tested.line.grant(Plain { id: 8, blocks, lost_of }, None).is_ok()),
            }
            assert_eq!(tested.on(Event::Changed), Some(Effect::Release(3, None)), "{case}");
        }
    }

    #[test]
    fn a_waiter_whose_owner_has_a_lost_hold_is_told_and_the_next_one_comes() {
        let mut tested = Tested::with(&[1, 2]);
        let lost = Plain { id: 7, blocks: false, lost_of: Some(Owner::task(1)) };
        assert!(tested.line.grant(lost, None).is_ok());
        assert_eq!(tested.on(Event::Changed), Some(Effect::Lost(1, Loss::Expired)));
        assert!(tested.line.leave(1).is_some());
        tested.asks(Event::Changed, 2);
    }

    #[test]
    fn a_wait_ends_with_a_message_or_the_lease_or_the_recheck() {
        for (ttl, time) in [(1_000, 1_001), (60_000, 5_000)] {
            let mut tested = Tested::with(&[1]);
            let effect = tested.waits(Some(MS * ttl));
            assert_eq!(effect, tested.sleep(MS * time, true, true));
            let until = tested.sleep(MS * time, true, false);
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
        assert_eq!(effect, tested.sleep(MS * 20, true, true), "it watches the one before it");
    }

    #[test]
    fn a_wait_in_which_nobody_acts_makes_the_locker_report_it() {
        for (is_told, looked) in [(true, true), (false, false)] {
            let mut tested = Tested::with(&[1]);
            tested.moment.is_told = is_told;
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
        tested.moment.is_told = false;
        let effect = tested.waits(Some(RECHECK));
        assert_eq!(effect, tested.sleep(RETRY, true, true));
    }

    #[test]
    fn a_locker_that_has_met_others_asks_the_first_node_alone_and_makes_way() {
        let mut tested = Tested::with(&[1]);
        assert!(tested.waits(Some(RECHECK)).is_some());
        tested.later(RECHECK);
        tested.asks(Event::Due, 1);
        for _ in 0..10 {
            assert_eq!(tested.answered(Answer::Split), tested.sleep(RETRY, false, false));
            tested.later(RETRY);
            tested.asks_of(Event::Due, 1, true);
        }
        assert!(tested.heard_held(Some(RECHECK)).is_some(), "it still has met others");
        let now = tested.moment.now;
        tested.heard().message(now);
        let until = now + FAR * 8 / 2;
        for event in [Event::Due, Event::Changed] {
            assert_eq!(tested.on(event), Some(Effect::Pause(until)), "eight round trips at most, by chance");
        }
        tested.later(FAR * 4);
        tested.asks_of(Event::Due, 1, true);
        assert!(tested.heard_held(Some(RECHECK)).is_some());
        tested.heard().held(Some(1), None, now);
        tested.heard().wake_up(WakeUp::Go, now);
        tested.asks_of(Event::Due, 1, true);
        assert!(tested.line.grant(held(7), Some(1)).is_ok());
        assert_eq!(tested.answered(Answer::Granted), DONE);
        tested.line.arrive(Waiter { id: 9, owner: Owner::task(9), since: now, call: () });
        assert!(tested.line.remove(&held(7)).is_some());
        tested.asks(Event::Changed, 9);
    }

    #[test]
    fn all_nodes_are_asked_once_others_were_faster_at_the_first_for_too_long() {
        let mut tested = Tested::with(&[1]);
        let begun = tested.moment.now;
        tested.asks(Event::Changed, 1);
        let mut asked = 1;
        loop {
            let Some(Effect::Sleep { until, hears: false, others: false }) = tested.answered(Answer::Outrun) else {
                panic!("there is a pause, however near the nodes are");
            };
            tested.moment.now = until;
            let Some(Effect::Pause(until)) = tested.on(Event::Due) else { panic!("it has met others") };
            tested.moment.now = until;
            match tested.on(Event::Due) {
                Some(Effect::Ask { first_alone: true, .. }) => asked += 1,
                Some(Effect::Ask { head: 1, first_alone: false, .. }) => break,
                effect => panic!("{effect:?}"),
            }
        }
        assert!((2..10).contains(&asked), "{asked}");
        assert!(tested.moment.now.since(begun) >= OUTRUN);
        assert_eq!(tested.answered(Answer::Split), tested.sleep(RETRY, false, false));
    }

    #[test]
    fn callers_are_given_up_once_an_outage_has_lasted_too_long() {
        let mut tested = Tested::with(&[1]);
        let sent = tested.moment.now;
        tested.asks(Event::Changed, 1);
        let ends_in = Some(MS * 7);
        assert_eq!(tested.answered(Answer::Unavailable { ends_in }), tested.sleep(MS * 7, false, false));
        assert_eq!(tested.line.last_round(), LastRound::Failed);
        assert_eq!(tested.on(Event::Outage), Some(Effect::GiveUp { came_by: None }));
        assert_eq!(tested.on(Event::GaveUp(None)), tested.sleep(MS * 7, false, false));
        tested.later(MS * 7);
        tested.asks(Event::Due, 1);
        let sent = sent + MS * 7;
        tested.later(MS * 100);
        let gives_up = Some(Effect::GiveUp { came_by: Some(sent) });
        assert_eq!(tested.answered(Answer::Unavailable { ends_in: None }), gives_up);
        assert_eq!(tested.on(Event::GaveUp(Some(MS))), tested.sleep(MS, false, false), "they get a round of their own");
        tested.later(MS);
        tested.asks(Event::Due, 1);
        assert!(tested.answered(Answer::Unavailable { ends_in: None }).is_some());
        assert!(tested.line.leave(1).is_some());
        assert_eq!(tested.on(Event::GaveUp(None)), DONE);
    }

    #[test]
    fn a_holder_whose_lock_lasts_is_named_once() {
        let mut tested = Tested::with(&[1]);
        assert_eq!(tested.waits(None), Some(Effect::Name));
        for (named, effect) in [(false, Some(Effect::Name)), (true, None)] {
            assert_eq!(tested.on(Event::Named(named)), tested.sleep(RECHECK, true, true));
            tested.later(RECHECK);
            tested.asks(Event::Due, 1);
            let waits = tested.heard_held(None);
            assert_eq!(waits, effect.or(tested.sleep(RECHECK, true, true)));
        }
    }

    #[test]
    fn a_locker_listens_before_it_asks_if_others_may_wait() {
        for (contended, told) in [(true, false), (false, true), (false, false)] {
            let mut tested = Tested::with(&[1]);
            tested.moment.contended = contended;
            if told {
                tested.line.note_others(Others::Listed { before: 1 });
            }
            let listens = contended || told;
            assert_eq!(tested.on(Event::Changed) == Some(Effect::Listen), listens);
        }
    }

    #[test]
    fn a_locker_whose_release_woke_others_waits_for_them() {
        let mut tested = Tested::with(&[1]);
        tested.moment.contended = true;
        assert_eq!(tested.on(Event::Changed), Some(Effect::Listen));
        let now = tested.moment.now;
        tested.heard().leave_turn(Given { since: now, end: now + MS * 10, alone: true }, false);
        assert_eq!(tested.on(SUBSCRIBED), tested.sleep(MS * 10, true, true));
        tested.later(MS * 10);
        tested.asks(Event::Due, 1);
    }

    /// The subscription is waited for no longer than the turn lasts.
    #[test]
    fn a_line_that_may_have_missed_a_message_listens_before_it_waits() {
        let mut tested = Tested::with(&[1]);
        tested.moment.contended = true;
        assert_eq!(tested.on(Event::Changed), Some(Effect::Listen));
        tested.asks(Event::Subscribed { deaf: true }, 1);
        assert_eq!(tested.heard_held(Some(RECHECK)), Some(Effect::Listen));
        tested.asks(SUBSCRIBED, 1);
        assert_eq!(tested.heard_held(Some(RECHECK)), tested.sleep(RECHECK, true, true));
    }

    #[test]
    fn a_line_that_nobody_carries_out_any_more_leaves_nothing() {
        let mut tested = Tested::with(&[1]);
        let now = tested.moment.now;
        assert!(tested.line.grant(held(7), None).is_ok());
        assert!(tested.on(Event::Changed).is_some());
        assert_eq!(tested.line.release(&held(7), 3, now), None);
        assert_eq!(tested.on(Event::Stopped), Some(Effect::Release(3, None)));
        assert_eq!(tested.on(Event::Stopped), None, "a caller is left");
        assert!(tested.line.leave(1).is_some());
        assert_eq!(tested.on(Event::Stopped), DONE);
        assert!(tested.line.remove(&held(7)).is_some() && tested.line.is_empty());
    }
}
