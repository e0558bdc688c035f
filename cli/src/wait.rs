//! Waiting for the lock, and saying so.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use lockhound::{Error, Locker, MultiGuard, MultiLock};
use tokio::time::sleep;

use crate::say::say;

/// A wait that is shorter is not worth a line.
const SHORT: Duration = Duration::from_millis(200);
/// The time between two lines.
const AGAIN: Duration = Duration::from_secs(10);

/// How long to wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    Never,
    For(Duration),
    Endless,
}

impl Patience {
    /// Takes the locks; `None` if somebody else has one of them.
    pub(crate) async fn take(self, locks: &MultiLock) -> Result<Option<MultiGuard>, Error> {
        match self {
            Self::Never => locks.try_lock().await,
            Self::For(time) => locks.try_lock_for(time).await,
            Self::Endless => locks.lock().await.map(Some),
        }
    }

    /// Does the same, and says meanwhile what it waits for.
    pub(crate) async fn take_aloud(
        self,
        locker: &Locker,
        locks: &MultiLock,
    ) -> Result<Option<MultiGuard>, Error> {
        let start = Instant::now();
        let taken = tokio::select! {
            biased;
            taken = self.take(locks) => taken?,
            never = self.tell(locker, locks) => match never {},
        };
        let after = start.elapsed();
        match &taken {
            Some(guard) => {
                for (key, fence) in guard.fences() {
                    say(format_args!(
                        "locked {key:?} after {after:.1?}, fence {fence}"
                    ));
                }
            }
            None => say(format_args!(
                "gave up after {after:.1?}: {}",
                holders(locker, locks).await
            )),
        }
        Ok(taken)
    }

    async fn tell(self, locker: &Locker, locks: &MultiLock) -> Infallible {
        let start = Instant::now();
        sleep(SHORT).await;
        loop {
            let most = match self {
                Self::For(time) => format!(" of at most {}", humantime::format_duration(time)),
                Self::Never | Self::Endless => String::new(),
            };
            let since = start.elapsed();
            let who = holders(locker, locks).await;
            say(format_args!("waiting for {since:.1?}{most}: {who}"));
            sleep(AGAIN).await;
        }
    }
}

/// Returns who has which of the locks.
async fn holders(locker: &Locker, locks: &MultiLock) -> String {
    let mut held = Vec::new();
    for key in locks.keys() {
        match locker.get(key.clone()).holder().await {
            Ok(Some(holder)) => {
                let owner = holder.owner().escape_debug().to_string();
                let who = match holder.label() {
                    Some(label) => format!("{label} ({owner})"),
                    None => owner,
                };
                let left = match holder.remaining() {
                    Some(left) => format!("{left:.1?} of its lease are left"),
                    None => "it has no lease".to_owned(),
                };
                held.push(format!("{key:?} is held by {who}, {left}"));
            }
            Ok(None) => {}
            Err(error) => return format!("cannot tell who has it: {error}"),
        }
    }
    if held.is_empty() {
        return "it is free by now".to_owned();
    }
    held.join("; ")
}
