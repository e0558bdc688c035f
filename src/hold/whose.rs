//! Whose a hold is: its owner, and the class of the handle that took it.

use super::Hold;
use crate::owner::Owner;

impl Hold {
    pub(crate) fn owner(&self) -> Owner {
        self.state.lock().owner.clone()
    }

    pub(crate) fn is_owned_by(&self, owner: &Owner) -> bool {
        self.state.lock().owner == *owner
    }

    /// Returns whether one of the two proves that the other does not have the lock. The write hold
    /// of an owner is beside its reads.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        let is_beside = self.claim.kind != other.claim.kind && self.is_owned_by(&other.owner());
        self.claim.kind.excludes(other.claim.kind) && !is_beside
    }

    /// Returns whether this owner holds the lock by it in the other role than it asks for: whoever
    /// asks then has to find that out, instead of waiting for itself.
    pub(crate) fn is_in_other_role(&self, owner: &Owner, shares: bool) -> bool {
        let is_other = self.claim.kind.shares() != shares && self.is_owned_by(owner);
        // A read that no caller has taken is about to be taken or revoked.
        is_other && self.is_held() && (shares || self.claims().claimed)
    }

    /// Notes the class of a handle that has a guard of it. The first one counts.
    pub(crate) fn is_of_class(&self, class: &'static str) {
        self.state.lock().class.get_or_insert(class);
    }

    pub(crate) fn class(&self) -> Option<&'static str> {
        self.state.lock().class
    }
}
