//! A job that a fleet of machines does once in each period. Start several:
//! `cargo run --manifest-path recipes/Cargo.toml -- cron`.
//!
//! A timer goes off on every machine, and every machine calls `once_per`. The first one does the
//! job:
//!
//! - **The job succeeds.** The lock stays taken for half of the period, so that no other machine
//!   does the job again. A plain lock is not enough: the job takes a second and the clocks differ
//!   by more than that, so a machine with a slow clock would find the lock free.
//! - **The job fails.** The lock is released at once, and the next machine that waits does the job.
//!   Each machine tries once in a period, so a full disk on one of them does not cost the report.
//! - **The machine dies or loses contact.** The lock is free after a lease, and a machine that
//!   still waits does the job. If none waits any more, the job is left out until the next period.
//!
//! In the last two cases the first machine may have done a part of the job: it has to be one that
//! can be begun again. Clocks may differ by a quarter of the period.

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockhound::{Error, Lock, Locker};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::{Failure, Outcome, stopped};

const PERIOD: Duration = Duration::from_secs(60);
/// Shorter than a quarter of the period, for which a machine waits: it can take over from one that
/// dies.
const LEASE: Duration = Duration::from_secs(10);

#[tokio::main]
pub(crate) async fn run(url: &str) -> Outcome {
    let locks = Locker::builder().node(url).lease(LEASE).connect().await?;
    let stopped = stopped()?;
    println!("each full minute one of the machines makes the report; Ctrl-C or SIGTERM stops");
    let (lock, timer) = (
        locks.get("recipes:report"),
        interval_at(Instant::now() + until_next_period(), PERIOD),
    );
    tokio::select! {
        () = at_each(timer, &lock, make_report) => {}
        // Dropping a job releases its lock in the background: another machine that waits begins it
        // again.
        () = stopped => {}
    }
    locks.close().await; // waits for the release
    Ok(())
}

/// Returns the time until the next period begins, which is the same moment on all machines whose
/// clocks are right.
fn until_next_period() -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    PERIOD
        - Duration::from_secs(now.as_secs() % PERIOD.as_secs())
        - Duration::from_nanos(now.subsec_nanos().into())
}

/// Does the job whenever the timer goes off, unless another machine does it.
async fn at_each<F: Future<Output = Outcome>>(
    mut timer: Interval,
    lock: &Lock,
    job: impl Fn() -> F,
) {
    // A job that takes longer than a period does not make up for the ones that it missed.
    timer.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        timer.tick().await;
        match once(lock, job()).await {
            Ok(true) => println!("done"),
            Ok(false) => println!("another machine has done it, or is still at work"),
            // Raise an alert here if the job must not be left out.
            Err(failure) => eprintln!("{failure}"),
        }
    }
}

/// Does the job, unless another machine has done it in this period or is at work. Returns whether
/// it did.
async fn once(lock: &Lock, job: impl Future<Output = Outcome>) -> Result<bool, Failure> {
    match lock.once_per(PERIOD, |_| job).await {
        Ok(Some(Ok(()))) => Ok(true),
        Ok(Some(Err(failure))) => Err(format!("not done: {failure}").into()),
        Ok(None) => Ok(false),
        Err(error @ Error::Lost { .. }) => Err(format!("not done: {error}").into()),
        Err(error) => Err(error.into()),
    }
}

