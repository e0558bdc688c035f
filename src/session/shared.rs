//! The lifetime of a session: from connecting to the drop of the last of the user's handles.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot::error::RecvError;

use super::{Session, closing, connect, panicked};
use crate::alarm::Alarm;
use crate::engine::Engine;
use crate::error::{Error, NodeFailure};
use crate::foreign::{self, AnswerReceiver};
use crate::node::Target;
use crate::options::Settings;
use crate::quorum;
use crate::random;

/// The session that the user's handles share. The engine ends when the last handle is dropped.
#[derive(Debug)]
pub(crate) struct SharedSession {
    session: Arc<Session>,
}

impl SharedSession {
    /// Starts an engine and connects to the servers.
    ///
    /// # Errors
    /// See [`quorum::connect`](crate::quorum::connect). A majority of the servers must be reachable
    /// within `connect_timeout`.
    pub(crate) async fn connect(settings: Settings, targets: Vec<Target>) -> Result<Self, Error> {
        #[cfg(feature = "testing")]
        if targets.iter().any(Target::is_in_memory) {
            return Self::connect_here(settings, targets).await;
        }
        Self::connected(Self::begin(settings, targets)?.await)
    }

    /// [`connect`](Self::connect) in the caller's runtime: the locker lives there, and uses its
    /// time.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`Error::Config`] outside of a runtime.
    #[cfg(feature = "testing")]
    async fn connect_here(settings: Settings, targets: Vec<Target>) -> Result<Self, Error> {
        let outside = |_| {
            Error::config(
                "memory",
                "a locker over servers in memory needs a tokio runtime: call connect() in one",
            )
        };
        let engine = Engine::embedded_in(
            &tokio::runtime::Handle::try_current().map_err(outside)?,
            targets.len(),
        );
        let alarm = Alarm::of_embedded(&engine);
        Self::connected(Self::begin_on(&engine, alarm, settings, targets).await)
    }

    /// [`connect`](Self::connect), blocking the thread. Panics in async code.
    pub(crate) fn blocking_connect(
        settings: Settings,
        targets: Vec<Target>,
    ) -> Result<Self, Error> {
        Self::connected(Self::begin(settings, targets)?.blocking_recv())
    }

    /// Starts an engine, which connects to the servers in the background. Waits until it runs, but
    /// for no server.
    ///
    /// # Errors
    /// [`Error::Config`] for a server in memory, whose runtime must not be blocked;
    /// [`Error::Unavailable`] if the thread cannot be started.
    pub(crate) fn connect_lazily(settings: Settings, targets: Vec<Target>) -> Result<Self, Error> {
        #[cfg(feature = "testing")]
        if targets.iter().any(Target::is_in_memory) {
            return Err(Error::config(
                "memory",
                "a server in memory is always there: use connect()",
            ));
        }
        let no_thread =
            |error: std::io::Error| failed(&targets, &format!("the thread cannot start: {error}"));
        let alarm = Alarm::of_process().map_err(no_thread)?;
        let engine = Engine::start(targets.len()).map_err(no_thread)?;
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        let starting = engine.clone();
        engine.spawn(async move {
            let start = async { start_lazily(starting.clone(), alarm, settings, &targets) };
            let session = foreign::survive(start)
                .await
                .map_err(|said| failed(&targets, &panicked(&said)));
            if session.is_err() {
                starting.stop();
            }
            // This cannot fail: the caller waits for it.
            let _: Result<_, _> = reply.send(session.map(|session| Self { session }));
        });
        let shared = answer.recv().unwrap_or(Err(Error::Closed))?;
        shared.session.engine.register_thread();
        Ok(shared)
    }

    fn connected(answer: Result<Result<Self, Error>, RecvError>) -> Result<Self, Error> {
        let shared = answer.unwrap_or(Err(Error::Closed))?;
        shared.session.engine.register_thread();
        Ok(shared)
    }

    fn begin(
        settings: Settings,
        targets: Vec<Target>,
    ) -> Result<AnswerReceiver<Result<Self, Error>>, Error> {
        let no_thread =
            |error: std::io::Error| failed(&targets, &format!("the thread cannot start: {error}"));
        let alarm = Alarm::of_process().map_err(no_thread)?;
        let engine = Engine::start(targets.len()).map_err(no_thread)?;
        Ok(Self::begin_on(&engine, alarm, settings, targets))
    }

