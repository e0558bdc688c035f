//! A node whose server is in memory.

mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use self::wire::{Misplaced, Wire};
use super::check::unavailable;
use super::reply::{self, Outcome, Reply};
use super::{Call, Events, Step, Wiring};
use crate::clock::{Instant, wall_micros};
use crate::error::{Error, NodeFailure};
use crate::presence::Presence;
use crate::sync::{Arc, Mutex};
use crate::tasks;
use crate::testing::{Request, Resp, Server};

/// A connection to a server in memory.
pub(crate) struct MemoryConnection {
    server: Server,
    connection: u64,
    wire: Arc<Wire>,
    /// Held while something is sent, so answers are expected in the order in which requests are
    /// sent.
    sending: Mutex<()>,
    silence: Arc<Silence>,
    command_timeout: Duration,
    presence: Arc<Presence>,
}

/// Whether a command has had no answer, and the server has answered nothing since.
#[derive(Default)]
struct Silence {
    lasts: AtomicBool,
    /// Unlike a `watch` it wakes waiters in the order in which they arrived, so that a simulation
    /// repeats under the same seed.
    over: Notify,
}

impl MemoryConnection {
    /// Connects, and waits for the server if it is stopped.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer within `connect_timeout`.
    pub(super) async fn connect(server: &Server, wiring: &Wiring) -> Result<(Self, Events), Error> {
        let connected = Self::new(server, wiring);
        let bound = wiring.settings.connect_timeout;
        if timeout(bound, connected.0.send(Request::Ping))
            .await
            .is_err()
        {
            let reason = format!("cannot connect: timed out after {bound:?}");
            return Err(unavailable(connected.0.failure(reason)));
        }
        Ok(connected)
    }

    /// Connects to a server that may be stopped.
    pub(super) fn new(server: &Server, wiring: &Wiring) -> (Self, Events) {
        let (wire, events) = Wire::new(wiring);
        let hears = Arc::clone(&wire);
        let connection = server.connect(move |event| hears.hear(event));
        let connected = Self {
            server: server.clone(),
            connection,
            wire,
            sending: Mutex::default(),
            silence: Arc::default(),
            command_timeout: wiring.settings.command_timeout,
            presence: wiring.roll.add(server.name(), wiring.part, true),
        };
        (connected, events)
    }

