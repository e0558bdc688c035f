//! One connection to a server: a fred client made safe.
//!
//! fred 10.1 is fast and pipelines well, but it trusts silent connections, and stops when its
//! router task stops. Each line here answers a fault that was reproduced without it (`client.rs`
//! has the settings):
//! - A command runs to its end in a task of the engine under fred's own timeout: only that takes it
//!   out of the queue.
//! - A PING with a token, sent by this crate, finds silent connections, and replies that have
//!   slipped by one.
//! - fred counts replies: if one is lost or cannot be read, all later ones go to the wrong
//!   commands. So a script returns a number (`number.rs`). A reply without a number counts once the
//!   echo of a PING behind it is in step.
//! - Dropping a client leaks its connection: [`Link::quit`].
//!
//! # Invariants
//! - The client is replaced only by [`tend`], or by its restart; [`LinkEvent::Up`] follows, as
//!   after each reconnect.
//! - A client leads to one address for its life. If Sentinels name the server (`naming.rs`), a
//!   script is sent only to the one that they name, and its answer is believed only if they name
//!   that one still.
//! - Nothing here is awaited while the mutex of the client is held.

mod away;
mod channels;
mod current;
mod events;
mod fitness;
mod heartbeat;
mod in_step;
mod membership;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use fred::bytes_utils::Str;
use fred::error::ErrorKind;
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::{ClusterHash, CustomCommand, Value};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::current::{Current, Found, Peer, find, place_of};
pub(crate) use self::events::{LinkEvent, hear_during};
pub(super) use self::fitness::Fitness;
use self::heartbeat::heartbeat;
use self::in_step::Slips;
pub(super) use self::membership::STRANGER;
use self::membership::first_membership;
use super::Wiring;
use super::address::Address;
use super::client::{Role, attempt_timeout, reply_timeout};
use super::reply::{self, Outcome, Reply};
use crate::error::NodeFailure;
use crate::foreign::{self, log};
use crate::options::Settings;
use crate::presence::Presence;
use crate::sync::{Arc, Mutex, OnceLock, Weak};

/// A connection that is re-established forever.
pub(super) struct Link {
    address: Arc<Address>,
    role: Role,
    client_name: String,
    settings: Settings,
    current: Mutex<Current>,
    /// Counts how often the client was replaced.
    replaced: watch::Sender<u64>,
    /// Asks [`tend`] to look the server's name up again.
    look_up: Notify,
    /// How many attempts to reconnect have failed since the last connection.
    failures: AtomicU32,
    last_error: Mutex<String>,
    /// How often it has been reconnected, or found to be out of step.
    epoch: AtomicU64,
    /// Whether a script has had no answer, and none has had one since. A paused server accepts
    /// connections and answers PING.
    silent: watch::Sender<bool>,
    fitness: watch::Sender<Fitness>,
    /// Whether the server of the current connection belongs to the cluster, if it has to.
    membership: watch::Sender<Fitness>,
    slips: Slips,
    stopped: CancellationToken,
    /// Where this connection reports whether its server is there, if it speaks for it.
    presence: OnceLock<Weak<Presence>>,
}

impl Link {
    /// Connects, and tends the connection until [`Link::quit`]. The node calls it, checks that this
    /// crate can work with the server before it sends a script, and ends it.
    pub(super) async fn connect(
        address: Arc<Address>,
        role: Role,
        wiring: &Wiring,
        events: UnboundedSender<LinkEvent>,
    ) -> Result<Arc<Self>, fred::error::Error> {
        let link = Self::connect_once(address, role, &wiring.locker, &wiring.settings).await?;
        link.look_after(events);
        tokio::spawn(Arc::clone(&link).get_to_know_cluster());
        Ok(link)
    }

    /// Connects. No task tends the connection, which ends with [`Link::quit`] or when it is
    /// dropped.
    async fn connect_once(
        address: Arc<Address>,
        role: Role,
        locker: &str,
        settings: &Settings,
    ) -> Result<Arc<Self>, fred::error::Error> {
        let place = place_of(&address)?;
        let at = find(place, settings).await?;
        let current = Current::start(&address, at, (role, settings), true);
        let client = current.peer.client.clone();
        // From here on the link closes the connection if this future is dropped or fails.
        let link = Self::new(address, role, locker, settings, current);
        client.wait_for_connect().await?;
        // The caller checks the server itself before it sends a script.
        link.set_fitness(Fitness::Fit);
        link.introduce().await;
        link.ask_for_cluster().await;
        Ok(link)
    }

