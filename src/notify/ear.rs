//! One node's subscriptions, and the task that sees to them.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::Channels;
use super::table::{Batch, Name};
use super::wake::WakeChannel;
use crate::clock::Instant;
use crate::foreign::{self, contained};
use crate::node::{LinkEvent, Node, Outcome, hear_during};

/// The pause before a batch is tried again that the connection did not take.
const RETRY: Duration = Duration::from_millis(100);

/// Keeps one node's subscriptions as the table has them. Started with the locker; ends when the node's connection is
/// quit, or with the engine.
pub(crate) async fn listen(
    channels: Arc<Channels>,
    index: usize,
    node: Arc<Node>,
    mut events: UnboundedReceiver<LinkEvent>,
) {
    let mut ear = Ear { channels, index, node, wake: false, deaf: false };
    foreign::restarted(async move |again| {
        if again {
            // A batch may be half sent, and its replies would be taken for those of the next.
            ear.node.reset_subscriber().await;
            ear.forget();
        }
        keep_listening(&mut ear, &mut events).await;
    })
    .await;
}

async fn keep_listening(ear: &mut Ear, events: &mut UnboundedReceiver<LinkEvent>) {
    loop {
        if let Some(wake) = ear.channels.wake.as_ref().and_then(WakeChannel::ask) {
            if !ear.send_wake(wake, events).await {
                return;
            }
            continue;
        }
        let (batch, next) = ear.channels.batch(ear.index, Instant::now());
        if !batch.is_empty() || ear.wake {
            if !ear.send(batch, events).await {
                return;
            }
            continue;
        }
        let swept = async {
            match next {
                Some(next) => sleep(next).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // Events come without an end where many locks are contended: they come last.
            biased;
            // No wake-up is lost: this task is the only one that waits, and a change meanwhile leaves its permit.
            () = ear.channels.changed[ear.index].notified() => {}
            () = swept => {}
            event = events.recv() => match event {
                Some(event) => _ = ear.hear(event),
                None => return,
            },
        }
    }
}

/// One node's subscriptions, as its task sees to them.
struct Ear {
    channels: Arc<Channels>,
    index: usize,
    node: Arc<Node>,
    /// A reason to wake everybody, once a barrier has been passed after it.
    wake: bool,
    /// Whether a subscription was refused, which is said once.
    deaf: bool,
}

impl Ear {
    /// Sends a batch and hears on meanwhile. False once nothing can be heard any more.
    async fn send(&mut self, batch: Batch, events: &mut UnboundedReceiver<LinkEvent>) -> bool {
        let woken = std::mem::take(&mut self.wake);
        let Some((outcome, reconnected)) = self.resubscribe(&batch, events).await else { return false };
        match outcome {
            // What was confirmed on a connection that is gone is not subscribed on the new one.
            _ if reconnected => return true,
            Outcome::Done(()) => {}
            Outcome::Refused(error) => {
                if !std::mem::replace(&mut self.deaf, true) {
                    contained(|| {
                        tracing::warn!(
                            %error,
                            "unlock messages cannot be received: waiters look every sixth of a lease"
                        );
                    });
                }
            }
            Outcome::NotExecuted(_) => {
                // The connection may be the same as before, and have what it had.
                self.channels.table().doubt(self.index, batch);
                self.wake = true;
                return self.pause(events).await;
            }
            Outcome::Unknown(_) => {
                self.node.reset_subscriber().await;
                self.forget();
                return self.pause(events).await;
            }
        }
        self.channels.confirm(self.index, &batch);
        if woken {
            self.channels.wake_all();
        }
        true
    }

    /// Sends a batch and hears on meanwhile: what came of it, and whether there is another connection by now. `None`
    /// once nothing can be heard any more.
    async fn resubscribe(
        &mut self,
        batch: &Batch,
        events: &mut UnboundedReceiver<LinkEvent>,
    ) -> Option<(Outcome<()>, bool)> {
        let node = Arc::clone(&self.node);
        let names = |names: &[Name]| names.iter().map(ToString::to_string).collect();
        let sending = node.resubscribe(names(&batch.add), names(&batch.remove));
        let mut reconnected = false;
        let outcome = hear_during(sending, events, |event| reconnected |= self.hear(event)).await?;
        Some((outcome, reconnected))
    }

    /// Subscribes to the locker's own channel, by itself: a user that may not do that hears the other messages all the
    /// same. False once nothing can be heard any more.
    async fn send_wake(&mut self, name: Name, events: &mut UnboundedReceiver<LinkEvent>) -> bool {
        let batch = Batch { add: vec![name], remove: Vec::new() };
        let Some((outcome, reconnected)) = self.resubscribe(&batch, events).await else { return false };
        let channels = Arc::clone(&self.channels);
        let Some(wake) = &channels.wake else { return true };
        match outcome {
            _ if reconnected => wake.again(),
            Outcome::Done(()) => wake.confirm(),
            Outcome::Refused(error) => wake.refuse(&error),
            Outcome::NotExecuted(_) => {
                wake.again();
                return self.pause(events).await;
            }
            Outcome::Unknown(_) => {
                self.node.reset_subscriber().await;
                self.forget();
                return self.pause(events).await;
            }
        }
        true
    }

    /// Hears on for a while before the next batch. False once nothing can be heard any more.
    async fn pause(&mut self, events: &mut UnboundedReceiver<LinkEvent>) -> bool {
        hear_during(sleep(RETRY), events, |event| _ = self.hear(event)).await.is_some()
    }

    /// Takes in what the connection tells. True if it is a new connection.
    fn hear(&mut self, event: LinkEvent) -> bool {
        match event {
            LinkEvent::Message { channel, text } => self.channels.message(self.index, &channel, &text),
            LinkEvent::Lagged => self.wake = true,
            LinkEvent::Up => {
                self.forget();
                return true;
            }
        }
        false
    }

    /// Nothing is subscribed, and nobody knows what was missed.
    fn forget(&mut self) {
        self.channels.table().forget(self.index);
        self.channels.wake.iter().for_each(WakeChannel::again);
        self.wake = true;
    }
}
