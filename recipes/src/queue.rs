//! A consumer of a job queue. Start several: `cargo run --manifest-path recipes/Cargo.toml --
//! queue`.
//!
//! It handles sixteen jobs at a time, but only one of each customer, on however many machines the
//! consumer runs.
//!
//! `for_each_concurrent` polls all its jobs in one task. A guard belongs to the task, so with
//! guards all jobs would have one owner and would not exclude each other. `run` is made for this:
//! each run is an owner of its own, and runs exclude each other, in one task or in several.

use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use lockhound::{Error, Fence, Locker};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::{Outcome, stopped};

const AT_ONCE: usize = 16;

#[derive(Debug, Clone)]
struct Job {
    number: u32,
    customer: u32,
}

#[tokio::main]
pub(crate) async fn run(url: &str) -> Outcome {
    let locks = Locker::connect(url).await?;
    // Stands for the queue: forty jobs of five customers.
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let jobs: Vec<Job> = (0..40)
        .map(|number| Job {
            number,
            customer: number % 5,
        })
        .collect();
    jobs.into_iter().try_for_each(|job| sender.send(job))?;
    drop(sender);
    // At the signal to stop no further job is taken; those at work end.
    let jobs = stream::poll_fn(|cx| receiver.poll_recv(cx)).take_until(stopped()?);
    consume(&locks, jobs, handle, |job, error| {
        eprintln!("job {} goes back to the queue: {error}", job.number);
    })
    .await;
    locks.close().await;
    Ok(())
}

/// Handles all jobs of a queue, and gives back those that did not succeed under the lock of their
/// customer.
async fn consume(
    locks: &Locker,
    jobs: impl Stream<Item = Job>,
    handle: impl AsyncFn(Job, Fence),
    give_back: impl Fn(Job, Error),
) {
    jobs.for_each_concurrent(AT_ONCE, async |job| {
        let lock = locks.get(format!("customer:{}", job.customer));
        // If the lock is lost, `run` drops the section at an await, and returns `Error::Lost`.
        let done = lock
            .run(|section| handle(job.clone(), section.fence()))
            .await;
        if let Err(error) = done {
            // A part of it may have been done: the job has to be one that can be done again.
            give_back(job, error);
        }
    })
    .await;
}

async fn handle(job: Job, fence: Fence) {
    println!(
        "job {} of customer {}, fence {fence}",
        job.number, job.customer
    );
    sleep(Duration::from_millis(200)).await;
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use lockhound::testing::Server;
    use tokio::time::Instant;

    use super::*;

    /// The jobs under way, keyed by customer, the most at once, and the jobs that are done.
    #[derive(Debug, Default)]
    struct Seen {
        now: HashMap<u32, u32>,
        at_once: usize,
        done: Vec<u32>,
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_of_one_customer_run_in_turn_and_of_others_at_once() {
        let (server, seen, start) = (Server::new(), Mutex::new(Seen::default()), Instant::now());
        let handle = async |job: Job, _| {
            {
                let mut seen = seen.lock().expect("no panic");
                assert!(
                    seen.now.insert(job.customer, job.number).is_none(),
                    "two of customer {}",
                    job.customer
                );
                seen.at_once = seen.at_once.max(seen.now.len());
            }
            sleep(Duration::from_millis(200)).await;
            let mut seen = seen.lock().expect("no panic");
            seen.now.remove(&job.customer);
            seen.done.push(job.number);
        };
        let connect = || Locker::builder().memory(&server).connect();
        let consumers = [
            connect().await.expect("connected"),
            connect().await.expect("connected"),
        ];
        let jobs = |of: u32| {
            stream::iter((0..20).map(move |n| Job {
                number: 20 * of + n,
                customer: n % 5,
            }))
        };
        let give_back = |job: Job, error| panic!("job {}: {error}", job.number);
        tokio::join!(
            consume(&consumers[0], jobs(0), handle, give_back),
            consume(&consumers[1], jobs(1), handle, give_back),
        );
        let mut seen = seen.into_inner().expect("no panic");
        seen.done.sort_unstable();
        assert_eq!(seen.done, (0..40).collect::<Vec<_>>());
        assert_eq!(seen.at_once, 5, "one of each customer");
        // Eight of each customer take 1.6 s, one after the other.
        assert!(
            start.elapsed() >= Duration::from_millis(1_600),
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_whose_lock_is_lost_is_given_back() {
        let (server, given_back) = (Server::new(), Mutex::new(Vec::new()));
        let locks = Locker::builder()
            .memory(&server)
            .connect()
            .await
            .expect("connected");
        let taken_away = async {
            sleep(Duration::from_secs(5)).await;
            server.delete("customer:7");
        };
        let jobs = stream::iter([Job {
            number: 1,
            customer: 7,
        }]);
        let give_back = |job: Job, error: Error| {
            assert!(matches!(error, Error::Lost { .. }), "{error}");
            given_back.lock().expect("no panic").push(job.number);
        };
        let handle = async |_: Job, _: Fence| sleep(Duration::from_secs(60)).await;
        tokio::join!(consume(&locks, jobs, handle, give_back), taken_away);
        assert_eq!(given_back.into_inner().expect("no panic"), [1]);
    }
}
