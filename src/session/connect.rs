//! Starts a session with all of its tasks, and acts on what they find out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use uuid::Uuid;

use super::bells::Bells;
use super::closing::{self, CloseOnRuntimeDrop};
use super::outage::Outage;
use super::queues::Queues;
use super::refusals::Refusals;
use super::state::{Around, Session};
use super::warned::{Warned, Warning};
use super::{carry, jobs, labels, leave, levels, losses};
use crate::alarm::Alarm;
use crate::clock::Instant;
use crate::engine::{Engine, JobRunner};
use crate::error::{Error, Loss};
use crate::foreign::log;
use crate::hold::{Hold, LossReporter, Lost};
use crate::key::Key;
use crate::lines::Lines;
use crate::node::{LinkEvent, Target};
use crate::notify::{self, Channels, Hooks};
use crate::options::Settings;
use crate::quorum::{self, Quorum};
use crate::random;
use crate::standing::Book;
use crate::stats::{Counters, Levels};
use crate::watchdog::{self, Finding, Watchdog};

pub(super) async fn start(
    engine: Engine,
    alarm: Arc<Alarm>,
    settings: Settings,
    targets: &[Target],
) -> Result<Arc<Session>, Error> {
    let id = random::uuid();
    let (reconnected, reconnects) = unbounded_channel();
    let (quorum, subscribers) =
        quorum::connect(&settings, targets, &id.to_string(), &reconnected).await?;
    Ok(begin(
        engine,
        alarm,
        id,
        settings,
        quorum,
        subscribers,
        reconnects,
    ))
}

/// Starts a session on these nodes, with all of its tasks.
pub(super) fn begin(
    engine: Engine,
    alarm: Arc<Alarm>,
    id: Uuid,
    settings: Settings,
    quorum: Quorum,
    subscribers: Vec<UnboundedReceiver<LinkEvent>>,
    reconnects: UnboundedReceiver<LinkEvent>,
) -> Arc<Session> {
    let (session, losses) = over(engine, alarm, id, settings, quorum);
    for (index, (node, events)) in session.quorum.nodes().iter().zip(subscribers).enumerate() {
        session.engine.spawn(notify::listen(
            Arc::clone(&session.channels),
            index,
            Arc::clone(node),
            events,
        ));
    }
    if session.engine.is_embedded() {
        session
            .engine
            .spawn(closing::stay(CloseOnRuntimeDrop::of(&session)));
    }
    levels::report_levels(&session);
    labels::keep_label(&session);
    session
        .engine
        .spawn(losses::judge(Arc::downgrade(&session), losses));
    session.engine.spawn(carry::keep_time(
        Arc::clone(session.lines.timers()),
        Arc::downgrade(&session),
    ));
    let weak = Arc::downgrade(&session);
    let judge = Box::new(move |finding| {
        if let Some(session) = weak.upgrade() {
            judge(&session, finding);
        }
    });
    let watchdog = Arc::clone(&session.watchdog);
    let quorum = Arc::clone(&session.quorum);
    let settings = session.settings.clone();
    let counters = Arc::clone(&session.counters);
    session.engine.spawn(watchdog::run(
        watchdog, quorum, settings, counters, reconnects, judge,
    ));
    session
}

/// Makes a session on these nodes, and the channel of its losses. Its other tasks still have to be
/// started.
pub(super) fn over(
    engine: Engine,
    alarm: Arc<Alarm>,
    id: Uuid,
    settings: Settings,
    quorum: Quorum,
) -> (Arc<Session>, UnboundedReceiver<Lost>) {
    let names: Vec<_> = quorum
        .nodes()
        .iter()
        .map(|node| Arc::clone(node.name()))
        .collect();
    let counters = Arc::new(Counters::of_nodes(&names));
    let (reporter, losses) = LossReporter::new(Arc::clone(&counters), engine.clock().clone());
    let quorum = Arc::new(quorum);
    let book = Book::start(
        engine.clone(),
        Arc::clone(&quorum),
        Arc::clone(&counters),
        settings.command_timeout,
    );
    let session = Arc::new_cyclic(|session: &Weak<Session>| {
        let channels = Channels::new(
            names.len(),
            settings.kind.family,
            quorum.lister(),
            hooks(session),
        );
        let around = Around {
            session: Weak::clone(session),
            quorum: Arc::clone(&quorum),
            channels: Arc::clone(&channels),
            clock: engine.clock().clone(),
            settings: settings.clone(),
        };
        Session {
            id,
            id_text: id.to_string().into(),
            runner: JobRunner::new(&engine),
            engine,
            channels,
            book,
            watchdog: Watchdog::new(&settings),
            alarm,
            reporter,
            quorum,
            lines: Lines::new(around),
            queues: Queues::default(),
            turns: Arc::default(),
            bells: Bells::default(),
            latch_waiters: AtomicUsize::new(0),
            warned: Warned::default(),
            outage: Outage::new(&settings),
            refusals: Refusals::default(),
            counters,
            generations: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            failure: OnceLock::new(),
            labelling: Arc::default(),
            levels: Levels::default(),
            settings,
        }
    });
    (session, losses)
}

