//! Checks that an answer belongs to the command that fred gives it to.
//!
//! # Invariants
//! - The answer to a script counts if it has the number that the script was sent with.
//! - An answer without a number counts if the echo of a PING behind it came in its place, and no
//!   answer was mismatched since it was sent: two answers that have changed places leave the others
//!   in step.
//! - A connection that delivered a mismatched reply is given up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fred::bytes_utils::Str;
use fred::interfaces::ClientLike;
use fred::types::Value;
use futures_util::future::join;

use super::super::client::Role;
use super::Link;
use crate::clock::{Instant, Seldom};
use crate::foreign::log;
use crate::lua::numbered;
use crate::node::number::Number;
use crate::node::reply::{self, Outcome, Reply};
use crate::sync::Arc;

impl Link {
    /// Sends one command, once, and a PING behind it. The echo of the PING proves that the answer
    /// is the command's.
    pub(in crate::node) async fn call_in_step(
        self: &Arc<Self>,
        command: &'static str,
        args: Vec<Value>,
    ) -> Outcome<Reply> {
        match self.ready().await {
            Ok(()) => self.ask_in_step(command, args).await,
            Err(failure) => Outcome::NotExecuted(failure),
        }
    }

    /// As [`Link::call_in_step`], to whatever server is connected.
    pub(in crate::node) async fn ask_in_step(
        self: &Arc<Self>,
        command: impl Into<Str>,
        args: Vec<Value>,
    ) -> Outcome<Reply> {
        if let Err(failure) = self.connected_for(self.patience()).await {
            return Outcome::NotExecuted(failure);
        }
        // Before the send: a slip between here and the echo puts the answer in doubt.
        let slips = self.slips.get();
        // They are polled, and so sent, in this order.
        let (outcome, echo) = join(self.send(command, args), self.echo()).await;
        self.believe(outcome, echo, slips)
    }

    /// Runs a script once, which returns this number: an answer without it belongs to another
    /// command. As [`Link::send`].
    pub(in crate::node) async fn run(
        self: &Arc<Self>,
        command: &'static str,
        words: Vec<Value>,
        number: Number,
    ) -> Outcome<Reply> {
        let slips = self.slips.get();
        let epoch = self.epoch();
        let peer = self.peer();
        if !self.leads_to_master(&peer) {
            return Outcome::NotExecuted(self.down());
        }
        let outcome = match self.hand_over(&peer, command, words).await {
            Outcome::Done(reply) => match number.take(reply) {
                Some(answer) => answer.into_outcome(&self.address.name),
                None => self.mismatched(),
            },
            error @ (Outcome::NotExecuted(_) | Outcome::Refused(_)) => {
                Box::pin(self.verify(error, slips)).await
            }
            unknown @ Outcome::Unknown(_) => unknown,
        };
        // Another connection may lead to another cluster, and may not have been checked when this
        // was sent.
        let is_moot = self.epoch() != epoch && self.address.known_nodes().is_some();
        let outcome = if is_moot {
            self.unknown(CLOSED)
        } else {
            outcome
        };
        self.address
            .admission
            .heard(self.role as u8, &self.address.name, true, &outcome);
        // Named before, and not any more: its successor may know nothing of what it has granted.
        if !self.leads_to_master(&peer) {
            return self.unknown(
                "answered, but the Sentinels do not name this server as the master any more",
            );
        }
        outcome
    }

    /// Checks an error that concerns a script as a whole (`NOSCRIPT`, `LOADING`) and so has no
    /// number. It counts if the connection is in step behind it.
    async fn verify(self: &Arc<Self>, error: Outcome<Reply>, slips: u64) -> Outcome<Reply> {
        let epoch = self.epoch();
        let echo = if self.client().is_connected() {
            self.echo().await
        } else {
            self.unknown(CLOSED)
        };
        // An echo on another connection is no proof.
        if self.epoch() == epoch {
            self.believe(error, echo, slips)
        } else {
            self.unknown(CLOSED)
        }
    }

    /// Returns an answer without a number if the echo behind it proves that it is the command's,
    /// and if the count of mismatched replies is still `slips`: two answers that have changed
    /// places leave the others in step.
    fn believe(&self, answer: Outcome<Reply>, echo: Outcome<()>, slips: u64) -> Outcome<Reply> {
        if self.slips.get() == slips
            && (matches!(echo, Outcome::Done(())) || reply::explains(&echo, &answer))
        {
            return answer;
        }
        match (answer, echo) {
            (unknown @ Outcome::Unknown(_), _) => unknown,
            (_, Outcome::Unknown(failure)) => Outcome::Unknown(failure),
            _ => self.unknown("answered what may be the answer to another command"),
        }
    }

