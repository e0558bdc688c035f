//! Shares a lock with a Java program: see docs/redisson.md.
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example redisson`

use std::error::Error;

use lockhound::{FenceSource, Locker};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = Locker::builder()
        .node(std::env::var("REDIS_URL")?)
        .fence_source(FenceSource::RedissonTokens) // one sequence with the tokens of RFencedLock
        .connect() // with a lease of 30 s
        .await?;
    let orders = locks.get("orders:42");
    for _ in 0..5 {
        let guard = orders.lock().await?; // waits for the unlock message
        println!("rust: charged under fence {}", guard.fence());
        guard.unlock().await?;
    }
    locks.close().await;
    Ok(())
}
