//! Wakes the next locker that waits for a lock, if there are lists.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::Session;
use super::pending::Pending;
use crate::command::{Release, Wakes};
use crate::foreign::contained;
use crate::gate::Others;
use crate::hold::Hold;
use crate::key::Key;
use crate::notify::{Hook, Hooks};
use crate::quorum::was_there;

/// What the release of a hold tells the servers about waiting lockers, and what they said.
#[derive(Debug, Default)]
pub(super) struct Passing {
    wakes: OnceLock<Wakes>,
    /// How many servers have woken another locker.
    passed_on: AtomicUsize,
    /// How many of them know clients outside of their lists.
    others: AtomicUsize,
}

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
        Hooks { message: hook(|session, key| session.message(key)), idle: hook(Self::pass), called: hook(Self::called) }
    }

    /// Returns whom the release of this hold wakes, which is sent to all servers now.
    pub(super) fn wakes(&self, hold: &Hold, passing: &Passing) -> Wakes {
        let wakes = || {
            let Some(locker) = self.quorum.lister_of(&hold.claim.key) else { return Wakes::All };
            let key = &hold.claim.key;
            let lease = hold.lease();
            Wakes::Next(Some(self.channels.release(locker, key, self.gate.is_awaited(key), lease)))
        };
        passing.wakes.get_or_init(wakes).clone()
    }

    /// Returns whom an undo wakes, of what stands for so long.
    pub(super) fn undo_wakes(&self, key: &Key, stands: Duration) -> Wakes {
        let locker = self.quorum.lister_of(key);
        self.quorum.wakes(locker.and_then(|locker| self.channels.undo(locker, key, stands)))
    }

    /// Takes in a server's answer to the release of this hold. With a `rest`, the lock was kept for that long. Returns
    /// whether the lock was there.
    pub(super) fn released(&self, hold: &Hold, release: &Release, rest: Option<Duration>, passing: &Passing) -> bool {
        let key = &hold.claim.key;
        match release {
            Release::PassedOn { place, turn, others } => {
                let before = place.unwrap_or(0);
                self.gate.note_others(key, if *others { Others::Told } else { Others::Listed { before } });
                // A minority may have woken a locker that the others do not know of.
                let told = passing.others.fetch_add(usize::from(*others), Ordering::Relaxed) + usize::from(*others);
                let majority = self.quorum.majority();
                if passing.passed_on.fetch_add(1, Ordering::Relaxed) + 1 == majority {
                    self.channels.passed_on(key, *place, *turn, told >= majority);
                }
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

    /// Notes how many clients the message of a release reached. That tells whether others wait only if all waiters
    /// listen, and this server counts all of them.
    fn note_others(&self, hold: &Hold, told: u64) {
        let key = &hold.claim.key;
        let tells_all = hold.claim.kind.is_told_of() && !self.quorum.nodes().iter().any(|node| node.is_cluster());
        let others = match told > u64::from(self.channels.hears(key)) {
            true if tells_all => Others::Told,
            false if tells_all => Others::Nobody,
            _ => Others::Unknown,
        };
        self.gate.note_others(key, others);
    }

    /// Handles a call for a lock that no caller waits for here.
    fn called(self: &Arc<Self>, key: &Key) {
        if !self.is_called_late(key) {
            self.pass(key);
        }
    }

    /// Returns whether this locker has the lock: then a majority of several servers called it before, and nobody
    /// depends on what another one does. The release takes it off the lists.
    fn is_called_late(&self, key: &Key) -> bool {
        self.quorum.nodes().len() > 1 && self.gate.has_hold(key, |hold| hold.blocks(self.now()))
    }

    /// Takes this locker off the list of a lock that no caller waits for here. If that fails, the next locker in the
    /// list asks after a moment. Also done while closing, since a locker that is about to end must not be woken.
    pub(super) fn pass(self: &Arc<Self>, key: &Key) {
        if self.engine.is_guest_no_more() || !self.channels.begin_pass(key) {
            return;
        }
        let (session, key) = (Arc::clone(self), key.clone());
        let pending = Pending::new(self);
        self.engine.spawn(async move {
            loop {
                let passed = session.quorum.pass(key.clone()).await;
                if let Err(error) = &passed {
                    contained(|| {
                        tracing::debug!(key = %key.shown(), %error, "the locker could not be taken off the list");
                    });
                }
                if !session.channels.end_pass(&key, passed.unwrap_or(false)) {
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
    use crate::command::{Enlists, Kind};
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
    async fn a_locker_that_has_the_lock_ignores_late_calls_of_several_servers() {
        let (key, now) = (Key::from("k"), Instant::now());
        let terms = Terms { lease: Duration::from_secs(30), renewed: true, max_hold: None };
        for servers in [1, 3] {
            let session = Session::over_nobodies(servers);
            let hold = Arc::new(Hold::for_test(Owner::task(1), terms, &[0, 1][..servers.min(2)], servers));
            assert!(!session.is_called_late(&key), "nobody has it");
            session.gate.admit(&hold, None, now);
            assert_eq!(session.is_called_late(&key), servers > 1);
            hold.leave(now);
            assert_eq!(session.is_called_late(&key), servers > 1, "its release is under way");
            session.gate.remove(&hold);
            assert!(!session.is_called_late(&key));
            session.engine.stop();
        }
    }

    /// What was granted took it off that server's list.
    #[tokio::test]
    async fn an_undo_on_one_of_several_servers_puts_a_locker_that_waits_back_into_the_list() {
        let (one, several) = (Session::over_nobody(), Session::over_nobodies(3));
        let (key, lease) = (Key::from("k"), Duration::from_secs(30));
        assert_eq!(
            one.undo_wakes(&key, lease),
            Wakes::Next(None),
            "one server has nothing to undo but what is unknown"
        );
        let releaser = || match several.undo_wakes(&key, lease) {
            Wakes::Next(Some(releaser)) => (releaser.enlists, releaser.since.is_some()),
            wakes => panic!("{wakes:?}"),
        };
        assert_eq!(releaser(), (Enlists::No, false));
        several.channels.passed_on(&key, Some(1), false, false);
        assert_eq!(releaser(), (Enlists::Again, true));
        one.engine.stop();
        several.engine.stop();
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
            assert!(session.released(hold, release, rest, &Passing::default()));
            session.gate.others_wait(&hold.claim.key)
        };
        assert!(wait(told_of, &Release::Released(1), None));
        assert!(!wait(told_of, &Release::Released(0), None));
        assert!(!wait(told_of, &Release::Released(1), Some(terms.lease)), "it says nothing: the lock stands");
        assert!(wait(told_of, &Release::PassedOn { place: None, turn: false, others: false }, None));
        assert!(wait(told_of, &Release::Released(0), Some(terms.lease)), "as before");
        assert!(!wait(plain, &Release::Released(1), None), "nobody knows who polls");
        session.engine.stop();
    }
}
