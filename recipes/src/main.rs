//! Runs one of the recipes: `cargo run --manifest-path recipes/Cargo.toml -- leader`. It needs a
//! Redis: the server at REDIS_URL, or one on this machine.
//!
//! Each recipe is one file, to be read from top to bottom and copied.

use std::error::Error;
use std::process::ExitCode;
use std::{env, io};

mod cron;
mod leader;
mod queue;
#[cfg(test)]
mod redis;
mod threads;
mod web_service;

/// The result of a recipe, and of this program.
type Outcome = Result<(), Failure>;

/// Any error.
type Failure = Box<dyn Error + Send + Sync>;

/// Returns a future that ends when the program has to stop: at Ctrl-C, or at the SIGTERM of an
/// orchestrator or a service manager. From this call on, these signals do not end the process by
/// themselves.
#[cfg(unix)]
fn stopped() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn stopped() -> io::Result<impl Future<Output = ()>> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

const USAGE: &str = "name one of the recipes: cron, leader, queue, threads, web_service";

fn main() -> ExitCode {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let outcome = match env::args().nth(1).as_deref() {
        Some("cron") => cron::run(&url),
        Some("leader") => leader::run(&url),
        Some("queue") => queue::run(&url),
        Some("threads") => threads::run(&url),
        Some("web_service") => web_service::run(&url),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("recipes: {error}");
            ExitCode::FAILURE
        }
    }
}
