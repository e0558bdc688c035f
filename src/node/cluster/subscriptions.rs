//! Subscribes to the unlock messages of a cluster: to each channel at the master that has its slot.
//!
//! A message is a hint. So no caller waits for a master that does not answer: once a channel is
//! subscribed there after all, all waiters poll ([`LinkEvent::Lagged`]).

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::super::link::{LinkEvent, hear_during};
use super::super::redis::Redis;
use super::super::reply::Outcome;
use crate::foreign::{self, log};
use crate::sync::{Arc, Mutex};

/// How long after a failure a master is asked again.
const RETRY: Duration = Duration::from_millis(100);

/// How the messages of a cluster are subscribed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Subscribing {
    /// SSUBSCRIBE: they come from the master of the slot only.
    #[default]
    Sharded,
    /// SUBSCRIBE: every server forwards every message to all others.
    Broadcast,
}

impl Subscribing {
    /// Returns what servers of this version support.
    pub(super) fn to(version: Option<(u32, u32)>) -> Self {
        if version.is_some_and(|version| version < (7, 0)) {
            Self::Broadcast
        } else {
            Self::Sharded
        }
    }
}

/// The subscriptions at one master.
#[derive(Debug, Default)]
pub(super) struct MasterSubscriptions {
    wishes: Mutex<Wishes>,
    changed: Notify,
    /// The number of the last wish that has been fulfilled.
    reached: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Wishes {
    wanted: HashSet<String>,
    /// Channels that may differ from what is subscribed.
    changes: HashSet<String>,
    /// Channels whose slot now belongs to another master: this master has ended their subscriptions
    /// itself.
    gone: HashSet<String>,
    /// The number of wishes so far.
    count: u64,
    /// The master did not answer in time, or may have lost its subscriptions: once all wishes up to
    /// this one are fulfilled, all waiters poll.
    behind: Option<u64>,
    /// It is not known what is still subscribed.
    resubscribe: bool,
}

impl Wishes {
    fn fall_behind(&mut self) {
        self.behind = Some(self.count);
    }
}

impl MasterSubscriptions {
    /// Subscribes or unsubscribes one channel. Returns the number of the wish.
    pub(super) fn want(&self, name: String, wanted: bool) -> u64 {
        let mut wishes = self.wishes.lock();
        if wanted {
            wishes.wanted.insert(name.clone());
        } else {
            wishes.wanted.remove(&name);
        }
        wishes.gone.remove(&name);
        wishes.changes.insert(name);
        wishes.count += 1;
        self.changed.notify_one();
        wishes.count
    }

    /// Subscribes exactly these channels, after a change of the slot map. If some are new, messages
    /// may have been missed. `resubscribe`: slots may have been elsewhere in the meantime, so
    /// nothing is subscribed any more.
    pub(super) fn want_all(&self, wanted: HashSet<String>, resubscribe: bool) {
        let mut wishes = self.wishes.lock();
        if wishes.wanted == wanted && (wanted.is_empty() || !resubscribe) {
            return;
        }
        let gone: Vec<_> = wishes.wanted.difference(&wanted).cloned().collect();
        let new: Vec<_> = wanted.difference(&wishes.wanted).cloned().collect();
        wishes.count += 1;
        wishes.resubscribe |= resubscribe;
        if resubscribe || !new.is_empty() {
            wishes.fall_behind();
        }
        wishes.gone.retain(|name| !wanted.contains(name));
        wishes.gone.extend(gone.iter().cloned());
        wishes.changes.extend(gone.into_iter().chain(new));
        wishes.wanted = wanted;
        self.changed.notify_one();
    }

    /// Waits until all of these masters have fulfilled their wishes, for `patience` at most. Does
    /// not wait for masters that are behind. Masters that have not fulfilled theirs by then are
    /// behind.
    pub(super) async fn all_have(told: Vec<(Arc<Self>, u64)>, patience: Duration) {
        let all = join_all(told.iter().map(|(subscriptions, wish)| async move {
            let mut reached = subscriptions.reached.subscribe();
            // It fails only if the sender is dropped, which `told` keeps alive.
            let _: Result<_, _> = reached
                .wait_for(|reached| reached >= wish || subscriptions.wishes.lock().behind.is_some())
                .await;
        }));
        let _: Result<_, _> = timeout(patience, all).await;
        for (subscriptions, wish) in &told {
            if *subscriptions.reached.borrow() < *wish {
                subscriptions.wishes.lock().fall_behind();
            }
        }
    }

    /// Starts the task that keeps the subscriptions at the master as wanted.
    pub(super) fn begin(
        self: &Arc<Self>,
        redis: Arc<Redis>,
        subscribing: Subscribing,
        mut events: UnboundedReceiver<LinkEvent>,
        heard: UnboundedSender<LinkEvent>,
        doubt: impl Fn() + Send + Sync + 'static,
    ) {
        let mut listening = Listening {
            subscriptions: Arc::clone(self),
            redis,
            subscribing,
            heard,
            has: HashSet::new(),
            deaf: false,
        };
        tokio::spawn(foreign::restarted(async move |again| {
            if again {
                // Half of a batch may have been sent, and its replies would be taken for those of
                // the next.
                listening.redis.reset_subscriber().await;
                listening.forget();
            }
            listening.keep(&mut events, &doubt).await;
        }));
    }

