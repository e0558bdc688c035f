//! Contends with rslock for a lock: URL KEY RECORD NAME ROUNDS. See ../../../foreign.rs.

use std::error::Error;
use std::time::Duration;

use rslock::{Lock, LockError, LockManager};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, key, record, name, rounds] = &args[..] else {
        return Err("URL KEY RECORD NAME ROUNDS".into());
    };
    let locks = LockManager::new(vec![url.as_str()]);
    let mut connection = redis::Client::open(url.as_str())?
        .get_multiplexed_async_connection()
        .await?;
    for _ in 0..rounds.parse()? {
        let lock = acquire(&locks, key).await?;
        redis::cmd("RPUSH")
            .arg(record)
            .arg(format!("enter {name}"))
            .exec_async(&mut connection)
            .await?;
        pause(3).await;
        redis::cmd("RPUSH")
            .arg(record)
            .arg(format!("leave {name}"))
            .exec_async(&mut connection)
            .await?;
        // It does not say whether the lock was still ours.
        locks.unlock(&lock).await;
        pause(30).await;
    }
    Ok(())
}

/// After its three tries it gives up; here it goes on.
async fn acquire(locks: &LockManager, key: &str) -> Result<Lock, LockError> {
    loop {
        match locks.lock(key, Duration::from_secs(10)).await {
            Err(LockError::Unavailable) => {}
            answer => return answer,
        }
    }
}

async fn pause(most_ms: u64) {
    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..most_ms * 1_000))).await;
}
