//! Ends a measurement that hangs, and names the contender that hangs.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Far longer than any slot takes.
const PATIENCE: Duration = Duration::from_secs(180);

static NOW: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// Notes that this contender is now measured in this scenario.
pub(crate) fn at(scenario: &str, contender: &str) {
    let now = (Instant::now(), format!("{contender}, in {scenario}"));
    *NOW.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
}

/// Notes that nothing is measured for now.
pub(crate) fn over() {
    *NOW.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Watches for a contender that is stuck, and aborts the process then, with a core dump where the
/// system writes them.
pub(crate) fn watch() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(PATIENCE / 10);
            let now = NOW.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some((since, who)) = now
                && since.elapsed() > PATIENCE
            {
                eprintln!(
                    "bench: stuck for {:.0?}: {who}; please report it with the output of `gdb -p`",
                    since.elapsed()
                );
                std::process::abort();
            }
        }
    });
}
