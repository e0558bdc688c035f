//! Asks all Sentinels of a master who it is, for as long as the locker lives.
//!
//! fred's own Sentinel mode asks the first Sentinel that accepts a connection and believes it, as
//! the *Guidelines for Redis clients with support for Redis Sentinel* say: also one that hangs,
//! lags behind or was set up again. So fred gets the address of a plain server, and this crate
//! asks:
//!
//! 1. Each configured Sentinel has a connection, which looks its name up again at each connect, and
//!    so has each that they tell of. All are asked when they connect, when one of them announces a
//!    change, and every second or two.
//! 2. [`Naming`] decides, purely, what follows from the last answers. The verdict is a watch
//!    channel: a place, or why there is none.
//! 3. Each connection to the master follows it (`link/current.rs`): its client is replaced by one
//!    for the new place. A client leads to one place for its life, so a queued command cannot reach
//!    another server.
//! 4. `Link::run` compares the client's place with the verdict before it sends a script and after
//!    its answer. An answer from a place that is no longer named is unknown, and is undone like any
//!    other.
//! 5. `check::get_to_know` asks each new server whether it is a master before its first script.
//!
//! A majority of *all* known Sentinels is no condition for a locker that starts: two of three may
//! be down, and then no program could start. A Sentinel that lags behind and is the only one to
//! answer for four seconds is believed instead.
//!
//! # Invariants
//! - A Sentinel that does not answer delays nothing: each has a task and a connection of its own.
//! - Only the configured Sentinels tell of others, and such a one has a say only while its id is
//!   the one that was told: its address may have been given to a Sentinel of another deployment,
//!   with a master of the same name.
//! - There is a task per connection. It ends with the connection.

mod changes;

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};

use self::changes::{Change, Changes, SentinelWarnings};
use super::Wiring;
use super::address::Address;
use super::check::{self, field};
use super::client::Role;
use super::door::Door;
use super::host_port::HostPort;
use super::link::{Fitness, Link, LinkEvent};
use super::naming::{GRACE, Naming, Said};
use super::reply::{self, NOT_CONNECTED, Outcome, Reply};
use crate::clock::Instant;
use crate::error::{Error, NodeFailure};
use crate::foreign::{self, log};
use crate::stats::tell_server;
use crate::sync::{Arc, Mutex};

/// The channel on which a Sentinel announces that a master has a successor.
const CHANNEL: &str = "+switch-master";

/// How often a Sentinel is asked, unless the commands of this locker may take longer.
const POLL: Duration = Duration::from_secs(1);

/// The shortest command timeout of these connections: that of a locker with a short lease would
/// take a Sentinel that is far away for a dead one.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How many times a Sentinel is asked who is the master for each time that it is asked for the
/// rest. A Sentinel is in TILT mode for 30 seconds.
const DETAILS: u64 = 8;

/// The most Sentinels that are asked because others tell of them: a Sentinel never forgets one by
/// itself.
const MOST_TOLD: usize = 32;

/// The connections to the Sentinels of a master. They last until [`Sentinels::quit`].
pub(super) struct Sentinels(Option<Arc<Watches>>);

impl Sentinels {
    /// Starts to ask the Sentinels that this address names, if any.
    pub(super) fn watch(address: &Arc<Address>, wiring: &Wiring) -> Self {
        let (Some((service, sentinels)), Some(naming)) = (address.sentinels(), address.naming())
        else {
            return Self(None);
        };
        naming.hurry(wiring.settings.connect_timeout);
        let mut wiring = wiring.clone();
        let timeout = &mut wiring.settings.command_timeout;
        *timeout = SHORTEST_TIMEOUT.max(*timeout);
        let watches = Arc::new(Watches {
            address: Arc::clone(address),
            naming: Arc::clone(naming),
            service: service.into(),
            wiring,
            changes: Mutex::default(),
            links: Mutex::default(),
            told: Mutex::default(),
        });
        for sentinel in sentinels {
            watches.add(sentinel, None);
        }
        Self(Some(watches))
    }

