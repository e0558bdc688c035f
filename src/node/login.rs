//! Asks the program for credentials at each connect.
//!
//! # Invariants
//! - The provider is foreign code. It runs on a thread of its own: nothing that it does or fails to
//!   do delays the engine, and its panics do not leave that thread.
//! - Nothing that is shown contains a password.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::thread;
use std::time::Duration;

use fred::error::{Error, ErrorKind};
use fred::types::config::Server;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::credentials::{AnyProvider, Credentials};
use crate::foreign;
use crate::shown::cut;
use crate::sync::{Arc, Mutex};

/// How the reason begins if there are no credentials.
pub(super) const FAILED: &str = "the provider of credentials";

/// A provider, and the thread that it runs on.
pub(crate) struct Provider {
    provider: Arc<dyn AnyProvider>,
    /// How long it may take.
    bound: Duration,
    /// Where questions go, from the first one on. The thread ends when this is dropped.
    asks: Mutex<Option<UnboundedSender<CredentialRequest>>>,
}

/// A question for credentials.
struct CredentialRequest {
    node: Arc<str>,
    reply: oneshot::Sender<Result<Credentials, String>>,
}

impl Provider {
    pub(crate) fn new(provider: Arc<dyn AnyProvider>, bound: Duration) -> Self {
        Self {
            provider,
            bound,
            asks: Mutex::new(None),
        }
    }

    /// Asks for the credentials of a server.
    ///
    /// # Errors
    /// Why there are none.
    async fn ask(&self, node: &Arc<str>) -> Result<Credentials, String> {
        let (reply, answer) = oneshot::channel();
        let ask = CredentialRequest {
            node: Arc::clone(node),
            reply,
        };
        self.send(ask)
            .map_err(|error| format!("{FAILED} has no thread: {error}"))?;
        match timeout(self.bound, answer).await {
            Ok(Ok(told)) => told.map_err(|error| format!("{FAILED} failed: {error}")),
            Ok(Err(_)) => Err(format!("{FAILED} is gone")),
            Err(_) => Err(format!(
                "{FAILED} did not answer within {:?}, half of connect_timeout",
                self.bound
            )),
        }
    }

    /// Starts the thread, if this is the first question.
    fn send(&self, ask: CredentialRequest) -> io::Result<()> {
        let mut asks = self.asks.lock();
        let Some(open) = asks.as_ref().filter(|asks| !asks.is_closed()) else {
            let (sender, inbox) = unbounded_channel();
            let provider = Arc::clone(&self.provider);
            thread::Builder::new()
                .name("lockhound-creds".into())
                .spawn(move || keep(provider, inbox))?;
            // This cannot fail: the thread holds the receiver.
            let _: Result<_, _> = sender.send(ask);
            *asks = Some(sender);
            return Ok(());
        };
        // If it was closed in the meantime, the reply is dropped, which counts as an answer.
        let _: Result<_, _> = open.send(ask);
        Ok(())
    }
}

/// Runs the thread. It starts with the first question, and ends when no caller can ask any more.
fn keep(provider: Arc<dyn AnyProvider>, mut asks: UnboundedReceiver<CredentialRequest>) {
    match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(answer_all(provider, asks)),
        Err(error) => {
            while let Some(CredentialRequest { reply, .. }) = asks.blocking_recv() {
                let _: Result<_, _> = reply.send(Err(format!("it has no runtime: {error}")));
            }
        }
    }
}

/// Answers questions, each in a task of its own. The tasks end with the runtime.
async fn answer_all(
    provider: Arc<dyn AnyProvider>,
    mut asks: UnboundedReceiver<CredentialRequest>,
) {
    while let Some(CredentialRequest { node, mut reply }) = asks.recv().await {
        let provider = Arc::clone(&provider);
        tokio::spawn(async move {
            let told = tokio::select! {
                biased;
                // The connection that asked has given up.
                () = reply.closed() => return,
                told = foreign::survive(async { provider.ask(&node).await }) => told,
            };
            let told = match told {
                Ok(Ok(credentials)) => Ok(credentials),
                Ok(Err(error)) => Err(said(&*error)),
                Err(panic) => Err(format!("it panicked: {}", cut(panic.as_bytes()))),
            };
            let _: Result<_, _> = reply.send(told);
        });
    }
}

/// Returns the message of a foreign error. Formatting it is foreign code too.
fn said(error: &dyn std::error::Error) -> String {
    let mut text = String::new();
    foreign::contained(|| text = cut(error.to_string().as_bytes()));
    if text.is_empty() {
        "without a message".to_owned()
    } else {
        text
    }
}

/// The credentials for the connections to one server.
pub(super) struct Login {
    node: Arc<str>,
    provider: Arc<Provider>,
}

impl Login {
    pub(super) fn new(node: Arc<str>, provider: Arc<Provider>) -> Self {
        Self { node, provider }
    }

    async fn credentials(&self) -> Result<(Option<String>, Option<String>), Error> {
        match self.provider.ask(&self.node).await {
            Ok(credentials) => {
                let (user, password) = credentials.into_parts();
                Ok((user, Some(password)))
            }
            Err(reason) => Err(Error::new(ErrorKind::Auth, reason)),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.node)
    }
}

/// Written as `async_trait` expands it, which fred uses for the declaration.
impl fred::types::config::CredentialProvider for Login {
    fn fetch<'s, 'o, 'f>(
        &'s self,
        _: Option<&'o Server>,
    ) -> Pin<Box<dyn Future<Output = Result<(Option<String>, Option<String>), Error>> + Send + 'f>>
    where
        's: 'f,
        'o: 'f,
        Self: 'f,
    {
        Box::pin(self.credentials())
    }
}