    pub(super) fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }

    pub(super) fn epoch(&self) -> u64 {
        self.wire.epoch()
    }

    pub(super) fn permits_suspicious_reentries(&self) -> bool {
        self.server.permits_suspicious_reentries()
    }

    pub(super) fn mismatched_replies(&self) -> u64 {
        self.wire.mismatched()
    }

    /// Returns how long an acquire waits for a silent server.
    pub(super) fn patience(&self) -> Duration {
        self.command_timeout / 2
    }

    /// Runs a script, once, behind all that were polled before it. While the server is silent, no
    /// script is sent that may take something.
    pub(crate) async fn call(&self, call: &Call, is_of_a_label: bool) -> Outcome<Reply> {
        if matches!(call, Call::Step(Step { takes: true, .. }))
            && let Err(failure) = self.heard().await
        {
            return Outcome::NotExecuted(failure);
        }
        let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
        let text = call.lua().text();
        let keys = owned(call.keys());
        let args = owned(call.args());
        match self
            .ask(Request::Run {
                text,
                keys,
                args,
                is_of_a_label,
            })
            .await
        {
            Ok(answer) => replied(answer).into_outcome(self.server.name()),
            Err(failure) => Outcome::Unknown(failure),
        }
    }

    pub(super) async fn resubscribe(&self, add: Vec<String>, remove: Vec<String>) -> Outcome<()> {
        match self.ask(Request::Resubscribe { add, remove }).await {
            Ok(_) => Outcome::Done(()),
            Err(failure) => Outcome::Unknown(failure),
        }
    }

    /// Answers a tool as a Redis would that has no users, no disk, no replicas and no limit of its
    /// memory.
    pub(super) async fn tell(&self, words: &[String]) -> Outcome<Reply> {
        let asked = Instant::now();
        let here = wall_micros();
        if let Err(failure) = self.ask(Request::Ping).await {
            return Outcome::Unknown(failure);
        }
        let text = |text: &str| Reply::Bytes(text.to_owned().into());
        let list = |words: &[&str]| Reply::Array(words.iter().map(|word| text(word)).collect());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Outcome::Done(match &words[..] {
            ["PING"] => text("PONG"),
            ["HELLO"] => list(&[
                "server",
                "memory",
                "version",
                "",
                "mode",
                "standalone",
                "role",
                "master",
            ]),
            ["INFO"] => {
                text("role:master\nmaxmemory:0\nmaxmemory_policy:noeviction\naof_enabled:0\n")
            }
            [
                "CONFIG",
                "GET",
                name @ ("appendfsync" | "no-appendfsync-on-rewrite"),
            ] => list(&[name, "no"]),
            ["CONFIG", "GET", "save"] => list(&["save", ""]),
            ["ACL", "WHOAMI"] => text("default"),
            ["ACL", "DRYRUN", ..] => text("OK"),
            ["TIME"] => {
                // Its clock counts as read in the middle of the round trip.
                let half =
                    u64::try_from(Instant::now().since(asked).as_micros() / 2).unwrap_or(u64::MAX);
                let now = here
                    .saturating_add(half)
                    .saturating_add_signed(self.server.clock_offset_us());
                list(&[
                    &(now / 1_000_000).to_string(),
                    &(now % 1_000_000).to_string(),
                ])
            }
            _ => {
                return reply::sort_error(
                    self.server.name(),
                    "ERR a server in memory does not answer this",
                );
            }
        })
    }

    pub(super) fn quit(&self) {
        self.server.hang_up(self.connection);
    }

    /// Asks the server, once.
    ///
    /// # Errors
    /// Why there is no answer: it is unknown whether the request was executed.
    async fn ask(&self, request: Request) -> Result<Resp, NodeFailure> {
        match timeout(self.command_timeout, self.send(request)).await {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(Misplaced))) => {
                Err(self.failure("gave the answer to another command: its connection is given up"))
            }
            Ok(Err(_)) => Err(self.failure("its connection was given up")),
            Err(_) => {
                self.listen();
                Err(self.failure(format!("timed out after {:?}", self.command_timeout)))
            }
        }
    }

    fn send(&self, request: Request) -> oneshot::Receiver<Result<Resp, Misplaced>> {
        let _in_order = self.sending.lock();
        // Faults are for the answers to locks' commands: a label is written at any time, and a test
        // does not count it.
        let is_of_a_label = matches!(
            request,
            Request::Run {
                is_of_a_label: true,
                ..
            }
        );
        let (number, answer) = if is_of_a_label {
            self.wire.expect_beside()
        } else {
            self.wire.expect()
        };
        self.server.send(self.connection, number, request);
        answer
    }

    /// Marks the server silent until it answers something.
    fn listen(&self) {
        if !self.silence.lasts.swap(true, Ordering::Relaxed) {
            let silence = Arc::clone(&self.silence);
            let mut answer = self.send(Request::Ping);
            let presence = Arc::downgrade(&self.presence);
            let blip = 2 * self.command_timeout;
            let report = move |is_up| {
                if let Some(presence) = presence.upgrade() {
                    presence.seen(is_up, Instant::now(), blip, || {
                        "it does not answer".to_owned()
                    });
                }
            };
            tasks::spawn(async move {
                report(false);
                // If the connection was given up, the server is asked again.
                if timeout(blip + Duration::from_millis(1), &mut answer)
                    .await
                    .is_err()
                {
                    report(false);
                    let _: Result<_, _> = answer.await;
                }
                report(true);
                silence.lasts.store(false, Ordering::Relaxed);
                silence.over.notify_waiters();
            });
        }
    }

    /// Waits a while for an answer, if the server is silent.
    ///
    /// # Errors
    /// There is none.
    async fn heard(&self) -> Result<(), NodeFailure> {
        // Created before the check, so that an end that comes after the check is not missed.
        let over = self.silence.over.notified();
        if self.silence.lasts.load(Ordering::Relaxed)
            && timeout(self.patience(), over).await.is_err()
        {
            return Err(self.failure("silent: it has not answered since a command timed out"));
        }
        Ok(())
    }

    fn failure(&self, reason: impl Into<String>) -> NodeFailure {
        NodeFailure::new(self.server.name(), reason)
    }
}

impl Drop for MemoryConnection {
    fn drop(&mut self) {
        self.quit();
    }
}

/// Returns an answer as it would come from a network.
fn replied(answer: Resp) -> Reply {
    match answer {
        Resp::Nil => Reply::Nil,
        Resp::Int(number) => Reply::Int(number),
        Resp::Text(text) => Reply::Bytes(text.into()),
        Resp::Array(items) => Reply::Array(items.into_iter().map(replied).collect()),
        Resp::Error(error) => Reply::Error(error),
    }
}
