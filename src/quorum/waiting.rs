//! The lists of lockers that wait for a lock: a release wakes the next one, and not all of them.
//!
//! There are lists on a server that stands alone. Of several, a majority of messages is waited for, and a cluster's
//! messages come from the master of their slot: there a release tells all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// The user may not do it, which was said.
    off: AtomicBool,
}

impl Lists {
    /// `None` where there are none.
    pub(super) fn new(nodes: &[Arc<Node>], locker: &str, remembers: bool) -> Option<Self> {
        let is_alone = matches!(nodes, [node] if !node.is_cluster());
        (is_alone && !remembers).then(|| Self { locker: locker.into(), off: AtomicBool::new(false) })
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

    /// The server does not let the user have lists: all are told from here on.
    pub(crate) fn unlist(&self, error: &str) {
        let Some(lists) = &self.lists else { return };
        if !lists.off.swap(true, Ordering::Relaxed) {
            contained(|| {
                tracing::warn!(
                    error,
                    "the lists of waiting lockers cannot be used: each release wakes all (SECURITY.md has the rights)"
                );
            });
        }
    }
}
