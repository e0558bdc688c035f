//! The channels that a connection subscribes to.

use fred::error::ErrorKind;
use fred::interfaces::PubsubInterface;

use super::Link;
use crate::node::reply::{self, Outcome};

impl Link {
    /// Sends SUBSCRIBE. It returns before the server has processed it: a [`Link::barrier`] behind
    /// it tells when it has.
    pub(in crate::node) async fn subscribe(
        &self,
        channels: Vec<String>,
    ) -> Result<(), fred::error::Error> {
        self.client().subscribe(channels).await
    }

    /// Sends UNSUBSCRIBE; as [`Link::subscribe`].
    pub(in crate::node) async fn unsubscribe(
        &self,
        channels: Vec<String>,
    ) -> Result<(), fred::error::Error> {
        self.client().unsubscribe(channels).await
    }

    /// Subscribes to a channel whose messages come from this server only, and waits until the
    /// server has done so.
    pub(in crate::node) async fn subscribe_sharded(&self, channel: String) -> Outcome<()> {
        self.sorted(self.client().ssubscribe(channel).await)
    }

    /// Sends SUNSUBSCRIBE; as [`Link::subscribe`].
    pub(in crate::node) async fn unsubscribe_sharded(&self, channel: String) -> Outcome<()> {
        self.sorted(self.client().sunsubscribe(channel).await)
    }

    /// Sorts fred's result of a subscription.
    pub(in crate::node) fn sorted(&self, answer: Result<(), fred::error::Error>) -> Outcome<()> {
        let Err(error) = answer else {
            return Outcome::Done(());
        };
        if !matches!(
            error.kind(),
            ErrorKind::IO | ErrorKind::Timeout | ErrorKind::Canceled
        ) {
            return reply::sort_error(&self.address.name, error.details());
        }
        self.unknown(reply::words(&error, None))
    }
}
