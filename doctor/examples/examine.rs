//! Run it with `cargo run -p lockhound-doctor --example examine -- redis://host [redis://host ..]
//! [NAME ..]`. Without an address it asks the server at REDIS_URL, or one on this machine.
//! `rediss://` needs `--features lockhound/tls`.
//!
//! Prints which promises the servers keep for locks with these names, for a pipeline that deploys.
//! It exits with 0 if locks can be taken, exclude each other and are not evicted.

use std::process::ExitCode;

use lockhound::{Error, Locker};
use lockhound_doctor::{Promise, Report};

/// The promises that this pipeline needs. A single server seldom keeps locks over a restart, and
/// not every program needs that.
const WANTED: [Promise; 3] = [Promise::Locking, Promise::Exclusion, Promise::Eviction];

#[tokio::main]
async fn main() -> ExitCode {
    match report().await {
        Ok(report) => {
            println!("{report}");
            let kept = WANTED.iter().all(|promise| report.keeps(*promise));
            if kept {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("examine: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn report() -> Result<Report, Error> {
    let (mut urls, names): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|word| word.contains("://"));
    if urls.is_empty() {
        urls.push(std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into()));
    }
    let locks = urls
        .iter()
        .fold(Locker::builder(), |builder, url| builder.node(url))
        .connect()
        .await?;
    let report = lockhound_doctor::examine_keys(&locks, names).await;
    locks.close().await;
    report
}
