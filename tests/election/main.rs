//! Elections, on one server and on several.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod history;
mod leading;
mod observing;
mod rights;

use std::time::Duration;

use common::Server;
use lockhound::{Election, Error, Leader, Leadership, Observer};
use tokio::task::JoinHandle;

/// A lease so long that nobody looks by itself, however busy the machine is.
const LONG: Duration = Duration::from_secs(1_200);
/// By then a message has been heard.
const SOON: Duration = Duration::from_secs(5);
/// A lease that tests wait for.
const SHORT: Duration = Duration::from_millis(1_200);

/// Campaigns in a task.
fn campaigns(election: &Election, value: &'static str) -> JoinHandle<Result<Leadership, Error>> {
    let election = election.clone();
    tokio::spawn(async move { election.campaign(value).await })
}

/// Returns the leadership of a task that campaigns.
async fn elected(campaign: JoinHandle<Result<Leadership, Error>>) -> Leadership {
    let elected = common::soon(SOON, campaign).await;
    elected.expect("it leads").unwrap().unwrap()
}

/// Returns the next change that an observer sees, which comes soon.
async fn next(observer: &mut Observer) -> Option<Leader> {
    let changed = common::soon(SOON, observer.changed()).await;
    changed.expect("there is a change").unwrap()
}

/// Waits until an observer sees a leader with this value, or none. A hand-over shows the next
/// leader before its value.
async fn sees(observer: &mut Observer, value: Option<&str>) {
    while next(observer).await.as_ref().and_then(Leader::value) != value {}
}

/// Has an observer wait, in a task, for a leader with this value, or for none. It has read before
/// this returns, and sees by a message or a look what changes after that.
async fn waits_to_see(
    server: &Server,
    mut observer: Observer,
    value: Option<&'static str>,
) -> JoinHandle<Observer> {
    // Of all scripts here, only an observer's asks for a type.
    let reads = server.calls("type");
    let waiting = tokio::spawn(async move {
        sees(&mut observer, value).await;
        observer
    });
    common::eventually(SOON, "it reads", || server.calls("type") > reads).await;
    waiting
}

/// Returns an observer that waited, once it has seen what it waited for.
async fn seen(waiting: JoinHandle<Observer>) -> Observer {
    let seen = common::soon(SOON, waiting).await;
    seen.expect("it is told").unwrap()
}
