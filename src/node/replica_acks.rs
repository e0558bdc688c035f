//! Asks by WAIT what replicas have acknowledged.
//!
//! WAIT blocks its connection, and covers what was sent on that connection before: after a
//! reconnect, perhaps to another server, it succeeds as if everything had been acknowledged. So a
//! script and its WAIT are sent in order on one connection, and if a reconnect comes between them,
//! the outcome is unknown. A script does not wait for the WAIT in flight: it is sent, and the next
//! WAIT covers it, together with all others sent in the meantime.
//!
//! *Held* is passed on immediately. *Granted* waits for its acknowledgement. Too few
//! acknowledgements, an error, or a reconnect since the script was sent make it unknown: no vote,
//! undone, and `Unavailable` with the reason. A renewal is then not renewed, and is tried again
//! until its tick is over. Undos follow on the connection of the commands that they undo, where one
//! WAIT may delay them. A release is sent with the other commands, without a delay: the acquire of
//! its hold was answered, and a node on which something may still be in flight is uncertain and
//! gets an undo as well.
//!
//! The clocks of replicas are not compared. Clients often cannot reach the addresses by which a
//! server knows its replicas, a locker would send its password to any address that the server
//! names, and a check at connect says nothing about a replica that arrives later. A warning that is
//! missing for such a reason would read as "the clocks agree".
//!
//! # Invariants
//! - An acknowledgement is registered after its script was handed to the connection, and before the
//!   WAIT that covers it is.
//! - At most one WAIT is in flight on a connection: what is behind it is held up by one timeout and
//!   not by many.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use fred::types::Value;
use tokio::sync::oneshot;

use super::link::Link;
use super::number::Number;
use super::reply::{Outcome, Reply};
use crate::error::{Error, NodeFailure};
use crate::foreign::{self, log};
use crate::options::Replicas;
use crate::sync::{Arc, Mutex};

/// Whether enough replicas have what a script wrote.
#[derive(Debug)]
pub(crate) struct ReplicaAck(Option<Awaited>);

#[derive(Debug)]
struct Awaited {
    node: Arc<str>,
    answer: oneshot::Receiver<Result<(), NodeFailure>>,
}

impl ReplicaAck {
    /// Returns the acknowledgement of a script for which no replica is asked.
    pub(crate) fn moot() -> Self {
        Self(None)
    }

    pub(crate) fn is_moot(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until enough replicas have acknowledged.
    ///
    /// # Errors
    /// How many have, or why that is unknown.
    pub(crate) async fn confirm(self) -> Result<(), NodeFailure> {
        let Some(Awaited { node, answer }) = self.0 else {
            return Ok(());
        };
        let ended = |_| {
            Err(NodeFailure::new(
                &node,
                "its replicas were not asked any more",
            ))
        };
        answer.await.unwrap_or_else(ended)
    }

    /// Waits for the acknowledgement if the answer says that something was written. Without it the
    /// outcome is unknown, and has to be undone.
    pub(crate) async fn cover<T>(
        self,
        outcome: Outcome<T>,
        wrote: impl FnOnce(&T) -> bool,
    ) -> Outcome<T> {
        match outcome {
            Outcome::Done(answer) if wrote(&answer) => match self.confirm().await {
                Ok(()) => Outcome::Done(answer),
                Err(failure) => Outcome::Unknown(failure),
            },
            other => other,
        }
    }
}

/// The acknowledgements of one connection.
pub(super) struct ReplicaAcks {
    link: Arc<Link>,
    replicas: Replicas,
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    /// Whether [`collect`] runs.
    collecting: bool,
    /// The acknowledgements that no WAIT has been sent for yet.
    acks: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    /// The number of the connection that its script was handed to.
    epoch: u64,
    reply: oneshot::Sender<Result<(), NodeFailure>>,
}

impl ReplicaAcks {
    pub(super) fn new(link: Arc<Link>, replicas: Replicas) -> Arc<Self> {
        Arc::new(Self {
            link,
            replicas,
            pending: Mutex::default(),
        })
    }