    /// Returns what to subscribe, what to unsubscribe, and the number of the last wish in it.
    fn changes(&self, has: &mut HashSet<String>) -> (Vec<String>, Vec<String>, u64) {
        let mut wishes = self.wishes.lock();
        let Wishes {
            wanted,
            changes,
            gone,
            resubscribe,
            count,
            ..
        } = &mut *wishes;
        if std::mem::take(resubscribe) {
            has.clear();
            changes.extend(wanted.iter().cloned());
        }
        gone.drain().for_each(|name| _ = has.remove(&name));
        let changes = changes
            .drain()
            .filter(|name| wanted.contains(name) != has.contains(name));
        let (add, remove) = changes.partition(|name| wanted.contains(name));
        (add, remove, *count)
    }
}

/// The task that keeps a master's subscriptions.
struct Listening {
    subscriptions: Arc<MasterSubscriptions>,
    redis: Arc<Redis>,
    subscribing: Subscribing,
    heard: UnboundedSender<LinkEvent>,
    /// What is subscribed on the current connection.
    has: HashSet<String>,
    /// Whether a subscription was refused, which is logged once.
    deaf: bool,
}

impl Listening {
    /// Ends when the connection is quit; no task awaits it.
    async fn keep(
        &mut self,
        events: &mut UnboundedReceiver<LinkEvent>,
        doubt: &(dyn Fn() + Send + Sync),
    ) {
        loop {
            let (add, remove, wish) = self.subscriptions.changes(&mut self.has);
            if add.is_empty() && remove.is_empty() {
                self.caught_up(wish);
                tokio::select! {
                    biased;
                    // No wake-up is lost: only this task waits, and a change in the meantime leaves
                    // a permit.
                    () = self.subscriptions.changed.notified() => {}
                    event = events.recv() => match event {
                        Some(event) => _ = self.hear(event),
                        None => return,
                    },
                }
                continue;
            }
            let Some(outcome) = self.send(add.clone(), remove.clone(), events).await else {
                return;
            };
            match outcome {
                // The old connection is gone, and the new one has no subscriptions.
                None => {}
                // The channels that were not refused are subscribed.
                Some(outcome @ (Outcome::Done(()) | Outcome::Refused(_))) => {
                    if let Outcome::Refused(error) = outcome
                        && !std::mem::replace(&mut self.deaf, true)
                    {
                        log!(
                            warn,
                            %error,
                            "cannot subscribe to unlock messages of a master: waiters poll every sixth of a lease"
                        );
                    }
                    self.has.extend(add);
                    remove.iter().for_each(|name| _ = self.has.remove(name));
                    self.caught_up(wish);
                }
                Some(outcome @ (Outcome::NotExecuted(_) | Outcome::Unknown(_))) => {
                    doubt();
                    if let Outcome::NotExecuted(_) = outcome {
                        self.again(add.into_iter().chain(remove));
                    } else {
                        self.redis.reset_subscriber().await;
                        self.forget();
                    }
                    // Waits before the master is asked again.
                    if hear_during(sleep(RETRY), events, |event| _ = self.hear(event))
                        .await
                        .is_none()
                    {
                        return;
                    }
                }
            }
        }
    }

    /// Asks for a change, and handles events meanwhile. Returns `Some(None)` if the connection was
    /// replaced, and `None` if it has ended.
    async fn send(
        &mut self,
        add: Vec<String>,
        remove: Vec<String>,
        events: &mut UnboundedReceiver<LinkEvent>,
    ) -> Option<Option<Outcome<()>>> {
        let redis = Arc::clone(&self.redis);
        let subscribing = self.subscribing;
        let sending = async {
            match subscribing {
                Subscribing::Sharded => redis.resubscribe_sharded(add, remove).await,
                Subscribing::Broadcast => redis.resubscribe(add, remove).await,
            }
        };
        let mut reconnected = false;
        let outcome = hear_during(sending, events, |event| reconnected |= self.hear(event)).await?;
        Some((!reconnected).then_some(outcome))
    }

    /// Notes that all wishes up to this one are fulfilled.
    fn caught_up(&self, wish: u64) {
        let was_behind = self
            .subscriptions
            .wishes
            .lock()
            .behind
            .take_if(|behind| *behind <= wish)
            .is_some();
        if was_behind {
            self.tell(LinkEvent::Lagged);
        }
        self.subscriptions
            .reached
            .send_if_modified(|reached| std::mem::replace(reached, wish) != wish);
    }

    /// Handles an event of the connection. Returns true if the connection is a new one.
    fn hear(&mut self, event: LinkEvent) -> bool {
        match event {
            LinkEvent::Up => {
                self.forget();
                return true;
            }
            event @ (LinkEvent::Message { .. } | LinkEvent::Lagged) => self.tell(event),
        }
        false
    }

    /// Notes that these have to be asked for again.
    fn again(&self, names: impl Iterator<Item = String>) {
        let mut wishes = self.subscriptions.wishes.lock();
        wishes.changes.extend(names);
        wishes.fall_behind();
        drop(wishes);
        // Ends the waiting in `all_have`.
        self.subscriptions.reached.send_modify(|_| {});
    }

    /// Notes that nothing is subscribed, and that messages may have been missed.
    fn forget(&mut self) {
        self.has.clear();
        let wanted: Vec<_> = self
            .subscriptions
            .wishes
            .lock()
            .wanted
            .iter()
            .cloned()
            .collect();
        self.again(wanted.into_iter());
    }

    fn tell(&self, event: LinkEvent) {
        // Fails only once the node has been dropped.
        let _: Result<_, _> = self.heard.send(event);
    }
}