    /// Waits until a server is named as the master; does not wait if Sentinels do not name it.
    pub(super) async fn named(&self) {
        let Some(watches) = &self.0 else { return };
        let naming = &watches.naming;
        let mut verdict = naming.verdict();
        // Time alone may decide, when the grace is over.
        while timeout(GRACE / 8, verdict.wait_for(Result::is_ok))
            .await
            .is_err()
        {
            naming.reconsider(Instant::now());
        }
    }

    /// Returns where tools can ask the Sentinels that the user names.
    pub(super) fn doors(&self) -> Vec<Door> {
        let Some(watches) = &self.0 else {
            return Vec::new();
        };
        let links = watches.links.lock();
        let mut doors: Vec<_> = links
            .iter()
            .filter(|(place, _)| watches.naming.is_configured(place))
            .map(|(_, link)| Door::to_sentinel(link, &watches.service))
            .collect();
        doors.sort_by(|a, b| a.name.cmp(&b.name));
        doors
    }

    /// Ends the connections.
    pub(super) fn quit(&self) {
        if let Some(watches) = &self.0 {
            watches
                .links
                .lock()
                .drain()
                .for_each(|(_, link)| link.abandon());
        }
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        self.quit();
    }
}

/// The Sentinels of one master.
struct Watches {
    /// The address of the master.
    address: Arc<Address>,
    naming: Arc<Naming>,
    service: Arc<str>,
    wiring: Wiring,
    changes: Mutex<Changes>,
    links: Mutex<HashMap<HostPort, Arc<Link>>>,
    /// The other Sentinels that each configured one reports.
    told: Mutex<HashMap<HostPort, Vec<(HostPort, String)>>>,
}

impl Watches {
    /// Starts to ask one more Sentinel, which the user names or another Sentinel reports, with its
    /// id.
    fn add(self: &Arc<Self>, sentinel: Address, told_id: Option<String>) {
        let Some(place) = sentinel.place() else {
            return;
        };
        // Held to the end, so that an address gets one connection and one task.
        let mut links = self.links.lock();
        if links.contains_key(&place) {
            return;
        }
        self.naming.add(place.clone(), told_id.is_none());
        let (told, mut events) = unbounded_channel();
        let link = Link::await_server(Arc::new(sentinel), Role::Sentinel, &self.wiring, told);
        // It runs no script.
        link.set_fitness(Fitness::Fit);
        links.insert(place.clone(), Arc::clone(&link));
        let watch = Watch {
            watches: Arc::clone(self),
            link,
            place,
            told_id,
        };
        tokio::spawn(foreign::restarted(async move |_| {
            watch.keep(&mut events).await;
        }));
    }

    /// Takes in which other Sentinels one of them reports: asks those that are new, and forgets
    /// those that no Sentinel reports any more.
    fn learn(self: &Arc<Self>, teller: &HostPort, others: Vec<(HostPort, String)>) {
        let naming = &self.naming;
        let mut told = self.told.lock();
        let missed: Vec<_> = told
            .insert(teller.clone(), others.clone())
            .into_iter()
            .flatten()
            .collect();
        let is_told = |place: &HostPort| told.values().flatten().any(|(other, _)| other == place);
        let gone: Vec<_> = missed
            .into_iter()
            .map(|(place, _)| place)
            .filter(|place| !is_told(place))
            .collect();
        drop(told);
        for place in gone.iter().filter(|place| !naming.is_configured(place)) {
            if let Some(link) = self.links.lock().remove(place) {
                link.abandon();
            }
            naming.remove(place, Instant::now());
        }
        for (place, id) in others {
            if !naming.knows(&id, &place) && self.links.lock().len() < MOST_TOLD {
                self.add(self.address.sentinel_at(&place), Some(id));
            }
        }
    }

