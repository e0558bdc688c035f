//! A locker of the model: the real line of the lock, and what is around it.

use std::mem::replace;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::super::{
    AcquireOutcome, Effect, Event, Line, Moment, RawHold, Stays, Waiter, WakeSources, WakeUp,
};
use super::{Mutant, Scheme};
use crate::claim::{ReleaseAnswer, Releaser};
use crate::clock::Instant;
use crate::error::Loss;
use crate::owner::Owner;

/// What happens within this time happens in the model; all else is a lease or the re-check.
pub(super) const SOON: Duration = Duration::from_secs(2);
/// The lease that a waiter is told.
const LEASE: Duration = Duration::from_secs(1_000);
/// The re-check never comes, nor does the end of a list.
const NEVER: Duration = Duration::from_secs(1_000_000);
/// Nothing that is longer ago than this makes a difference.
const LONG_AGO: Duration = Duration::from_millis(40);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Health {
    Fine,
    Suspended,
    Dead,
}

/// The connection that messages come on, and the lock's channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Channel {
    /// It is not subscribed.
    Off,
    /// Its subscription is on its way.
    Asked,
    On,
    /// The connection is gone, and neither side knows.
    Deaf,
    /// It is reconnected, and nothing is subscribed yet.
    Joining,
}

/// A hold of a locker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Hold {
    Inside,
    Lost,
    /// Its release has no answer.
    Releasing,
}

impl RawHold for Hold {
    /// A locker has one at the most.
    fn is(&self, _: &Self) -> bool {
        true
    }

    fn blocks(&self, _: Instant) -> bool {
        *self != Self::Lost
    }

    /// Each caller has an owner of its own, and calls once.
    fn loss_of(&self, _: &Owner, _: Instant) -> Option<Loss> {
        None
    }
}

/// A script on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Script {
    /// With a list, whether the locker has waited for those before it.
    Acquire {
        listing: Option<bool>,
    },
    Release(Releaser),
}

/// The answer to a script, on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Said {
    Granted,
    /// With the place in the list.
    Held(Option<u64>),
    Released(ReleaseAnswer),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Message {
    WakeUp(WakeUp),
    /// The message of the channel, which all subscribers hear.
    Zero,
}

/// The lease of a holder, as a waiting locker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lease {
    /// It is renewed for as long as the locker waits, or another one has the lock by now.
    Unknown,
    /// It was told that one.
    Told,
    /// That one has ended.
    Over,
}

/// A script that takes the locker off the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    None,
    Sent,
    Executed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Locker {
    pub(super) line: Line<Hold, (), ()>,
    /// How many callers come later, after a release.
    pub(super) later: u8,
    next_id: u64,
    pub(super) health: Health,
    pub(super) channel: Channel,
    /// The message of its last release may be yet to come.
    owed: bool,
    pub(super) inbox: Vec<Message>,
    /// When the line has to be woken.
    alarm: Option<Duration>,
    /// The waiter for which it asks.
    head: Option<u64>,
    pub(super) sent: Option<Script>,
    pub(super) answer: Option<Said>,
    /// The release of a grant whose caller had gone, on its way.
    pub(super) undo: bool,
    pub(super) pass: Pass,
    pub(super) lease: Lease,
}

/// It is always the same time.
fn now() -> Instant {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    *NOW
}

impl Locker {
    pub(super) fn new(callers: u8, later: u8, channel: Channel) -> Self {
        let mut locker = Self {
            line: Line::default(),
            later: callers + later,
            next_id: 0,
            health: Health::Fine,
            channel,
            owed: false,
            inbox: Vec::new(),
            alarm: None,
            head: None,
            sent: None,
            answer: None,
            undo: false,
            pass: Pass::None,
            lease: Lease::Unknown,
        };
        (0..callers).for_each(|_| locker.come());
        locker
    }

