//! The events of a connection.

use tokio::sync::mpsc::UnboundedReceiver;

/// An event of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// A message arrived on this channel.
    Message { channel: String, text: String },
    /// Messages of some channels were dropped.
    Lagged,
    /// It was reconnected: whatever was in flight is unknown, and no channel is subscribed.
    Up,
}

/// Handles the events of a connection while something is in flight. Returns `None` once the
/// connection has ended.
pub(crate) async fn hear_during<T>(
    work: impl Future<Output = T>,
    events: &mut UnboundedReceiver<LinkEvent>,
    mut hear: impl FnMut(LinkEvent),
) -> Option<T> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            event = events.recv() => hear(event?),
        }
    }
}
