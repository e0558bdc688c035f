//! A Redis server: its connections, at most four, and what is sent on which.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join, join_all};
use tokio::time::sleep;

use super::address::Address;
use super::batcher::Batcher;
use super::call::Call;
use super::check::{self, Obstacle};
use super::client::{Role, attempt_timeout};
use super::door::Door;
use super::link::{BriefLinks, Link};
use super::replica_acks::{ReplicaAck, ReplicaAcks};
use super::reply::{self, Outcome, Reply};
use super::script_runner::{By, ScriptRunner};
use super::sentinels::Sentinels;
use super::{Events, Lane, Wiring};
use crate::error::Error;
use crate::foreign;
use crate::options::Replicas;
use crate::presence::Presence;

/// The pause between two attempts to connect to a server.
pub(super) const CONNECT_PAUSE: Duration = Duration::from_millis(125);

/// One server and the connections to it.
pub(crate) struct Redis {
    links: Links,
    /// Of each lane.
    batchers: [Arc<Batcher>; 3],
    sentinels: Sentinels,
    presence: Arc<Presence>,
}

/// The connections to a server.
struct Links {
    commands: Arc<Link>,
    subscriber: Arc<Link>,
    renewals: Arc<Link>,
    /// The connection of the commands, unless replicas have to acknowledge.
    grants: Arc<Link>,
}

impl Links {
    fn all(&self) -> impl Iterator<Item = &Arc<Link>> {
        let grants = (!Arc::ptr_eq(&self.grants, &self.commands)).then_some(&self.grants);
        [&self.commands, &self.subscriber, &self.renewals]
            .into_iter()
            .chain(grants)
    }
}

/// Starts [`check::get_to_know`].
fn get_to_know(link: &Arc<Link>) {
    let link = Arc::clone(link);
    tokio::spawn(foreign::restarted(async move |_| {
        check::get_to_know(&link).await;
    }));
}

/// Returns the batchers that scripts are sent with, in the order of the [`Lane`]s.
fn batchers(links: &Links, replicas: Option<Replicas>) -> [Arc<Batcher>; 3] {
    let batcher = |link: &Arc<Link>, replicas: Option<Replicas>| {
        let acks = replicas.map(|replicas| ReplicaAcks::new(Arc::clone(link), replicas));
        let subscriber = Arc::clone(&links.subscriber);
        Batcher::new(ScriptRunner::new(Arc::clone(link), subscriber, acks))
    };
    let commands = batcher(&links.commands, None);
    let grants = if replicas.is_some() {
        batcher(&links.grants, replicas)
    } else {
        Arc::clone(&commands)
    };
    [commands, grants, batcher(&links.renewals, replicas)]
}

impl Redis {
    /// Connects, and checks that this crate can work with the server. Returns the events of the
    /// subscriber's connection; those of the renewals' connection go to `reconnected`. Tries again
    /// for as long as the future is awaited, if the server may be about to start; the address notes
    /// the last failure.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it cannot be trusted that the server is the one of this address,
    /// [`Error::Server`] if it refuses the credentials, [`Error::Config`] if it is too old or in
    /// another mode.
    pub(super) async fn connect(
        address: &Arc<Address>,
        wiring: &Wiring,
    ) -> Result<(Self, Events), Error> {
        let sentinels = Sentinels::watch(address, wiring);
        loop {
            // While they name no master, the address says why.
            sentinels.named().await;
            match Self::connect_once(address, wiring).await {
                Ok((links, events)) => {
                    return Ok((Self::new(wiring, links, sentinels, true), events));
                }
                Err(Obstacle::Passing(failure)) => address.failed(failure),
                Err(lasting) => return Err(lasting.into_error(&address.name)),
            }
            sleep(CONNECT_PAUSE).await;
        }
    }

