//! `lockhound doctor`: which promises the servers keep.

use std::collections::BTreeSet;
use std::fmt;

use clap::builder::NonEmptyStringValueParser;
use lockhound::Locker;
use lockhound::servers::{Right, ServerHandle, ServerReply};
use lockhound_doctor::{Answer, Promise, Report, ServerReport, Verdict, examine_keys};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::out;
use crate::place::Place;

/// The exit codes, for the help.
const CODES: &str = "\
Exit codes:
  0    every promise is kept, or does not apply
  1    at risk: locks work, but a promise is not kept, or not known to be
  2    broken: locks do not work, or not with one holder at a time
  64   wrong usage: an option, an address or a name
  69   no server, or no majority of several, gave a usable answer
  70   a fault of lockhound itself";

/// Says which promises the servers keep, and what to change
///
/// It takes no lock. It prints the ACL SETUSER line for the rights that the user lacks, and with
/// --for the line of a user for these locks, as the prompt of redis-cli takes it. The guide of the
/// library, `guide::operating`, explains the report.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Args {
    /// Ask for the rights on the locks with these names; one for each pattern of names is enough
    #[arg(
        long = "for",
        value_name = "KEY",
        num_args = 1..,
        value_parser = NonEmptyStringValueParser::new()
    )]
    names: Vec<String>,

    /// Write an object: `state` (kept, at risk, broken), `promises`, `servers` and `acl`
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: Place,
}

/// How well the servers keep locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Kept = 0,
    AtRisk = 1,
    Broken = 2,
}

impl State {
    fn of(report: &Report) -> Self {
        let is_broken = |promise| {
            report
                .verdict(promise)
                .is_some_and(|verdict| verdict.answer == Answer::Broken)
        };
        if is_broken(Promise::Locking) || is_broken(Promise::Exclusion) {
            Self::Broken
        } else if report.is_ok() {
            Self::Kept
        } else {
            Self::AtRisk
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::AtRisk => "at risk",
            Self::Broken => "broken",
        })
    }
}

/// Runs the subcommand, and returns its exit code.
pub(crate) async fn run(args: &Args) -> Result<u8, Failure> {
    let locker = args.place.builder()?.connect().await?;
    let code = args.examine(&locker).await;
    locker.close().await;
    code
}

impl Args {
    async fn examine(&self, locker: &Locker) -> Result<u8, Failure> {
        let report = examine_keys(locker, &self.names).await?;
        let lines = self.acl(locker, &report).await?;
        let state = State::of(&report);
        if self.json {
            let promises: Vec<_> = report.verdicts.iter().map(promise).collect();
            let servers: Vec<_> = report.servers.iter().map(server).collect();
            let object = json!({
                "state": state.to_string(), "promises": promises, "servers": servers, "acl": lines,
            });
            out::line(format_args!("{object:#}"))?;
        } else {
            out::line(format_args!("{report}"))?;
            for line in lines {
                out::line(line)?;
            }
            out::line(format_args!("state: {state}"))?;
        }
        Ok(state as u8)
    }

    /// Returns the lines that give users the rights that they lack.
    async fn acl(&self, locker: &Locker, report: &Report) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        for handle in locker.servers().await? {
            let of_it = |server: &&ServerReport| server.node == *handle.name();
            let Some(server) = report.servers.iter().find(of_it) else {
                continue;
            };
            let missing = server
                .rights
                .missing
                .iter()
                .map(|right| right.rule.as_str());
            let rules: BTreeSet<&str> = missing.collect();
            if !rules.is_empty() {
                let line = set_user(&user(&handle).await, rules);
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
        if !self.names.is_empty() {
            let rights = locker.rights(&self.names)?;
            let names = rights.iter().filter_map(|right| right.names.as_deref());
            let rules = rights.iter().map(|right: &Right| right.rule.as_str());
            let rules: BTreeSet<&str> = names.chain(rules).collect();
            let first = ["reset", "resetchannels", "on", ">PASSWORD"];
            lines.push(set_user("NAME", first.into_iter().chain(rules)));
        }
        Ok(lines)
    }
}

/// Returns a line for `redis-cli`, with its kind of quotes. Servers take no patterns with spaces: a
/// question mark, which matches any character, is in their place.
fn set_user<'a>(user: &'a str, rules: impl IntoIterator<Item = &'a str>) -> String {
    let words = ["ACL", "SETUSER", user].into_iter().chain(rules);
    let quoted = |word: &str| {
        let word = word.replace(|c| matches!(c, '\0' | ' ' | '\t'..='\r'), "?");
        let is_plain = |c: char| c.is_ascii_graphic() && !"\"'\\".contains(c);
        if word.chars().all(is_plain) {
            return word;
        }
        let bytes = word.bytes().map(|byte| match byte {
            b'"' | b'\\' => format!("\\{}", char::from(byte)),
            b'!'..=b'~' => char::from(byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        });
        format!("\"{}\"", bytes.collect::<String>())
    };
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// Returns the name of the user that this locker is at a server, or a place for it where the user
/// may not ask.
async fn user(server: &ServerHandle) -> String {
    let name = async {
        let visit = server.visit().await.ok()?;
        match visit.ask(&["ACL", "WHOAMI"]).await.ok()?.reply {
            ServerReply::Text(name) => Some(name),
            _ => None,
        }
    };
    name.await.unwrap_or_else(|| "NAME".to_owned())
}

fn promise(verdict: &Verdict) -> Value {
    let answer = match verdict.answer {
        Answer::Kept => "kept",
        Answer::Broken => "broken",
        Answer::NotApplicable => "not_applicable",
        _ => "unknown",
    };
    let reasons = verdict.reasons.iter().map(|reason| {
        json!({ "server": reason.node.as_deref(), "problem": reason.problem, "remedy": reason.remedy })
    });
    json!({
        "promise": snake_case(verdict.promise),
        "about": verdict.promise.to_string(),
        "answer": answer,
        "reasons": reasons.collect::<Vec<_>>(),
    })
}

fn server(server: &ServerReport) -> Value {
    let missing = server.rights.missing.iter().map(|right| &*right.rule);
    let unknown = server.rights.unknown.iter().map(|right| &*right.rule);
    json!({
        "server": &*server.node,
        "version": server.version.known().map(|version| version.number.as_str()),
        "failure": server.failure,
        "missing": missing.collect::<BTreeSet<_>>(),
        "unknown": unknown.collect::<BTreeSet<_>>(),
    })
}

/// Returns the name of a promise, as the library's documentation has it: `fault_tolerance`.
fn snake_case(promise: Promise) -> String {
    let mut name = String::new();
    for c in format!("{promise:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_can_be_pasted() {
        assert_eq!(
            set_user("app", ["~a b\n", "+get", "~\"q\" \u{1}", "&x\\*", "~é"]),
            r#"ACL SETUSER app ~a?b? +get "~\"q\"?\x01" "&x\\*" "~\xc3\xa9""#
        );
        assert_eq!(snake_case(Promise::FaultTolerance), "fault_tolerance");
    }
}
