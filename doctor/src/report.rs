//! The report: a verdict for each promise.

use crate::cases::Wanted;
use crate::found::ServerReport;
use crate::promise::{Promise, Verdict};
use crate::verdicts::verdicts;

/// Which promises the servers of a locker keep: the report of [`examine`](crate::examine).
///
/// It describes the moment at which it was made. A server may be reconfigured, lose its replicas or
/// restart at any time after that. It prints as a list of at most 100 columns.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The servers, in the order in which they were given to the builder; for a cluster, its
    /// masters.
    pub servers: Vec<ServerReport>,
    /// A verdict for each promise, in the order of [`Promise`].
    pub verdicts: Vec<Verdict>,
}

impl Report {
    pub(crate) fn new(wanted: &Wanted, servers: Vec<ServerReport>) -> Self {
        let verdicts = verdicts(wanted, &servers);
        Self { servers, verdicts }
    }

    /// Returns whether every promise is kept or does not apply. A promise about which nothing is
    /// known is not kept.
    ///
    /// A single server with Redis' default configuration is not `ok`: it forgets locks when it
    /// crashes. If you can live with that, ask for the promises that matter, one by one:
    /// [`keeps`](Self::keeps).
    pub fn is_ok(&self) -> bool {
        self.problems().next().is_none()
    }

    /// Returns whether this promise is kept or does not apply.
    pub fn keeps(&self, promise: Promise) -> bool {
        self.verdicts
            .iter()
            .any(|verdict| verdict.promise == promise && verdict.is_fine())
    }

    /// Returns the verdict on this promise.
    pub fn verdict(&self, promise: Promise) -> Option<&Verdict> {
        self.verdicts
            .iter()
            .find(|verdict| verdict.promise == promise)
    }

    /// Returns the verdicts on promises that are not kept, or not known to be.
    pub fn problems(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| !verdict.is_fine())
    }
}
