//! Seeds, dealt out in their order to all CPUs.

use std::any::Any;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// How many run at a time.
pub fn at_a_time() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// What became of a seed: for how long it ran in virtual time, or its panic.
type Ended = (u64, Result<Duration, Box<dyn Any + Send>>);

/// What is common to the threads.
struct Deal<W, R> {
    /// Whether this seed is to be run; once one is not, none behind it is.
    wants: W,
    run: R,
    next: AtomicU64,
    /// The lowest seed that has failed.
    failed: AtomicU64,
}

/// Runs each of these seeds, from zero on; how many they were, and for how long they ran in virtual time. Where one
/// fails, all below it are run to their end, and none above it is waited for: this fails with the lowest one, whatever
/// the threads do.
pub fn run<W, R>(wants: W, run: R) -> (u64, Duration)
where
    W: Fn(u64) -> bool + Send + Sync + 'static,
    R: Fn(u64) -> Duration + Send + Sync + 'static,
{
    let (tell, ended) = channel();
    let deal = Arc::new(Deal { wants, run, next: AtomicU64::new(0), failed: AtomicU64::new(u64::MAX) });
    for _ in 0..at_a_time() {
        let (deal, tell) = (Arc::clone(&deal), tell.clone());
        thread::Builder::new().name("simulation".to_owned()).spawn(move || deal.work_off(&tell)).unwrap();
    }
    drop(tell);
    collect(&ended)
}

impl<W: Fn(u64) -> bool, R: Fn(u64) -> Duration> Deal<W, R> {
    fn work_off(&self, tell: &Sender<Ended>) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed > self.failed.load(Ordering::Relaxed) || !(self.wants)(seed) {
                return;
            }
            let ended = catch_unwind(AssertUnwindSafe(|| (self.run)(seed)));
            if ended.is_err() {
                println!("SIMULATION_SEED={seed} cargo test --features testing --test simulation -- --nocapture");
                self.failed.fetch_min(seed, Ordering::Relaxed);
            }
            // Nobody listens any more where a lower one has failed.
            let _: Result<_, _> = tell.send((seed, ended));
        }
    }
}

fn collect(ended: &Receiver<Ended>) -> (u64, Duration) {
    let (mut seeds, mut time, mut lowest) = (Vec::new(), Duration::ZERO, None);
    for (seed, ended) in ended {
        seeds.push(seed);
        match ended {
            Ok(lasted) => time += lasted,
            Err(panic) if lowest.as_ref().is_none_or(|(lowest, _)| seed < *lowest) => lowest = Some((seed, panic)),
            Err(_) => {}
        }
        let is_last = |lowest: u64| seeds.iter().filter(|seed| **seed < lowest).count() as u64 == lowest;
        if lowest.as_ref().is_some_and(|(lowest, _)| is_last(*lowest)) {
            break;
        }
    }
    if let Some((_, panic)) = lowest {
        resume_unwind(panic);
    }
    (seeds.len() as u64, time)
}

#[test]
fn seeds_are_run_once_each() {
    let (ran, seconds) = (Arc::new(AtomicU64::new(0)), Duration::from_secs);
    let counts = Arc::clone(&ran);
    let told = run(
        |seed| seed < 50,
        move |seed| {
            counts.fetch_or(1 << seed, Ordering::Relaxed);
            seconds(seed)
        },
    );
    assert_eq!((told, ran.load(Ordering::Relaxed)), ((50, seconds(49 * 25)), (1 << 50) - 1));
}

/// One above it fails first, and another above it never ends.
#[test]
fn the_lowest_seed_that_fails_is_told_whatever_the_others_do() {
    let (fail, failed) = channel();
    let failed = std::sync::Mutex::new(failed);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        run(
            |_| true,
            move |seed| match seed {
                3 if at_a_time() > 1 => {
                    failed.lock().unwrap().recv().unwrap();
                    panic!("3")
                }
                3 => panic!("3"),
                4 => {
                    fail.send(()).unwrap();
                    panic!("4")
                }
                5.. => loop {
                    thread::park();
                },
                _ => Duration::ZERO,
            },
        )
    }));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"3"));
}
