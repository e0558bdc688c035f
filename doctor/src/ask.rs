//! Asks a server, on a connection of its own and without writing anything.
//!
//! Rights are tried in a script that may not write (`#!lua flags=no-writes`), since a server checks
//! rights before it refuses a write: HSETNX and INCR have no form that writes nothing, and the user
//! of an application may rarely call `ACL DRYRUN`. The same script asks the server for the right to
//! subscribe, which cannot be tried in it.
//!
//! # Invariants
//! - Nothing that is sent writes, whatever rights the user has: scripts that try commands may not
//!   write, and all other commands only read. Even if a command came twice, or late, nothing would
//!   be written.

use std::time::{Duration, SystemTime};

use futures_util::future::{join, join_all, join4};
use lockhound::servers::{
    Answered, CommandUsage, Right, ServerHandle, ServerReply, Unanswered, Visit,
};

use crate::found::{Finding, SentinelReport, ServerReport};
use crate::rights::{Questions, Tried};
use crate::shown::cut;
use crate::told::{Hello, Told, ToldOfCluster, value};

/// How many round trips are measured, and for how long at most.
const TRIPS: usize = 50;
const TRIPS_TIME: Duration = Duration::from_secs(1);

/// The script that tries commands without writing.
const PROBE: &str = concat!("#!lua flags=no-writes\n", include_str!("probe.lua"));

const ODD: &str = "the server answered something other than what was asked";

type Outcome = Result<Answered, Unanswered>;

/// Examines a server, and its Sentinels. What is not answered in time is unknown.
pub(crate) async fn server_report(server: &ServerHandle, asked: &Questions) -> ServerReport {
    let sentinels = server.sentinels();
    let (report, sentinels) = join(
        visit(server, asked),
        join_all(sentinels.iter().map(sentinel)),
    )
    .await;
    ServerReport {
        abstains: server.why_no_vote(),
        sentinels,
        ..report
    }
}

async fn visit(server: &ServerHandle, asked: &Questions) -> ServerReport {
    let node = || server.name().clone();
    let visit = match server.visit().await {
        Ok(visit) => visit,
        Err(unanswered) => return ServerReport::not_reached(node(), why(unanswered)),
    };
    let hello = visit.ask(&["HELLO"]).await;
    if let Err(Unanswered::Silent(why)) = hello {
        return ServerReport::not_reached(node(), format!("connected, but did not answer: {why}"));
    }
    let hello = finding(hello, "+hello", |reply| Some(Hello::read(reply)));
    let mut report = ServerReport {
        rights: asked.not_answered(),
        ..ServerReport::unasked(node())
    };
    ask(&visit, hello, asked, &mut report).await;
    report
}

async fn ask(visit: &Visit, hello: Finding<Hello>, asked: &Questions, report: &mut ServerReport) {
    let in_cluster = hello
        .known()
        .is_some_and(|hello| hello.mode.as_deref() == Some("cluster"));
    let cluster = async {
        if !in_cluster {
            return None;
        }
        let settings = join_all(ToldOfCluster::SETTINGS.map(|name| setting(visit, name)));
        let (info, settings) =
            join(text(visit, &["CLUSTER", "INFO"], "+cluster|info"), settings).await;
        Some(ToldOfCluster { info, settings })
    };
    let settings = join_all(Told::SETTINGS.map(|name| setting(visit, name)));
    let replicas = async {
        let (count, timeout) = asked.replicas?;
        let acknowledged = |reply: &ServerReply| match reply {
            ServerReply::Int(by) => u64::try_from(*by).ok(),
            _ => None,
        };
        let wait = visit
            .ask(&["WAIT", &count.to_string(), &timeout.as_millis().to_string()])
            .await;
        Some(finding(wait, "+wait", acknowledged))
    };
    let (info, cluster, settings, replicas) =
        join4(text(visit, &["INFO"], "+info"), cluster, settings, replicas).await;
    report.learn(&Told {
        hello,
        info,
        cluster,
        settings,
    });
    if let Some(acknowledging) = replicas {
        report.acknowledging = acknowledging;
    }
    trips(visit, report).await;
    let tried = match told_by_itself(visit, asked).await {
        Some(tried) => tried,
        None => try_all(visit, asked).await,
    };
    report.rights = asked.rights(&tried);
}

/// Returns the reason why there is no answer.
fn why(unanswered: Unanswered) -> String {
    match unanswered {
        Unanswered::Forbidden(why) | Unanswered::Refused(why) | Unanswered::Silent(why) => why,
        _ => "there is no answer".to_owned(),
    }
}

/// Returns the answer to a command, or the rule that its user lacks for it.
fn finding<T>(
    outcome: Outcome,
    rule: &'static str,
    read: impl FnOnce(&ServerReply) -> Option<T>,
) -> Finding<T> {
    match outcome {
        Ok(answered) => Finding::Known(answered).and_then(|answered| read(&answered.reply)),
        Err(Unanswered::Forbidden(_)) => Finding::Forbidden(rule),
        Err(unanswered) => Finding::Unknown(why(unanswered)),
    }
}