    /// Runs a script and sends a WAIT behind it. Returns `count` acknowledgements.
    pub(super) async fn send(
        self: &Arc<Self>,
        command: &'static str,
        words: Vec<Value>,
        number: Number,
        count: usize,
    ) -> (Outcome<Reply>, Vec<ReplicaAck>) {
        if let Err(failure) = self.link.ready().await {
            return (Outcome::NotExecuted(failure), Vec::new());
        }
        // Before the script: a reconnect in between is noticed.
        let epoch = self.link.epoch();
        let mut sending = pin!(self.link.run(command, words, number));
        // From here on, the script is before every WAIT that is sent.
        let sent = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
        let acks = (0..count).map(|_| self.make_out(epoch)).collect();
        let outcome = match sent {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => sending.await,
        };
        (outcome, acks)
    }

    fn make_out(self: &Arc<Self>, epoch: u64) -> ReplicaAck {
        let (reply, answer) = oneshot::channel();
        let mut pending = self.pending.lock();
        pending.acks.push(Open { epoch, reply });
        let idle = !std::mem::replace(&mut pending.collecting, true);
        drop(pending);
        if idle {
            let acks = Arc::clone(self);
            tokio::spawn(foreign::restarted(async move |_| collect(&acks).await));
        }
        ReplicaAck(Some(Awaited {
            node: Arc::clone(self.link.server()),
            answer,
        }))
    }

    /// Takes the acknowledgements that somebody still waits for and that no WAIT has been sent for.
    /// A collector that gets none has ended.
    fn take(&self) -> Vec<Open> {
        let mut pending = self.pending.lock();
        let mut acks = std::mem::take(&mut pending.acks);
        // An answer that wrote nothing has dropped its acknowledgement.
        acks.retain(|open| !open.reply.is_closed());
        pending.collecting = !acks.is_empty();
        acks
    }

    /// Sends a WAIT. Returns how many replicas have acknowledged what was sent before it.
    async fn wait(&self) -> Outcome<i64> {
        let timeout_ms = i64::try_from(self.replicas.timeout.as_millis()).unwrap_or(i64::MAX);
        let args = vec![i64::from(self.replicas.count).into(), timeout_ms.into()];
        let count = |reply: &Reply| match reply {
            Reply::Int(count) => Some(*count),
            _ => None,
        };
        self.link
            .call_in_step("WAIT", args)
            .await
            .and_then(self.link.server(), count)
    }

    /// Checks whether the answer to a WAIT is enough.
    fn acknowledged(&self, answer: Outcome<i64>) -> Result<(), NodeFailure> {
        let Replicas { count, timeout } = self.replicas;
        let reason = match answer {
            Outcome::Done(by) if by >= i64::from(count) => return Ok(()),
            Outcome::Done(by) => {
                format!("acknowledged by {by} of {count} replicas within {timeout:?}")
            }
            Outcome::Refused(Error::Server { source, .. }) => {
                format!("its replicas cannot be asked: {}", source.message)
            }
            Outcome::Refused(error) => error.to_string(),
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => failure.reason,
        };
        Err(self.link.failure(reason))
    }