    /// Opens a further connection to the same server, as [`Link::connect_once`], for work that must
    /// not disturb the others.
    pub(super) async fn another(&self, role: Role) -> Result<Arc<Self>, fred::error::Error> {
        let locker = self.client_name.rsplit(':').next().unwrap_or_default();
        Self::connect_once(Arc::clone(&self.address), role, locker, &self.settings).await
    }

    /// Connects in the background to a server that is away; otherwise as [`Link::connect`]. No
    /// script is sent before it is [known](Fitness) which server it is.
    pub(super) fn await_server(
        address: Arc<Address>,
        role: Role,
        wiring: &Wiring,
        events: UnboundedSender<LinkEvent>,
    ) -> Arc<Self> {
        let current = Current::begin(&address, (role, &wiring.settings));
        let link = Self::new(address, role, &wiring.locker, &wiring.settings, current);
        link.look_after(events);
        link
    }

    /// Starts [`tend`].
    fn look_after(self: &Arc<Self>, events: UnboundedSender<LinkEvent>) {
        let link = Arc::clone(self);
        tokio::spawn(foreign::restarted(async move |again| {
            // Events of the old client may have been lost. The new one reports its connection.
            if (again || link.found() == Found::Nowhere) && !link.stopped.is_cancelled() {
                link.replace().await;
            }
            tend(&link, &events).await;
        }));
    }

    fn new(
        address: Arc<Address>,
        role: Role,
        locker: &str,
        settings: &Settings,
        current: Current,
    ) -> Arc<Self> {
        let first_membership = first_membership(&address, role);
        Arc::new(Self {
            address,
            role,
            client_name: format!(
                "lockhound:{}:{}:{locker}",
                role.name(),
                settings.label.in_client_name()
            ),
            settings: settings.clone(),
            current: Mutex::new(current),
            replaced: watch::Sender::new(0),
            look_up: Notify::new(),
            failures: AtomicU32::new(0),
            last_error: Mutex::new("no server has answered yet".to_owned()),
            epoch: AtomicU64::new(0),
            silent: watch::Sender::new(false),
            fitness: watch::Sender::new(Fitness::Unknown),
            membership: watch::Sender::new(first_membership),
            slips: Slips::default(),
            stopped: CancellationToken::new(),
            presence: OnceLock::new(),
        })
    }

    /// Returns the number of this connection. It changes with each reconnect, and when replies are
    /// found out of step.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns the server's address, with its password as `***`.
    pub(super) fn server(&self) -> &Arc<str> {
        &self.address.name
    }

    /// Waits for [`Link::quit`].
    pub(super) async fn ended(&self) {
        self.stopped.cancelled().await;
    }

    /// Sends one command, once, to whatever server is connected.
    pub(super) async fn call(&self, command: &'static str, args: Vec<Value>) -> Outcome<Reply> {
        match self.connected_for(self.patience()).await {
            Ok(()) => self.send(command, args).await,
            Err(failure) => Outcome::NotExecuted(failure),
        }
    }

    /// Returns how long a command waits for the connection.
    pub(super) fn patience(&self) -> Duration {
        self.settings.command_timeout / 2
    }