    /// Sends a PING. Done if its echo comes back.
    async fn echo(self: &Arc<Self>) -> Outcome<()> {
        let token = Number::next();
        // A Sentinel before version 7 takes no argument. No other command of it is answered PONG.
        let (args, expected) = match self.role {
            Role::Sentinel => (Vec::new(), "PONG"),
            _ => (vec![token.as_str().to_owned().into()], token.as_str()),
        };
        match self.send("PING", args).await {
            Outcome::Done(Reply::Bytes(echo)) if *echo == *expected.as_bytes() => Outcome::Done(()),
            // fred gives an error reply to SUBSCRIBE to the next command.
            Outcome::Done(_) if self.role.listens() => self.unknown("its replies are out of step"),
            Outcome::Done(_) => self.mismatched(),
            other => other.map(|_| ()),
        }
    }

    /// Counts an answer that belongs to another command. All answers in flight may be mismatched:
    /// the connection is given up.
    fn mismatched<T>(self: &Arc<Self>) -> Outcome<T> {
        self.address.mismatched.count();
        if self.slips.count_first() {
            self.epoch.fetch_add(1, Ordering::Relaxed);
            self.warn_of_slip();
            let link = Arc::clone(self);
            tokio::spawn(async move { link.reconnect().await });
        }
        self.unknown("gave the answer to another command: its connection is given up")
    }

    /// Warns at most once a minute; [`Stats::mismatched_replies`](crate::stats::Stats) has the
    /// count.
    fn warn_of_slip(&self) {
        if self.slips.warned.may(Duration::from_secs(60)) {
            log!(
                warn, node = %self.address.name, role = self.role.name(),
                "a reply belongs to another command: it is ignored, and the connection is closed"
            );
        }
    }

    pub(super) fn unknown<T>(&self, reason: impl Into<String>) -> Outcome<T> {
        Outcome::Unknown(self.failure(reason))
    }

    /// Returns how many answers of this server, on all its connections, belonged to another
    /// command.
    pub(in crate::node) fn mismatched_replies(&self) -> u64 {
        self.address.mismatched.get()
    }

    /// Runs a script that does nothing, to find out whether the server runs scripts.
    pub(super) async fn run_nothing(self: &Arc<Self>) -> Outcome<()> {
        if self.role.listens() {
            return self.barrier().await;
        }
        if let Err(failure) = self.connected_for(self.patience()).await {
            return Outcome::NotExecuted(failure);
        }
        if !self.is_member(self.patience()).await {
            let failure = self.failure("it is not known to belong to the cluster");
            return Outcome::NotExecuted(failure);
        }
        let number = Number::next();
        let words = vec![
            numbered("").into(),
            0.into(),
            number.as_str().to_owned().into(),
        ];
        self.run("EVAL", words, number).await.map(|_| ())
    }

    /// Waits until the server has processed what was sent before.
    pub(in crate::node) async fn barrier(self: &Arc<Self>) -> Outcome<()> {
        match self.connected_for(self.patience()).await {
            Ok(()) => match self.echo().await {
                refused @ Outcome::Refused(_) => match self.catch_up().await {
                    Outcome::Done(()) => refused,
                    failed => failed,
                },
                answer => answer,
            },
            Err(failure) => Outcome::NotExecuted(failure),
        }
    }

    /// Brings the connection back into step after a refused SUBSCRIBE: its error was given to the
    /// PING behind it, and the PING's own reply is yet to come. fred drops that reply if no command
    /// waits, and otherwise gives it to the one that does. So PINGs are sent until an echo arrives
    /// in its place.
    async fn catch_up(self: &Arc<Self>) -> Outcome<()> {
        let epoch = self.epoch();
        let end = Instant::now() + self.patience();
        let mut pause = Duration::from_millis(1);
        loop {
            tokio::time::sleep(pause).await;
            match self.echo().await {
                Outcome::Unknown(_) | Outcome::Refused(_)
                    if self.epoch() == epoch && Instant::now() < end =>
                {
                    pause = (pause * 2).min(Duration::from_millis(50));
                }
                answer => return answer,
            }
        }
    }
}

const CLOSED: &str = "its connection was given up";

/// The mismatched replies of a connection.
#[derive(Debug, Default)]
pub(super) struct Slips {
    count: AtomicU64,
    /// True from the first of these until the next reconnect.
    out_of_step: AtomicBool,
    warned: Seldom,
}

impl Slips {
    /// Notes a reconnect.
    pub(super) fn end(&self) {
        self.out_of_step.store(false, Ordering::Relaxed);
    }

    /// Counts one more. Returns whether it is the first on this connection.
    fn count_first(&self) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        !self.out_of_step.swap(true, Ordering::Relaxed)
    }

    fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
