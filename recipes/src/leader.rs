//! Several workers, one of which leads. Start several: `cargo run --manifest-path
//! recipes/Cargo.toml -- leader`.
//!
//! The others see who leads, and one of them takes over when the leader stops, dies or loses
//! contact. After a leader was killed, that takes a lease, here ten seconds.
//!
//! A leader that loses contact learns of it before another one can lead, and stops. Two leaders
//! learn too late: one that was *paused*, by a suspended machine or a slow disk, and one whose lock
//! an operator deleted, which notices at the next renewal. The fence guards against those: the
//! resource that carries out the leader's orders remembers the highest fence that it has seen, and
//! refuses lower ones.

use std::time::Duration;

use lockhound::{Election, Error, Fence, Locker};
use tokio::time::sleep;

use crate::{Outcome, stopped};

/// With a short lease a new leader follows sooner; with a long one the leader survives longer
/// outages of the server.
const LEASE: Duration = Duration::from_secs(10);

#[tokio::main]
pub(crate) async fn run(url: &str) -> Outcome {
    let locks = Locker::builder().node(url).lease(LEASE).connect().await?;
    let (election, stopped) = (locks.election("recipes:leader"), stopped()?);
    let me = format!("worker {}", std::process::id());
    println!("waiting to lead; Ctrl-C or SIGTERM stops");
    let outcome = tokio::select! {
        led = election.run(me, |term| lead(term.fence())) => led,
        watched = watch(&election) => watched,
        () = stopped => Ok(()), // dropping `run` resigns in the background
    };
    locks.close().await; // waits for that
    Ok(outcome?)
}

/// Does what only the leader does. This future is dropped at an await when the lock is lost, and
/// begins again when this worker leads again: what must not stop halfway has to be one command to
/// the resource, with the fence.
async fn lead(fence: Fence) {
    println!("leading, fence {fence}");
    loop {
        sleep(Duration::from_secs(1)).await;
        println!("still leading, fence {fence}");
    }
}

/// Says who leads.
async fn watch(election: &Election) -> Result<(), Error> {
    let mut observer = election.observe().await?;
    loop {
        match observer.changed().await {
            Ok(leader) => match leader.as_ref().and_then(|leader| leader.value()) {
                Some(name) => println!("{name} is the leader"),
                None => println!("the leader is not known"),
            },
            // The servers are away. The next call goes on.
            Err(error @ Error::Unavailable { .. }) => eprintln!("no news: {error}"),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use lockhound::testing::Server;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_worker_leads_and_another_takes_over_when_it_fails() {
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

        let server = Server::new();
        let far = server.route();
        let mut workers = Vec::new();
        for server in [&far, &server, &server] {
            let locks = Locker::builder()
                .memory(server)
                .lease(LEASE)
                .connect()
                .await
                .expect("connected");
            let election = locks.election("leader");
            workers.push(tokio::spawn(async move {
                election.run("me", |term| lead(term.fence())).await
            }));
            // The first of them leads: the others find the lock taken.
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!((terms(), LEADING.load(Ordering::SeqCst)), (1, 1));

        // The first leader loses contact. The next one leads after a lease.
        far.disconnect();
        sleep(LEASE * 2).await;
        assert_eq!((terms(), LEADING.load(Ordering::SeqCst)), (2, 1));
        far.reconnect();

        // Both others stop. The first one has contact again, and leads at once.
        workers[1..].iter().for_each(tokio::task::JoinHandle::abort);
        sleep(Duration::from_secs(1)).await;
        assert_eq!((terms() >= 3, LEADING.load(Ordering::SeqCst)), (true, 1));

        workers[0].abort();
        sleep(Duration::from_secs(1)).await;
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