    /// Waits for the connection for `patience`, if it is down or leads to a server that is not the
    /// master any more.
    ///
    /// # Errors
    /// Why it is down.
    async fn connected_for(&self, patience: Duration) -> Result<(), NodeFailure> {
        if self.is_connected() {
            return Ok(());
        }
        // Before the first check: a client that is replaced after it is not missed.
        let mut replaced = self.replaced.subscribe();
        let mut verdict = self.address.naming().map(|naming| naming.verdict());
        let connected = async {
            while !self.is_connected() {
                let peer = self.peer();
                let connected = async {
                    // Elsewhere, or nowhere, the connection does not matter.
                    if !self.leads_to_master(&peer) {
                        return std::future::pending().await;
                    }
                    // A command that is not handed to fred cannot be executed late. No connect can
                    // be missed: nothing is awaited between the check and the subscription inside,
                    // and the router runs on this thread.
                    peer.client.wait_for_connect().await
                };
                let another = async {
                    match &mut verdict {
                        Some(verdict) => verdict.changed().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    connected = connected => return connected.is_ok(),
                    changed = replaced.changed() => if changed.is_err() { return false },
                    // The same server may be named again.
                    changed = another => if changed.is_err() { return false },
                }
            }
            true
        };
        if timeout(patience, connected).await == Ok(true) {
            Ok(())
        } else {
            Err(self.down())
        }
    }

    /// Returns why there is no connection.
    fn down(&self) -> NodeFailure {
        let reason = match self.address.naming().map(|naming| naming.master()) {
            Some(Err(reason)) => reason,
            Some(Ok(master)) if self.client().is_connected() => {
                format!("not connected to the master {master} yet")
            }
            _ => reply::down(&self.last_error.lock()),
        };
        self.failure(reason)
    }

    /// Returns why the server gave no usable answer.
    pub(super) fn failure(&self, reason: impl Into<String>) -> NodeFailure {
        NodeFailure::new(&self.address.name, reason)
    }

    /// Sends one command, once. The first poll hands it to fred, whether the connection is up or
    /// not. The answer may be that to another command.
    async fn send(&self, command: impl Into<Str>, args: Vec<Value>) -> Outcome<Reply> {
        let outcome = self.hand_over(&self.peer(), command, args).await;
        self.address
            .admission
            .heard(self.role as u8, &self.address.name, false, &outcome);
        outcome
    }

    /// Hands a command to fred. If fred panics, the outcome is unknown.
    async fn hand_over(
        &self,
        peer: &Peer,
        command: impl Into<Str>,
        args: Vec<Value>,
    ) -> Outcome<Reply> {
        let command = CustomCommand::new(command, ClusterHash::FirstKey, false);
        let is_script = matches!(&*command.cmd, "EVALSHA" | "EVAL");
        let client = peer.client.clone();
        // fred's future takes 5 KiB, and each async function around it would hold it once or twice.
        let answer = Box::pin(async move { client.custom_raw(command, args).await });
        match foreign::survive(answer).await {
            Ok(answer) => {
                match &answer {
                    // A paused server answers PINGs, so only a script ends the silence.
                    Ok(_) if is_script || self.role.listens() => self.set_silent(false),
                    Err(error) if is_script || *error.kind() == ErrorKind::Timeout => {
                        self.set_silent(true);
                    }
                    // The connection is gone, and fred knows that.
                    Ok(_) | Err(_) => {}
                }
                reply::sort(
                    &self.address.name,
                    answer,
                    reply_timeout(self.role, &self.settings),
                )
            }
            Err(said) => self.unknown(format!("the client panicked while it sent this: {said}")),
        }
    }

    /// Reconnects, so that replies are in step again, or to find the successor of a demoted server.
    pub(super) async fn reconnect(&self) {
        let client = self.client();
        if !client.is_connected() {
            return;
        }
        // fred would connect to the same address again.
        if self.found() == Found::ByName {
            self.look_up.notify_one();
        } else {
            let _: Result<_, _> =
                timeout(attempt_timeout(&self.settings), client.force_reconnection()).await;
        }
    }

    /// Ends the connection and the task that tends it.
    pub(super) async fn quit(&self) {
        self.stopped.cancel();
        let client = self.client();
        // A stopped server does not answer; the abort closes the socket all the same.
        if client.is_connected() {
            let _: Result<_, _> = timeout(self.settings.command_timeout, client.quit()).await;
        }
        self.current.lock().task.abort();
    }

    /// Ends the connection without telling the server.
    pub(super) fn abandon(&self) {
        self.stopped.cancel();
        self.current.lock().task.abort();
    }

    /// Returns whether this connection speaks for its node when something is logged once.
    pub(super) fn is_first(&self) -> bool {
        self.role == Role::Commands
    }

    /// Names the connection for CLIENT LIST. A failure is no problem: the user may not have this
    /// right.
    async fn introduce(&self) {
        let outcome = self
            .call(
                "CLIENT",
                vec!["SETNAME".into(), self.client_name.clone().into()],
            )
            .await;
        if !matches!(outcome, Outcome::Done(_)) {
            log!(debug, node = %self.address.name, ?outcome, "the connection could not be named");
        }
    }

    /// Notes that it is another connection from here on.
    fn renewed(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.slips.end();
        self.forget_membership();
    }
}

impl Drop for Link {
    /// Closes the connection. Only a link that no task tends yet is dropped while its connection
    /// lives.
    fn drop(&mut self) {
        self.current.lock().task.abort();
    }
}

/// Connections that are given up when this is dropped.
pub(super) struct BriefLinks(pub(super) Vec<Arc<Link>>);

impl Drop for BriefLinks {
    fn drop(&mut self) {
        self.0.iter().for_each(|link| link.abandon());
    }
}

/// Tends a connection: passes its events on, detects silence, replaces the client when it is dead.
/// Restarted after a panic; ends with [`Link::quit`]; no task awaits it.
async fn tend(link: &Arc<Link>, events: &UnboundedSender<LinkEvent>) {
    loop {
        tokio::select! {
            // First: a client that was quit has ended too, and must not be replaced.
            biased;
            () = link.stopped.cancelled() => return,
            () = link.has_another_master() => {}
            // No wake-up is lost: only this task waits, and a request meanwhile leaves a permit.
            () = link.look_up.notified() => {}
            () = listen(link, events) => {}
            () = heartbeat(link) => {}
        }
        log!(debug, node = %link.address.name, role = link.role.name(), "the client is replaced");
        tokio::select! {
            biased;
            () = link.stopped.cancelled() => return,
            // Nothing is awaited between the start of the new client and the subscription to its
            // events. It reports its first connection as it does every other, so no reconnect goes
            // unnoticed.
            () = link.replace() => {}
        }
    }
}

/// Passes on the events of the connection. Ends when the client has ended, or when the server has
/// to be looked up again.
async fn listen(link: &Arc<Link>, events: &UnboundedSender<LinkEvent>) {
    let client = link.client();
    let found = link.found();
    if found == Found::Nowhere {
        return match link.peer().place {
            Some(_) => link.pause().await,
            // The Sentinels' first verdict ends this.
            None => std::future::pending().await,
        };
    }
    let mut ups = client.reconnect_rx();
    let mut messages = client.message_rx();
    let mut errors = client.error_rx();
    loop {
        let event = tokio::select! {
            biased;
            error = errors.recv() => {
                match error {
                    Ok((error, _)) => {
                        link.not_connected(&error);
                        link.report();
                        if found == Found::ByName {
                            // The client must not connect again meanwhile: no task would hear of
                            // it.
                            link.current.lock().task.abort();
                            return link.pause().await;
                        }
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
                continue;
            }
            up = ups.recv() => match up {
                Ok(_) | Err(RecvError::Lagged(_)) => {
                    // First: whoever hears of the event finds the new number.
                    link.renewed();
                    link.failures.store(0, Ordering::Relaxed);
                    link.address.admission.connected(link.role as u8);
                    tokio::spawn(Arc::clone(link).get_to_know_cluster());
                    let link = Arc::clone(link);
                    // In a task: the answer may be late, and further events must not wait for it.
                    tokio::spawn(async move { link.introduce().await });
                    LinkEvent::Up
                }
                Err(RecvError::Closed) => return,
            },
            message = messages.recv() => match message {
                Ok(message) => LinkEvent::Message {
                    channel: message.channel.to_string(),
                    text: message.value.into_string().unwrap_or_default(),
                },
                Err(RecvError::Lagged(_)) => LinkEvent::Lagged,
                Err(RecvError::Closed) => return,
            },
        };
        // Fails only once the node has been dropped.
        let _: Result<_, _> = events.send(event);
    }
}

#[cfg(test)]
impl Link {
    /// Makes a connection to a server that is never there.
    pub(super) fn to_nobody(settings: &Settings) -> Arc<Self> {
        use super::access::Access;
        let address = Arc::new(
            Address::parse("redis://127.0.0.1:1", &Access::default()).expect("an address"),
        );
        let (events, _) = tokio::sync::mpsc::unbounded_channel();
        let wiring = Wiring::new("test", settings, events.clone(), &Arc::default());
        Self::await_server(address, Role::Acknowledged, &wiring, events)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc::unbounded_channel;
    use tokio::time::sleep;

    use super::*;
    use crate::clock::Instant;
    use crate::foreign::poll_sickly;
    use crate::node::access::Access;
    use crate::node::host_port::HostPort;
    use crate::node::naming::Said;
    use crate::options::Options;

    /// Answers every command with OK.
    async fn agree(listener: TcpListener) {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                    for _ in buffer[..n].iter().filter(|&&byte| byte == b'*') {
                        stream.write_all(b"+OK\r\n").await.expect("a peer");
                    }
                }
            });
        }
    }