async fn make_report() -> Outcome {
    println!("making the report");
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use lockhound::testing::Server;
    use tokio::time::sleep;

    use super::*;

    /// How often the machines of a fleet began the job, and how often it succeeded.
    #[derive(Debug, Default)]
    struct Jobs {
        begun: AtomicU32,
        done: AtomicU32,
    }

    impl Jobs {
        async fn job(self: Arc<Self>, fails: bool) -> Outcome {
            self.begun.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_secs(5)).await;
            if fails {
                return Err("the disk is full".into());
            }
            self.done.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    async fn connect(server: &Server) -> Lock {
        Locker::builder()
            .memory(server)
            .lease(LEASE)
            .connect()
            .await
            .expect("connected")
            .get("report")
    }

    /// Starts a fleet, with each machine's clock slow by some seconds and its job failing or not,
    /// and asserts how often the job was begun and done in each of ten periods.
    async fn assert_each_period(fleet: &[(u64, bool)], begun: u32, done: u32) {
        let (server, start, jobs) = (Server::new(), Instant::now(), Arc::<Jobs>::default());
        for &(slow, fails) in fleet {
            let (lock, jobs) = (connect(&server).await, Arc::clone(&jobs));
            let timer = interval_at(start + PERIOD + Duration::from_secs(slow), PERIOD);
            tokio::spawn(
                async move { at_each(timer, &lock, || Arc::clone(&jobs).job(fails)).await },
            );
        }
        sleep(PERIOD * 3 / 4).await;
        for period in 0..10 {
            let counts = (
                jobs.begun.load(Ordering::SeqCst),
                jobs.done.load(Ordering::SeqCst),
            );
            assert_eq!(
                counts,
                (begun * period, done * period),
                "after {period} periods"
            );
            sleep(PERIOD).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fleet_whose_clocks_differ_does_the_job_once_in_each_period() {
        assert_each_period(&[(0, false), (3, false), (9, false), (14, false)], 1, 1).await;
    }

    #[tokio::test(start_paused = true)]
    async fn when_the_job_fails_the_next_machine_does_it_in_that_period() {
        assert_each_period(&[(0, true), (3, false), (9, false), (14, false)], 2, 1).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_fails_everywhere_is_tried_once_by_each_per_period() {
        assert_each_period(&[(0, true), (3, true), (14, true)], 3, 0).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_waits_takes_over_from_one_that_loses_contact() {
        let (server, jobs) = (Server::new(), Arc::<Jobs>::default());
        let far = server.route();
        let (first, next) = (connect(&far).await, connect(&server).await);
        let first = tokio::spawn(async move { once(&first, std::future::pending()).await });
        sleep(Duration::from_secs(3)).await;
        far.disconnect();
        assert!(
            once(&next, Arc::clone(&jobs).job(false))
                .await
                .expect("its lock is kept")
        );
        let failure = first
            .await
            .expect("no panic")
            .expect_err("its lock is lost")
            .to_string();
        assert!(failure.starts_with("not done: "), "{failure}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_whose_lock_is_deleted_is_not_reported_as_done() {
        let server = Server::new();
        let lock = connect(&server).await;
        let deleting = async {
            sleep(Duration::from_secs(5)).await;
            server.delete("report");
        };
        let (outcome, ()) = tokio::join!(once(&lock, std::future::pending()), deleting);
        let failure = outcome.expect_err("its lock is lost").to_string();
        assert!(failure.starts_with("not done: "), "{failure}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_machine_does_the_job_of_one_that_is_stopped() {
        let (server, jobs) = (Server::new(), Arc::<Jobs>::default());
        let locks = Locker::builder()
            .memory(&server)
            .lease(LEASE)
            .connect()
            .await
            .expect("connected");
        let (first, next) = (locks.get("report"), connect(&server).await);
        let timer = interval_at(Instant::now(), PERIOD);
        let jobs_of_next = Arc::clone(&jobs);
        let waiting = tokio::spawn(async move {
            sleep(Duration::from_secs(1)).await;
            once(&next, jobs_of_next.job(false)).await
        });
        tokio::select! {
            () = at_each(timer, &first, std::future::pending) => panic!("it goes on"),
            () = sleep(Duration::from_secs(2)) => {}
        }
        let stopped = Instant::now();
        locks.close().await;
        assert!(
            stopped.elapsed() < Duration::from_millis(100),
            "{:?}",
            stopped.elapsed()
        );
        assert!(
            waiting.await.expect("no panic").expect("its lock is kept"),
            "it waited, and did the job"
        );
        assert_eq!(
            (
                jobs.done.load(Ordering::SeqCst),
                stopped.elapsed().as_secs()
            ),
            (1, 5),
            "it began at once"
        );
    }

    #[test]
    fn the_next_period_is_at_most_one_period_away() {
        assert!(until_next_period() <= PERIOD);
    }
}