    async fn connect_once(
        address: &Arc<Address>,
        wiring: &Wiring,
    ) -> Result<(Links, Events), Obstacle> {
        let connect = |role, events| Link::connect(Arc::clone(address), role, wiring, events);
        let (events, heard, ups) = Events::channels();
        let refused = |e| check::refusal(&address.name, &e, attempt_timeout(&wiring.settings));
        let first = |obstacle: Obstacle| obstacle.at_first(address);
        let commands = connect(Role::Commands, ups.clone())
            .await
            .map_err(refused)
            .map_err(first)?;
        // They end if connecting fails or is given up.
        let mut begun = BriefLinks(vec![Arc::clone(&commands)]);
        check::greeting(&address.name, &commands)
            .await
            .map_err(first)?;
        let subscriber = connect(Role::Subscriber, heard).await.map_err(refused)?;
        begun.0.push(Arc::clone(&subscriber));
        let renewals = connect(Role::Renewals, wiring.reconnected.clone())
            .await
            .map_err(refused)?;
        begun.0.push(Arc::clone(&renewals));
        let grants = match wiring.settings.replica_acks {
            Some(_) => connect(Role::Acknowledged, ups).await.map_err(refused)?,
            None => Arc::clone(&commands),
        };
        begun.0.push(Arc::clone(&grants));
        if let Some(replicas) = wiring.settings.replica_acks {
            ReplicaAcks::new(Arc::clone(&grants), replicas)
                .check()
                .await
                .map_err(Obstacle::Lasting)?;
        }
        check::eviction(&address.name, &commands).await;
        // From here on the node ends the connections.
        begun.0.clear();
        let links = Links {
            commands,
            subscriber,
            renewals,
            grants,
        };
        Ok((links, events))
    }

    /// Connects in the background to a server that is away.
    pub(super) fn await_server(address: &Arc<Address>, wiring: &Wiring) -> (Self, Events) {
        let sentinels = Sentinels::watch(address, wiring);
        let start = |role, events| Link::await_server(Arc::clone(address), role, wiring, events);
        let (events, heard, ups) = Events::channels();
        let commands = start(Role::Commands, ups.clone());
        let subscriber = start(Role::Subscriber, heard);
        let renewals = start(Role::Renewals, wiring.reconnected.clone());
        let grants = match wiring.settings.replica_acks {
            Some(_) => start(Role::Acknowledged, ups),
            None => Arc::clone(&commands),
        };
        let links = Links {
            commands,
            subscriber,
            renewals,
            grants,
        };
        (Self::new(wiring, links, sentinels, false), events)
    }

    fn new(wiring: &Wiring, links: Links, sentinels: Sentinels, is_up: bool) -> Self {
        links.all().for_each(get_to_know);
        let presence = wiring.roll.add(links.commands.server(), wiring.part, is_up);
        links.commands.reports_to(&presence);
        Self {
            batchers: batchers(&links, wiring.settings.replica_acks),
            links,
            sentinels,
            presence,
        }
    }

    fn batcher(&self, lane: Lane) -> &Batcher {
        &self.batchers[lane as usize]
    }

    pub(super) fn epoch(&self, lane: Lane) -> u64 {
        self.batcher(lane).runner().link().epoch()
    }

    pub(super) fn patience(&self) -> Duration {
        self.links.commands.patience()
    }

    pub(super) fn mismatched_replies(&self) -> u64 {
        self.links.commands.mismatched_replies()
    }

