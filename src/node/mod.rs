//! One independent Redis or Valkey: the only place that knows fred.
//!
//! A node has three connections: commands, subscriber, renewals; where replicas have to acknowledge, acquires have a
//! fourth. It is made and used inside the engine's runtime.

mod address;
mod admission;
mod carrier;
mod check;
mod client;
mod link;
mod number;
mod outbox;
mod packed;
mod receipts;
mod reply;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::address::Address;
use self::carrier::Carrier;
pub(crate) use self::carrier::Lua;
pub(crate) use self::check::IN_CLUSTER_MODE;
pub(crate) use self::link::LinkEvent;
use self::link::{Link, Role};
#[cfg(test)]
pub(crate) use self::number::returned;
use self::outbox::Outbox;
pub(crate) use self::outbox::{Step, Together};
pub(crate) use self::receipts::Receipt;
use self::receipts::Receipts;
pub(crate) use self::reply::{Outcome, Reply};
use crate::error::{Error, NodeFailure};
use crate::options::{Format, Replicas, Settings};

/// Which connection a script travels on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Commands,
    /// For what puts a lock there, and for what has to come behind that. Where replicas have to acknowledge, it may be held
    /// up by the WAIT that is under way, and is a connection of its own; else it is that of the commands.
    Grants,
    Renewals,
}

/// An address that was found to be usable, before anything is connected.
#[derive(Debug, Clone)]
pub(crate) struct Target(Arc<Address>);

impl Target {
    /// # Errors
    /// [`Error::Config`] that says what is wrong with the address, its password as `***`.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        Address::parse(url).map(|address| Self(Arc::new(address)))
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.0.name
    }
}

/// The connections to a server.
struct Links {
    commands: Arc<Link>,
    subscriber: Arc<Link>,
    renewals: Arc<Link>,
    /// That of the commands, unless replicas have to acknowledge.
    grants: Arc<Link>,
}

/// What scripts travel on.
struct Lanes {
    commands: Arc<Outbox>,
    renewals: Arc<Outbox>,
    /// As [`Links::grants`].
    grants: Arc<Outbox>,
}

impl Lanes {
    fn new(links: &Links, replicas: Option<Replicas>) -> Self {
        let outbox = |link: &Arc<Link>, replicas: Option<Replicas>| {
            let receipts = replicas.map(|replicas| Receipts::new(Arc::clone(link), replicas));
            Outbox::new(Carrier::new(Arc::clone(link), receipts))
        };
        let commands = outbox(&links.commands, None);
        let grants = if replicas.is_some() { outbox(&links.grants, replicas) } else { Arc::clone(&commands) };
        Self { commands, renewals: outbox(&links.renewals, replicas), grants }
    }

    fn get(&self, lane: Lane) -> &Outbox {
        match lane {
            Lane::Commands => &self.commands,
            Lane::Grants => &self.grants,
            Lane::Renewals => &self.renewals,
        }
    }
}

/// One server and the connections to it.
pub(crate) struct Node {
    name: Arc<str>,
    format: Format,
    links: Links,
    lanes: Lanes,
}

/// What the connections of a node tell by themselves.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) subscriber: UnboundedReceiver<LinkEvent>,
    /// Those of the connections that grants travel on, among others.
    pub(crate) grants: UnboundedReceiver<LinkEvent>,
}

impl Node {
    /// Connects, and makes sure that the server is one that this crate can work with. Returns what the subscriber's
    /// connection tells by itself; what that of the renewals tells goes to `reconnected`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where nobody answers, [`Error::Server`] where the credentials are refused,
    /// [`Error::Config`] for a server that is too old, is in cluster mode, is a replica, or is already there under another address.
    pub(crate) async fn connect(target: &Target, wiring: Wiring<'_>) -> Result<(Arc<Self>, Events), Error> {
        let connect =
            |role, events| Link::connect(Arc::clone(&target.0), role, &wiring.locker, wiring.settings, events);
        let (events, ups) = unbounded_channel();
        let refused = |e| check::refusal(target.name(), &e, wiring.settings.connect_timeout);
        let commands = connect(Role::Commands, events.clone()).await.map_err(refused)?;
        let mut begun = Begun(vec![Arc::clone(&commands)]);
        check::greeting(target.name(), &commands).await?;
        check::eviction(target.name(), &commands).await;
        let (heard, subscriber_events) = unbounded_channel();
        let subscriber = connect(Role::Subscriber, heard).await.map_err(refused)?;
        begun.0.push(Arc::clone(&subscriber));
        let renewals = connect(Role::Renewals, wiring.reconnected.clone()).await.map_err(refused)?;
        begun.0.push(Arc::clone(&renewals));
        let grants = match wiring.settings.replicas {
            Some(_) => connect(Role::Acknowledged, events).await.map_err(refused)?,
            None => Arc::clone(&commands),
        };
        begun.0.push(Arc::clone(&grants));
        let node = Self::new(target, &wiring, Links { commands, subscriber, renewals, grants });
        if let Some(receipts) = node.lanes.grants.carrier().receipts() {
            receipts.check().await?;
        }
        begun.0.clear();
        Ok((node, Events { subscriber: subscriber_events, grants: ups }))
    }

