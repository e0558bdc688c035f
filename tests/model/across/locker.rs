//! A locker of the model: the driver of one key, and what it has heard.

use super::Mutant;
use super::Scheme;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// No caller of this locker waits, holds or releases.
    Idle,
    /// The driver is about to ask.
    Ready,
    Asking,
    Parked,
    Holding,
    Releasing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Health {
    Fine,
    Suspended,
    Dead,
}

/// The connection that messages come on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Ears {
    Confirmed,
    /// The connection is gone, and neither side knows.
    Deaf,
    /// It is reconnected, and not subscribed yet.
    Joining,
}

/// A script on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Script {
    Acquire { enlists: bool, looked: bool },
    Release { enlists: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Granted,
    /// With the place in the list.
    Held(Option<u8>),
    /// The lock is free, and no locker in the list was woken.
    Released,
    /// The same, and it is the turn of clients outside of the list.
    Left,
    /// Another locker was woken, and this one has a place in the list.
    HandedOn(u8),
    /// The same, and it is the turn of clients outside of the list.
    HandedOver(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Message {
    Go,
    Watch,
    /// It is the turn of clients outside of the list, and the next message is for them.
    Turn,
    /// The message of the channel, which all subscribers hear.
    Zero,
}

/// A script that takes a locker off the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    None,
    UnderWay,
    /// The locker asked to be put into the list again meanwhile. Which of the two is executed first is open.
    Overtaken,
    /// The same, and it has to be taken off once more.
    Another,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Locker {
    pub(super) waiting: u8,
    /// How many callers come later, after a release.
    pub(super) later: u8,
    pub(super) phase: Phase,
    pub(super) health: Health,
    pub(super) ears: Ears,
    pub(super) sent: Option<Script>,
    pub(super) answer: Option<Answer>,
    pub(super) pass: Pass,
    /// It had a driver when it released the lock.
    driven: bool,
    pub(super) inbox: Vec<Message>,
    pub(super) go: bool,
    /// A timer runs; the locker attempts when it ends.
    pub(super) looks: bool,
    /// The timer has ended.
    pub(super) looked: bool,
    pub(super) first: bool,
    pub(super) listed: bool,
    /// The next message of the channel is the one by which a turn began.
    pub(super) skips: bool,
    /// A message of the channel has arrived during its release: its own, or another's.
    pub(super) heard: bool,
    /// It knows the lease of the current holder.
    pub(super) knows_lease: bool,
}

impl Locker {
    pub(super) fn new(waiting: u8, later: u8) -> Self {
        Self {
            waiting,
            later,
            phase: if waiting > 0 { Phase::Ready } else { Phase::Idle },
            health: Health::Fine,
            ears: Ears::Confirmed,
            sent: None,
            answer: None,
            pass: Pass::None,
            driven: false,
            inbox: Vec::new(),
            go: false,
            looks: false,
            looked: false,
            first: false,
            listed: false,
            skips: false,
            heard: false,
            knows_lease: false,
        }
    }

    /// Returns whether PUBLISH counts it as a subscriber.
    pub(super) fn counts(&self) -> bool {
        self.health != Health::Dead && self.ears != Ears::Joining
    }

    pub(super) fn is_fine(&self) -> bool {
        self.health == Health::Fine
    }

    /// The server sends it a message.
    pub(super) fn tell(&mut self, message: Message) {
        // The second of two equal messages adds nothing.
        if self.ears == Ears::Confirmed && self.health != Health::Dead && self.inbox.last() != Some(&message) {
            self.inbox.push(message);
        }
    }

    /// Forgets the messages before an acquire or a release, which say nothing about its outcome.
    fn forget(&mut self) {
        (self.go, self.looks, self.looked, self.first) = (false, false, false, false);
        (self.skips, self.heard) = (false, false);
    }

    pub(super) fn ask(&mut self) {
        let enlists = self.ears == Ears::Confirmed;
        if enlists {
            self.enter();
        }
        self.sent = Some(Script::Acquire { enlists, looked: self.looked });
        self.phase = Phase::Asking;
        self.forget();
        self.listed = false;
    }

    /// Releases the lock, and goes into the list if a caller waits here.
    pub(super) fn unlock(&mut self) {
        self.release(self.waiting > 0 && self.ears == Ears::Confirmed);
    }

    fn release(&mut self, enlists: bool) {
        self.sent = Some(Script::Release { enlists });
        self.phase = Phase::Releasing;
        self.driven = self.waiting > 0;
        if enlists {
            self.enter();
        }
        self.forget();
    }

    /// It asks to be put into the list.
    fn enter(&mut self) {
        if self.pass != Pass::None {
            self.pass = Pass::Overtaken;
        }
    }

    /// It has to be taken off the list.
    fn begin_pass(&mut self) {
        self.pass = match self.pass {
            Pass::None | Pass::UnderWay => Pass::UnderWay,
            Pass::Overtaken | Pass::Another => Pass::Another,
        };
    }

    pub(super) fn end_pass(&mut self, scheme: &Scheme) {
        match std::mem::replace(&mut self.pass, Pass::None) {
            Pass::Another => self.pass = Pass::UnderWay,
            Pass::Overtaken if !scheme.is(Mutant::PassesAreInOrder) => {
                self.go = true;
                self.look();
            }
            _ => {}
        }
    }

    /// A caller comes after a release.
    pub(super) fn come(&mut self) {
        (self.later, self.waiting) = (self.later - 1, self.waiting + 1);
        if self.phase == Phase::Idle {
            self.drive();
        }
    }

    /// A driver begins.
    fn drive(&mut self) {
        self.phase = Phase::Ready;
        self.listed = false;
        self.forget();
    }

    /// Returns whether a driver waits for messages.
    fn listens(&self) -> bool {
        self.waiting > 0 && (self.phase != Phase::Releasing || self.driven)
    }

    pub(super) fn hear(&mut self, scheme: &Scheme) {
        let message = self.inbox.remove(0);
        let keeps = match self.phase {
            Phase::Asking => !scheme.is(Mutant::ForgetsWhileAsking),
            Phase::Releasing => !scheme.is(Mutant::ForgetsWhileReleasing),
            _ => true,
        };
        // No caller waits here: a wake-up is passed on.
        if !self.listens() && message != Message::Zero {
            if !scheme.is(Mutant::SleepsOn) {
                self.begin_pass();
            }
            return;
        }
        if !self.listens() {
            return;
        }
        // Its next acquire or release forgets what it has heard.
        if !keeps || matches!(self.phase, Phase::Ready | Phase::Holding) {
            return;
        }
        match message {
            Message::Go if scheme.is(Mutant::GoIsAGrant) && self.phase == Phase::Parked => {
                self.phase = Phase::Holding;
                self.waiting -= 1;
            }
            Message::Go => self.go = true,
            Message::Watch => (self.first, self.looks) = (true, true),
            Message::Turn => {
                (self.first, self.skips) = (true, true);
                self.looks |= !scheme.is(Mutant::EndlessTurns);
            }
            Message::Zero if self.skips => self.skips = false,
            Message::Zero if self.phase == Phase::Releasing => self.heard = true,
            Message::Zero if !self.listed || self.first => self.go = true,
            Message::Zero => self.looks |= !scheme.is(Mutant::OnlyTheFirstHears),
        }
        self.look();
    }

    /// Attempts again if there is a reason.
    fn look(&mut self) {
        if self.phase == Phase::Parked && self.go {
            self.phase = Phase::Ready;
            self.forget();
        }
    }

    /// The timer ends.
    pub(super) fn time_is_over(&mut self) {
        self.forget();
        (self.phase, self.looked) = (Phase::Ready, true);
    }

    /// It is reconnected and subscribed. It may have missed messages, so it attempts.
    pub(super) fn join(&mut self, scheme: &Scheme) {
        self.ears = Ears::Confirmed;
        self.go |= matches!(self.phase, Phase::Parked | Phase::Asking | Phase::Releasing)
            && !scheme.is(Mutant::TrustsReconnects);
        self.look();
    }

    /// A waiter leaves.
    pub(super) fn leave(&mut self, scheme: &Scheme) {
        self.waiting -= 1;
        if self.waiting == 0 && matches!(self.phase, Phase::Parked | Phase::Ready) {
            self.end(scheme);
        }
    }

    /// The driver ends.
    fn end(&mut self, scheme: &Scheme) {
        self.phase = Phase::Idle;
        if self.listed && !scheme.is(Mutant::SleepsOn) {
            self.begin_pass();
        }
        self.listed = false;
        self.forget();
    }

    pub(super) fn hear_answer(&mut self, scheme: &Scheme, holds: bool) {
        let Some(answer) = self.answer.take() else { return };
        match answer {
            // The caller is gone, or the lease was over before the answer arrived.
            Answer::Granted if self.waiting == 0 || !holds => self.release(false),
            Answer::Granted => {
                self.waiting -= 1;
                self.phase = Phase::Holding;
                self.forget();
            }
            Answer::Held(place) => {
                (self.phase, self.listed) = (Phase::Parked, place.is_some());
                self.first |= place == Some(0);
            }
            Answer::Released => {
                self.phase = if self.driven { Phase::Ready } else { Phase::Idle };
                self.forget();
            }
            Answer::Left if self.driven => {
                // Nobody else times the turn.
                self.phase = Phase::Parked;
                self.looks |= !scheme.is(Mutant::EndlessTurnsAlone);
                self.skips |= !self.heard;
                self.heard = false;
            }
            Answer::Left => self.phase = Phase::Idle,
            Answer::HandedOn(_) | Answer::HandedOver(_) if !self.driven => {
                // It was called meanwhile.
                self.phase = Phase::Idle;
                self.enter();
                self.begin_pass();
            }
            Answer::HandedOn(place) | Answer::HandedOver(place) => {
                self.phase = Phase::Parked;
                self.listed = true;
                self.looks |= place == 1 && !scheme.is(Mutant::SecondSleeps);
                let turn = matches!(answer, Answer::HandedOver(_));
                self.skips |= turn && !self.heard;
                self.looks |= self.heard && !turn;
                self.heard = false;
            }
        }
        if self.phase == Phase::Idle && self.waiting > 0 {
            return self.drive();
        }
        if matches!(self.phase, Phase::Parked | Phase::Ready) {
            if self.waiting == 0 {
                return self.end(scheme);
            }
            self.look();
        }
    }
}
