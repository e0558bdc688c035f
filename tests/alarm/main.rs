//! Tokens fire before others can enter, whatever a log writer, a recorder, the engine or a waker
//! does. Subscribers and recorders are global to a process, so each kind of them has a child
//! process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::{Duration, Instant};

use common::proxy::{Flood, Mode, Proxy};
use common::{Server, builder, children, key, locker_with, machine, ms};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockhound::{CancellationToken, Error, Guard, Locker, Loss, Owner};
use tokio::sync::RwLock;

/// Its hundredth, the drift, is the margin by which a busy machine may be late.
const LEASE: Duration = Duration::from_secs(5);

/// Write-locked by tests that keep every core busy for a while, read-locked by those that measure
/// time.
static CORES: RwLock<()> = RwLock::const_new(());

/// The child processes are this binary too: they end here, before any test begins.
#[ctor::ctor(unsafe)]
fn child_process() {
    children::play_if_child(|[culprit, url, _, holds, out]| {
        // The process ends even if everything else blocks.
        thread::spawn(|| {
            thread::sleep(Duration::from_secs(150));
            std::process::exit(1);
        });
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let enduring = endure(&culprit, &url, holds.parse().unwrap(), out.as_ref());
        let endured = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(enduring)));
        // The runtime is not shut down, since its threads may be blocked.
        std::process::exit(i32::from(endured.is_err()));
    });
}

#[tokio::test]
async fn a_log_writer_that_blocks_delays_no_token() {
    none_is_late("pipe", 1_000).await;
}

#[tokio::test]
async fn a_subscriber_that_panics_delays_no_token() {
    none_is_late("panic", 1_000).await;
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn a_recorder_that_blocks_delays_no_token() {
    none_is_late("recorder", 1_000).await;
}

#[tokio::test]
async fn an_engine_that_answers_thousands_delays_no_token() {
    let _alone = CORES.write().await;
    endures_silence("answers", 1_000).await;
}

#[tokio::test]
async fn a_reply_of_hundreds_of_megabytes_delays_no_token() {
    let _beside = CORES.read().await;
    endures_reply("string", Flood::String(200 << 20)).await;
}

#[tokio::test]
async fn a_reply_that_does_not_end_delays_no_token() {
    let _alone = CORES.write().await;
    endures_reply("array", Flood::Array(1_000_000)).await;
}

async fn none_is_late(culprit: &str, holds: usize) {
    let _beside = CORES.read().await;
    endures_silence(culprit, holds).await;
}

/// The server falls silent.
async fn endures_silence(culprit: &str, holds: usize) {
    let server = Server::start();
    endures(culprit, &server.url(), holds, || server.stop()).await;
    server.go_on();
}

/// The last thing that the server sends is a huge reply.
async fn endures_reply(culprit: &str, reply: Flood) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    endures(culprit, &proxy.url(), 1_000, || {
        proxy.set(Mode::Flood(reply));
    })
    .await;
    assert!(proxy.flooded());
}