    fn begin_on(
        engine: &Engine,
        alarm: Arc<Alarm>,
        settings: Settings,
        targets: Vec<Target>,
    ) -> AnswerReceiver<Result<Self, Error>> {
        let (reply, answer) = foreign::channel();
        let starting = engine.clone();
        engine.spawn(async move {
            let session =
                foreign::survive(connect::start(starting.clone(), alarm, settings, &targets)).await;
            let panicked = |said: String| Err(failed(&targets, &panicked(&said)));
            let result = session
                .unwrap_or_else(panicked)
                .map(|session| Self { session });
            if result.is_err() {
                starting.stop();
            }
            // If the caller is gone, this drops the session, which ends the engine.
            foreign::answer(reply, result);
        });
        answer
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

/// Starts a session whose servers are connected once they are there. Called on the engine.
fn start_lazily(
    engine: Engine,
    alarm: Arc<Alarm>,
    settings: Settings,
    targets: &[Target],
) -> Arc<Session> {
    let id = random::uuid();
    let (reconnected, reconnects) = unbounded_channel();
    let (quorum, subscribers) =
        quorum::connect_lazily(&settings, targets, &id.to_string(), &reconnected);
    connect::begin(engine, alarm, id, settings, quorum, subscribers, reconnects)
}

/// Returns the error of a connect that could not ask any of these servers.
fn failed(targets: &[Target], reason: &str) -> Error {
    let failure = |target: &Target| NodeFailure::new(target.name(), reason);
    let nodes = targets.iter().map(failure).collect();
    Error::Unavailable {
        keys: Vec::new(),
        servers: targets.len(),
        nodes,
        waited: Duration::ZERO,
    }
}

impl Drop for SharedSession {
    fn drop(&mut self) {
        let session = Arc::clone(&self.session);
        if session.is_forked() {
            // Its thread does not exist in this process, so nothing can be ended: it is leaked.
            std::mem::forget(session);
            return;
        }
        // On the engine, since no drop waits for anything.
        let engine = session.engine.clone();
        engine.spawn(async move {
            closing::wind_down(&session).await;
            session.engine.stop();
        });
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "testing")]
    mod embedded {
        use tokio::runtime::{Builder, Handle};
        use tokio::task::yield_now;

        use crate::error::Error;
        use crate::node::Target;
        use crate::options::Options;
        use crate::session::SharedSession;
        use crate::session::embedded::embedded_in;

        /// An embedded session without servers.
        fn shared(runtime: &Handle) -> SharedSession {
            SharedSession {
                session: embedded_in(runtime),
            }
        }

        #[tokio::test(start_paused = true)]
        async fn the_last_handle_of_a_guest_ends_its_tasks() {
            let shared = shared(&Handle::current());
            yield_now().await;
            assert!(Handle::current().metrics().num_alive_tasks() > 3);
            drop(shared);
            while Handle::current().metrics().num_alive_tasks() > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }

        #[test]
        fn a_handle_that_outlives_the_runtime_drops_without_a_panic() {
            let runtime = Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime");
            let shared = shared(runtime.handle());
            let session = std::sync::Arc::downgrade(&shared.session);
            runtime.block_on(yield_now());
            drop(runtime);
            drop(shared);
            assert_eq!(session.strong_count(), 0);
        }

        #[tokio::test]
        async fn a_guest_that_finds_no_server_leaves_nothing() {
            let options = Options {
                connect_timeout: std::time::Duration::from_millis(100),
                ..Options::default()
            };
            let settings = options.validate(1).expect("valid");
            let target = Target::parse("redis://127.0.0.1:1", &crate::node::Access::default())
                .expect("an address");
            let refused = SharedSession::connect_here(settings, vec![target]).await;
            assert!(
                matches!(refused, Err(Error::Unavailable { .. })),
                "{refused:?}"
            );
            while Handle::current().metrics().num_alive_tasks() > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }

        #[test]
        fn a_guest_needs_a_runtime() {
            let settings = Options::default().validate(1).expect("valid");
            let refused =
                futures_executor::block_on(SharedSession::connect_here(settings, Vec::new()));
            assert!(
                matches!(refused, Err(Error::Config(error)) if error.to_string().contains("runtime"))
            );
        }
    }
}
