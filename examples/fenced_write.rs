//! Run it with `cargo run --example fenced_write`. It needs a Redis: the server at REDIS_URL, or
//! one on this machine.
//!
//! It shows what no lock service can prevent, and how the resource can. A holder is paused for
//! longer than its lease, another caller takes the lock and writes, and then the first one goes on
//! and writes too. The resource has seen a greater fence, and refuses the write.

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockhound::{Fence, Guard, Lock, Locker};
use tokio::time::sleep;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const LEASE: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_secs(1);

/// The resource. In a database, the check and the write are one statement:
/// `UPDATE .. SET text = $1, fence = $2 WHERE fence <= $2`.
#[derive(Default)]
struct Document {
    text: String,
    /// The highest fence that it has seen.
    fence: u64,
}

impl Document {
    fn write(&mut self, fence: Fence, text: &str) -> Result<(), String> {
        // An equal fence is the same holder, which writes again.
        if fence.get() < self.fence {
            return Err(format!(
                "fence {fence} is stale: fence {} has written already",
                self.fence
            ));
        }
        (self.fence, self.text) = (fence.get(), text.to_owned());
        Ok(())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fenced_write: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome {
    // Two programs, each with its own connection and identity.
    let (ann, bob) = (connect().await?, connect().await?);
    let (ann_lock, bob_lock) = (
        ann.get("lockhound:example:document"),
        bob.get("lockhound:example:document"),
    );
    let document = Mutex::new(Document::default());

    let guard = ann_lock.fixed_lease(LEASE).lock().await?;
    println!("Ann has the lock for {LEASE:?}, fence {}", guard.fence());
    tokio::try_join!(
        paused_writer(guard, &document),
        punctual_writer(&bob_lock, &document)
    )?;

    let text = document
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .text;
    println!("The document says: {text}");
    ann.close().await;
    bob.close().await;
    if text == "written by Bob" {
        Ok(())
    } else {
        Err("a stale write went through".into())
    }
}

async fn paused_writer(guard: Guard, document: &Mutex<Document>) -> Outcome {
    guard.check()?;
    println!(
        "Ann has checked that she still has the lock, and is paused for {PAUSE:?} before she writes"
    );
    // Stands for what can happen between any check and its write: a suspended machine, swapping, a
    // slow network. A paused process does not notice its token either.
    sleep(PAUSE).await;
    let written = document
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .write(guard.fence(), "written by Ann");
    match written {
        Ok(()) => {
            println!("Ann has written: without the fence this would have undone what Bob wrote");
        }
        Err(refusal) => println!("Ann's write is refused: {refusal}"),
    }
    if let Err(lost) = guard.unlock().await {
        println!("Ann's unlock returns an error: {lost}");
    }
    Ok(())
}

async fn punctual_writer(lock: &Lock, document: &Mutex<Document>) -> Outcome {
    println!("Bob waits for the lock");
    let guard = lock.lock().await?;
    document
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .write(guard.fence(), "written by Bob")?;
    println!("Bob has the lock, fence {}, and has written", guard.fence());
    guard.unlock().await?;
    Ok(())
}

async fn connect() -> Outcome<Locker> {
    let url = std::env::var("REDIS_URL")
        .ok()
        .filter(|url| !url.is_empty());
    let url = url.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let advice =
        "Start a server with `redis-server`, or name a running one: REDIS_URL=redis://HOST:PORT";
    Ok(Locker::connect(url)
        .await
        .map_err(|error| format!("{error}\n{advice}"))?)
}