/// A child takes `holds` locks, half of them for a fixed time. The server falls silent, and the
/// culprit misbehaves in the child.
async fn endures(culprit: &str, url: &str, holds: usize, fall_silent: impl FnOnce()) {
    let out = children::scratch("alarm");
    let mut child = children::spawn_child(culprit, url, &["-"], holds, &out);
    let so = |text: &str| std::fs::read_to_string(&out).is_ok_and(|said| said.starts_with(text));
    common::eventually(ms(20_000), "it holds them", || so("held")).await;
    fall_silent();
    std::fs::write(&out, "silent").unwrap();
    let mut ended = None;
    common::eventually(ms(70_000), "it ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    })
    .await;
    assert!(ended.unwrap().success());
    let report = std::fs::read_to_string(&out).unwrap();
    std::fs::remove_file(&out).unwrap();
    assert!(report.starts_with("fired: 0 late"), "{culprit}: {report}");
}

/// Takes locks, has something go wrong while the server is silent, and reports how many tokens were
/// late.
async fn endure(culprit: &str, url: &str, holds: usize, out: &Path) {
    let go_wrong = prepare(culprit);
    // Measured before this process keeps the cores busy itself.
    let grace = machine::grace();
    let (locks, held, crowd, drift) = take(culprit, url, holds).await;
    std::fs::write(out, "held").unwrap();
    while std::fs::read_to_string(out).unwrap() != "silent" {
        tokio::time::sleep(ms(2)).await;
    }
    // An answer that was on its way may still count. After that nothing extends the validity.
    tokio::time::sleep(ms(200)).await;
    let bound = |(guard, end): &(Guard, Option<Instant>)| {
        end.unwrap_or_else(|| Instant::now() + guard.remaining() + drift)
    };
    let tokens: Vec<_> = held
        .iter()
        .map(|held| (held.0.lost(), bound(held)))
        .collect();
    let (fired, stats) = (watch(tokens), locks.clone());
    // Dropping may block like everything else.
    std::mem::forget(held);
    go_wrong();
    let probing = probe(&locks);
    let (mut late, mut uncounted, mut latest) = (0, 0, Duration::ZERO);
    for n in 1..=holds {
        let (at, bound) = tokio::task::block_in_place(|| fired.recv_timeout(ms(100_000)))
            .expect("every token fires");
        uncounted += usize::from(stats.stats().losses.total() < u64::try_from(n).unwrap());
        late += usize::from(at > bound + grace);
        latest = latest.max(at.saturating_duration_since(bound));
    }
    assert_eq!(uncounted, 0, "a loss is counted before its token fires");
    match (culprit, crowd) {
        (_, Some(crowd)) => crowd.all_answered().await,
        ("array", _) => {
            let late = probing.try_iter().max();
            assert!(
                late.is_some_and(|late| late > ms(20)),
                "the engine is kept busy: {late:?}"
            );
        }
        _ => {}
    }
    std::fs::write(out, format!("fired: {late} late of {holds}, by {latest:?}")).unwrap();
}

type Held = Vec<(Guard, Option<Instant>)>;

/// Connects a locker with `holds` locks in time for the server to fall silent. Returns its drift
/// allowance as well.
async fn take(culprit: &str, url: &str, holds: usize) -> (Locker, Held, Option<Crowd>, Duration) {
    let mut lease = LEASE;
    loop {
        // A busy machine may be slow to answer.
        let locks = builder(url, lease)
            .outage_tolerance(LEASE * 10)
            .connect()
            .await
            .unwrap();
        let (drift, began) = (lease / 100 + ms(2), Instant::now());
        if culprit == "answers" {
            let (held, crowd) = hold_beside_a_crowd(&locks, holds).await;
            return (locks, held, Some(crowd), drift);
        }
        let held = hold(&locks, holds, || lease).await;
        if began.elapsed() < lease / 3 {
            return (locks, held, None, drift);
        }
        lease *= 2;
    }
}

/// Takes `holds` locks. Every second one is not renewed, and has the lease that `lease` returns at
/// that moment.
async fn hold(locks: &Locker, holds: usize, lease: impl Fn() -> Duration) -> Held {
    let mut held = Vec::new();
    for n in 0..holds {
        let (lock, called, lease) = (locks.get(key()), Instant::now(), lease());
        let fixed = n % 2 == 0;
        let lock = if fixed { lock.fixed_lease(lease) } else { lock };
        held.push((lock.lock().await.unwrap(), fixed.then_some(called + lease)));
    }
    held
}

/// Measures again and again how late the engine is, until the receiver is dropped.
fn probe(locks: &Locker) -> Receiver<Duration> {
    const WAIT: Duration = Duration::from_millis(5);
    let ((late, probing), locks) = (channel(), locks.clone());
    thread::spawn(move || {
        loop {
            let asked = Instant::now();
            // The engine ends the wait.
            drop(locks.get(key()).blocking_try_lock_for(WAIT));
            if late.send(asked.elapsed().saturating_sub(WAIT)).is_err() {
                return;
            }
        }
    });
    probing
}

/// Waits for the tokens on a plain thread, which sends when each fired and when it had to.
fn watch(tokens: Vec<(CancellationToken, Instant)>) -> Receiver<(Instant, Instant)> {
    let (fired, watching) = channel();
    thread::spawn(move || {
        let waits = tokens.into_iter().map(|(token, bound)| async move {
            token.cancelled().await;
            (Instant::now(), bound)
        });
        let mut waits: FuturesUnordered<_> = waits.collect();
        futures_executor::block_on(async {
            while let Some(woken) = waits.next().await {
                // A test that has failed does not receive any more.
                let _: Result<_, _> = fired.send(woken);
            }
        });
    });
    watching
}

/// Installs a culprit, and returns what makes it misbehave.
fn prepare(culprit: &str) -> Box<dyn Fn()> {
    match culprit {
        "pipe" => {
            let (unread, writer) = std::io::pipe().unwrap();
            let filling = writer.try_clone().unwrap();
            let log = tracing_subscriber::fmt()
                .with_max_level(tracing_subscriber::filter::LevelFilter::WARN);
            log.with_writer(Mutex::new(writer)).init();
            Box::new(move || {
                // Nothing reads the pipe while the process lives.
                std::mem::forget(unread.try_clone().unwrap());
                let mut filling = filling.try_clone().unwrap();
                thread::spawn(move || std::io::Write::write_all(&mut filling, &[0; 1 << 20]));
                thread::sleep(ms(50));
            })
        }
        "panic" => {
            let log = tracing_subscriber::fmt()
                .with_max_level(tracing_subscriber::filter::LevelFilter::WARN);
            log.with_writer(|| -> std::io::Sink {
                std::panic::resume_unwind(Box::new("sick of logs"))
            })
            .init();
            Box::new(|| {})
        }
        #[cfg(feature = "metrics")]
        "recorder" => {
            metrics::set_global_recorder(blocking::Recorder).unwrap();
            Box::new(|| blocking::BLOCKS.store(true, Ordering::SeqCst))
        }
        _ => Box::new(|| {}),
    }
}

/// Very many callers that wait for a lock, and whose wait times end together.
struct Crowd(Vec<tokio::task::JoinHandle<Result<Option<Guard>, Error>>>);

impl Crowd {
    const MANY: usize = 80_000;

    /// Queues all callers, if there is enough time.
    async fn gather(locks: &Locker, end: Instant) -> Self {
        let wanted = key();
        std::mem::forget(
            locks
                .get(&wanted)
                .owned_by(Owner::new())
                .lock()
                .await
                .unwrap(),
        );
        let wait = |_| {
            let lock = locks.get(&wanted).owned_by(Owner::new());
            tokio::spawn(async move {
                lock.try_lock_for(end.saturating_duration_since(Instant::now()))
                    .await
            })
        };
        let crowd = Self((0..Self::MANY).map(wait).collect());
        while locks.stats().waiters < Self::MANY && Instant::now() < end {
            tokio::time::sleep(ms(1)).await;
        }
        crowd
    }

    /// Checks that each caller was answered: the lock is held, or no server answers.
    async fn all_answered(self) {
        for waiting in self.0 {
            assert!(matches!(
                waiting.await.unwrap(),
                Ok(None) | Err(Error::Unavailable { .. })
            ));
        }
    }
}

/// Takes `holds` locks that end just after the wait times of very many callers.
async fn hold_beside_a_crowd(locks: &Locker, holds: usize) -> (Held, Crowd) {
    // Holds that are renewed until the server falls silent end between two thirds of a lease and a
    // lease after that.
    let silence = LEASE * 4 / 5;
    let mut time = silence + ms(3_000);
    loop {
        let end = Instant::now() + time;
        let crowd = Crowd::gather(locks, end).await;
        let held = hold(locks, holds, || {
            (end + ms(20))
                .saturating_duration_since(Instant::now())
                .max(ms(100))
        })
        .await;
        if let Some(left) = end.checked_duration_since(Instant::now() + silence) {
            tokio::time::sleep(left).await;
            return (held, crowd);
        }
        // A busy machine takes longer.
        crowd.0.iter().for_each(tokio::task::JoinHandle::abort);
        time *= 2;
    }
}

#[cfg(feature = "metrics")]
mod blocking {
    use super::{Arc, AtomicBool, Ordering, ms, thread};
    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};

    pub(super) static BLOCKS: AtomicBool = AtomicBool::new(false);

    /// Blocks every call that counts something.
    pub(super) struct Recorder;

    struct Blocks;

    fn block() {
        while BLOCKS.load(Ordering::SeqCst) {
            thread::sleep(ms(5));
        }
    }

    impl metrics::CounterFn for Blocks {
        fn increment(&self, _: u64) {
            block();
        }

        fn absolute(&self, _: u64) {
            block();
        }
    }

    impl metrics::HistogramFn for Blocks {
        fn record(&self, _: f64) {
            block();
        }
    }

    impl metrics::Recorder for Recorder {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Arc::new(Blocks))
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::new(Blocks))
        }
    }
}

