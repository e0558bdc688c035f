//! The life of a session, as the user's handles hold it: from its connect to the drop of the last of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::error::RecvError;

use super::{Session, panicked};
use crate::alarm::Alarm;
use crate::engine::Engine;
use crate::error::{Error, NodeFailure};
use crate::foreign::{self, Answer};
use crate::node::Target;
use crate::options::Settings;

/// The session as the user's handles hold it: when the last of them is dropped, the engine ends.
#[derive(Debug)]
pub(crate) struct Alive {
    session: Arc<Session>,
}

impl Alive {
    /// Starts an engine and connects to the servers.
    ///
    /// # Errors
    /// See [`quorum::connect`](crate::quorum::connect). A majority of the servers must be reachable within
    /// `connect_timeout`.
    pub(crate) async fn connect(settings: Settings, targets: Vec<Target>) -> Result<Self, Error> {
        Self::connected(Self::begin(settings, targets)?.await)
    }

    /// [`connect`](Self::connect) for a thread that waits, which panics in async code.
    pub(crate) fn blocking_connect(settings: Settings, targets: Vec<Target>) -> Result<Self, Error> {
        Self::connected(Self::begin(settings, targets)?.blocking_recv())
    }

    fn connected(answer: Result<Result<Self, Error>, RecvError>) -> Result<Self, Error> {
        let alive = answer.unwrap_or(Err(Error::Closed))?;
        alive.session.engine.greet();
        Ok(alive)
    }

    fn begin(settings: Settings, targets: Vec<Target>) -> Result<Answer<Result<Self, Error>>, Error> {
        let names: Vec<_> = targets.iter().map(|target| Arc::clone(target.name())).collect();
        let failed = move |reason: String| Error::Unavailable {
            servers: names.len(),
            nodes: names.iter().map(|node| NodeFailure { node: Arc::clone(node), reason: reason.clone() }).collect(),
            waited: Duration::ZERO,
        };
        let no_thread = |error: std::io::Error| failed(format!("the thread cannot start: {error}"));
        let alarm = Alarm::of_process().map_err(no_thread)?;
        let engine = Engine::start(settings.busy_poll).map_err(no_thread)?;
        let (reply, answer) = foreign::channel();
        let starting = engine.clone();
        engine.spawn(async move {
            let session = foreign::survive(Session::start(starting.clone(), alarm, settings, targets)).await;
            let result = session.unwrap_or_else(|said| Err(failed(panicked(&said)))).map(|session| Self { session });
            if result.is_err() {
                starting.stop();
            }
            // If the caller is gone, this drops the session, which ends the engine.
            foreign::answer(reply, result);
        });
        Ok(answer)
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let session = Arc::clone(&self.session);
        if session.is_forked() {
            // What it holds cannot be ended here, where its thread is not: it is left as it is.
            std::mem::forget(session);
            return;
        }
        let engine = session.engine.clone();
        engine.spawn(async move {
            session.wind_down().await;
            session.engine.stop();
        });
    }
}
