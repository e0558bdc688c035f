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

    /// Notes the class of a handle that has a guard of it. The first one counts.
    pub(crate) fn is_of_class(&self, class: &'static str) {
        self.state.lock().class.get_or_insert(class);
    }

    pub(crate) fn class(&self) -> Option<&'static str> {
        self.state.lock().class
    }
}
