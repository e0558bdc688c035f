//! The lists of lockers that wait for a lock: a release wakes the next one, and not all of them.
//!
//! There are lists on a server that stands alone. Of several, a majority of messages is waited for, and a cluster's
//! messages come from the master of their slot: there a release tells all.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Quorum;
use crate::command::{Answer, Claim, Command, Release, Releaser, Wakes};
use crate::foreign::contained;
use crate::key::Key;
use crate::lease::NodeIndex;
use crate::node::{Lane, Node, Outcome};
use crate::script;

/// Whether a locker is in lists.
#[derive(Debug)]
pub(super) struct Lists {
    locker: Arc<str>,
    /// The user may have none.
    off: AtomicBool,
    /// The locks whose lists the user may not have, or in whose place something else stands: no more than
    /// [`MOST_REFUSED`].
    refused: Mutex<HashSet<Key>>,
    /// Whether the log has been told.
    said: AtomicBool,
}

/// Where more are refused, they are asked for once more: to name one costs a refusal, and takes no list from others.
const MOST_REFUSED: usize = 1_024;

/// What the refusal of a list is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// This list.
    Name,
    /// Commands or channels without which there are none.
    All,
    /// The state that the server is in, which may be another the next time.
    Now,
}

impl Refusal {
    /// In the server's words. Every version says of a key that it is one; so does the name of some users, for whom each
    /// list is asked for.
    fn of(error: &str) -> Self {
        let is_acl = error.contains("NOPERM") || error.contains("The user executing the script");
        if error.contains("WRONGTYPE") || (is_acl && error.contains("key")) {
            Self::Name
        } else if is_acl {
            Self::All
        } else {
            Self::Now
        }
    }
}

impl Lists {
    /// `None` where there are none.
    pub(super) fn new(nodes: &[Arc<Node>], locker: &str, remembers: bool) -> Option<Self> {
        let is_alone = matches!(nodes, [node] if !node.is_cluster());
        let (off, refused, said) = (AtomicBool::new(false), Mutex::default(), AtomicBool::new(false));
        (is_alone && !remembers).then(|| Self { locker: locker.into(), off, refused, said })
    }

    fn refused(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server refused the list of this lock. Whether the log is to be told: once, and once more if there is none.
    fn refuse(&self, key: &Key, refusal: Refusal) -> bool {
        if refusal == Refusal::All {
            return !self.off.swap(true, Ordering::Relaxed);
        }
        if refusal == Refusal::Name {
            let mut refused = self.refused();
            if refused.len() >= MOST_REFUSED {
                refused.clear();
            }
            refused.insert(key.clone());
        }
        !self.said.swap(true, Ordering::Relaxed)
    }
}

impl Quorum {
    /// The same, for a locker of this name, which may stand in lists.
    pub(super) fn with_lists(self, locker: &str) -> Self {
        let lists = Lists::new(&self.nodes, locker, self.eligibility.remembers());
        Self { lists, ..self }
    }

    /// This locker, as lists name it; `None` where there are none.
    pub(crate) fn lister(&self) -> Option<&Arc<str>> {
        self.lists.as_ref().filter(|lists| !lists.off.load(Ordering::Relaxed)).map(|lists| &lists.locker)
    }

    /// The same, of one lock: the list of its name may be refused.
    pub(crate) fn lister_of(&self, key: &Key) -> Option<&Arc<str>> {
        self.lister().filter(|_| self.lists.as_ref().is_some_and(|lists| !lists.refused().contains(key)))
    }

    /// Whom a release wakes.
    pub(crate) fn wakes(&self, releaser: Option<Releaser>) -> Wakes {
        if self.lister().is_some() { Wakes::Next(releaser) } else { Wakes::All }
    }

    /// Releases a lock on one node. It stands for the rest of its time, if there is one, and wakes nobody then.
    pub(crate) async fn release(
        &self,
        node: NodeIndex,
        claim: &Claim,
        rest: Option<Duration>,
        wakes: Wakes,
    ) -> Outcome<Release> {
        let release = Command::release(claim.clone(), rest, wakes);
        script::ask(&self.nodes[node], Lane::Commands, release, Answer::release).await
    }

    /// Takes this locker off the list of a lock, and wakes the next one if the lock is free.
    pub(crate) async fn pass(&self, key: Key) -> Outcome<Release> {
        let (Some(locker), [node]) = (self.lister(), &*self.nodes) else { return Outcome::Done(Release::Gone) };
        let pass = Command::Pass { key, locker: Arc::clone(locker) };
        script::ask(node, Lane::Commands, pass, Answer::release).await
    }

    /// The server refused the list of this lock: its releases tell all from here on, those of all locks if the user may
    /// have no lists, or this one.
    pub(crate) fn unlist(&self, key: &Key, error: &str) {
        let Some(lists) = &self.lists else { return };
        let refusal = Refusal::of(error);
        if lists.refuse(key, refusal) {
            contained(|| {
                tracing::warn!(
                    key = %key.shown(),
                    ?refusal,
                    error,
                    "the lists of waiting lockers cannot be used: each release wakes all (SECURITY.md has the rights)"
                );
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_rights_is_told_from_a_user_without_them() {
        for (error, refusal) in [
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Refusal::Name),
            ("NOPERM ACL failure in script: User app has no permissions to access the 'x' key", Refusal::Name),
            ("ERR The user executing the script can't access at least one of the keys mentioned", Refusal::Name),
            ("ACL failure in script: No permissions to access a key NOPERM", Refusal::Name),
            ("NOPERM ACL failure in script: User app has no permissions to run the 'zcard' command", Refusal::All),
            ("NOPERM ACL failure in script: User app has no permissions to access the 'x' channel", Refusal::All),
            ("The user executing the script can't run this command or subcommand", Refusal::All),
            ("OOM command not allowed when used memory > 'maxmemory'", Refusal::Now),
        ] {
            assert_eq!(Refusal::of(error), refusal, "{error}");
        }
    }

    #[test]
    fn names_are_refused_one_by_one_and_are_not_kept_without_a_bound() {
        let lists = Lists {
            locker: "locker".into(),
            off: AtomicBool::new(false),
            refused: Mutex::default(),
            said: AtomicBool::new(false),
        };
        let said = (0..3 * MOST_REFUSED).filter(|n| lists.refuse(&Key::from(format!("{n}")), Refusal::Name)).count();
        assert_eq!((said, lists.refused().len()), (1, MOST_REFUSED));
        assert!(!lists.refuse(&Key::from("now"), Refusal::Now) && !lists.refused().contains(&Key::from("now")));
        assert!(lists.refuse(&Key::from("x"), Refusal::All) && lists.off.load(Ordering::Relaxed));
    }
}
