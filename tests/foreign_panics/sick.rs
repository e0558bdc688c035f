//! Foreign code that panics where it is told to: a subscriber, and with the feature `metrics` a
//! recorder.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

/// How the panics of these tests begin.
pub(crate) const SICK: &str = "sick of";

/// How the names begin of what fred logs, by the task of ours in which it does, or else by its own
/// module: as `log:lockhound::node::link::tend::{async_fn_env#0}`. Without more it is the poison of
/// a logger that is well.
pub(crate) const LOGGED: &str = "log:";

/// What has happened in this process: the places of events, and the names of calls of the
/// subscriber or recorder.
static HAPPENED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// The messages of the events that have happened, each with its fields.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// How many times the logger still has to panic.
static POISONED: AtomicUsize = AtomicUsize::new(0);

/// Panics that were not meant.
static ODD: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(crate) fn happened() -> BTreeSet<String> {
    HAPPENED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Returns whether an event was logged whose text contains this.
pub(crate) fn was_told(text: &str) -> bool {
    TOLD.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .any(|told| told.contains(text))
}

/// Makes the logger panic this many times when it logs its poison.
pub(crate) fn poison_logger(times: usize) {
    POISONED.store(times, Ordering::Relaxed);
}

pub(crate) fn odd_panics() -> Vec<String> {
    ODD.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Installs a subscriber and a recorder that panic at this poison: `all`, or the name of one event
/// or call.
pub(crate) fn install(poison: &str) {
    let poison: &'static str = poison.to_owned().leak();
    tracing::subscriber::set_global_default(Sick {
        poison,
        spans: AtomicU64::new(1),
    })
    .unwrap();
    log::set_logger(Box::leak(Box::new(Logger(poison)))).unwrap();
    log::set_max_level(if poison.starts_with(LOGGED) {
        log::LevelFilter::Trace
    } else {
        log::LevelFilter::Off
    });
    #[cfg(feature = "metrics")]
    metrics::set_global_recorder(recorder::Sick(poison)).unwrap();
    expect_panics();
}

/// Silences the panics that are meant, and notes all others.
pub(crate) fn expect_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let said = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(payload.downcast_ref::<&str>().copied());
            if said.is_none_or(|said| !said.starts_with(SICK)) {
                report(info);
                ODD.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(info.to_string());
            }
        }));
    });
}

/// The poison of a recorder that blocks; it is also the name of the thread that it blocks. See
/// [`go_on`].
#[cfg(feature = "metrics")]
pub(crate) const BLOCKS: &str = "blocks";

#[cfg(feature = "metrics")]
static GOES_ON: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Ends the blocking of the recorder.
#[cfg(feature = "metrics")]
pub(crate) fn go_on() {
    GOES_ON.store(true, Ordering::Relaxed);
}

/// Notes that this happened, and panics if it is the poison.
fn happens(poison: &str, name: &str) {
    HAPPENED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(name.to_owned());
    assert!(poison != "all" && poison != name, "{SICK} {name}");
}

struct Sick {
    poison: &'static str,
    spans: AtomicU64,
}

impl Sick {
    fn call(&self, name: &str) {
        happens(self.poison, name);
    }
}

impl Subscriber for Sick {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.target().starts_with("lockhound");
        // Where this panics, nothing else happens: `all` is about everything else.
        if ours && self.poison == "enabled" {
            self.call("enabled");
        }
        ours
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if !metadata.target().starts_with("lockhound") {
            return Interest::never();
        }
        if self.poison == "register_callsite" {
            self.call("register_callsite");
        }
        Interest::sometimes()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.call("new_span");
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        self.call("record");
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {
        self.call("record_follows_from");
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let place = format!(
            "{}:{}",
            metadata.file().unwrap_or_default(),
            metadata.line().unwrap_or_default()
        );
        let mut text = Text::default();
        event.record(&mut text);
        TOLD.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text.0);
        self.call(&place);
    }

    fn enter(&self, _: &Id) {
        self.call("enter");
    }

    fn exit(&self, _: &Id) {
        self.call("exit");
    }

    fn try_close(&self, _: Id) -> bool {
        self.call("try_close");
        true
    }
}

/// A logger that panics in threads of lockers, as often as it is told to: fred logs all that it
/// does.
struct Logger(&'static str);

/// Whether the next task of fred that takes a command from its queue ends by a panic.
static ROUTER_ENDS: AtomicBool = AtomicBool::new(false);

/// Ends the task by which fred serves the next connection that is used.
pub(crate) fn end_a_router() {
    ROUTER_ENDS.store(true, Ordering::Relaxed);
    log::set_max_level(log::LevelFilter::Trace);
}

impl log::Log for Logger {
    /// What mio logs when a socket is dropped, which it does if another crate wants it, would be a
    /// second panic while the first unwinds.
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        let is_freds = metadata.target().starts_with("fred");
        is_freds && std::thread::current().name() == Some("lockhound")
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        if record.target() == "fred::router::commands"
            && record.args().to_string().contains("Recv command")
            && ROUTER_ENDS.swap(false, Ordering::Relaxed)
        {
            log::set_max_level(log::LevelFilter::Off);
            panic!("{SICK} router");
        }
        if self.0.starts_with(LOGGED) {
            let place = format!(
                "{LOGGED}{}",
                task().unwrap_or_else(|| record.target().to_owned())
            );
            let once_more = || {
                POISONED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
            };
            let poisoned = place == self.0 && once_more().is_ok();
            happens(if poisoned { self.0 } else { "" }, &place);
        }
    }

    fn flush(&self) {}
}

/// Returns the task that runs on this thread, if a backtrace shows it: its future's type, and
/// whether it sends a command.
fn task() -> Option<String> {
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    let (_, rest) = trace.split_once("tokio::runtime::task::core::Stage<")?;
    let mut open = 1;
    let length = rest.find(|c| {
        open += i32::from(c == '<') - i32::from(c == '>');
        open == 0
    })?;
    let sends = if trace.contains("::send::{async_fn#0}::{async_block_env#0}") {
        "/send"
    } else {
        ""
    };
    Some(rest[..length].replace(' ', "") + sends)
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

#[cfg(feature = "metrics")]
mod recorder {
    use std::sync::Arc;

    use metrics::{
        Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };

    use super::{BLOCKS, GOES_ON, Ordering, happens};

    pub(super) struct Sick(pub(super) &'static str);

    impl Recorder for Sick {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            happens(self.0, "describe_counter");
        }

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            happens(self.0, "describe_gauge");
        }

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            happens(self.0, "describe_histogram");
        }

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            happens(self.0, "register_counter");
            Counter::from_arc(Arc::new(Meter(self.0)))
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            happens(self.0, "register_gauge");
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            happens(self.0, "register_histogram");
            Histogram::from_arc(Arc::new(Meter(self.0)))
        }
    }

    struct Meter(&'static str);

    impl CounterFn for Meter {
        fn increment(&self, _: u64) {
            happens(self.0, "increment");
        }

        fn absolute(&self, _: u64) {
            happens(self.0, "absolute");
        }
    }

    impl HistogramFn for Meter {
        fn record(&self, _: f64) {
            happens(self.0, "record_value");
            while self.0 == BLOCKS
                && std::thread::current().name() == Some(BLOCKS)
                && !GOES_ON.load(Ordering::Relaxed)
            {
                happens("", BLOCKS);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    impl Drop for Meter {
        fn drop(&mut self) {
            happens(self.0, "drop_meter");
        }
    }
}
