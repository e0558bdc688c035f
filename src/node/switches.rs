//! Listens to Sentinels, which announce that a master has a successor.
//!
//! A master that was stopped while a Sentinel promoted its replica does not know that yet. When it goes on, it grants
//! and renews locks until the Sentinels turn it into a replica, which takes up to ten seconds, while other clients lock
//! on its successor. So its connections are given up as soon as any Sentinel announces the change, silent or not; a
//! connection that is being made is given up once it is there (`succession.rs`).

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::Wiring;
use super::address::Address;
use super::check;
use super::client::Role;
use super::link::{Fitness, Link, LinkEvent};
use super::place::Place;
use super::reply::{Outcome, Reply};
use crate::clock::Instant;
use crate::foreign::{self, contained};

/// The channel on which a Sentinel announces that a master has a successor.
const CHANNEL: &str = "+switch-master";

/// The connections to the Sentinels that name a master. They last until [`Switches::quit`].
pub(super) struct Switches {
    sentinels: Vec<Arc<Link>>,
}

impl Switches {
    /// Starts listening to the Sentinels that this address names, if any. A connection to a server other than the
    /// master that they name is made again.
    pub(super) fn listen(address: &Arc<Address>, wiring: &Wiring<'_>, links: &[Arc<Link>]) -> Self {
        let Some((service, sentinels)) = address.sentinels() else { return Self { sentinels: Vec::new() } };
        let service: Arc<str> = service.into();
        let listen = |sentinel: Address| {
            let (told, mut events) = unbounded_channel();
            let link = Link::await_server(Arc::new(sentinel), Role::Subscriber, &wiring.locker, wiring.settings, told);
            // It runs no script.
            link.set_fitness(Fitness::Fit);
            let (service, address) = (Arc::clone(&service), Arc::clone(address));
            let watch = Watch { sentinel: Arc::clone(&link), service, address, links: links.to_vec() };
            tokio::spawn(foreign::restarted(async move |_| watch.keep(&mut events).await));
            link
        };
        Self { sentinels: sentinels.into_iter().map(listen).collect() }
    }

    /// Ends the connections.
    pub(super) fn quit(&self) {
        self.sentinels.iter().for_each(|link| link.abandon());
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        self.quit();
    }
}

/// The task that watches one Sentinel.
struct Watch {
    sentinel: Arc<Link>,
    service: Arc<str>,
    /// The address of the master.
    address: Arc<Address>,
    links: Vec<Arc<Link>>,
}

impl Watch {
    /// Ends when the connection is ended; nobody awaits it.
    async fn keep(&self, events: &mut UnboundedReceiver<LinkEvent>) {
        while let Some(event) = events.recv().await {
            if event == LinkEvent::Up && self.sentinel.subscribe(vec![CHANNEL.to_owned()]).await.is_err() {
                // The reconnect is another event, after which it subscribes again.
                self.sentinel.reconnect().await;
                continue;
            }
            // Asks for the master after every message, and after each reconnect, since messages may have been missed.
            let Some((master, failover)) = self.master().await else { continue };
            if !self.address.succession().is_none_or(|known| known.told(&master, failover, Instant::now())) {
                continue;
            }
            for link in &self.links {
                if link.connected_to().is_some_and(|place| place != master) {
                    contained(|| {
                        tracing::info!(
                            node = %link.server(), %master,
                            "the Sentinels name another master: connecting to it"
                        );
                    });
                    link.reconnect().await;
                }
            }
        }
    }

    /// Returns the master that this Sentinel names, and the number of the last failover that it knows of, if it tells.
    async fn master(&self) -> Option<(Place, Option<u64>)> {
        let ask = |what: &'static str| {
            let words = vec![what.into(), (*self.service).to_owned().into()];
            async move { self.sentinel.call_in_step("SENTINEL", words).await }
        };
        // The number first: the master that is named after it is no older.
        let failover = match ask("MASTER").await {
            Outcome::Done(told) => check::value(&told, "config-epoch").and_then(|number| number.parse().ok()),
            _ => None,
        };
        let Outcome::Done(Reply::Array(place)) = ask("GET-MASTER-ADDR-BY-NAME").await else { return None };
        let [Reply::Bytes(host), Reply::Bytes(port)] = &*place else { return None };
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        Some((Place { host: text(host)?.into(), port: text(port)?.parse().ok()? }, failover))
    }
}
