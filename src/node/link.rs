//! One connection to a server: a fred client made safe.
//!
//! fred 10.1 is fast and pipelines well, but it trusts silent connections, and stops when its router task stops. Each
//! line here answers a fault that was reproduced without it (`client.rs` has the settings):
//! - A command runs to its end in a task of the engine under fred's own timeout: only that takes it out of the queue.
//! - A PING with a token, sent by this crate, finds silent connections, and replies that have slipped by one.
//! - fred counts replies: if one is lost or cannot be read, all later ones go to the wrong commands. So a script
//!   returns a number (`number.rs`). A reply without a number counts once the echo of a PING behind it is in step.
//! - Dropping a client leaks its connection: [`Link::quit`].
//!
//! # Invariants
//! - The client is replaced only by [`tend`], or by its restart; [`LinkEvent::Up`] follows, as after each reconnect.
//! - Nothing here is awaited while the mutex of the client is held.

mod beside;
mod channels;
mod deposed;
mod events;
mod fitness;
mod in_step;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::{ClientLike, EventInterface, ServerInterface};
use fred::types::{ClusterHash, ConnectHandle, CustomCommand, Value};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub(crate) use self::events::{LinkEvent, hear_during};
pub(super) use self::fitness::Fitness;
use self::in_step::Slips;
use super::address::Address;
use super::client::{Role, build, reply_timeout};
use super::place::Place;
use super::reply::{self, Outcome, Reply};
use crate::error::NodeFailure;
use crate::foreign::{self, contained};
use crate::options::Settings;

/// A connection that is re-established forever.
pub(super) struct Link {
    address: Arc<Address>,
    role: Role,
    client_name: String,
    settings: Settings,
    current: Mutex<(Client, ConnectHandle)>,
    last_error: Mutex<String>,
    /// How often it has been reconnected, or found to be out of step.
    epoch: AtomicU64,
    /// Whether a script has had no answer, and none has had one since. A paused server accepts connections and answers
    /// PING.
    silent: watch::Sender<bool>,
    fitness: watch::Sender<Fitness>,
    slips: Slips,
    stopped: CancellationToken,
}

impl Link {
    /// Connects, and tends the connection until [`Link::quit`]. The node calls it, checks that this crate can work with
    /// the server before it sends a script, and ends it.
    pub(super) async fn connect(
        address: Arc<Address>,
        role: Role,
        locker: &str,
        settings: &Settings,
        events: UnboundedSender<LinkEvent>,
    ) -> Result<Arc<Self>, fred::error::Error> {
        let link = Self::connect_once(address, role, locker, settings).await?;
        link.look_after(events);
        Ok(link)
    }

    /// Connects. Nobody tends the connection, which ends with [`Link::quit`] or when it is dropped.
    async fn connect_once(
        address: Arc<Address>,
        role: Role,
        locker: &str,
        settings: &Settings,
    ) -> Result<Arc<Self>, fred::error::Error> {
        let client = build(&address, role, settings, true);
        let task = client.connect();
        // From here on the link closes the connection if this future is dropped or fails.
        let link = Self::new(address, role, locker, settings, client.clone(), task);
        client.wait_for_connect().await?;
        link.set_fitness(Fitness::Fit);
        link.introduce().await;
        Ok(link)
    }

    /// Connects in the background to a server that is away; otherwise as [`Link::connect`]. No script is sent before it
    /// is [known](Fitness) which server it is.
    pub(super) fn await_server(
        address: Arc<Address>,
        role: Role,
        locker: &str,
        settings: &Settings,
        events: UnboundedSender<LinkEvent>,
    ) -> Arc<Self> {
        let client = build(&address, role, settings, false);
        let task = client.connect();
        let link = Self::new(address, role, locker, settings, client, task);
        link.look_after(events);
        link
    }

    /// Starts [`tend`].
    fn look_after(self: &Arc<Self>, events: UnboundedSender<LinkEvent>) {
        let link = Arc::clone(self);
        tokio::spawn(foreign::restarted(async move |again| {
            if again && !link.stopped.is_cancelled() {
                // Events of the old client may have been lost. The new one reports its connection.
                link.replace();
            }
            tend(&link, &events).await;
        }));
    }

    fn new(
        address: Arc<Address>,
        role: Role,
        locker: &str,
        settings: &Settings,
        client: Client,
        task: ConnectHandle,
    ) -> Arc<Self> {
        Arc::new(Self {
            address,
            role,
            client_name: format!("lockhound:{}:{locker}", role.name()),
            settings: settings.clone(),
            current: Mutex::new((client, task)),
            last_error: Mutex::new("no server has answered yet".to_owned()),
            epoch: AtomicU64::new(0),
            silent: watch::Sender::new(false),
            fitness: watch::Sender::new(Fitness::Unknown),
            slips: Slips::default(),
            stopped: CancellationToken::new(),
        })
    }

