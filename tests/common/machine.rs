//! What a busy machine may do to a test. A bound in milliseconds supposes that a process has a core when it needs one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How much longer things may take while cores are missing. A fault lasts longer than that: mostly for ever.
const STRETCH: u32 = 10;

/// Whether cores are missing just now: a thread that wants one for 50 ms does not have it for most of that.
pub fn starved() -> bool {
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
    };
    let (start, before) = (Instant::now(), used());
    while start.elapsed() < Duration::from_millis(50) {
        std::hint::spin_loop();
    }
    used() - before < start.elapsed() * 3 / 4
}

/// Whether what failed, the so many-th time, is to be tried again: a few times, where cores were missing for it.
pub fn again(tried: u32) -> bool {
    tried < 5 && starved()
}

/// Measures for how long a thread that wants to run waits for a core, until [`longest`](Self::longest) is called.
pub struct Stalls {
    stop: Arc<AtomicBool>,
    watch: JoinHandle<Duration>,
}

impl Stalls {
    pub fn watch() -> Self {
        const NAP: Duration = Duration::from_millis(5);
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let watch = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(NAP);
                longest = longest.max(start.elapsed() - NAP);
            }
            longest
        });
        Self { stop, watch }
    }

    /// Ends the watch, and returns the longest wait.
    pub fn longest(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.watch.join().unwrap()
    }
}

/// Whether something took no longer than it may. Where cores are missing it may take longer.
pub fn within(took: Duration, bound: Duration) -> bool {
    took < bound || (took < bound * STRETCH && starved())
}

/// By how much a token may be late. Without a core nobody fires in time, and a fault keeps it for longer than that.
pub fn grace() -> Duration {
    if starved() { Duration::from_secs(1) } else { Duration::ZERO }
}

/// Whether whoever waits for a token was told before this bound, or, without a core, not much later.
pub fn in_time(took: Duration, bound: Duration) -> bool {
    took < bound || took < bound + grace()
}
