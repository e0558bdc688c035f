//! What a connection tells by itself, whoever listens.

use tokio::sync::mpsc::UnboundedReceiver;

/// What a connection tells by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// A message came on this channel.
    Message { channel: String, text: String },
    /// Messages were dropped, of whatever channel.
    Lagged,
    /// It is connected anew: whatever was in flight is unknown, and no channel is subscribed.
    Up,
}

/// Takes in what a connection tells while something is under way. `None` once nothing can be heard any more.
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