    /// Answers every command with OK, but a script only once it may.
    async fn agree_late(listener: TcpListener, asked: Arc<Notify>, may: Arc<Notify>) {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            let commands = buffer[..n].iter().filter(|&&byte| byte == b'*').count();
            if buffer[..n].windows(4).any(|word| word == b"EVAL") {
                asked.notify_one();
                may.notified().await;
            }
            stream
                .write_all(&b"+OK\r\n".repeat(commands))
                .await
                .expect("a peer");
        }
    }

    /// No task tends the connection, which would give it up: the answer arrives in the same moment.
    #[tokio::test]
    async fn an_answer_of_a_server_that_was_deposed_meanwhile_is_unknown() {
        let settings = Options::default().validate(1).expect("valid");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let place = |port| HostPort {
            host: "127.0.0.1".into(),
            port,
        };
        let old = place(listener.local_addr().expect("an address").port());
        let url = "redis-sentinel://s?sentinelServiceName=locks";
        let address = Arc::new(Address::parse(url, &Access::default()).expect("an address"));
        let naming = address.naming().expect("Sentinels name it");
        let name = |master: HostPort, epoch| {
            let said = Said::Names {
                master,
                epoch: Some(epoch),
            };
            naming.hear(&place(26_379), None, said, Instant::now());
        };
        naming.add(place(26_379), true);
        name(old.clone(), 1);
        let asked = Arc::new(Notify::new());
        let may = Arc::new(Notify::new());
        tokio::spawn(agree_late(listener, Arc::clone(&asked), Arc::clone(&may)));
        let link = Link::connect_once(Arc::clone(&address), Role::Commands, "test", &settings)
            .await
            .expect("a link");
        let running = tokio::spawn({
            let link = Arc::clone(&link);
            async move { link.run_nothing().await }
        });
        asked.notified().await;
        name(place(1), 2);
        may.notify_one();
        let outcome = running.await.expect("no panic");
        let Outcome::Unknown(failure) = &outcome else {
            panic!("{outcome:?}")
        };
        assert!(
            failure
                .reason
                .contains("the Sentinels do not name this server"),
            "{failure}"
        );
        let refused = link.run_nothing().await;
        assert!(matches!(refused, Outcome::NotExecuted(_)), "{refused:?}");
        link.abandon();
    }

    /// The Sentinels name no master for a moment, and then the same master again. The connection is
    /// up.
    #[tokio::test]
    async fn a_caller_goes_on_once_the_same_master_is_named_again() {
        let settings = Options::default().validate(1).expect("valid");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let place = |port| HostPort {
            host: "127.0.0.1".into(),
            port,
        };
        let old = place(listener.local_addr().expect("an address").port());
        let url = "redis-sentinel://s?sentinelServiceName=locks";
        let address = Arc::new(Address::parse(url, &Access::default()).expect("an address"));
        let naming = address.naming().expect("Sentinels name it");
        let name = |sentinel: u16, master: HostPort, epoch| {
            let said = Said::Names {
                master,
                epoch: Some(epoch),
            };
            naming.hear(&place(sentinel), None, said, Instant::now());
        };
        (1..=3).for_each(|sentinel| naming.add(place(sentinel), true));
        (1..=3).for_each(|sentinel| name(sentinel, old.clone(), 1));
        tokio::spawn(agree(listener));
        let link = Link::connect_once(Arc::clone(&address), Role::Commands, "test", &settings)
            .await
            .expect("a link");
        name(1, place(9), 2);
        assert!(naming.master().is_err());
        let begun = Instant::now();
        let calling = tokio::spawn({
            let link = Arc::clone(&link);
            async move { link.call("PING", Vec::new()).await }
        });
        sleep(Duration::from_millis(100)).await;
        naming.hear(
            &place(1),
            None,
            Said::Fails("gone".to_owned()),
            Instant::now(),
        );
        assert_eq!(naming.master(), Ok(old));
        let outcome = calling.await.expect("no panic");
        let took = Instant::now().since(begun);
        assert!(
            matches!(outcome, Outcome::Done(_)) && took < Duration::from_millis(500),
            "{took:?}: {outcome:?}"
        );
    }

    #[tokio::test]
    async fn a_connection_whose_task_panics_is_replaced_and_reports_it() {
        let settings = Options::default().validate(1).expect("valid");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let url = format!(
            "redis://127.0.0.1:{}",
            listener.local_addr().expect("an address").port()
        );
        let address = Arc::new(Address::parse(&url, &Access::default()).expect("an address"));
        let (events, mut told) = unbounded_channel();
        let wiring = Wiring::new("test", &settings, events.clone(), &Arc::default());
        let link = Link::await_server(address, Role::Commands, &wiring, events);
        // It panics when it reports its first connection.
        poll_sickly(pin!(told.recv()));
        tokio::spawn(agree(listener));
        let up = timeout(Duration::from_secs(10), async {
            while link.epoch() < 3 {
                sleep(Duration::from_millis(1)).await;
            }
            (told.recv().await, told.recv().await)
        });
        assert_eq!(up.await, Ok((Some(LinkEvent::Up), Some(LinkEvent::Up))));
        link.quit().await;
    }
}