    /// Warns about a server that has too few replicas now: it grants no lock until it has more.
    ///
    /// # Errors
    /// The server's, if this user may not call WAIT.
    pub(super) async fn check(&self) -> Result<(), Error> {
        let node = self.link.server();
        let wanted = self.replicas.count;
        match self.wait().await {
            Outcome::Done(found) if found >= i64::from(wanted) => {}
            Outcome::Done(found) => log!(
                warn, %node, found, wanted,
                "too few replicas of this server acknowledge: it grants no lock until more do"
            ),
            Outcome::Refused(error) => return Err(error),
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => {
                log!(warn, %node, reason = failure.reason, "the replicas of this server could not be checked");
            }
        }
        Ok(())
    }
}

/// Sends one WAIT after the other as long as acknowledgements are open. Started by the first one,
/// and restarted after a panic, which leaves those that the WAIT was for without an answer; ends
/// when there are none, or with the engine; no task awaits it.
async fn collect(acks: &ReplicaAcks) {
    loop {
        let open = acks.take();
        if open.is_empty() {
            return;
        }
        let answer = acks.acknowledged(acks.wait().await);
        // fred announces a reconnect before it sends anything on the new connection, and `tend`
        // counts it on this thread. So the epoch shows here whether this WAIT and the script were
        // sent on the same connection.
        let epoch = acks.link.epoch();
        for Open {
            epoch: sent_on,
            reply,
        } in open
        {
            let reconnected = || {
                let reason = "it was reconnected before its replicas had acknowledged";
                Err(acks.link.failure(reason))
            };
            // A caller that no longer waits has dropped its receiver.
            let _: Result<_, _> = reply.send(if sent_on == epoch {
                answer.clone()
            } else {
                reconnected()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::foreign::poll_sickly;
    use crate::options::Options;

    fn acks() -> Arc<ReplicaAcks> {
        let replicas = Replicas {
            count: 1,
            timeout: Duration::from_millis(100),
        };
        let command_timeout = Some(Duration::from_millis(200));
        let settings = Options {
            replica_acks: replicas,
            command_timeout,
            ..Options::default()
        }
        .validate(1)
        .expect("valid");
        ReplicaAcks::new(Link::to_nobody(&settings), replicas)
    }

    #[tokio::test]
    async fn acknowledgements_are_answered_after_a_panic() {
        let acks = acks();
        let mut sick = pin!(acks.make_out(0).confirm());
        let second = acks.make_out(0);
        poll_sickly(sick.as_mut());
        let both = tokio::time::timeout(Duration::from_secs(10), async {
            (sick.await, second.confirm().await)
        })
        .await;
        assert!(matches!(both, Ok((Err(_), Err(_)))), "{both:?}");
        let third = acks.make_out(0).confirm();
        let third = tokio::time::timeout(Duration::from_secs(10), third).await;
        assert!(
            matches!(third, Ok(Err(_))),
            "no caller asks replicas any more: {third:?}"
        );
    }

    #[tokio::test]
    async fn replicas_are_asked_for_those_that_wait() {
        let acks = acks();
        drop(acks.make_out(0));
        let kept = acks.make_out(0);
        assert_eq!((acks.take().len(), acks.take().len()), (1, 0));
        drop(kept);
    }

    #[tokio::test]
    async fn an_acknowledgement_across_a_reconnect_is_unknown() {
        let acks = acks();
        let same = acks.make_out(0);
        let another = acks.make_out(7);
        let anew = |answer: Result<(), NodeFailure>| {
            answer.is_err_and(|failure| failure.reason.contains("was reconnected"))
        };
        assert!(!anew(same.confirm().await) && anew(another.confirm().await));
    }

    #[tokio::test]
    async fn as_many_replicas_as_were_asked_for_are_enough() {
        let acks = acks();
        let failure = || NodeFailure::new(&"n".into(), "silent");
        assert!(
            [1, 2]
                .map(|by| acks.acknowledged(Outcome::Done(by)))
                .iter()
                .all(Result::is_ok)
        );
        let reason = |answer| acks.acknowledged(answer).expect_err("not enough").reason;
        assert_eq!(
            reason(Outcome::Done(0)),
            "acknowledged by 0 of 1 replicas within 100ms"
        );
        assert_eq!(reason(Outcome::Unknown(failure())), "silent");
    }

    #[tokio::test]
    async fn an_answer_that_wrote_nothing_needs_no_replica() {
        let unconfirmed = || {
            let (reply, answer) = oneshot::channel();
            drop(reply);
            ReplicaAck(Some(Awaited {
                node: "n".into(),
                answer,
            }))
        };
        let cover =
            async |answer, ack: ReplicaAck| ack.cover(Outcome::Done(answer), |wrote| *wrote).await;
        assert!(matches!(
            cover(false, unconfirmed()).await,
            Outcome::Done(false)
        ));
        assert!(matches!(
            cover(true, unconfirmed()).await,
            Outcome::Unknown(_)
        ));
        assert!(matches!(
            cover(true, ReplicaAck::moot()).await,
            Outcome::Done(true)
        ));
    }
}