async fn text(visit: &Visit, words: &[&str], rule: &'static str) -> Finding<String> {
    finding(visit.ask(words).await, rule, |reply| match reply {
        ServerReply::Text(text) => Some(text.clone()),
        _ => None,
    })
}

async fn setting(visit: &Visit, name: &str) -> Finding<String> {
    finding(
        visit.ask(&["CONFIG", "GET", name]).await,
        "+config|get",
        |reply| value(reply, name),
    )
}

/// Measures round trips, one after the other. Each one also reads the server's time.
async fn trips(visit: &Visit, report: &mut ServerReport) {
    let (mut trips, mut spent) = (Vec::new(), Duration::ZERO);
    while trips.len() < TRIPS && spent < TRIPS_TIME {
        let outcome = visit.ask(&["TIME"]).await;
        let (took, sent) = match &outcome {
            Ok(answered) => (answered.took, answered.sent),
            Err(_) => (Duration::ZERO, SystemTime::UNIX_EPOCH),
        };
        match finding(outcome, "+time", micros) {
            Finding::Known(there) => trips.push((took, micros_of(sent), there)),
            Finding::Forbidden(rule) => {
                report.clock = Finding::Forbidden(rule);
                report.round_trip = Finding::Forbidden(rule);
                return;
            }
            Finding::Unknown(why) => {
                report.clock = Finding::Unknown(why.clone());
                report.round_trip = Finding::Unknown(why);
                return;
            }
        }
        spent += took;
    }
    report.learn_trips(&trips);
}

/// Reads the answer to TIME: seconds and microseconds.
fn micros(reply: &ServerReply) -> Option<u64> {
    let ServerReply::List(items) = reply else {
        return None;
    };
    let [ServerReply::Text(seconds), ServerReply::Text(micros)] = &items[..] else {
        return None;
    };
    seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000)?
        .checked_add(micros.parse().ok()?)
}

fn micros_of(time: SystemTime) -> u64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Asks the server for the user's rights by `ACL DRYRUN`, which almost no application's user may
/// call. Returns `None` if the server does not tell.
async fn told_by_itself(visit: &Visit, asked: &Questions) -> Option<Vec<Tried>> {
    let Finding::Known(user) = text(visit, &["ACL", "WHOAMI"], "+acl|whoami").await else {
        return None;
    };
    let dry_run = asked.rights.iter().map(async |right| {
        let words = right.words.iter().map(String::as_str);
        visit
            .ask(
                &["ACL", "DRYRUN", &user]
                    .into_iter()
                    .chain(words)
                    .collect::<Vec<_>>(),
            )
            .await
    });
    let read = |outcome| match outcome {
        Ok(Answered {
            reply: ServerReply::Text(text),
            ..
        }) if text == "OK" => Some(Tried::Permitted),
        Ok(Answered {
            reply: ServerReply::Text(text),
            ..
        }) => Some(Tried::Refused(text)),
        Err(Unanswered::Silent(why)) => Some(Tried::Unknown(why)),
        // The user may not ask, or the server is too old.
        Ok(_) | Err(_) => None,
    };
    join_all(dry_run).await.into_iter().map(read).collect()
}

/// Tries the commands: those that only read are sent, and a script calls the others.
async fn try_all(visit: &Visit, asked: &Questions) -> Vec<Tried> {
    let (sent, called): (Vec<_>, Vec<_>) = asked
        .rights
        .iter()
        .partition(|right| right.usage == CommandUsage::Sent);
    let send = sent.iter().map(async |right| {
        let words: Vec<&str> = right.words.iter().map(String::as_str).collect();
        permission(visit.ask(&words).await)
    });
    let mut script = vec!["EVAL", PROBE, "0"];
    let counts: Vec<String> = called
        .iter()
        .map(|right| right.words.len().to_string())
        .collect();
    for (right, count) in called.iter().zip(&counts) {
        script.push(if right.usage == CommandUsage::Subscribed {
            "ask"
        } else {
            "try"
        });
        script.push(count);
        script.extend(right.words.iter().map(String::as_str));
    }
    let (sent, answer) = join(join_all(send), visit.ask(&script)).await;
    let (mut sent, mut called) = (
        sent.into_iter(),
        read_called(answer, called.len()).into_iter(),
    );
    let next = |right: &Right| {
        if right.usage == CommandUsage::Sent {
            sent.next()
        } else {
            called.next()
        }
    };
    asked.rights.iter().filter_map(next).collect()
}

