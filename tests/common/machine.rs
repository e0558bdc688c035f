//! Allowances for a busy machine. A bound in milliseconds assumes that a process has a core when it
//! needs one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// By which factor things may take longer while cores are missing. A fault lasts longer still:
/// mostly for ever.
const STRETCH: u32 = 10;

/// Returns whether cores are missing now: a thread that spins for 50 ms gets a core for less than
/// three quarters of them.
pub fn starved() -> bool {
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(
            u64::try_from(time.tv_sec).unwrap(),
            u32::try_from(time.tv_nsec).unwrap(),
        )
    };
    let (start, before) = (Instant::now(), used());
    while start.elapsed() < Duration::from_millis(50) {
        std::hint::spin_loop();
    }
    used() - before < start.elapsed() * 3 / 4
}

/// Returns whether to retry something that failed for the `tried`-th time: a few times, while cores
/// are missing.
pub fn again(tried: u32) -> bool {
    tried < 5 && starved()
}

/// Measures for how long a thread that wants to run waits for a core, until
/// [`longest`](Self::longest) is called.
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

/// Returns whether something took no longer than it may. It may take longer while cores are
/// missing.
pub fn within(took: Duration, bound: Duration) -> bool {
    took < bound || (took < bound * STRETCH && starved())
}

/// Returns by how much a token may be late. Without a core no token fires in time; a fault delays
/// it for longer than this.
pub fn grace() -> Duration {
    if starved() {
        Duration::from_secs(1)
    } else {
        Duration::ZERO
    }
}

/// Returns whether a token fired before this bound, or, while cores are missing, soon after it.
pub fn in_time(took: Duration, bound: Duration) -> bool {
    took < bound || took < bound + grace()
}
