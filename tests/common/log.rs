//! Collects what is logged, for tests that look at it.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Everything that was logged since it was set up. There can be one per process: a test that uses
/// it is alone in its target. `of_thread` is the exception.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Collects every event of every thread from now on.
    pub fn collect() -> Self {
        Self::collect_from(LevelFilter::TRACE)
    }

    /// Collects the events of every thread that are at least as urgent as this, from now on.
    pub fn collect_from(level: LevelFilter) -> Self {
        let log = Self::default();
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(log.clone())
            .init();
        log
    }

    /// Collects every event of every thread from now on, and each span when it begins.
    pub fn collect_with_spans() -> Self {
        let log = Self::default();
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_span_events(FmtSpan::NEW)
            .with_ansi(false)
            .with_writer(log.clone())
            .init();
        log
    }

    /// Collects the events of this thread, for as long as the guard lives.
    pub fn of_thread() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let events = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        let guard = tracing::subscriber::set_default(events);
        (log, guard)
    }

    /// Does the same, and collects each span when it ends.
    pub fn of_thread_with_spans() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let events = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_span_events(FmtSpan::CLOSE);
        let guard = tracing::subscriber::set_default(events.with_writer(log.clone()).finish());
        (log, guard)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
