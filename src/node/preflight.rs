//! Checks a server for `preflight`, on a connection of its own and without writing anything.
//!
//! It has its own connection because a refused SUBSCRIBE leaves the replies behind it out of step. Rights are tried in
//! a script that may not write (`#!lua flags=no-writes`), since a server checks rights before it refuses a write:
//! HSETNX and INCR have no form that writes nothing, and the user of an application may rarely call `ACL DRYRUN`.
//!
//! # Invariants
//! - Nothing that is sent writes, whatever rights the user has: scripts that try commands may not write, and all other
//!   commands only read. Even if a command came twice, or late, nothing would be written.

use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::check;
use super::client::Role;
use super::link::Link;
use super::reply::{self, Outcome, Reply};
use crate::clock::{Instant, wall_micros};
use crate::error::{Error, NodeFailure, ServerErrorKind};
use crate::options::Replicas;
use crate::preflight::{Finding, Probe, Questions, ServerReport, Told, ToldOfCluster, Tried, Way};
use crate::shown::cut;

/// How many round trips are measured, and for how long at most.
pub(super) const TRIPS: usize = 50;
pub(super) const TRIPS_TIME: Duration = Duration::from_secs(1);

/// Checks the server that this connection leads to. Connecting may take `connect_timeout`, and so may the answers: what
/// is not answered by then is unknown.
pub(super) async fn preflight(beside: &Link, probe: &str, asked: &Questions) -> ServerReport {
    let node = || Arc::clone(beside.server());
    let bound = beside.settings().connect_timeout;
    let link = match timeout(bound, beside.another(Role::Preflight)).await {
        Ok(Ok(link)) => link,
        Ok(Err(error)) => {
            let refusal = check::refusal(&node(), &error, bound).into_error(&node());
            return ServerReport::not_reached(node(), said(refusal));
        }
        Err(_) => return ServerReport::not_reached(node(), format!("cannot connect: timed out after {bound:?}")),
    };
    let mut report = ServerReport { rights: asked.not_answered(), ..ServerReport::unasked(node()) };
    let in_time = timeout(bound, ask(&link, probe, asked, &mut report)).await;
    if in_time.is_err() && report.version.known().is_none() {
        report = ServerReport::not_reached(node(), format!("connected, but did not answer within {bound:?}"));
    }
    // Nobody waits for this: a stopped server does not answer.
    tokio::spawn(async move { link.quit().await });
    report
}

/// Returns why a server was not reached, without its name.
fn said(error: Error) -> String {
    match error {
        Error::Unavailable { nodes, .. } => nodes.into_iter().map(|node| node.reason).collect::<Vec<_>>().join("; "),
        Error::Server { source, .. } => format!("refuses the connection: {}", source.message),
        error => error.to_string(),
    }
}

async fn ask(link: &Arc<Link>, probe: &str, asked: &Questions, report: &mut ServerReport) {
    let hello = finding(link.call("HELLO", Vec::new()).await, "+hello", |reply| Some(check::hello(reply)));
    let in_cluster = hello.known().is_some_and(|hello| hello.mode.as_deref() == Some("cluster"));
    let cluster = async {
        if !in_cluster {
            return None;
        }
        let info = text(link, "CLUSTER", &["INFO"], "+cluster|info");
        let [node_timeout, coverage] = ToldOfCluster::SETTINGS.map(|name| setting(link, name));
        let (info, node_timeout, coverage) = tokio::join!(info, node_timeout, coverage);
        Some(ToldOfCluster { info, settings: [node_timeout, coverage] })
    };
    let settings = join_all(Told::SETTINGS.map(|name| setting(link, name)));
    let replicas = async {
        let Replicas { count, timeout } = asked.replicas?;
        let acknowledged = |reply: &Reply| if let Reply::Int(by) = reply { u64::try_from(*by).ok() } else { None };
        let args = words(&[&count.to_string(), &timeout.as_millis().to_string()]);
        Some(finding(link.call("WAIT", args).await, "+wait", acknowledged))
    };
    let (info, cluster, settings, replicas) =
        tokio::join!(text(link, "INFO", &[], "+info"), cluster, settings, replicas);
    report.learn(&Told { hello, info, cluster, settings });
    if let Some(acknowledging) = replicas {
        report.acknowledging = acknowledging;
    }
    trips(link, report).await;
    let mut tried = match told_by_itself(link, &asked.probes).await {
        Some(tried) => tried,
        None => try_all(link, probe, &asked.probes).await,
    };
    // The answers so far count if the connection is in step. For a user that may not call PING, this cannot be told.
    if let Outcome::Unknown(NodeFailure { reason, .. }) = link.barrier().await {
        *report = ServerReport::not_reached(Arc::clone(link.server()), reason);
        return;
    }
    // Last: a refusal of SUBSCRIBE leaves the replies out of step.
    let mut open: Vec<usize> = (0..tried.len()).filter(|&at| tried[at].is_none()).collect();
    // SSUBSCRIBE has an answer of its own, and comes before the others.
    open.sort_by_key(|&at| asked.probes[at].name != "SSUBSCRIBE");
    if !open.is_empty() {
        let subscribed = subscribe(link, open.iter().map(|&at| &asked.probes[at])).await;
        open.into_iter().zip(subscribed).for_each(|(at, subscribed)| tried[at] = Some(subscribed));
    }
    report.rights = asked.rights(&tried.into_iter().flatten().collect::<Vec<_>>());
}

