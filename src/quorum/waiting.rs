//! The lists of lockers that wait for a lock, by which a release wakes the next one and not all of
//! them.
//!
//! The list is a sorted set, `lockhound_waiting:{name}`, in the order in which lockers arrived. It
//! lives for three leases of the lock or of the locker, whichever is longer, and a locker that
//! waits asks again within a sixth of its own. `try_lock` does not use it, nor does the script that
//! takes several locks at once; a `lock` of several waits for each of them alone, and is in that
//! lock's list.
//!
//! The list is a hint. If it expires, is deleted or is replaced, lockers are not woken by name
//! until they ask again, and nothing else is lost. The scripts do not declare it as a key, since a
//! user without rights to it has to be able to release: if using it fails, the script catches the
//! error and notifies all. A locker that lacks the right to one list no longer uses that one;
//! without the right to a command or a channel that all need, it uses none.
//!
//! A locker of one server has lists. In a cluster, and over several servers, a release notifies all
//! waiters. Lists over several servers were built and removed: they made twenty contenders on one
//! machine 2.3 times as fast and gained nothing where servers are apart, and they needed a model
//! and eight rules of their own.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Calls, Quorum};
use crate::claim::{Claim, ReleaseAnswer, Releaser, Wakes};
use crate::error::Error;
use crate::foreign::log;
use crate::key::Key;
use crate::lease::NodeIndex;
use crate::node::{Lane, Node, Outcome};
use crate::op::{self, LeaveList, Release};
use crate::sync::{Arc, Mutex};

/// The lists of a locker: where it may stand in one.
#[derive(Debug, Default)]
pub(super) struct Lists {
    locker: Arc<str>,
    /// Whether the user has no right to any list.
    off: AtomicBool,
    /// The locks whose lists the user has no right to, or whose list key is something else; at most
    /// [`MOST_REFUSED`].
    refused: Mutex<HashSet<Key>>,
    /// Whether it has been logged.
    said: AtomicBool,
}

/// Beyond this number the refusals are forgotten, and asked for again: naming a lock costs one
/// refusal, and takes the list from no other lock.
const MOST_REFUSED: usize = 1_024;

/// What the refusal of a list concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The list of this name.
    Name,
    /// Commands or channels that all lists need.
    All,
    /// The present state of the server, which may be different the next time.
    Now,
}

impl Refusal {
    /// Classifies the server's error. Every version mentions the word "key" if the right to a key
    /// is missing. For a user whose name contains that word, each list is tried.
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
    /// Returns `None` if there are no lists.
    pub(super) fn new(nodes: &[Arc<Node>], locker: &str) -> Option<Self> {
        let has_lists = matches!(nodes, [node] if !node.is_cluster());
        has_lists.then(|| Self {
            locker: locker.into(),
            ..Self::default()
        })
    }

    /// Notes that the server refused the list of this lock. Returns whether to log it: once, and
    /// once more if there can be no lists at all.
    fn refuse(&self, key: &Key, refusal: Refusal) -> bool {
        if refusal == Refusal::All {
            return !self.off.swap(true, Ordering::Relaxed);
        }
        if refusal == Refusal::Name {
            let mut refused = self.refused.lock();
            if refused.len() >= MOST_REFUSED {
                refused.clear();
            }
            refused.insert(key.clone());
        }
        !self.said.swap(true, Ordering::Relaxed)
    }
}

impl Quorum {
    /// Adds the lists, for a locker of this name.
    pub(crate) fn with_lists(self, locker: &str) -> Self {
        let lists = Lists::new(&self.nodes, locker);
        Self { lists, ..self }
    }

    /// Returns this locker's name in lists; `None` if there are none.
    pub(crate) fn lister(&self) -> Option<&Arc<str>> {
        self.lists
            .as_ref()
            .filter(|lists| !lists.off.load(Ordering::Relaxed))
            .map(|lists| &lists.locker)
    }

    /// As [`lister`](Self::lister), for one lock: its list may be refused.
    pub(crate) fn lister_of(&self, key: &Key) -> Option<&Arc<str>> {
        self.lister().filter(|_| {
            self.lists
                .as_ref()
                .is_some_and(|lists| !lists.refused.lock().contains(key))
        })
    }

    /// Returns whom a release wakes.
    pub(crate) fn wakes(&self, releaser: Option<Releaser>) -> Wakes {
        if self.lister().is_some() {
            Wakes::Next(releaser)
        } else {
            Wakes::All
        }
    }

