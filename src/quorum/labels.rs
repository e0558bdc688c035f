//! The labels of lockers on the servers, by which people find the process that holds a lock.
//!
//! # Invariants
//! - Nothing depends on a label: why one cannot be written or read is logged at debug, and no
//!   caller gets an error.
//! - A server that refuses labels to the user is not asked again, and says so once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::pace::patience_of;
use super::{Calls, Quorum};
use crate::clock::Instant;
use crate::error::{Error, ServerErrorKind};
use crate::foreign::log;
use crate::holder::Holder;
use crate::label::{Label, locker_of, shown};
use crate::lease::NodeIndex;
use crate::node::{Lane, Outcome};
use crate::op::{self, Op, ReadLabel, WriteLabel};

/// Which servers refuse labels.
#[derive(Debug)]
pub(super) struct Labels(Box<[AtomicBool]>);

impl Labels {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| AtomicBool::new(false)).collect())
    }
}

impl Quorum {
    /// Writes the label of this locker on all servers, or deletes it. The first poll sends it to
    /// those that are there.
    pub(crate) async fn label(&self, locker: Arc<str>, label: Option<&Label>) {
        let change = WriteLabel {
            locker,
            label: label.map(|label| Arc::clone(label.as_str())),
        };
        let mut asking = self.ask_for_labels(&change);
        while let Some((place, outcome)) = asking.next().await {
            self.heard_of_label(place, outcome);
        }
    }

    /// Returns the same holder with the label of its locker.
    pub(crate) async fn labelled(&self, holder: Holder) -> Holder {
        match self.label_of(holder.owner_bytes()).await {
            Some(label) => holder.labelled(Some(label)),
            None => holder,
        }
    }

    /// Returns the label of the locker of this owner, from the first server that has it. Does not
    /// wait for the slowest.
    pub(crate) async fn label_of(&self, owner: &[u8]) -> Option<String> {
        let locker = locker_of(owner)?;
        let mut asking = self.ask_for_labels(&ReadLabel(locker.into()));
        // Those that refuse labels have answered.
        let refusing = self
            .labels
            .0
            .iter()
            .filter(|off| off.load(Ordering::Relaxed))
            .count();
        let started = Instant::now();
        let mut answered = refusing;
        // In a cluster the master of the label may be away, while that of the lock is not.
        let mut until = self
            .nodes
            .iter()
            .map(|node| started + node.patience())
            .max();
        loop {
            if answered >= self.majority() {
                until = until.min(Some(patience_of(started)));
            }
            let (place, outcome) = asking.next_by(until).await?;
            answered += 1;
            if let Some(text) = self.heard_of_label(place, outcome).flatten() {
                return Some(shown(&text));
            }
        }
    }

    /// Asks the servers that do not refuse it.
    fn ask_for_labels<O: Op<Output: 'static> + Clone + Send + 'static>(
        &self,
        op: &O,
    ) -> Calls<O::Output> {
        let places = self
            .everywhere()
            .filter(|&place| !self.labels.0[place].load(Ordering::Relaxed));
        Calls::new(places.map(|place| {
            let node = Arc::clone(&self.nodes[place]);
            let op = op.clone();
            (
                place,
                async move { op::ask(&node, Lane::Commands, &op).await },
            )
        }))
    }

    /// Returns the answer of a server, or logs why there is none.
    fn heard_of_label<T>(&self, place: NodeIndex, outcome: Outcome<T>) -> Option<T> {
        let (reason, is_final) = match outcome {
            Outcome::Done(answer) => return Some(answer),
            Outcome::Refused(Error::Server { kind, source }) => {
                (source.message, kind == ServerErrorKind::NoPermission)
            }
            Outcome::Refused(error) => (error.to_string(), false),
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => (failure.reason, false),
        };
        let node = self.nodes[place].name();
        if !is_final {
            log!(debug, %node, reason, "a label is neither written nor read this time");
        } else if !self.labels.0[place].swap(true, Ordering::Relaxed) {
            log!(debug, %node, reason, "labels are off: the user has no right to ~lockhound_label:*");
        }
        None
    }
}