    /// Logs another master, and a time without one.
    fn log_changes(&self, node: &Arc<str>) {
        let master = self.naming.master();
        let now = Instant::now();
        let news = self.changes.lock().next(&master, now);
        match (news, master) {
            (Some(Change::Another(before)), Ok(master)) => log!(
                info, %node, %before, %master, "the Sentinels name another master: connecting to it"
            ),
            (Some(Change::Again(away)), Ok(master)) => log!(
                info, %node, %master, ?away, "the Sentinels name a master again"
            ),
            (Some(Change::Nobody), Err(reason)) => log!(
                warn, %node, reason, "the Sentinels have named no master for a while: no lock is granted"
            ),
            _ => {}
        }
    }
}

/// The task that asks one Sentinel.
struct Watch {
    watches: Arc<Watches>,
    link: Arc<Link>,
    place: HostPort,
    /// The id that another Sentinel told, if the user does not name this one.
    told_id: Option<String>,
}

/// What a Sentinel answers, beside the master that it names.
#[derive(Default)]
struct Details {
    id: Option<String>,
    /// The other Sentinels that it reports, with their ids.
    others: Option<Vec<(HostPort, String)>>,
    /// Whether it has stopped to act, since its clock or its machine stood still.
    in_tilt: Option<bool>,
}

impl Watch {
    /// Ends when the connection is ended; no task awaits it.
    async fn keep(&self, events: &mut UnboundedReceiver<LinkEvent>) {
        let mut warned = SentinelWarnings::default();
        // How often it has been asked since it connected.
        let mut turn = 0_u64;
        loop {
            let epoch = self.link.epoch();
            let mut said = self.ask().await;
            let details = match said {
                Said::Names { .. } if turn.is_multiple_of(DETAILS) => self.ask_details().await,
                _ => Details::default(),
            };
            // After a reconnect it may be another Sentinel, of which nothing is known yet.
            if self.link.epoch() == epoch {
                // Its details are asked for with its first answer, and only a reconnect may lead to
                // another one.
                let is_stranger = turn == 0 && self.told_id.is_some() && self.told_id != details.id;
                if is_stranger && matches!(said, Said::Names { .. }) {
                    said = Said::Fails("is not the Sentinel that another one reported".to_owned());
                }
                turn = if matches!(said, Said::Names { .. }) {
                    turn + 1
                } else {
                    0
                };
                self.take_in(said, details, &mut warned);
            }
            let event = tokio::select! {
                biased;
                () = self.link.ended() => return,
                event = events.recv() => event,
                () = sleep(POLL.max(self.watches.wiring.settings.command_timeout / 2)) => continue,
            };
            match event {
                None => return,
                Some(LinkEvent::Up) => {
                    turn = 0;
                    if self.link.subscribe(vec![CHANNEL.to_owned()]).await.is_err() {
                        // The reconnect is another event, after which it subscribes again.
                        self.link.reconnect().await;
                    }
                }
                // Whatever it announces, it is asked.
                Some(LinkEvent::Message { .. } | LinkEvent::Lagged) => {}
            }
        }
    }

    /// Notes what the Sentinel says, and warns if that is news.
    fn take_in(&self, said: Said, details: Details, warned: &mut SentinelWarnings) {
        if let Some(others) = details.others.filter(|_| self.told_id.is_none()) {
            self.watches.learn(&self.place, others);
        }
        let naming = &self.watches.naming;
        naming.hear(&self.place, details.id, said.clone(), Instant::now());
        let node = self.link.server();
        self.watches.log_changes(node);
        // An address that another Sentinel tells may lead nowhere from here.
        if self.told_id.is_some() {
            return;
        }
        match said {
            Said::Nothing => {}
            Said::Fails(reason) => {
                if warned.failed(Instant::now()) {
                    tell_server(node, false);
                    log!(warn, %node, reason, "this Sentinel cannot name the master");
                }
            }
            Said::Names { .. } => {
                tell_server(node, true);
                if let Some(away) = warned.recovered(Instant::now()) {
                    log!(info, %node, ?away, "this Sentinel names a master again");
                }
            }
        }
        if details
            .in_tilt
            .is_some_and(|in_tilt| warned.tilted(in_tilt))
        {
            log!(warn, %node, "this Sentinel is in TILT mode: its clock jumped or its machine was paused");
        }
    }

