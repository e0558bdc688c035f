//! A job that a fleet of machines does once in each period. Start several:
//! `cargo run --manifest-path recipes/Cargo.toml -- cron`.
//!
//! A timer goes off on every machine, and whoever takes the lock first does the job. The job takes a second and the
//! clocks of the machines differ by more than that, so that a lock alone is not enough: the last machine would find it
//! free again, and do the job a second time. `min_hold` keeps the lock taken after the job is done.
//!
//! For how long? The lock has to be taken when the slowest clock goes off, and free when the fastest one does in the
//! next period. Half of the period does for clocks that differ by anything less than that.
//!
//! What happens if the machine dies in the midst of the job: the lock is free after a lease, and the next period's
//! timer does the job again. `fixed_lease(min_hold)` in addition would keep it for the whole time.

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockhound::{Error, Lock, Locker};
use tokio::time::{Instant, Interval, interval_at};

use crate::Outcome;

const PERIOD: Duration = Duration::from_secs(60);

#[tokio::main]
pub(crate) async fn run(url: &str) -> Outcome {
    let locks = Locker::connect(url).await?;
    println!("each full minute one of the machines makes the report; Ctrl-C stops");
    let (lock, timer) = (locks.get("recipes:report"), interval_at(Instant::now() + until_next_period(), PERIOD));
    tokio::select! {
        () = at_each(timer, &lock, make_report) => {}
        stopped = tokio::signal::ctrl_c() => stopped?,
    }
    locks.close().await;
    Ok(())
}

/// How long it is until the next period begins, which is the same moment on all machines whose clocks are right.
fn until_next_period() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    PERIOD - Duration::from_secs(now.as_secs() % PERIOD.as_secs()) - Duration::from_nanos(now.subsec_nanos().into())
}

/// Does the job whenever the timer goes off, unless another machine did.
async fn at_each<F: Future<Output = ()>>(mut timer: Interval, lock: &Lock, job: impl Fn() -> F) {
    loop {
        timer.tick().await;
        match once(lock, job()).await {
            Ok(true) => println!("done"),
            Ok(false) => println!("another machine does it"),
            // The next period is another chance. A job that must not be left out is reported here.
            Err(error) => eprintln!("not done: {error}"),
        }
    }
}

/// Does the job, and returns true, unless another machine has done it in this period or is doing it now.
async fn once(lock: &Lock, job: impl Future<Output = ()>) -> Result<bool, Error> {
    let lock = lock.clone().min_hold(PERIOD / 2);
    let Some(guard) = lock.try_lock().await? else { return Ok(false) };
    let lost = guard.lost();
    tokio::select! {
        biased;
        // The error says how it was lost.
        () = lost.cancelled() => guard.check()?,
        () = job => {}
    }
    guard.unlock().await?;
    Ok(true)
}

async fn make_report() {
    println!("making the report");
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use lockhound::testing::Server;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fleet_whose_clocks_differ_does_the_job_once_in_each_period() {
        static DONE: AtomicU32 = AtomicU32::new(0);
        async fn job() {
            sleep(Duration::from_secs(1)).await;
            DONE.fetch_add(1, Ordering::SeqCst);
        }
        let (server, start) = (Server::new(), Instant::now());
        for late in [0, 3, 12, 25] {
            let lock = Locker::builder().memory(&server).connect().await.expect("connected").get("report");
            let timer = interval_at(start + PERIOD + Duration::from_secs(late), PERIOD);
            tokio::spawn(async move { at_each(timer, &lock, job).await });
        }
        sleep(PERIOD / 2 + Duration::from_secs(10)).await;
        for period in 0..10 {
            assert_eq!(DONE.load(Ordering::SeqCst), period);
            sleep(PERIOD).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_whose_lock_is_lost_is_not_reported_as_done() {
        let server = Server::new();
        let lock = Locker::builder().memory(&server).connect().await.expect("connected").get("report");
        let taken_away = async {
            sleep(Duration::from_secs(5)).await;
            server.delete("report");
        };
        let (done, ()) = tokio::join!(once(&lock, sleep(PERIOD)), taken_away);
        assert!(matches!(done, Err(Error::Lost(_))), "{done:?}");
    }

    #[test]
    fn the_next_period_is_at_most_one_period_away() {
        assert!(until_next_period() <= PERIOD);
    }
}