/// Returns the answer to a command, or the rule that its user lacks for it.
fn finding<T>(outcome: Outcome<Reply>, rule: &'static str, read: impl FnOnce(&Reply) -> Option<T>) -> Finding<T> {
    match outcome {
        Outcome::Done(reply) => Finding::Known(reply).and_then(|reply| read(&reply)),
        Outcome::Refused(Error::Server { kind: ServerErrorKind::NoPermission, .. }) => Finding::Forbidden(rule),
        Outcome::Refused(Error::Server { source, .. }) => Finding::Unknown(source.message),
        Outcome::Refused(error) => Finding::Unknown(error.to_string()),
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => Finding::Unknown(failure.reason),
    }
}

async fn text(link: &Link, command: &'static str, args: &[&str], rule: &'static str) -> Finding<String> {
    finding(link.call(command, words(args)).await, rule, |reply| match reply {
        Reply::Bytes(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    })
}

async fn setting(link: &Link, name: &str) -> Finding<String> {
    finding(link.call("CONFIG", words(&["GET", name])).await, "+config|get", |reply| check::value(reply, name))
}

fn words(words: &[&str]) -> Vec<Value> {
    words.iter().map(|&word| word.into()).collect()
}

/// Measures round trips, one after the other. Each one also reads the server's time.
async fn trips(link: &Link, report: &mut ServerReport) {
    let until = Instant::now() + TRIPS_TIME;
    let mut trips = Vec::new();
    while trips.len() < TRIPS && (trips.is_empty() || Instant::now() < until) {
        let (sent, here) = (Instant::now(), wall_micros());
        let outcome = link.call("TIME", Vec::new()).await;
        let took = Instant::now().since(sent);
        match finding(outcome, "+time", micros) {
            Finding::Known(there) => trips.push((took, here, there)),
            Finding::Forbidden(rule) => {
                (report.clock, report.round_trip) = (Finding::Forbidden(rule), Finding::Forbidden(rule));
                return;
            }
            Finding::Unknown(why) => {
                (report.clock, report.round_trip) = (Finding::Unknown(why.clone()), Finding::Unknown(why));
                return;
            }
        }
    }
    report.learn_trips(&trips);
}

/// Reads the answer to TIME: seconds and microseconds.
fn micros(reply: &Reply) -> Option<u64> {
    let Reply::Array(items) = reply else { return None };
    let number = |item: &Reply| match item {
        Reply::Bytes(text) => std::str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let [seconds, micros] = &items[..] else { return None };
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}

/// Asks the server for the user's rights by `ACL DRYRUN`, which almost no application's user may call. Returns `None`
/// if the server does not tell.
async fn told_by_itself(link: &Link, probes: &[Probe]) -> Option<Vec<Option<Tried>>> {
    let Finding::Known(user) = text(link, "ACL", &["WHOAMI"], "+acl|whoami").await else { return None };
    let dry_run = |probe: &Probe| {
        let args = ["DRYRUN", &*user, probe.name].into_iter().chain(probe.args.iter().map(String::as_str));
        link.call("ACL", args.map(Value::from).collect())
    };
    let mut tried = Vec::with_capacity(probes.len());
    for outcome in join_all(probes.iter().map(dry_run)).await {
        tried.push(Some(match outcome {
            Outcome::Done(Reply::Bytes(text)) if &*text == b"OK" => Tried::Permitted,
            Outcome::Done(Reply::Bytes(text)) => Tried::Refused(cut(&text)),
            // The user may not ask, or the server is too old.
            Outcome::Refused(_) | Outcome::Done(_) => return None,
            Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => Tried::Unknown(failure.reason),
        }));
    }
    Some(tried)
}

/// Tries the commands that can be tried without harm. Returns `None` for those that have to be tried last.
async fn try_all(link: &Link, probe: &str, probes: &[Probe]) -> Vec<Option<Tried>> {
    let called: Vec<&Probe> = probes.iter().filter(|probe| probe.way == Way::InScript).collect();
    let sent = |probe: &Probe| link.call(probe.name, probe.args.iter().map(|arg| arg.as_str().into()).collect());
    let direct = probes.iter().filter(|probe| probe.way == Way::Directly);
    let (direct, called) = tokio::join!(join_all(direct.map(sent)), call(link, probe, &called));
    let (mut direct, mut called) = (direct.into_iter(), called.into_iter());
    let tried = |probe: &Probe| match probe.way {
        Way::Directly => direct.next().map(permission),
        Way::InScript => called.next(),
        Way::Subscribing => None,
    };
    probes.iter().map(tried).collect()
}

/// Returns whether a command was permitted, whatever else the answer is: a server checks rights first.
fn permission(outcome: Outcome<Reply>) -> Tried {
    match outcome {
        Outcome::Done(_) => Tried::Permitted,
        Outcome::Refused(Error::Server { kind: ServerErrorKind::NoPermission, source }) => {
            Tried::Refused(source.message)
        }
        Outcome::Refused(_) => Tried::Permitted,
        Outcome::NotExecuted(failure) if is_of_server(&failure.reason) => Tried::Permitted,
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => Tried::Unknown(failure.reason),
    }
}

/// Returns whether the reason is a server's error for a user that is logged in.
fn is_of_server(reason: &str) -> bool {
    let code = reply::code(reason);
    !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase()) && code != "NOAUTH"
}

/// Tries each of these in a script that may not write.
async fn call(link: &Link, probe: &str, probes: &[&Probe]) -> Vec<Tried> {
    let mut args = words(&[probe, "0"]);
    for Probe { name, args: rest, .. } in probes {
        args.push((rest.len() + 1).to_string().into());
        args.push((*name).into());
        args.extend(rest.iter().map(|word| Value::from(word.as_str())));
    }
    let all = |reason: String| probes.iter().map(|_| Tried::Unknown(reason.clone())).collect();
    match link.call("EVAL", args).await {
        Outcome::Done(Reply::Array(errors)) if errors.len() == probes.len() => {
            errors.into_iter().map(called_permission).collect()
        }
        Outcome::Done(_) => all("the server answered something other than what was asked".to_owned()),
        Outcome::Refused(Error::Server { kind: ServerErrorKind::NoPermission, .. }) => {
            all("without +eval it cannot be tried".to_owned())
        }
        Outcome::Refused(Error::Server { source, .. }) if source.message.contains("ompiling script") => {
            all("a server before version 7 has no scripts that try without writing".to_owned())
        }
        Outcome::Refused(error) => all(error.to_string()),
        Outcome::NotExecuted(failure) | Outcome::Unknown(failure) => all(failure.reason),
    }
}

fn called_permission(error: Reply) -> Tried {
    match error {
        Reply::Bytes(text) => {
            let text = cut(&text);
            if reply::code(&text) == "NOPERM" { Tried::Refused(text) } else { Tried::Permitted }
        }
        _ => Tried::Unknown("the server answered something other than what was asked".to_owned()),
    }
}

/// Subscribes to the channels of each of these, or unsubscribes. A refusal comes as the answer to the PING behind it,
/// and the PING's own answer then goes to the next command.
async fn subscribe(link: &Link, probes: impl Iterator<Item = &Probe>) -> Vec<Tried> {
    let mut tried = Vec::new();
    let mut slipped = 0;
    for probe in probes {
        let channels = probe.args.clone();
        let sent = match probe.name {
            "SSUBSCRIBE" => {
                // Its refusal is its own answer.
                tried.push(permission(link.subscribe_sharded(channels.concat()).await.map(|()| Reply::Nil)));
                continue;
            }
            "SUNSUBSCRIBE" => link.unsubscribe_sharded(channels.concat()).await,
            "SUBSCRIBE" => link.sorted(link.subscribe(channels).await),
            _ => link.sorted(link.unsubscribe(channels).await),
        };
        if let Outcome::Unknown(failure) = sent {
            tried.push(Tried::Unknown(failure.reason));
            continue;
        }
        // The answers to `slipped` earlier PINGs come first.
        let mut result = Tried::Permitted;
        let mut errors = 0;
        for _ in 0..=slipped {
            match link.call("PING", Vec::new()).await {
                Outcome::Refused(Error::Server { kind: ServerErrorKind::NoPermission, source })
                    if !source.message.contains("'ping'") =>
                {
                    result = Tried::Refused(source.message);
                    errors += 1;
                }
                // A master that does not have the slot of the channel checks the rights first.
                Outcome::NotExecuted(failure) if reply::code(&failure.reason) == "MOVED" => errors += 1,
                Outcome::Unknown(failure) => result = Tried::Unknown(failure.reason),
                Outcome::NotExecuted(failure) if !is_of_server(&failure.reason) => {
                    result = Tried::Unknown(failure.reason);
                }
                _ => {}
            }
        }
        slipped += errors;
        tried.push(result);
    }
    tried
}
