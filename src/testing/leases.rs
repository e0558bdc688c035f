//! How leases of a server in memory are restarted.

use std::time::Duration;

use super::keyspace::millis;
use super::store::Run;
use crate::command::Claim;

impl Run<'_> {
    pub(super) fn extend(&mut self, claim: &Claim, lease: Duration) -> bool {
        let held = self.is_held(claim);
        if held && self.keys.ttl(claim.key.as_str()) < i64::try_from(lease.as_millis()).unwrap_or(i64::MAX) {
            self.keys.expire(claim.key.as_str(), millis(lease));
        }
        held
    }
}