    /// Returns the number of this connection. It changes with each reconnect, and when replies are found out of step.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns the server's address, with its password as `***`.
    pub(super) fn server(&self) -> &Arc<str> {
        &self.address.name
    }

    /// Returns the place of the last master that it connected to, if Sentinels name it.
    pub(super) fn connected_to(&self) -> Option<Place> {
        let server = self.client().sentinel_primary()?;
        Some(Place { host: (&*server.host).into(), port: server.port })
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

    /// Waits for the connection for `patience`, if it is down, whatever server it leads to.
    ///
    /// # Errors
    /// Why it is down.
    async fn connected_for(&self, patience: Duration) -> Result<(), NodeFailure> {
        let client = self.client();
        if !client.is_connected() {
            // A command that is not handed to fred cannot be executed late. No connect can be missed: nothing is
            // awaited between the check and the subscription inside, and the router runs on this thread.
            if !matches!(timeout(patience, client.wait_for_connect()).await, Ok(Ok(()))) {
                let reason = format!("not connected: {}", lock(&self.last_error));
                return Err(NodeFailure { node: Arc::clone(&self.address.name), reason });
            }
        }
        Ok(())
    }

    /// Returns whether the connection is silent: its last script had no answer.
    pub(super) fn is_silent(&self) -> bool {
        *self.silent.borrow()
    }

    /// Waits a while for an answer, if the connection is silent: a heartbeat is under way.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn heard(&self) -> Result<(), NodeFailure> {
        let mut silent = self.silent.subscribe();
        if timeout(self.patience(), silent.wait_for(|silent| !silent)).await.is_ok() {
            return Ok(());
        }
        // If it is being re-established, that says more about the server.
        self.ready_for(Duration::ZERO).await?;
        let bound = reply_timeout(self.role, &self.settings);
        let reason = format!("silent: a script had no answer within {bound:?}, and none has had one since");
        Err(NodeFailure { node: Arc::clone(&self.address.name), reason })
    }

    fn set_silent(&self, silent: bool) {
        if self.is_silent() != silent {
            self.silent.send_replace(silent);
        }
    }

    /// Sends one command, once. The first poll hands it to fred, whether the connection is up or not. The answer may be
    /// that to another command.
    async fn send(&self, command: &'static str, args: Vec<Value>) -> Outcome<Reply> {
        let outcome = self.hand_over(command, args).await;
        self.address.admission.heard(self.role as u8, &self.address.name, false, &outcome);
        outcome
    }

    /// Hands a command to fred. If fred panics, the outcome is unknown.
    async fn hand_over(&self, command: &'static str, args: Vec<Value>) -> Outcome<Reply> {
        let is_script = matches!(command, "EVALSHA" | "EVAL");
        let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
        let client = self.client();
        // fred's future takes 5 KiB, and each async function around it would hold it once or twice.
        let answer = Box::pin(async move { client.custom_raw(command, args).await });
        match foreign::survive(answer).await {
            Ok(answer) => {
                match &answer {
                    Ok(_) if is_script || self.role == Role::Subscriber => self.set_silent(false),
                    Err(error) if is_script || *error.kind() == ErrorKind::Timeout => self.set_silent(true),
                    // The connection is gone, and fred knows that.
                    Ok(_) | Err(_) => {}
                }
                reply::sort(&self.address.name, answer, reply_timeout(self.role, &self.settings))
            }
            Err(said) => Outcome::Unknown(NodeFailure {
                node: Arc::clone(&self.address.name),
                reason: format!("the client panicked while it sent this: {said}"),
            }),
        }
    }