    /// Runs a script once. If it has to be acknowledged, the `ReplicaAck` tells when enough
    /// replicas have what it wrote.
    ///
    /// A step is sent together with others that are asked for at the same moment, behind the steps
    /// and scripts that were polled before it. While the connection is silent, no step is sent that
    /// may take something.
    pub(crate) fn call(
        &self,
        lane: Lane,
        call: Call,
    ) -> impl Future<Output = (Outcome<Reply>, ReplicaAck)> + '_ {
        let batcher = self.batcher(lane);
        match call {
            Call::Step(step) if !step.takes || !batcher.runner().link().is_silent() => {
                Either::Left(batcher.send(step))
            }
            // Boxed: it is larger than the usual way of a lock and its release.
            call => Either::Right(Box::pin(async move {
                match call {
                    // It would have to be undone for as long as the server is stopped.
                    Call::Step(step) => match batcher.runner().link().heard().await {
                        Ok(()) => batcher.send(step).await,
                        Err(failure) => (Outcome::NotExecuted(failure), ReplicaAck::moot()),
                    },
                    Call::Script { acknowledged, .. } => {
                        let keys = call.keys();
                        let args = call.args();
                        let (outcome, acks) = batcher
                            .runner()
                            .run(acknowledged.into(), call.lua(), &keys, &args)
                            .await;
                        (
                            outcome,
                            acks.into_iter().next().unwrap_or_else(ReplicaAck::moot),
                        )
                    }
                }
            })),
        }
    }

    /// Runs a script once on the server to which its slot is moving.
    pub(super) async fn call_asking(&self, call: &Call) -> Outcome<Reply> {
        let runner = self.batcher(Lane::Commands).runner();
        if let Err(failure) = self.links.commands.ready().await {
            return Outcome::NotExecuted(failure);
        }
        let lua = call.lua();
        let keys = call.keys();
        let args = call.args();
        // They are polled, and so sent, in this order. Without ASKING the server answers MOVED.
        let asking = self.links.commands.call("ASKING", Vec::new());
        join(asking, runner.run_by(By::Text, 0, lua, &keys, &args))
            .await
            .1
            .0
    }

    pub(super) fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }

    /// Returns the connection of the commands.
    pub(super) fn commands(&self) -> &Arc<Link> {
        &self.links.commands
    }

    /// Subscribes and unsubscribes, and waits until the server has done so.
    pub(super) async fn resubscribe(&self, add: Vec<String>, remove: Vec<String>) -> Outcome<()> {
        let unknown = |e: fred::error::Error| {
            Outcome::Unknown(self.links.subscriber.failure(reply::words(&e, None)))
        };
        if !remove.is_empty()
            && let Err(e) = self.links.subscriber.unsubscribe(remove).await
        {
            return unknown(e);
        }
        if !add.is_empty()
            && let Err(e) = self.links.subscriber.subscribe(add).await
        {
            return unknown(e);
        }
        // SUBSCRIBE returns before the server has processed it.
        self.links.subscriber.barrier().await
    }

    /// As [`resubscribe`](Self::resubscribe), for channels whose messages come from this server
    /// only.
    pub(super) async fn resubscribe_sharded(
        &self,
        add: Vec<String>,
        remove: Vec<String>,
    ) -> Outcome<()> {
        let link = &self.links.subscriber;
        // One by one: fred takes the answer to the second of several channels for that to the next
        // command. A refused channel does not keep the others from being subscribed.
        let mut refusal = None;
        for channel in remove {
            if let failed @ (Outcome::NotExecuted(_) | Outcome::Unknown(_)) =
                link.unsubscribe_sharded(channel).await
            {
                return failed;
            }
        }
        for channel in add {
            match link.subscribe_sharded(channel).await {
                Outcome::Done(()) => {}
                Outcome::Refused(error) => refusal = Some(error),
                failed => return failed,
            }
        }
        match link.barrier().await {
            Outcome::Done(()) => refusal.map_or(Outcome::Done(()), Outcome::Refused),
            failed => failed,
        }
    }

    /// Returns where tools can ask it, and its Sentinels.
    pub(super) fn door(&self) -> Door {
        Door::to_server(&self.links.commands, self.sentinels.doors())
    }

    /// Reconnects the subscriber, because its replies are out of step.
    pub(super) async fn reset_subscriber(&self) {
        self.links.subscriber.reconnect().await;
    }

    /// Ends all connections.
    pub(super) async fn quit(&self) {
        self.sentinels.quit();
        join_all(self.links.all().map(|link| link.quit())).await;
    }

    /// Ends all connections, and the tasks that send on them: the locker continues without this
    /// server.
    pub(super) async fn retire(&self) {
        self.quit().await;
        self.batchers.iter().for_each(|batcher| batcher.end());
    }
}
