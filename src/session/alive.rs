//! The life of a session, as the user's handles hold it: from its connect to the drop of the last of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::RecvError};

use super::Session;
use crate::alarm::Alarm;
use crate::engine::Engine;
use crate::error::{Error, NodeFailure};
use crate::foreign;
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

    fn begin(settings: Settings, targets: Vec<Target>) -> Result<oneshot::Receiver<Result<Self, Error>>, Error> {
        let no_thread = |e: std::io::Error| Error::Unavailable {
            servers: targets.len(),
            nodes: targets
                .iter()
                .map(|t| NodeFailure { node: Arc::clone(t.name()), reason: format!("the thread cannot start: {e}") })
                .collect(),
            waited: Duration::ZERO,
        };
        let alarm = Alarm::of_process().map_err(no_thread)?;
        let engine = Engine::start(settings.busy_poll).map_err(no_thread)?;
        let (reply, answer) = oneshot::channel();
        let starting = engine.clone();
        engine.spawn(async move {
            let result =
                Session::start(starting.clone(), alarm, settings, targets).await.map(|session| Self { session });
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
