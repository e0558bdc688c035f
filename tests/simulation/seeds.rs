//! Runs seeds on all CPUs, dealt out in order.

use std::any::Any;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Returns how many seeds run at a time.
pub fn at_a_time() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// A seed that has ended, and how long it ran in virtual time, or its panic.
type Ended = (u64, Result<Duration, Box<dyn Any + Send>>);

/// What the threads share.
struct Deal<W, R> {
    /// Returns whether to run this seed. After the first that is not run, no other is.
    wants: W,
    run: R,
    next: AtomicU64,
    /// The lowest seed that has failed.
    failed: AtomicU64,
}

/// Runs each of these seeds, from zero on. Returns how many there were, and how long they ran in
/// virtual time. If a seed fails, all lower ones run to their end, and no higher one is waited for:
/// so this always fails with the lowest one.
pub fn run<W, R>(wants: W, run: R) -> (u64, Duration)
where
    W: Fn(u64) -> bool + Send + Sync + 'static,
    R: Fn(u64) -> Duration + Send + Sync + 'static,
{
    let (tell, ended) = channel();
    let deal = Arc::new(Deal {
        wants,
        run,
        next: AtomicU64::new(0),
        failed: AtomicU64::new(u64::MAX),
    });
    for _ in 0..at_a_time() {
        let (deal, tell) = (Arc::clone(&deal), tell.clone());
        thread::Builder::new()
            .name("simulation".to_owned())
            .spawn(move || deal.work_off(&tell))
            .unwrap();
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
                println!(
                    "SIMULATION_SEED={seed} cargo test --features testing --test simulation -- --nocapture"
                );
                self.failed.fetch_min(seed, Ordering::Relaxed);
            }
            // This fails if a lower seed has failed: nothing receives the result then.
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
            Err(panic) if lowest.as_ref().is_none_or(|(lowest, _)| seed < *lowest) => {
                lowest = Some((seed, panic));
            }
            Err(_) => {}
        }
        let is_last =
            |lowest: u64| seeds.iter().filter(|seed| **seed < lowest).count() as u64 == lowest;
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
    assert_eq!(
        (told, ran.load(Ordering::Relaxed)),
        ((50, seconds(49 * 25)), (1 << 50) - 1)
    );
}

/// A higher seed fails first, and another one never ends.
#[test]
fn the_lowest_failing_seed_is_reported() {
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
