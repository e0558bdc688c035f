//! Several workers, one of which leads. Start several: `cargo run --manifest-path
//! recipes/Cargo.toml -- leader`.
//!
//! The holder of the lock leads. The others wait for it, and one of them takes over when the leader
//! stops, dies or loses contact. After a leader was killed, that takes a lease, here ten seconds.
//!
//! A leader that loses contact learns of it before another one can lead, and stops. Two leaders
//! learn too late: one that was *paused*, by a suspended machine or a slow disk, and one whose lock
//! an operator deleted, which notices at the next renewal. The fence guards against those: the
//! resource that carries out the leader's orders remembers the highest fence that it has seen, and
//! refuses lower ones.

use std::future::Future;
use std::time::Duration;

use lockhound::{CancellationToken, Error, Fence, Lock, Locker};
use tokio::time::sleep;

use crate::{Outcome, stopped};

/// With a short lease a new leader follows sooner; with a long one the leader survives longer
/// outages of the server.
const LEASE: Duration = Duration::from_secs(10);

#[tokio::main]
pub(crate) async fn run(url: &str) -> Outcome {
    let locks = Locker::builder().node(url).lease(LEASE).connect().await?;
    let (stop, stopped) = (CancellationToken::new(), stopped()?);
    let stopping = stop.clone();
    tokio::spawn(async move {
        stopped.await;
        stopping.cancel();
    });
    println!("waiting to lead; Ctrl-C or SIGTERM stops");
    let outcome = work(&locks.get("recipes:leader"), &stop, lead).await;
    locks.close().await;
    Ok(outcome?)
}

/// Leads whenever this worker is elected, until `stop` is cancelled.
async fn work<F: Future<Output = ()>>(
    election: &Lock,
    stop: &CancellationToken,
    lead: impl Fn(Fence) -> F,
) -> Result<(), Error> {
    loop {
        let guard = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            elected = election.lock() => match elected {
                Ok(guard) => guard,
                // The servers are away. This call has tried for a lease already, and the next one
                // does so too.
                Err(error @ Error::Unavailable { .. }) => {
                    eprintln!("no election: {error}");
                    continue;
                }
                // An error that does not pass by waiting.
                Err(error) => return Err(error),
            },
        };
        let (lost, fence) = (guard.lost(), guard.fence());
        tokio::select! {
            biased;
            // Another worker may lead from now on. This one waits in line again.
            () = lost.cancelled() => eprintln!("deposed: {:?}", guard.loss()),
            () = stop.cancelled() => return guard.unlock().await,
            () = lead(fence) => guard.unlock().await?,
        }
    }
}

/// Does what only the leader does. This future is dropped at an await when the lock is lost: what
/// must not stop halfway has to be one command to the resource, with the fence.
async fn lead(fence: Fence) {
    println!("leading, fence {fence}");
    loop {
        sleep(Duration::from_secs(1)).await;
        println!("still leading, fence {fence}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use lockhound::testing::Server;
    use tokio::task::JoinHandle;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_worker_leads_and_another_takes_over_when_it_stops_or_loses_contact() {
        static LEADING: AtomicU32 = AtomicU32::new(0);
        static FENCES: Mutex<Vec<Fence>> = Mutex::new(Vec::new());

        struct Leading;
        impl Drop for Leading {
            fn drop(&mut self) {
                LEADING.fetch_sub(1, Ordering::SeqCst);
            }
        }
        async fn lead(fence: Fence) {
            assert_eq!(LEADING.fetch_add(1, Ordering::SeqCst), 0, "two lead");
            let _leading = Leading;
            FENCES.lock().expect("no panic").push(fence);
            std::future::pending::<()>().await;
        }
        let terms = || FENCES.lock().expect("no panic").len();

        let (server, stops) = (Server::new(), [(); 3].map(|()| CancellationToken::new()));
        let far = server.route();
        let mut workers = Vec::new();
        for (server, stop) in [&far, &server, &server].into_iter().zip(&stops) {
            let locks = Locker::builder()
                .memory(server)
                .lease(LEASE)
                .connect()
                .await
                .expect("connected");
            let (election, stop) = (locks.get("leader"), stop.clone());
            workers.push(tokio::spawn(
                async move { work(&election, &stop, lead).await },
            ));
            // The first of them leads: the others find the lock taken.
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!((terms(), LEADING.load(Ordering::SeqCst)), (1, 1));

        // The first leader loses contact. The next one leads after a lease.
        far.cut();
        sleep(LEASE * 2).await;
        assert_eq!((terms(), LEADING.load(Ordering::SeqCst)), (2, 1));
        far.mend();

        // Both others stop. The first one has contact again, and leads at once.
        stops[1..].iter().for_each(CancellationToken::cancel);
        sleep(Duration::from_secs(1)).await;
        assert_eq!((terms() >= 3, LEADING.load(Ordering::SeqCst)), (true, 1));
        assert!(workers[1..].iter().all(JoinHandle::is_finished));

        stops.iter().for_each(CancellationToken::cancel);
        for worker in workers {
            worker
                .await
                .expect("no panic")
                .expect("each releases its lock");
        }
        assert_eq!(
            (server.holder("leader"), LEADING.load(Ordering::SeqCst)),
            (None, 0)
        );
        assert!(
            FENCES.lock().expect("no panic").is_sorted(),
            "each leader has a greater fence"
        );
    }
}