    /// Asks the Sentinel who is the master.
    async fn ask(&self) -> Said {
        let service = &*self.watches.service;
        // The epoch first: the master that is named after it is no older.
        let epoch = match self.call(&["MASTER", service]).await {
            Outcome::Done(told) => {
                check::value(&told, "config-epoch").and_then(|epoch| epoch.parse().ok())
            }
            // Its user may not ask for that.
            Outcome::Refused(_) => None,
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => {
                return Said::Fails(why_silent(failure));
            }
        };
        let answer = self.call(&["GET-MASTER-ADDR-BY-NAME", service]).await;
        match self.read_master(answer) {
            Ok(master) => Said::Names { master, epoch },
            Err(reason) => Said::Fails(reason),
        }
    }

    async fn ask_details(&self) -> Details {
        let service = &*self.watches.service;
        let id = match self.call(&["MYID"]).await {
            Outcome::Done(Reply::Bytes(id)) => String::from_utf8(id.to_vec()).ok(),
            _ => None,
        };
        let others = match self.call(&["SENTINELS", service]).await {
            Outcome::Done(Reply::Array(others)) => {
                Some(others.iter().filter_map(read_other).collect())
            }
            _ => None,
        };
        let info = self
            .link
            .call_in_step("INFO", vec!["sentinel".into()])
            .await;
        let in_tilt = match info {
            Outcome::Done(Reply::Bytes(info)) => {
                field(&String::from_utf8_lossy(&info), "sentinel_tilt").map(|tilt| tilt == "1")
            }
            _ => None,
        };
        Details {
            id,
            others,
            in_tilt,
        }
    }

    async fn call(&self, words: &[&str]) -> Outcome<Reply> {
        let words = words.iter().map(|&word| word.to_owned().into()).collect();
        self.link.call_in_step("SENTINEL", words).await
    }

    /// Reads the answer to GET-MASTER-ADDR-BY-NAME.
    ///
    /// # Errors
    /// Why the Sentinel names no master.
    fn read_master(&self, answer: Outcome<Reply>) -> Result<HostPort, String> {
        match answer {
            Outcome::Done(Reply::Array(place)) => {
                read_place(&place).ok_or_else(|| "names a master without an address".to_owned())
            }
            Outcome::Done(_) => Err(format!(
                "knows no master named {}: correct sentinelServiceName",
                self.watches.service
            )),
            Outcome::Refused(Error::Server { source, .. }) => Err(match &*source.message {
                said if said.contains("unknown command") => format!("is no Sentinel: {said}"),
                said => format!("refuses to name the master: {said}"),
            }),
            Outcome::Refused(error) => Err(error.to_string()),
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => Err(why_silent(failure)),
        }
    }
}

/// Returns why a Sentinel gave no answer.
fn why_silent(failure: NodeFailure) -> String {
    let reason = failure
        .reason
        .strip_prefix(NOT_CONNECTED)
        .unwrap_or(&failure.reason);
    if reply::is_about_credentials(reason) {
        return format!(
            "refuses the credentials: correct sentinelUsername or sentinelPassword ({reason})"
        );
    }
    failure.reason
}

/// Reads a host and a port.
fn read_place(words: &[Reply]) -> Option<HostPort> {
    let [Reply::Bytes(host), Reply::Bytes(port)] = words else {
        return None;
    };
    let text = |bytes| std::str::from_utf8(bytes).ok();
    Some(HostPort::new(text(host)?, text(port)?.parse().ok()?))
}

/// Reads where another Sentinel is, and its id, from an entry of SENTINELS.
fn read_other(entry: &Reply) -> Option<(HostPort, String)> {
    let [host, port, id] = ["ip", "port", "runid"].map(|name| check::value(entry, name));
    let place = HostPort::new(host?, port?.parse().ok()?);
    Some((place, id.filter(|id| !id.is_empty())?))
}
