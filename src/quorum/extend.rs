//! Extends a lease on all nodes.

use std::time::Duration;

use super::{Calls, Quorum};
use crate::claim::Claim;

impl Quorum {
    /// Makes a lock last for at least this long, on all nodes.
    pub(crate) fn extend(&self, claim: &Claim, lease: Duration) -> Calls<bool> {
        Calls::new((0..self.nodes.len()).map(|place| {
            let voter = self.voter(place);
            let claim = claim.clone();
            (place, async move { voter.extend(claim, lease).await })
        }))
    }
}
