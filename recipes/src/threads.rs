//! Threads without async code: `cargo run --manifest-path recipes/Cargo.toml -- threads`, several
//! times at once.
//!
//! Every call has a twin with the prefix `blocking_`, which needs no runtime. The owner is the
//! thread: a function that takes the lock itself enters again if a caller in the same thread has
//! it, and other threads wait.
//!
//! If one thread works on several jobs in turns, as in a pool that steals work, the thread is the
//! wrong owner. Name one for each job with `lock.owned_by(Owner::new())`.
//!
//! A signal closes the locker: threads that wait for the lock get `Error::Closed`, and one that has
//! it releases it.

use std::panic::resume_unwind;
use std::path::Path;
use std::time::Duration;
use std::{env, fs, io, thread};

use lockhound::{Error, Lock, Locker, Loss};
use tokio::runtime;

use crate::{Failure, Outcome, stopped};

const THREADS: usize = 4;

pub(crate) fn run(url: &str) -> Outcome {
    let locks = Locker::blocking_connect(url)?;
    let file = env::temp_dir().join("lockhound-recipes-threads");
    close_when_stopped(&locks)?;
    println!("counting; Ctrl-C or SIGTERM stops");
    match count_in_threads(&locks.get("recipes:threads"), &file) {
        Ok(()) => println!(
            "{} has been counted up to {}",
            file.display(),
            fs::read_to_string(&file)?
        ),
        Err(failure) if is_stopped(&failure) => println!("stopped"),
        Err(failure) => return Err(failure),
    }
    // Once all guards are gone, and before `main` ends.
    locks.blocking_close();
    Ok(())
}

/// Closes the locker at a signal to stop: from then on, every call returns `Error::Closed`.
fn close_when_stopped(locks: &Locker) -> Outcome {
    let (locks, waiting) = (
        locks.clone(),
        runtime::Builder::new_current_thread()
            .enable_all()
            .build()?,
    );
    let stopped = {
        let _entered = waiting.enter();
        stopped()?
    };
    thread::spawn(move || {
        waiting.block_on(stopped);
        locks.blocking_close();
    });
    Ok(())
}

/// Returns whether a thread found the locker closed. The work that it did not do is left out, and
/// nothing is halfway.
fn is_stopped(failure: &Failure) -> bool {
    let closed = |error: &Error| {
        matches!(
            error,
            Error::Closed
                | Error::Lost {
                    loss: Loss::Closed,
                    ..
                }
        )
    };
    failure.downcast_ref().is_some_and(closed)
}

/// Counts a file up in several threads, ten times in each.
fn count_in_threads(lock: &Lock, file: &Path) -> Outcome {
    thread::scope(|scope| {
        let count = || (0..10).try_for_each(|_| count_up(lock, file));
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(count)).collect();
        // A panic of a thread continues here.
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Reads a number, and writes it back one higher. Two threads that do so at once would lose a
/// count.
fn count_up(lock: &Lock, file: &Path) -> Outcome {
    let guard = lock.blocking_lock()?;
    let number = read(lock, file)?;
    // This reads the clock: a thread that was paused for longer than the lease does not write.
    guard.check()?;
    fs::write(file, (number + 1).to_string())?;
    Ok(guard.blocking_unlock()?)
}

/// Takes the lock itself, so that it may be called without it too.
fn read(lock: &Lock, file: &Path) -> Result<u32, Failure> {
    let guard = lock.blocking_lock()?;
    let number = match fs::read_to_string(file) {
        Ok(text) => text.trim().parse()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error.into()),
    };
    thread::sleep(Duration::from_millis(1));
    guard.blocking_unlock()?;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::Redis;

    #[test]
    fn two_programs_lose_no_count() {
        let redis = Redis::start();
        let programs = [0, 1].map(|_| Locker::blocking_connect(redis.url()).expect("connected"));
        let file = env::temp_dir().join(format!("lockhound-recipes-{}", programs[0].id()));
        thread::scope(|scope| {
            for program in &programs {
                let file = &file;
                scope.spawn(move || {
                    count_in_threads(&program.get("threads"), file).expect("counted");
                });
            }
        });
        let counted = fs::read_to_string(&file).expect("written");
        fs::remove_file(&file).expect("it was there");
        assert_eq!(counted, (2 * THREADS * 10).to_string());
        programs.iter().for_each(Locker::blocking_close);
    }
}