/// Returns the calls for what is heard, while the session exists.
fn hooks(session: &Weak<Session>) -> Hooks {
    let lines = Weak::clone(session);
    let holds = Weak::clone(session);
    let line = move |key: &Key, event| {
        if let Some(session) = lines.upgrade() {
            match key.is_observed() {
                true => session.bells.ring(key),
                false => session.lines.step(key, event),
            }
        }
    };
    let message = move |key: &Key| {
        if let Some(session) = holds.upgrade() {
            message(&session, key);
        }
    };
    Hooks {
        line: Box::new(line),
        message: Box::new(message),
    }
}

/// Acts on what the watchdog found out.
pub(super) fn judge(session: &Arc<Session>, finding: Finding) {
    match finding {
        Finding::Revoked(hold) => leave::take_back(session, &hold),
        Finding::VoteLost(hold, node) => {
            // Without this vote the hold may end sooner.
            session.alarm.watch(&hold, Instant::now());
            session.book.retake(hold, node);
        }
        Finding::Cut(hold, left) => warn_of_cut(session, &hold, left),
        Finding::Panicked(message) => fail(session, message),
    }
}

/// Has the alarm look at a hold that ends sooner by now, since another client cuts its lease.
fn warn_of_cut(session: &Session, hold: &Arc<Hold>, left: Duration) {
    let now = Instant::now();
    session.alarm.watch(hold, now);
    let key = &hold.claim.key;
    if session.warned.is_due(key, Warning::Cut, now) {
        log!(
            warn, key = %key.shown(), ?left, lease = ?hold.terms.lease,
            "another client with a shorter lease sets the lease of all readers of this lock: give it the same \
             lease (Redisson: lockWatchdogTimeout); until then the lock counts as held for the shorter time only"
        );
    }
}

/// Ends everything, since nothing renews leases any more: no lock is granted from here on, waits
/// end, every token fires.
fn fail(session: &Arc<Session>, message: String) {
    // First: a caller that sees a loss and asks again gets this error.
    let message = session.failure.get_or_init(|| message);
    session.turns.close();
    jobs::refuse(
        session.lines.drain_all(),
        &Error::WatchdogPanicked {
            message: message.clone(),
        },
    );
    session.bells.ring_all();
    for hold in session.lines.holds() {
        // Code that panicked may panic again; the other holds have to be lost all the same.
        let _: Result<_, _> = catch_unwind(AssertUnwindSafe(|| hold.lose(Loss::RenewalFailed)));
    }
    log!(
        error,
        message,
        "the watchdog panicked: every lock is lost, and no more are granted"
    );
}

/// Handles a message for a key. If the key is held here, somebody may have deleted it.
fn message(session: &Session, key: &Key) {
    let now = Instant::now();
    for hold in session.lines.holds_of(key) {
        // A younger hold hears of the release before it, which may be our own.
        if hold.is_held() && now.since(hold.since) > session.settings.command_timeout {
            session.watchdog.renew_now(&hold, now);
        }
    }
}

#[cfg(test)]
impl Session {
    /// Makes a session over one server that is never there.
    pub(super) fn over_nobody() -> Arc<Self> {
        Self::over_nobodies(1)
    }

    /// Makes a session over this many servers that are never there.
    pub(super) fn over_nobodies(servers: usize) -> Arc<Self> {
        Self::on(Engine::start(servers).expect("a thread"), servers)
    }

    /// Makes a session over one server that is never there, as a forked process sees it.
    pub(super) fn forked() -> Arc<Self> {
        Self::on(Engine::start(1).expect("a thread").forked(), 1)
    }

    fn on(engine: Engine, servers: usize) -> Arc<Self> {
        let command_timeout = Some(std::time::Duration::from_millis(100));
        let options = crate::options::Options {
            command_timeout,
            ..crate::options::Options::default()
        };
        let settings = options.validate(servers).expect("valid");
        let nodes = (0..servers)
            .map(|_| crate::node::Node::of_nobody(&settings))
            .collect();
        let alarm = Alarm::of_process().expect("a thread");
        let quorum = Quorum::new(nodes, std::time::Duration::ZERO, settings.connect_timeout)
            .with_lists("locker");
        over(engine, alarm, Uuid::new_v4(), settings, quorum).0
    }
}
