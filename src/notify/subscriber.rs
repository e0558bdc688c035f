//! One node's subscriptions, and the task that maintains them.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::Channels;
use super::table::{Name, SubscriptionChanges};
use crate::clock::Instant;
use crate::foreign::{self, log};
use crate::node::{LinkEvent, Node, Outcome, hear_during};

/// The pause before a batch that the connection did not take is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// Keeps one node's subscriptions as the table has them. Starts with the locker; ends when the
/// node's connection is closed, or with the engine.
pub(crate) async fn listen(
    channels: Arc<Channels>,
    index: usize,
    node: Arc<Node>,
    mut events: UnboundedReceiver<LinkEvent>,
) {
    let mut subscriber = NodeSubscriber {
        channels,
        index,
        node,
        wake: false,
        deaf: false,
    };
    foreign::restarted(async move |again| {
        if again {
            // A batch may be half sent, and its replies would be taken for those of the next one.
            subscriber.node.reset_subscriber().await;
            subscriber.forget();
        }
        keep_listening(&mut subscriber, &mut events).await;
    })
    .await;
}

async fn keep_listening(
    subscriber: &mut NodeSubscriber,
    events: &mut UnboundedReceiver<LinkEvent>,
) {
    loop {
        if let Some(wake) = subscriber
            .channels
            .wake
            .as_ref()
            .and_then(|wake| wake.ask(subscriber.index))
        {
            if !subscriber.send_wake(wake, events).await {
                return;
            }
            continue;
        }
        let (batch, next) = subscriber.channels.batch(subscriber.index, Instant::now());
        // Also an empty batch: its barrier is behind all messages that were missed.
        if !batch.is_empty() || subscriber.wake {
            if !subscriber.send(batch, events).await {
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
            // With many contended locks there is always an event, so events come last.
            biased;
            // No wake-up is lost: only this task waits, and a change meanwhile leaves a permit.
            () = subscriber.channels.changed[subscriber.index].notified() => {}
            () = swept => {}
            event = events.recv() => match event {
                Some(event) => _ = subscriber.hear(event),
                None => return,
            },
        }
    }
}

/// The state of a node's task.
struct NodeSubscriber {
    channels: Arc<Channels>,
    index: usize,
    node: Arc<Node>,
    /// Set if all lines have to be told that they may have missed messages, after the next batch is
    /// confirmed.
    wake: bool,
    /// Set once a refused subscription has been logged.
    deaf: bool,
}

impl NodeSubscriber {
    /// Sends a batch, and handles events meanwhile. Returns false once there will be no more
    /// events.
    async fn send(
        &mut self,
        batch: SubscriptionChanges,
        events: &mut UnboundedReceiver<LinkEvent>,
    ) -> bool {
        // What is missed from here on may come behind this batch, and needs another one.
        let woken = std::mem::take(&mut self.wake);
        let Some((outcome, reconnected)) = self.resubscribe(&batch, events).await else {
            return false;
        };
        match outcome {
            // Subscriptions of a connection that is gone do not exist on the new one.
            _ if reconnected => return true,
            Outcome::Done(()) => {}
            Outcome::Refused(_) if batch.len() > 1 => {
                if !self.send_singly(batch, events).await {
                    return false;
                }
                self.wake |= woken;
                return true;
            }
            Outcome::Refused(error) => {
                if !std::mem::replace(&mut self.deaf, true) {
                    log!(warn, %error, "cannot subscribe to unlock messages: waiters poll every sixth of a lease");
                }
            }
            Outcome::NotExecuted(_) => {
                // The connection may be the same as before, with its subscriptions.
                self.channels.table.lock().doubt(self.index, batch);
                self.wake = true;
                return self.pause(events).await;
            }
            Outcome::Unknown(_) => {
                // The replies of a batch that is half executed would be taken for those of the
                // next.
                self.node.reset_subscriber().await;
                self.forget();
                return self.pause(events).await;
            }
        }
        // First: what lines ask next relies on the subscription.
        self.channels.confirm(self.index, &batch);
        if woken {
            self.channels.miss_all();
        }
        true
    }

    /// Sends the changes of a batch that was refused one by one: a channel that the user may not
    /// use must not cost the others their messages. Returns false once there will be no more
    /// events.
    async fn send_singly(
        &mut self,
        batch: SubscriptionChanges,
        events: &mut UnboundedReceiver<LinkEvent>,
    ) -> bool {
        for single in batch.singles() {
            if !Box::pin(self.send(single, events)).await {
                return false;
            }
        }
        true
    }

    /// Sends a batch, and handles events meanwhile. Returns the outcome, and whether the connection
    /// is a new one by now, or `None` once there will be no more events.
    async fn resubscribe(
        &mut self,
        batch: &SubscriptionChanges,
        events: &mut UnboundedReceiver<LinkEvent>,
    ) -> Option<(Outcome<()>, bool)> {
        let node = Arc::clone(&self.node);
        let names = |names: &[Name]| names.iter().map(ToString::to_string).collect();
        let sending = node.resubscribe(names(&batch.add), names(&batch.remove));
        let mut reconnected = false;
        let outcome = hear_during(sending, events, |event| reconnected |= self.hear(event)).await?;
        Some((outcome, reconnected))
    }

    /// Subscribes to the locker's own channel, in a batch of its own, so that a user without the
    /// right to it gets the other messages all the same. Returns false once there will be no more
    /// events.
    async fn send_wake(&mut self, name: Name, events: &mut UnboundedReceiver<LinkEvent>) -> bool {
        let batch = SubscriptionChanges {
            add: vec![name],
            remove: Vec::new(),
        };
        let Some((outcome, reconnected)) = self.resubscribe(&batch, events).await else {
            return false;
        };
        let channels = Arc::clone(&self.channels);
        let Some(wake) = &channels.wake else {
            return true;
        };
        match outcome {
            _ if reconnected => wake.again(self.index),
            Outcome::Done(()) => wake.confirm(self.index),
            Outcome::Refused(error) => wake.refuse(self.index, &error),
            Outcome::NotExecuted(_) => {
                wake.again(self.index);
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

    /// Handles events for a while before the next batch. Returns false once there will be no more
    /// events.
    async fn pause(&mut self, events: &mut UnboundedReceiver<LinkEvent>) -> bool {
        hear_during(sleep(RETRY), events, |event| _ = self.hear(event))
            .await
            .is_some()
    }

    /// Handles an event of the connection. Returns true if it is a new connection.
    fn hear(&mut self, event: LinkEvent) -> bool {
        match event {
            LinkEvent::Message { channel, text } => {
                self.channels.message(self.index, &channel, &text);
            }
            LinkEvent::Lagged => self.wake = true,
            LinkEvent::Up => {
                self.forget();
                return true;
            }
        }
        false
    }

    /// Records that nothing is subscribed, and that messages may have been missed.
    fn forget(&mut self) {
        self.channels.table.lock().forget(self.index);
        self.channels
            .wake
            .iter()
            .for_each(|wake| wake.again(self.index));
        self.wake = true;
    }
}