    fn moment(&self) -> Moment<'static> {
        static NAME: LazyLock<Arc<str>> = LazyLock::new(|| "locker".into());
        let confirmed = matches!(self.channel, Channel::On | Channel::Deaf);
        Moment {
            now: now(),
            chance: 0.5,
            retry: Duration::from_millis(30),
            poll: None,
            recheck: NEVER,
            lease: NEVER,
            patience: Duration::from_secs(1),
            majority: 1,
            round_trip: Duration::from_millis(1),
            counts: true,
            lister: Some(&NAME),
            hint: None,
            ends_apart: false,
            queues: false,
            sources: WakeSources {
                asked: self.channel != Channel::Off,
                confirmed,
                owed: self.owed,
                named: self.channel != Channel::Joining,
            },
        }
    }

    pub(super) fn is_fine(&self) -> bool {
        self.health == Health::Fine
    }

    /// Returns whether PUBLISH counts it as a subscriber of the lock's channel.
    pub(super) fn listens(&self) -> bool {
        self.health != Health::Dead && matches!(self.channel, Channel::On | Channel::Deaf)
    }

    /// Returns whether it can be woken by its name, as far as the server knows.
    pub(super) fn is_named(&self) -> bool {
        self.health != Health::Dead && self.channel != Channel::Joining
    }

    pub(super) fn is(&self, hold: Hold) -> bool {
        self.line.holds().contains(&hold)
    }

    /// Returns whether callers of it wait for lockers elsewhere, and would hear of them.
    pub(super) fn waits(&self) -> bool {
        let hears = !matches!(self.channel, Channel::Deaf | Channel::Joining);
        self.is_fine() && hears && !self.line.waiters().is_empty() && self.line.holds().is_empty()
    }

    /// Returns whether it has nothing to do any more, whatever happens.
    pub(super) fn is_done(&self) -> bool {
        let is_quiet =
            self.sent.is_none() && self.answer.is_none() && !self.undo && self.pass == Pass::None;
        self.health == Health::Dead || (self.later == 0 && self.line.is_empty() && is_quiet)
    }

    /// Forgets what makes no difference any more.
    pub(super) fn tidy(&mut self, scheme: &Scheme) {
        // Only a release to come would ask for it.
        if self.later == 0 && self.line.waiters().is_empty() && !self.is(Hold::Inside) {
            (self.line.others, self.line.turn) = Default::default();
        }
        if self.line.is_idle() && self.line.stays(now()) == Stays::No {
            self.line = Line::default();
        }
        if self.is_fine() && self.is_done() {
            let channel = if scheme.subscribed {
                Channel::Off
            } else {
                self.channel
            };
            *self = Self::new(0, 0, channel);
        } else if scheme.subscribed && self.channel == Channel::Off {
            self.channel = Channel::On;
        }
    }

    /// Returns whether its channel may be given up: nobody listens, and no release needs it.
    pub(super) fn lingers(&self) -> bool {
        self.line.wake_state.is_none() && self.sent.is_none() && self.answer.is_none()
    }

    /// Returns whether a timer of it ends soon.
    pub(super) fn looks(&self) -> bool {
        self.alarm.is_some_and(|alarm| alarm <= SOON)
    }

    /// Returns whether it is about to ask since the lease is over that it was told.
    pub(super) fn sees_end_of_lease(&self) -> bool {
        self.lease == Lease::Over && self.alarm.is_some_and(|alarm| alarm > SOON)
    }

    /// The server sends it a message.
    pub(super) fn tell(&mut self, message: Message) {
        let hears = match message {
            Message::Zero => self.channel == Channel::On,
            _ => !matches!(self.channel, Channel::Deaf | Channel::Joining),
        };
        // The second of two equal wake-ups adds nothing.
        let is_new = message == Message::Zero || self.inbox.last() != Some(&message);
        if hears && is_new && !self.is_done() {
            self.inbox.push(message);
        }
    }

    /// A caller comes.
    pub(super) fn come(&mut self) {
        self.later -= 1;
        let waiter = Waiter {
            id: self.next_id,
            owner: Owner::task(self.next_id),
            since: now(),
            call: (),
        };
        self.next_id += 1;
        if self.line.arrive(waiter) {
            self.step(Event::Changed);
        }
    }

    /// The caller at the head leaves.
    pub(super) fn leave(&mut self) {
        let Some(id) = self.line.waiters().first().map(|head| head.id) else {
            return;
        };
        self.line.leave(id);
        if self.line.waiters().is_empty() {
            self.step(Event::Changed);
        }
    }

    pub(super) fn unlock(&mut self) {
        self.line.holds_mut()[0] = Hold::Releasing;
        let moment = self.moment();
        self.owed = moment.sources.confirmed;
        self.sent = self.line.begin_release(LEASE, &moment).map(Script::Release);
    }

    /// Its lease is over.
    pub(super) fn lose(&mut self) {
        self.line
            .holds_mut()
            .iter_mut()
            .filter(|hold| **hold == Hold::Inside)
            .for_each(|hold| *hold = Hold::Lost);
        self.notice();
    }

    /// It notices that its lease is over, if it is.
    pub(super) fn notice(&mut self) {
        if self.is_fine() && self.is(Hold::Lost) {
            self.line.remove(&Hold::Lost);
            self.step(Event::Changed);
        }
    }

    pub(super) fn die(&mut self) {
        let dead = Self {
            health: Health::Dead,
            pass: self.pass,
            undo: self.undo,
            ..Self::new(0, 0, self.channel)
        };
        *self = Self {
            sent: self.sent.take(),
            ..dead
        };
    }

    /// The answer to an acquire arrives, and is still true.
    pub(super) fn granted(&mut self) {
        self.answer = None;
        self.undo |= self.line.grant(Hold::Inside, self.head, now()).is_err();
        self.step(Event::Answered(AcquireOutcome::Granted));
    }

    /// Another answer arrives.
    pub(super) fn hear_answer(&mut self, scheme: &Scheme) {
        let Some(said) = self.answer.take() else {
            return;
        };
        let mut release = match said {
            // The lease was over before.
            Said::Granted => return self.step(Event::Answered(AcquireOutcome::Split)),
            Said::Held(place) => {
                let ttl = (self.lease != Lease::Unknown).then_some(LEASE);
                return self.step(Event::Answered(AcquireOutcome::Held {
                    ttl,
                    place,
                    contested: false,
                    lasts: false,
                }));
            }
            Said::Released(release) => release,
        };
        if let ReleaseAnswer::PassedOn {
            place: Some(place), ..
        } = &mut release
            && scheme.is(Mutant::SecondSleeps)
        {
            *place += 1;
        }
        if release != ReleaseAnswer::Gone {
            self.line.released(&release, &self.moment());
            self.step(Event::Due);
        }
        self.line.remove(&Hold::Releasing);
        self.step(Event::Changed);
        if scheme.is(Mutant::EndlessTurnsAlone) && matches!(release, ReleaseAnswer::Released(_)) {
            self.alarm = None;
        }
    }

    pub(super) fn hear(&mut self, scheme: &Scheme) {
        let message = self.inbox.remove(0);
        let asks = matches!(self.sent, Some(Script::Acquire { .. }))
            || matches!(self.answer, Some(Said::Granted | Said::Held(_)));
        let forgets = match scheme.mutant {
            Some(Mutant::ForgetsWhileAsking) => asks,
            Some(Mutant::ForgetsWhileReleasing) => self.is(Hold::Releasing),
            _ => false,
        };
        if forgets {
            return;
        }
        match message {
            Message::WakeUp(WakeUp::Go)
                if scheme.is(Mutant::GoIsAGrant) && self.waits() && !asks =>
            {
                self.head = self.line.waiters().first().map(|head| head.id);
                self.granted();
            }
            Message::WakeUp(WakeUp::Turn(_)) if scheme.is(Mutant::EndlessTurns) => {
                self.step(Event::WokenUp(WakeUp::Turn(NEVER)));
            }
            Message::WakeUp(wake_up) => self.step(Event::WokenUp(wake_up)),
            Message::Zero => {
                self.owed = false;
                self.step(Event::Heard(0));
            }
        }
    }

    /// The subscription is confirmed.
    pub(super) fn join(&mut self, scheme: &Scheme) {
        let is_new = replace(&mut self.channel, Channel::On) == Channel::Joining;
        if self.looks() || !scheme.is(Mutant::TrustsSubscriptions) {
            self.step(Event::Subscribed);
        }
        if is_new && !scheme.is(Mutant::TrustsReconnects) {
            self.step(Event::Missed);
        }
    }

    /// The channel does not linger any longer.
    pub(super) fn hush(&mut self) {
        (self.channel, self.owed) = (Channel::Off, false);
    }

    pub(super) fn end_pass(&mut self) {
        self.pass = Pass::None;
        self.step(Event::Passed(true));
    }

    /// What it waits for in time has come.
    pub(super) fn time_is_over(&mut self) {
        let Some(time) = self.alarm.take() else {
            return;
        };
        self.let_pass(time);
        self.step(Event::Due);
    }

    /// It is always the same time, so all that its line remembers moves back.
    pub(super) fn let_pass(&mut self, time: Duration) {
        for at in self.line.times() {
            // What is far away stays there.
            if now().until(*at) <= 2 * LEASE {
                *at = at.before(time).max(now().before(LONG_AGO));
            }
        }
    }

    /// Has the locker taken off the list, if it has to be.
    pub(super) fn take_pass(&mut self, scheme: &Scheme) {
        if !self.line.take_pass() {
            return;
        }
        match scheme.mutant {
            Some(Mutant::SleepsOn) => self.step(Event::Passed(true)),
            // The line is told before the server has executed it.
            Some(Mutant::PassesAreInOrder) => {
                self.pass = Pass::Sent;
                self.step(Event::Passed(true));
            }
            _ => {
                assert_eq!(self.pass, Pass::None, "one at a time");
                self.pass = Pass::Sent;
            }
        }
    }

    /// Passes an event to the line, and carries out what follows.
    fn step(&mut self, mut event: Event) {
        while let Some(effect) = self.line.on(event, &self.moment()) {
            match effect {
                Effect::WakeAt { until, .. } => self.plan(until),
                Effect::Listen { until } => {
                    self.plan(until);
                    match self.channel {
                        Channel::On | Channel::Deaf => {
                            event = Event::Subscribed;
                            continue;
                        }
                        Channel::Off => self.channel = Channel::Asked,
                        Channel::Asked | Channel::Joining => {}
                    }
                }
                Effect::Hush { lingers } => {
                    self.alarm = None;
                    if !lingers && matches!(self.channel, Channel::On | Channel::Asked) {
                        self.hush();
                    }
                }
                Effect::Ask { head, listing, .. } => {
                    self.alarm = None;
                    self.head = Some(head);
                    self.sent = Some(Script::Acquire {
                        listing: listing.map(|listing| listing.looked),
                    });
                }
                effect => unreachable!("nothing is handed over, and no server is away: {effect:?}"),
            }
            break;
        }
        if self.sent.is_none() && self.answer.is_none() {
            self.head = None;
        }
    }

    /// Has the line woken at this time, unless that is the re-check.
    fn plan(&mut self, until: Instant) {
        self.alarm = Some(now().until(until)).filter(|alarm| *alarm <= 2 * LEASE);
    }
}