/// Returns whether a command was permitted, whatever else the answer is: a server checks rights
/// first.
fn permission(outcome: Outcome) -> Tried {
    match outcome {
        Ok(_) | Err(Unanswered::Refused(_)) => Tried::Permitted,
        Err(Unanswered::Forbidden(text)) => Tried::Refused(text),
        Err(unanswered) => Tried::Unknown(why(unanswered)),
    }
}

/// Reads the script's answer about this many commands.
fn read_called(answer: Outcome, commands: usize) -> Vec<Tried> {
    let all = |reason: &str| vec![Tried::Unknown(reason.to_owned()); commands];
    match answer {
        Ok(Answered {
            reply: ServerReply::List(refusals),
            ..
        }) if refusals.len() == commands => {
            let read = |refusal| match refusal {
                ServerReply::Text(text) if is_forbidden(&text) => Tried::Refused(text),
                ServerReply::Text(_) => Tried::Permitted,
                _ => Tried::Unknown(ODD.to_owned()),
            };
            refusals.into_iter().map(read).collect()
        }
        Ok(_) => all(ODD),
        Err(Unanswered::Forbidden(_)) => all("without +eval it cannot be tried"),
        Err(Unanswered::Refused(text)) if text.contains("ompiling script") => {
            all("a server before version 7 has no scripts that try without writing")
        }
        Err(unanswered) => all(&why(unanswered)),
    }
}

/// Returns whether a script was refused a command for the lack of a right. Only newer servers have
/// a code for that.
fn is_forbidden(error: &str) -> bool {
    [
        "NOPERM",
        "ERR The user executing the script can't",
        "ERR ACL failure in script",
    ]
    .iter()
    .any(|beginning| error.trim_start_matches('-').starts_with(beginning))
}

/// Asks a Sentinel which server is the master, and when it would replace it.
async fn sentinel(sentinel: &ServerHandle) -> SentinelReport {
    let service = sentinel.service().unwrap_or_default();
    let (told, master) = match sentinel.visit().await {
        Ok(visit) => {
            let told = visit.ask(&["SENTINEL", "MASTER", service]).await;
            let master = visit
                .ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service])
                .await;
            (
                finding(told, "+sentinel|master", |reply| Some(reply.clone())),
                read_master(master, service),
            )
        }
        Err(unanswered) => {
            let why = why(unanswered);
            (Finding::Unknown(why.clone()), Finding::Unknown(why))
        }
    };
    let number = |name| {
        told.clone()
            .and_then(|told| value(&told, name)?.parse().ok())
    };
    SentinelReport {
        node: sentinel.name().clone(),
        master,
        down_after: number("down-after-milliseconds").map(Duration::from_millis),
        quorum: number("quorum"),
        others: number("num-other-sentinels"),
    }
}

/// Reads the answer to GET-MASTER-ADDR-BY-NAME.
fn read_master(outcome: Outcome, service: &str) -> Finding<String> {
    let unknown = |why: String| Finding::Unknown(why);
    match outcome {
        Ok(Answered {
            reply: ServerReply::List(place),
            ..
        }) => match &place[..] {
            [ServerReply::Text(host), ServerReply::Text(port)] if host.contains(':') => {
                Finding::Known(cut(&format!("[{host}]:{port}")))
            }
            [ServerReply::Text(host), ServerReply::Text(port)] => {
                Finding::Known(cut(&format!("{host}:{port}")))
            }
            _ => unknown("names a master without an address".to_owned()),
        },
        Ok(_) => unknown(format!(
            "knows no master named {service}: correct sentinelServiceName"
        )),
        Err(Unanswered::Silent(why)) => unknown(why),
        Err(unanswered) => match why(unanswered) {
            said if said.contains("unknown command") => unknown(format!("is no Sentinel: {said}")),
            said => unknown(format!("refuses to name the master: {said}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_right_is_forbidden_to_a_script() {
        for error in [
            "NOPERM ACL failure in script: User app has no permissions to run the 'del' command",
            "ERR The user executing the script can't run this command or subcommand",
            "ERR ACL failure in script: No permissions to access a key",
        ] {
            assert!(is_forbidden(error), "{error}");
        }
        for error in [
            "",
            "ERR Write commands are not allowed from read-only scripts.",
            "WRONGTYPE Operation",
        ] {
            assert!(!is_forbidden(error), "{error}");
        }
    }

    #[test]
    fn the_header_of_the_script_describes_its_body() {
        let is_header = |line: &&str| line.starts_with("--");
        let text = include_str!("probe.lua");
        let header: String = text.lines().take_while(is_header).collect();
        let body: String = text.lines().skip_while(is_header).collect();
        for word in ["ARGV", "Returns an array", "`try`", "`ask`"] {
            assert!(header.contains(word), "{word}");
        }
        assert!(
            !body.contains("KEYS")
                && body.contains("ARGV[at] == 'try'")
                && body.contains("return errors")
        );
    }
}
