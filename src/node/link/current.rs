//! Where a connection leads: each client is for one address, and is replaced when the server is
//! elsewhere.
//!
//! A name is looked up before each client is made, and after each failure. The server that
//! Sentinels name is another one after a failover.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::types::ConnectHandle;
use tokio::time::{sleep, timeout};

use super::{Fitness, Link};
use crate::node::address::Address;
use crate::node::client::{Role, attempt_timeout, build, pause_after};
use crate::node::dial;
use crate::node::host_port::HostPort;
use crate::node::naming::Verdict;
use crate::node::reply;
use crate::options::Settings;
use crate::random;

/// The client of a connection, and its task.
pub(super) struct Current {
    pub(super) peer: Peer,
    pub(super) task: ConnectHandle,
    /// How the address was found.
    pub(super) found: Found,
}

/// How the address that a client leads to was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It stands in the address of the server.
    Given,
    /// It was looked up. After a failure that is done again.
    ByName,
    /// It was not: the client does not connect.
    Nowhere,
}

/// A client, and the server that it is for.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) client: Client,
    /// The server that the client is for; `None` for a socket file, and as long as no Sentinel
    /// names one.
    pub(super) place: Option<HostPort>,
}

impl Current {
    /// Starts a client for this server.
    pub(super) fn start(
        address: &Address,
        at: Option<(HostPort, SocketAddr)>,
        link: (Role, &Settings),
        fail_fast: bool,
    ) -> Self {
        let config = at.as_ref().map_or_else(
            || address.config(),
            |(place, found)| address.config_at(place, *found),
        );
        let client = build(config, link.0, link.1, fail_fast);
        let task = client.connect();
        let place = at.map(|(place, _)| place);
        let is_name = place
            .as_ref()
            .is_some_and(|place| dial::literal(place).is_none());
        Self {
            peer: Peer { client, place },
            task,
            found: if is_name { Found::ByName } else { Found::Given },
        }
    }

    /// Starts a client for the server, if nothing has to be looked up or asked for that.
    pub(super) fn begin(address: &Address, link: (Role, &Settings)) -> Self {
        let given = match place_of(address) {
            Ok(Some(place)) => dial::literal(&place).map(|found| Some((place, found))),
            Ok(None) => Some(None),
            Err(_) => None,
        };
        match given {
            Some(at) => Self::start(address, at, link, false),
            None => Self::nowhere(address, None, link),
        }
    }

    /// Returns a client that does not connect, as long as it is unknown where to.
    fn nowhere(address: &Address, place: Option<HostPort>, link: (Role, &Settings)) -> Self {
        let client = build(address.config(), link.0, link.1, false);
        let task = tokio::spawn(std::future::pending());
        Self {
            peer: Peer { client, place },
            task,
            found: Found::Nowhere,
        }
    }
}

impl Link {
    pub(super) fn client(&self) -> Client {
        self.current.lock().peer.client.clone()
    }

    pub(super) fn peer(&self) -> Peer {
        self.current.lock().peer.clone()
    }

    /// Returns whether it is connected to the server; if Sentinels name it, to the one that they
    /// name.
    pub(super) fn is_connected(&self) -> bool {
        let peer = &self.current.lock().peer;
        peer.client.is_connected() && self.leads_to_master(peer)
    }

    /// Returns whether this client is for the master, if Sentinels name the server.
    pub(super) fn leads_to_master(&self, peer: &Peer) -> bool {
        self.address.naming().is_none_or(|naming| {
            peer.place
                .as_ref()
                .is_some_and(|place| naming.is_master(place))
        })
    }

    pub(super) fn found(&self) -> Found {
        self.current.lock().found
    }

    /// Replaces a client whose router no longer acts, or that does not lead to the server any more.
    pub(super) async fn replace(self: &Arc<Self>) {
        let link = (self.role, &self.settings);
        let current = match place_of(&self.address) {
            Err(_) => Current::nowhere(&self.address, None, link),
            Ok(place) => match find(place.clone(), &self.settings).await {
                Ok(at) => Current::start(&self.address, at, link, false),
                Err(error) => {
                    self.not_connected(&error);
                    Current::nowhere(&self.address, place, link)
                }
            },
        };
        let old = std::mem::replace(&mut *self.current.lock(), current);
        // Only now, when no caller gets the old client any more.
        old.task.abort();
        self.renewed();
        self.replaced.send_modify(|count| *count += 1);
        if self.is_named() {
            // Another server has to say first what it is.
            self.set_fitness(Fitness::Unknown);
        }
    }

    /// Notes why an attempt to connect failed.
    pub(super) fn not_connected(&self, error: &fred::error::Error) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let words = reply::words(error, Some(attempt_timeout(&self.settings)));
        self.address
            .admission
            .not_connected(self.role as u8, &self.address.name, &words);
        let is_first = !self.is_known_as(&Fitness::Fit);
        *self.last_error.lock() = if is_first {
            self.address.with_remedy(words)
        } else {
            words
        };
    }

    /// Waits after a failure, as long as fred would.
    pub(super) async fn pause(&self) {
        let failures = self.failures.load(Ordering::Relaxed).saturating_sub(1);
        let most = pause_after(failures, &self.settings);
        sleep(random::duration(&(most / 2..=most))).await;
    }

    /// Waits until the Sentinels name another server than the one that the client leads to.
    pub(super) async fn has_another_master(&self) {
        let Some(naming) = self.address.naming() else {
            return std::future::pending().await;
        };
        let place = self.peer().place;
        let mut verdict = naming.verdict();
        let is_another = |verdict: &Verdict| {
            (verdict.as_ref()).is_ok_and(|master| Some(master) != place.as_ref())
        };
        if verdict.wait_for(is_another).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns where the server is, by its address or by its Sentinels; `None` for a socket file.
///
/// # Errors
/// Why it is unknown.
pub(super) fn place_of(address: &Address) -> Result<Option<HostPort>, fred::error::Error> {
    match address.naming().map(|naming| naming.master()) {
        None => Ok(address.place()),
        Some(Ok(place)) => Ok(Some(place)),
        Some(Err(reason)) => Err(fred::error::Error::new(ErrorKind::Sentinel, reason)),
    }
}

/// Looks this server up.
///
/// # Errors
/// Why its address is not found.
pub(super) async fn find(
    place: Option<HostPort>,
    settings: &Settings,
) -> Result<Option<(HostPort, SocketAddr)>, fred::error::Error> {
    let Some(place) = place else { return Ok(None) };
    let attempt = attempt_timeout(settings);
    // A lookup that is given up continues in a thread, so it has more time than an attempt to
    // connect.
    match timeout(
        settings.connect_timeout + attempt,
        dial::find(&place, attempt),
    )
    .await
    {
        Ok(found) => Ok(Some((place, found?))),
        Err(_) => Err(fred::error::Error::new(
            ErrorKind::Timeout,
            "looking up its name timed out",
        )),
    }
}
