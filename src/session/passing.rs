//! Wakes the next locker that waits for a lock, if there are lists.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::Session;
use crate::command::{Release, Wakes};
use crate::engine::Work;
use crate::foreign::log;
use crate::gate::Others;
use crate::hold::Hold;
use crate::key::Key;
use crate::notify::{Hook, Hooks, Offer, Seat, Turns};
use crate::quorum::was_there;

/// What the release of a hold tells the server about waiting lockers: each copy of it the same.
pub(super) type Passing = OnceLock<Wakes>;

impl Session {
    /// Returns the hooks that are called for messages, while the session exists.
    pub(super) fn hooks(session: &Weak<Self>) -> Hooks {
        let hook = |told: fn(&Arc<Self>, &Key)| -> Hook {
            let session = session.clone();
            Box::new(move |key| {
                if let Some(session) = session.upgrade() {
                    told(&session, key);
                }
            })
        };
        let listening = session.clone();
        let seat: Seat = Box::new(move |key, hear| {
            if let Some(session) = listening.upgrade() {
                session.gate.seat(key, hear);
            }
        });
        Hooks { seat, message: hook(|session, key| session.message(key)), idle: hook(Self::pass) }
    }

    /// Returns whom the release of this hold wakes, which is sent to all servers now.
    pub(super) fn wakes(&self, hold: &Hold, passing: &Passing) -> Wakes {
        let wakes = || {
            let key = &hold.claim.key;
            let Some(locker) = self.quorum.lister_of(key) else {
                if self.counts_others(hold) {
                    self.channels.begin_release(key);
                }
                return Wakes::All;
            };
            let lease = hold.lease();
            Wakes::Next(Some(self.channels.release(locker, key, self.gate.is_awaited(key), lease)))
        };
        passing.get_or_init(wakes).clone()
    }

    /// Takes in a server's answer to the release of this hold. With a `rest`, the lock was kept for that long. Returns
    /// whether the lock was there.
    pub(super) fn released(&self, hold: &Hold, release: &Release, rest: Option<Duration>) -> bool {
        let key = &hold.claim.key;
        match release {
            Release::PassedOn { place, turn, others, waiting } => {
                let before = place.unwrap_or(0);
                let offer = Offer { turn: *turn, others: *others, lockers: waiting + u64::from(place.is_none()) };
                let turns = self.channels.passed_on(key, *place, offer);
                let others = if turns == Turns::Taken { Others::Told } else { Others::Listed { before } };
                self.gate.note_others(key, others);
            }
            Release::Unlisted(error) => {
                self.gate.note_others(key, Others::Unknown);
                self.quorum.unlist(key, error);
            }
            // Nobody is notified of a lock that is kept.
            Release::Released(told) if rest.is_none() => self.note_others(hold, *told),
            Release::Released(_) | Release::Gone => {}
        }
        was_there(key, release)
    }

    /// Returns whether the number of clients that the message of this hold's release reaches tells whether others wait:
    /// all waiters listen, and this server, the only one, counts all of them.
    fn counts_others(&self, hold: &Hold) -> bool {
        let nodes = self.quorum.nodes();
        hold.claim.kind.is_told_of() && nodes.len() <= 1 && !nodes.iter().any(|node| node.is_cluster())
    }

    /// Notes how many clients the message of a release reached.
    fn note_others(&self, hold: &Hold, told: u64) {
        let key = &hold.claim.key;
        let others = match told.saturating_sub(self.channels.hears(key).into()) {
            _ if !self.counts_others(hold) => Others::Unknown,
            0 => Others::Nobody,
            others => match self.channels.told(key, others) {
                Turns::Taken => Others::Told,
                Turns::Unknown => Others::Unknown,
                Turns::Left => Others::Nobody,
            },
        };
        self.gate.note_others(key, others);
    }

    /// Takes this locker off the list of a lock that no caller waits for here. If that fails, the next locker in the
    /// list asks after a moment. Also done while closing, since a locker that is about to end must not be woken.
    pub(super) fn pass(self: &Arc<Self>, key: &Key) {
        if self.engine.is_guest_no_more() || !self.channels.begin_pass(key) {
            return;
        }
        let (session, key) = (Arc::clone(self), key.clone());
        let pending = self.engine.owe(Work::Operation);
        self.engine.spawn(async move {
            loop {
                let passed = session.quorum.pass(key.clone()).await;
                if let Err(error) = &passed {
                    log!(debug, key = %key.shown(), %error, "the locker could not be taken off the list");
                }
                if !session.channels.end_pass(&key, passed.is_ok()) {
                    break;
                }
            }
            drop(pending);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Instant;
    use crate::command::Kind;
    use crate::hold::Terms;
    use crate::owner::Owner;

    #[tokio::test]
    async fn a_message_that_anybody_can_send_has_nothing_passed() {
        let session = Session::over_nobody();
        session.pass(&Key::from("k"));
        assert_eq!(session.stats().pending, 0, "it never asked to be put into that list");
        session.engine.stop();
    }

    #[tokio::test]
    async fn others_are_known_to_wait_where_a_release_told_them_or_woke_them() {
        let (session, now) = (Session::over_nobody(), Instant::now());
        let terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };
        let hold = |kind| {
            let mut hold = Hold::for_test(Owner::task(1), terms, &[0], 1);
            hold.claim.kind = kind;
            Arc::new(hold)
        };
        let (told_of, plain) = (&hold(Kind::Redisson), &hold(Kind::Plain));
        session.gate.admit(told_of, None, now);
        let wait = |hold: &Hold, release: &Release, rest: Option<Duration>| {
            assert!(session.released(hold, release, rest));
            session.gate.others_wait(&hold.claim.key)
        };
        assert!(wait(told_of, &Release::Released(1), None));
        assert!(!wait(told_of, &Release::Released(0), None));
        assert!(!wait(told_of, &Release::Released(1), Some(terms.lease)), "it says nothing: the lock stands");
        assert!(wait(told_of, &Release::PassedOn { place: None, turn: None, others: 0, waiting: 1 }, None));
        assert!(wait(told_of, &Release::Released(0), Some(terms.lease)), "as before");
        assert!(!wait(plain, &Release::Released(1), None), "nobody knows who polls");
        session.engine.stop();
    }
}