/// A waker that panics.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        // Like `panic!`, but without the message on stderr.
        std::panic::resume_unwind(Box::new("sick of waking"));
    }
}

/// A waker that blocks while its flag is set.
struct Blocks(Arc<AtomicBool>);

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        while self.0.load(Ordering::SeqCst) {
            thread::sleep(ms(2));
        }
    }
}

/// Waits for a token with this waker, for as long as the process lives.
fn wait_with(waker: Arc<impl Wake + Send + Sync + 'static>, token: CancellationToken) {
    let mut waiting = Box::pin(token.cancelled_owned());
    assert_eq!(
        waiting
            .as_mut()
            .poll(&mut Context::from_waker(&waker.into())),
        Poll::Pending
    );
    std::mem::forget(waiting);
}

/// Returns how many of `many` wake-ups were late or did not come.
fn late(fired: &Receiver<(Instant, Instant)>, many: usize) -> usize {
    let end = Instant::now() + ms(5_000);
    let next = || fired.recv_timeout(end.saturating_duration_since(Instant::now()));
    let late_by = |_| {
        next().map_or(Duration::MAX, |(at, bound)| {
            at.saturating_duration_since(bound)
        })
    };
    let late: Vec<Duration> =
        tokio::task::block_in_place(|| (0..many).map(late_by).filter(|by| !by.is_zero()).collect());
    let grace = if late.is_empty() {
        Duration::ZERO
    } else {
        machine::grace()
    };
    late.into_iter().filter(|by| *by > grace).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waker_that_panics_delays_no_other_waker() {
    let _beside = CORES.read().await;
    let server = Server::start();
    let locks = locker_with(&server, ms(3_000)).await;
    let guard = locks.get(key()).fixed_lease(ms(500)).lock().await.unwrap();
    let multi = locks
        .multi([key(), key()])
        .fixed_lease(ms(500))
        .lock()
        .await
        .unwrap();
    let end = Instant::now() + ms(500);
    let mut tokens = Vec::new();
    for n in 0..16 {
        if n % 2 == 0 {
            wait_with(Arc::new(Bomb), guard.lost());
            wait_with(Arc::new(Bomb), multi.lost());
        } else {
            tokens.extend([(guard.lost(), end), (multi.lost(), end)]);
        }
    }
    let many = tokens.len();
    let fired = watch(tokens);
    assert_eq!(late(&fired, many), 0);
    assert_eq!(
        (guard.loss(), multi.loss()),
        (Some(Loss::Expired), Some(Loss::Expired))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waker_that_blocks_delays_no_other_hold() {
    let _beside = CORES.read().await;
    let server = Server::start();
    let locks = locker_with(&server, ms(3_000)).await;
    let blocks = Arc::new(AtomicBool::new(true));
    let first = locks
        .get(key())
        .fixed_lease(ms(1_000))
        .lock()
        .await
        .unwrap();
    wait_with(Arc::new(Blocks(Arc::clone(&blocks))), first.lost());
    let mut held = Vec::new();
    for _ in 0..100 {
        let called = Instant::now();
        let guard = locks
            .get(key())
            .fixed_lease(ms(2_000))
            .lock()
            .await
            .unwrap();
        held.push((guard, called + ms(2_000)));
    }
    // Another waiter for the same hold is told of the loss too.
    let mut tokens = vec![(first.lost(), Instant::now() + ms(1_000))];
    tokens.extend(held.iter().map(|(guard, bound)| (guard.lost(), *bound)));
    let (many, fired) = (tokens.len(), watch(tokens));
    let late = late(&fired, many);
    blocks.store(false, Ordering::SeqCst);
    assert_eq!(late, 0);
}

#[tokio::test]
async fn a_token_that_is_cancelled_by_its_owner_cancels_nothing_else() {
    let server = Server::start();
    let locks = locker_with(&server, ms(3_000)).await;
    let (lock, multi) = (locks.get(key()), locks.multi([key(), key()]));
    let (guard, both) = (lock.lock().await.unwrap(), multi.lock().await.unwrap());
    let again = lock.lock().await.unwrap();
    let tokens = || (0..100).flat_map(|_| [guard.lost(), again.lost(), both.lost()]);
    let (kept, cancelled): (Vec<_>, Vec<_>) = (tokens().collect(), tokens().collect());
    cancelled.iter().for_each(CancellationToken::cancel);
    assert!(
        kept.iter()
            .chain(&tokens().collect::<Vec<_>>())
            .all(|token| !token.is_cancelled())
    );
    guard.check().unwrap();
    both.check().unwrap();
    locks.get(lock.key()).force_unlock().await.unwrap();
    locks
        .get(both.keys().next().unwrap())
        .force_unlock()
        .await
        .unwrap();
    assert!(
        kept.iter().all(CancellationToken::is_cancelled),
        "the loss fires the tokens that were not cancelled"
    );
    assert!(
        tokens().all(|token| token.is_cancelled()),
        "a token that is asked for after the loss has fired"
    );
}

#[tokio::test]
async fn a_token_that_is_asked_for_after_the_loss_wakes_its_waiter() {
    let server = Server::start();
    let locks = locker_with(&server, ms(3_000)).await;
    let guard = locks.get(key()).fixed_lease(ms(200)).lock().await.unwrap();
    guard.lost().cancelled().await;
    let token = guard.lost();
    let waiting = pin!(token.cancelled());
    assert_eq!(futures_util::poll!(waiting), Poll::Ready(()));
}
