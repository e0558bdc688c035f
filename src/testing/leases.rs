//! How leases of a server in memory are restarted.

use std::time::Duration;

use super::store::{Run, millis};
use crate::command::{Claim, Renew};

impl Run<'_> {
    pub(super) fn extend(&mut self, claim: &Claim, lease: Duration) -> bool {
        let held = self.is_held(claim);
        if held && self.keys.ttl(claim.key.as_str()) < i64::try_from(lease.as_millis()).unwrap_or(i64::MAX) {
            self.keys.expire(claim.key.as_str(), millis(lease));
        }
        held
    }

    pub(super) fn renew(&mut self, claim: &Claim, lease: Duration) -> Renew {
        if !self.is_held(claim) {
            return Renew::Gone;
        }
        self.keys.expire(claim.key.as_str(), millis(lease));
        Renew::Renewed
    }
}
