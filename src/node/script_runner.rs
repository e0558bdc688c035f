//! Runs scripts on a connection, and has replicas acknowledge what they write.

use std::sync::Arc;
use std::time::Duration;

use fred::bytes::BytesMut;
use fred::types::Value;
use futures_util::future::join;

use super::link::Link;
use super::number::Number;
use super::replica_acks::{ReplicaAck, ReplicaAcks};
use super::reply::{self, Outcome, Reply};
use crate::clock::Seldom;
use crate::error::NodeFailure;
use crate::lua::Lua;

/// How a script is named to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// By its digest: the server has to know the script already.
    Digest,
    /// By its text: the server knows the script from then on.
    Text,
}

/// A connection for scripts.
pub(super) struct ScriptRunner {
    link: Arc<Link>,
    /// The connection for messages: it leaves a demoted server together with this one.
    subscriber: Arc<Link>,
    replica_acks: Option<Arc<ReplicaAcks>>,
    /// When the connection was last given up because of an answer of the server.
    suspicion: Seldom,
}

impl ScriptRunner {
    pub(super) fn new(
        link: Arc<Link>,
        subscriber: Arc<Link>,
        replica_acks: Option<Arc<ReplicaAcks>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            link,
            subscriber,
            replica_acks,
            suspicion: Seldom::default(),
        })
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Runs a script once. A server that does not know it yet says so without running anything. It
    /// is then sent the text, behind whatever was sent in the meantime.
    pub(super) async fn run(
        &self,
        acks: usize,
        lua: &Lua,
        keys: &[&str],
        args: &[&str],
    ) -> (Outcome<Reply>, Vec<ReplicaAck>) {
        let mut answer = self.run_by(By::Digest, acks, lua, keys, args).await;
        // Loading all scripts after a reconnect would save this round trip and nothing else: a
        // server may forget its scripts at any time.
        if is_not_known(&answer.0) {
            answer = self.run_by(By::Text, acks, lua, keys, args).await;
        }
        self.suspect(&answer.0);
        answer
    }

    /// Runs a script once, named in this way. Returns as many acknowledgements as are asked for,
    /// which tell when enough replicas have what the script wrote.
    pub(super) async fn run_by(
        &self,
        by: By,
        acks: usize,
        lua: &Lua,
        keys: &[&str],
        args: &[&str],
    ) -> (Outcome<Reply>, Vec<ReplicaAck>) {
        let (command, script) = match by {
            By::Digest => ("EVALSHA", lua.digest()),
            By::Text => ("EVAL", lua.text()),
        };
        let number = Number::next();
        let words = words(script, keys, args, &number);
        match &self.replica_acks {
            Some(asked) if acks > 0 => asked.send(command, words, number, acks).await,
            _ => match self.link.ready().await {
                Ok(()) => (self.link.run(command, words, number).await, Vec::new()),
                Err(failure) => (Outcome::NotExecuted(failure), Vec::new()),
            },
        }
    }

    /// Reconnects if the answer says that the server has become a replica, or wants other
    /// credentials. The host name is then resolved again, and the credentials are sent again. At
    /// most once a second.
    pub(super) fn suspect<T>(&self, outcome: &Outcome<T>) {
        let Outcome::NotExecuted(NodeFailure { reason, .. }) = outcome else {
            return;
        };
        // Many answers may say so at once: one of them reconnects.
        if matches!(reply::code(reason), "READONLY" | "MASTERDOWN" | "NOAUTH")
            && self.suspicion.may(Duration::from_secs(1))
        {
            let link = Arc::clone(&self.link);
            let subscriber = Arc::clone(&self.subscriber);
            tokio::spawn(async move { join(link.reconnect(), subscriber.reconnect()).await });
        }
    }
}

/// Returns whether the server does not know the script by its digest.
pub(super) fn is_not_known(outcome: &Outcome<Reply>) -> bool {
    matches!(outcome, Outcome::NotExecuted(failure) if reply::code(&failure.reason) == "NOSCRIPT")
}

/// Returns the arguments of EVALSHA or EVAL. The last one is the number of this send. All of them
/// are slices of one buffer: fred copies each one again, and a batch of renewals would otherwise
/// allocate twice per word.
fn words(script: &str, keys: &[&str], args: &[&str], number: &Number) -> Vec<Value> {
    let number = number.as_str();
    let texts = || {
        std::iter::once(&script)
            .chain(keys)
            .chain(args)
            .chain([&number])
    };
    let mut buffer = BytesMut::with_capacity(texts().map(|text| text.len()).sum());
    texts().for_each(|text| buffer.extend_from_slice(text.as_bytes()));
    let buffer = buffer.freeze();
    let mut end = 0;
    let mut slices = texts().map(|text| {
        let start = end;
        end += text.len();
        Value::Bytes(buffer.slice(start..end))
    });
    let mut words = Vec::with_capacity(3 + keys.len() + args.len());
    words.extend(slices.next());
    words.push(i64::try_from(keys.len()).unwrap_or(i64::MAX).into());
    words.extend(slices);
    words
}