    /// Reconnects, so that replies are in step again, or to find the successor of a demoted server.
    pub(super) async fn reconnect(&self) {
        let client = self.client();
        if client.is_connected() {
            let _: Result<_, _> = timeout(self.settings.connect_timeout, client.force_reconnection()).await;
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
        lock(&self.current).1.abort();
    }

    /// Ends the connection without telling the server.
    pub(super) fn abandon(&self) {
        self.stopped.cancel();
        lock(&self.current).1.abort();
    }

    /// Returns whether this connection speaks for its node when something is logged once.
    pub(super) fn is_first(&self) -> bool {
        self.role == Role::Commands
    }

    fn client(&self) -> Client {
        lock(&self.current).0.clone()
    }

    /// Names the connection for CLIENT LIST. A failure is no problem: the user may not have this right.
    async fn introduce(&self) {
        let outcome = self.call("CLIENT", vec!["SETNAME".into(), self.client_name.clone().into()]).await;
        if !matches!(outcome, Outcome::Done(_)) {
            contained(|| tracing::debug!(node = %self.address.name, ?outcome, "the connection could not be named"));
        }
    }

    /// Replaces a client whose router no longer acts.
    fn replace(&self) {
        let client = build(&self.address, self.role, &self.settings, false);
        let task = client.connect();
        let (_, old_task) = std::mem::replace(&mut *lock(&self.current), (client, task));
        old_task.abort();
        self.renewed();
    }

    /// Notes that it is another connection from here on.
    fn renewed(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.slips.end();
    }
}

impl Drop for Link {
    /// Closes the connection. Only a link that nobody tends yet is dropped while its connection lives.
    fn drop(&mut self) {
        lock(&self.current).1.abort();
    }
}

/// Tends a connection: passes its events on, detects silence, replaces the client when it is dead. Restarted after a
/// panic; ends with [`Link::quit`]; nobody awaits it.
async fn tend(link: &Arc<Link>, events: &UnboundedSender<LinkEvent>) {
    loop {
        tokio::select! {
            // First: a client that was quit has ended too, and must not be replaced.
            biased;
            () = link.stopped.cancelled() => return,
            () = listen(link, events) => {}
            () = heartbeat(link) => {}
        }
        contained(|| tracing::debug!(node = %link.address.name, role = link.role.name(), "the client is replaced"));
        // Nothing is awaited before the events of the new client are subscribed to. It reports its first connection as
        // it does every other, so no reconnect goes unnoticed.
        link.replace();
    }
}

/// Passes on the events of the connection. Ends when the client has ended.
async fn listen(link: &Arc<Link>, events: &UnboundedSender<LinkEvent>) {
    let client = link.client();
    let (mut ups, mut messages, mut errors) = (client.reconnect_rx(), client.message_rx(), client.error_rx());
    loop {
        let event = tokio::select! {
            biased;
            error = errors.recv() => {
                match error {
                    Ok((error, _)) => {
                        let words = reply::words(&error, Some(link.settings.connect_timeout));
                        link.address.admission.not_connected(link.role as u8, &link.address.name, &words);
                        let is_first = !link.is_known_as(&Fitness::Fit);
                        *lock(&link.last_error) = if is_first { link.address.with_remedy(words) } else { words };
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
                continue;
            }
            up = ups.recv() => match up {
                Ok(_) | Err(RecvError::Lagged(_)) => {
                    link.renewed();
                    link.address.admission.connected(link.role as u8);
                    tokio::spawn(Arc::clone(link).leave_deposed_master());
                    let link = Arc::clone(link);
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

/// Sends PINGs. To a connection that falls silent it sends scripts at once, one after the other, until one is answered.
/// Two heartbeats without an answer force a reconnect. Ends when the reconnect hangs, or when the client's task has
/// ended.
async fn heartbeat(link: &Arc<Link>) {
    let mut silent = 0;
    let mut suspected = link.silent.subscribe();
    loop {
        if link.client().is_connected() {
            // No silence is missed: the current value is checked too, and not only changes.
            let _: Result<_, _> = timeout(link.settings.command_timeout, suspected.wait_for(|silent| *silent)).await;
        } else {
            let client = link.client();
            let _: Result<_, _> = timeout(link.settings.command_timeout, client.wait_for_connect()).await;
        }
        if lock(&link.current).1.is_finished() {
            return;
        }
        if !link.client().is_connected() {
            // The client is reconnecting by itself.
            silent = 0;
            continue;
        }
        let answer = if *link.silent.borrow() { link.run_nothing().await } else { link.barrier().await };
        silent = match answer {
            Outcome::Unknown(failure) => {
                *lock(&link.last_error) = failure.reason;
                silent + 1
            }
            _ => 0,
        };
        if silent == 2 {
            silent = 0;
            let (node, role) = (&link.address.name, link.role.name());
            contained(|| tracing::debug!(%node, role, "two silent heartbeats: reconnecting"));
            let client = link.client();
            let forced = timeout(link.settings.command_timeout, client.force_reconnection()).await;
            // During an outage the client goes on reconnecting and is not connected. A stuck router still claims that
            // it is connected.
            if forced.is_err() && client.is_connected() {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl Link {
    /// Makes a connection to a server that is never there.
    pub(super) fn to_nobody(settings: &Settings) -> Arc<Self> {
        use super::access::Access;
        let address = Arc::new(Address::parse("redis://127.0.0.1:1", &Access::default()).expect("an address"));
        let (events, _) = tokio::sync::mpsc::unbounded_channel();
        Self::await_server(address, Role::Acknowledged, "test", settings, events)
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
    use crate::foreign::poll_sickly;
    use crate::node::access::Access;
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

    #[tokio::test]
    async fn a_connection_whose_task_panics_is_replaced_and_reports_it() {
        let settings = Options::default().validate(1).expect("valid");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let url = format!("redis://127.0.0.1:{}", listener.local_addr().expect("an address").port());
        let address = Arc::new(Address::parse(&url, &Access::default()).expect("an address"));
        let (events, mut told) = unbounded_channel();
        let link = Link::await_server(address, Role::Commands, "test", &settings, events);
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