    /// Releases a lock on every node. With a `rest`, the lock is kept for that long, and no waiter
    /// is woken.
    pub(crate) fn release(
        &self,
        claim: &Claim,
        rest: Option<Duration>,
        wakes: &Wakes,
    ) -> Calls<ReleaseAnswer> {
        let on = |node| {
            (
                node,
                self.release_on(node, Lane::Commands, claim, rest, wakes.clone()),
            )
        };
        Calls::new(self.everywhere().map(on))
    }

    /// Releases a lock on one node, behind whatever was sent on the same connection.
    pub(crate) fn release_on(
        &self,
        node: NodeIndex,
        lane: Lane,
        claim: &Claim,
        rest: Option<Duration>,
        wakes: Wakes,
    ) -> impl Future<Output = Outcome<ReleaseAnswer>> + use<> {
        let node = Arc::clone(&self.nodes[node]);
        let release = Release {
            claim: claim.clone(),
            rest,
            wakes,
        };
        async move { op::ask(&node, lane, &release).await }
    }

    /// Takes this locker off the list of a lock, and wakes the next one if the lock is free.
    ///
    /// # Errors
    /// Why it may still be there.
    pub(crate) async fn pass(&self, key: Key) -> Result<(), Error> {
        let Some(locker) = self.lister() else {
            return Ok(());
        };
        let locker = Arc::clone(locker);
        self.hear_all(LeaveList { key, locker }).await.map(drop)
    }

    /// Handles the refusal of a lock's list: from here on, releases of this lock notify all
    /// waiters; if the user has no right to any list, releases of all locks do.
    pub(crate) fn unlist(&self, key: &Key, error: &str) {
        let Some(lists) = &self.lists else { return };
        let refusal = Refusal::of(error);
        if lists.refuse(key, refusal) {
            log!(
                warn, key = %key.shown(), ?refusal, error,
                "cannot use the lists of waiting lockers: each release wakes all of them (guide::operating \
                has the rights)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn a_refused_name_is_distinguished_from_a_user_without_rights() {
        for (error, refusal) in [
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                Refusal::Name,
            ),
            (
                "NOPERM ACL failure in script: User app has no permissions to access the 'x' key",
                Refusal::Name,
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned",
                Refusal::Name,
            ),
            (
                "ACL failure in script: No permissions to access a key NOPERM",
                Refusal::Name,
            ),
            (
                "NOPERM ACL failure in script: User app has no permissions to run the 'zcard' command",
                Refusal::All,
            ),
            (
                "NOPERM ACL failure in script: User app has no permissions to access the 'x' channel",
                Refusal::All,
            ),
            (
                "The user executing the script can't run this command or subcommand",
                Refusal::All,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'",
                Refusal::Now,
            ),
        ] {
            assert_eq!(Refusal::of(error), refusal, "{error}");
        }
    }

    #[test]
    fn names_are_refused_one_by_one_and_their_number_is_bounded() {
        let lists = Lists {
            locker: "locker".into(),
            off: AtomicBool::new(false),
            refused: Mutex::default(),
            said: AtomicBool::new(false),
        };
        let said = (0..3 * MOST_REFUSED)
            .filter(|n| lists.refuse(&Key::from(format!("{n}")), Refusal::Name))
            .count();
        assert_eq!((said, lists.refused.lock().len()), (1, MOST_REFUSED));
        assert!(
            !lists.refuse(&Key::from("now"), Refusal::Now)
                && !lists.refused.lock().contains(&Key::from("now"))
        );
        assert!(lists.refuse(&Key::from("x"), Refusal::All) && lists.off.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_locker_is_in_no_refused_list_and_without_rights_in_none() {
        let settings = Options::default().validate(1).expect("valid");
        let quorum = Quorum::new(
            vec![Node::of_nobody(&settings)],
            Duration::ZERO,
            Duration::ZERO,
        )
        .with_lists("locker");
        let listed = || {
            [
                quorum.lister(),
                quorum.lister_of(&"one".into()),
                quorum.lister_of(&"other".into()),
            ]
        };
        let listed = || listed().map(|locker| locker.map(|name| &**name));
        let me = Some("locker");
        assert_eq!(listed(), [me, me, me]);
        quorum.unlist(
            &"one".into(),
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        );
        quorum.unlist(
            &"other".into(),
            "OOM command not allowed when used memory > 'maxmemory'",
        );
        assert_eq!(listed(), [me, None, me]);
        assert!(matches!(quorum.wakes(None), Wakes::Next(None)));
        quorum.unlist(
            &"one".into(),
            "NOPERM User app has no permissions to run the 'zcard' command",
        );
        assert_eq!(listed(), [None; 3]);
        assert!(matches!(quorum.wakes(None), Wakes::All));
    }
}
