//! Who holds a lock, as the server tells it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// Who stood in a lock when the server was asked. By the time it is read it may be somebody else.
#[derive(Clone, PartialEq, Eq)]
pub struct Holder {
    pub(crate) owner: Vec<u8>,
    pub(crate) hold_count: u64,
    pub(crate) remaining: Option<Duration>,
}

impl Holder {
    /// The owner, byte for byte as it stands on the server: `uuid:task-id:generation` for a holder that uses this crate,
    /// whatever a foreign client has put there for others.
    pub fn owner_bytes(&self) -> &[u8] {
        &self.owner
    }

    /// The owner as text, what is not UTF-8 replaced.
    pub fn owner(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.owner)
    }

    /// How many times the owner has entered. Informative: the holder's own process knows better, and alone knows it in
    /// [`Format::Plain`](crate::Format::Plain), where this is 1.
    pub fn hold_count(&self) -> u64 {
        self.hold_count
    }

    /// How much of its lease is left on the server, unless it is renewed; `None` if it has no lease at all.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("owner", &self.owner())
            .field("hold_count", &self.hold_count)
            .field("remaining", &self.remaining)
            .finish()
    }
}
