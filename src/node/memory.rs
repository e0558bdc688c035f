//! A node that is a server in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::reply::{self, Outcome};
use super::{Events, LinkEvent, Wiring};
use crate::command::{Answer, Command};
use crate::error::{Error, NodeFailure};
use crate::tasks;
use crate::testing::{Failure, News, Server};

/// A connection to a server in memory.
pub(crate) struct Memory {
    server: Server,
    ear: u64,
    epoch: Arc<AtomicU64>,
    /// Whether a command has had no answer, and the server has not answered since.
    silent: Arc<watch::Sender<bool>>,
    command_timeout: Duration,
}

impl Memory {
    /// Connects, and waits for the server if it stands still.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where it does not go on within `connect_timeout`.
    pub(super) async fn connect(server: &Server, wiring: &Wiring<'_>) -> Result<(Self, Events), Error> {
        let connected = Self::new(server, wiring);
        let bound = wiring.settings.connect_timeout;
        if timeout(bound, server.ping()).await.is_err() {
            let nodes = vec![connected.0.failure(format!("cannot connect: timed out after {bound:?}"))];
            return Err(Error::Unavailable { servers: 1, nodes, waited: Duration::ZERO });
        }
        Ok(connected)
    }

    /// Connects to a server that may stand still.
    pub(super) fn new(server: &Server, wiring: &Wiring<'_>) -> (Self, Events) {
        let ((messages, subscriber), (ups, grants)) = (unbounded_channel(), unbounded_channel());
        let (epoch, reconnected) = (Arc::<AtomicU64>::default(), wiring.reconnected.clone());
        let counted = Arc::clone(&epoch);
        let ear = server.connect(move |news| match news {
            // Nobody listens any more once the node is dropped.
            News::Message(channel) => _ = messages.send(LinkEvent::Message(channel)),
            News::Restarted => {
                counted.fetch_add(1, Ordering::Relaxed);
                for events in [&messages, &ups, &reconnected] {
                    let _: Result<_, _> = events.send(LinkEvent::Up);
                }
            }
        });
        let (server, silent) = (server.clone(), Arc::new(watch::Sender::new(false)));
        let memory = Self { server, ear, epoch, silent, command_timeout: wiring.settings.command_timeout };
        (memory, Events { subscriber, grants })
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// How long an acquire waits for a server that is silent.
    pub(super) fn patience(&self) -> Duration {
        self.command_timeout / 2
    }

    /// Carries a command out, once. It is behind all that were polled before it. While the server is silent nothing is
    /// sent that takes something.
    pub(crate) async fn run(&self, command: Command) -> Outcome<Answer> {
        if matches!(command, Command::Acquire { .. })
            && let Err(failure) = self.heard().await
        {
            return Outcome::NotExecuted(failure);
        }
        match self.answer(self.server.run(command)).await {
            Ok(Ok(answer)) => Outcome::Done(answer),
            Ok(Err(Failure::Refused(message))) => reply::sort_error(self.server.name(), &message),
            Ok(Err(Failure::Unreadable)) => Outcome::Unknown(self.failure("answered what no script does".to_owned())),
            Err(failure) => Outcome::Unknown(failure),
        }
    }

    pub(super) async fn resubscribe(&self, add: Vec<String>, remove: Vec<String>) -> Outcome<()> {
        match self.answer(self.server.resubscribe(self.ear, add, remove)).await {
            Ok(()) => Outcome::Done(()),
            Err(failure) => Outcome::Unknown(failure),
        }
    }

    pub(super) fn quit(&self) {
        self.server.disconnect(self.ear);
    }

    async fn answer<T>(&self, answer: oneshot::Receiver<T>) -> Result<T, NodeFailure> {
        match timeout(self.command_timeout, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(self.failure("the connection was closed by the server".to_owned())),
            Err(_) => {
                self.listen();
                Err(self.failure(format!("timed out after {:?}", self.command_timeout)))
            }
        }
    }

    /// The server is silent, until it answers something.
    fn listen(&self) {
        if !self.silent.send_replace(true) {
            let (silent, answer) = (Arc::clone(&self.silent), self.server.ping());
            tasks::spawn(async move {
                // One that was started anew is there too.
                let _: Result<_, _> = answer.await;
                silent.send_replace(false);
            });
        }
    }

    /// Waits a while for an answer, if the server is silent.
    ///
    /// # Errors
    /// That there is none.
    async fn heard(&self) -> Result<(), NodeFailure> {
        let mut silent = self.silent.subscribe();
        let heard = timeout(self.patience(), silent.wait_for(|silent| !silent)).await;
        heard.map(|_| ()).map_err(|_| self.failure("silent: it has not answered since a command timed out".to_owned()))
    }

    fn failure(&self, reason: String) -> NodeFailure {
        NodeFailure { node: Arc::clone(self.server.name()), reason }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.quit();
    }
}