    /// A node whose server is away: goes on connecting in the background.
    pub(crate) fn await_server(target: &Target, wiring: &Wiring<'_>) -> (Arc<Self>, Events) {
        let start =
            |role, events| Link::await_server(Arc::clone(&target.0), role, &wiring.locker, wiring.settings, events);
        let (events, ups) = unbounded_channel();
        let commands = start(Role::Commands, events.clone());
        let (heard, subscriber_events) = unbounded_channel();
        let subscriber = start(Role::Subscriber, heard);
        let renewals = start(Role::Renewals, wiring.reconnected.clone());
        let grants = match wiring.settings.replicas {
            Some(_) => start(Role::Acknowledged, events),
            None => Arc::clone(&commands),
        };
        let node = Self::new(target, wiring, Links { commands, subscriber, renewals, grants });
        (node, Events { subscriber: subscriber_events, grants: ups })
    }

    fn new(target: &Target, wiring: &Wiring<'_>, links: Links) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(target.name()),
            format: wiring.settings.format,
            lanes: Lanes::new(&links, wiring.settings.replicas),
            links,
        })
    }

    /// Which connection that of a lane is: another number after each reconnect.
    pub(crate) fn epoch(&self, lane: Lane) -> u64 {
        self.lanes.get(lane).carrier().link().epoch()
    }

    /// How long a command waits for its connection.
    pub(crate) fn patience(&self) -> Duration {
        self.links.commands.patience()
    }

    /// The address, its password as `***`.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Answers that came to the wrong command.
    pub(crate) fn misplaced_answers(&self) -> u64 {
        self.links.commands.misplaced_answers()
    }

    /// How this locker's locks stand on it.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Runs a script once.
    pub(crate) async fn eval(&self, lane: Lane, lua: &Lua, keys: &[&str], args: &[&str]) -> Outcome<Reply> {
        self.lanes.get(lane).carrier().run(0, lua, keys, args).await.0
    }

    /// Runs a script once whose effect counts when enough replicas have it: that tells the receipt.
    pub(crate) async fn write(&self, lane: Lane, lua: &Lua, keys: &[&str], args: &[&str]) -> (Outcome<Reply>, Receipt) {
        let (outcome, receipts) = self.lanes.get(lane).carrier().run(1, lua, keys, args).await;
        (outcome, receipts.into_iter().next().unwrap_or_else(Receipt::moot))
    }

    /// Runs a step once, together with what is asked for in the same moment. It is behind the steps, and the scripts, that
    /// were polled before it.
    ///
    /// While the connection is silent nothing is sent that may take something: it would have to be undone for as long as
    /// the server is stopped.
    pub(crate) async fn step(&self, lane: Lane, step: Step) -> (Outcome<Reply>, Receipt) {
        let outbox = self.lanes.get(lane);
        if step.takes
            && let Err(failure) = outbox.carrier().link().heard().await
        {
            return (Outcome::NotExecuted(failure), Receipt::moot());
        }
        outbox.send(step).await
    }

    /// Subscribes and unsubscribes, and waits until the server has done so.
    pub(crate) async fn resubscribe(&self, add: Vec<String>, remove: Vec<String>) -> Outcome<()> {
        let unknown = |e: fred::error::Error| {
            Outcome::Unknown(NodeFailure { node: Arc::clone(&self.name), reason: reply::words(&e, None) })
        };
        if !remove.is_empty()
            && let Err(e) = self.links.subscriber.unsubscribe(remove).await
        {
            return unknown(e);
        }
        if !add.is_empty()
            && let Err(e) = self.links.subscriber.subscribe(add).await
        {
            return unknown(e);
        }
        self.links.subscriber.barrier().await
    }

    /// Gives the subscriber's connection up, because its replies are out of step.
    pub(crate) async fn reset_subscriber(&self) {
        self.links.subscriber.reconnect().await;
    }

    /// Ends all connections.
    pub(crate) async fn quit(&self) {
        let Links { commands, subscriber, renewals, grants } = &self.links;
        let acknowledged = async {
            if !Arc::ptr_eq(grants, commands) {
                grants.quit().await;
            }
        };
        tokio::join!(commands.quit(), subscriber.quit(), renewals.quit(), acknowledged);
    }
}

/// What a node is told about the locker that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Wiring<'a> {
    pub(crate) locker: String,
    pub(crate) settings: &'a Settings,
    /// Where what the renewals' connection tells goes to.
    pub(crate) reconnected: UnboundedSender<LinkEvent>,
}

/// The connections to a server that is not connected as a whole yet. Where that fails, or is given up, they end.
struct Begun(Vec<Arc<Link>>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.iter().for_each(|link| link.abandon());
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.name)
    }
}
