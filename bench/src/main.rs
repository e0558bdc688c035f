//! What a lock costs, compared with rslock and the same scripts on a bare socket: `./dev bench
//! [NAME] [--json]`.

mod alone;
mod bar;
mod connection;
mod contender;
mod contention;
// The tests' proxy for distances.
#[path = "../../tests/common/distance.rs"]
#[allow(
    unreachable_pub,
    reason = "a file of the tests, whose helpers are public"
)]
mod distance;
mod far;
mod fence;
mod laps;
mod memory;
mod renewal;
mod report;
mod scenario;
mod server;
mod spread;
mod stuck;
mod table;
mod waiters;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::report::Report;
use crate::scenario::Name;

/// Any error. The bench cannot recover from one: it prints it and ends.
type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "\
usage: ./dev bench [NAME] [--json] [--picture FILE] [--contest CONTEST]

  pair     uncontended lock and unlock: p50 and p99
  tasks    1, 64 and 1024 tasks, a key each
  fence    what a fence costs the server: acquire.lua against the same script without it
  renewal  1,000 to 100,000 locks kept alive: the watchdog, and rlock and distkit with a task and a script per lock
  quorum   1, 3 and 5 independent servers: 1 task, and 64 with a key each; and what their memory costs
  far      2, 10 and 20 contenders for one lock of three servers that are 2, 9 and 16 ms away, for each in another order
  replicas what an acknowledgement costs: replica_acks(1) against none, on a server with one replica
  waiters  1,000 and 80,000 callers in one line whose time ends together, while a lock with a short lease is held
  readwrite  readers and writers: lone pairs, 64 readers, a writer beside them, processes that mostly read
  contention  tasks, processes and clients in other languages that want one lock; how soon it goes from one to the next

Without a NAME it measures all of them, which takes about 24 minutes. --picture draws what contention found.
--contest measures one contest of contention, for example quorum-20.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == "contend"
    {
        return ended(contention::member::run(rest));
    }
    let request = match Request::parse(arguments.into_iter()) {
        Ok(request) => request,
        Err(what) => {
            eprintln!("{what}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if request.help {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if !server::is_installed() {
        eprintln!(
            "redis-server is missing, and the bench starts one of its own; install it (on Debian: apt-get install \
             redis-server), so that it is on the PATH"
        );
        return ExitCode::from(2);
    }
    ended(
        scenario::measure(&request.names, request.contest)
            .and_then(|report| show(&report, &request)),
    )
}

fn ended(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn show(report: &Report, request: &Request) -> Result<(), Failure> {
    if let Some((file, contention)) = request.picture.as_ref().zip(report.contention.as_ref()) {
        let written = std::fs::write(file, contention.picture());
        written.map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
    }
    if request.json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{}", table::text(report));
    }
    Ok(())
}

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    names: Vec<Name>,
    json: bool,
    help: bool,
    /// The file for the picture of `contention`.
    picture: Option<PathBuf>,
    /// The only contest of `contention` that is measured.
    contest: Option<&'static str>,
}

impl Request {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut request = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => request.json = true,
                "--picture" => {
                    request.picture = Some(
                        arguments
                            .next()
                            .ok_or("--picture needs the name of a file")?
                            .into(),
                    );
                }
                "--contest" => {
                    let name = arguments
                        .next()
                        .ok_or("--contest needs the name of a contest")?;
                    request.contest = Some(contention::contest_named(&name)?);
                    request.names.push(Name::Contention);
                }
                "-h" | "--help" => request.help = true,
                "pair" => request.names.push(Name::Pair),
                "tasks" => request.names.push(Name::Tasks),
                "fence" => request.names.push(Name::Fence),
                "renewal" => request.names.push(Name::Renewal),
                "far" => request.names.push(Name::Far),
                "quorum" => request.names.push(Name::Quorum),
                "replicas" => request.names.push(Name::Replicas),
                "waiters" => request.names.push(Name::Waiters),
                "readwrite" => request.names.push(Name::ReadWrite),
                "contention" => request.names.push(Name::Contention),
                other => return Err(format!("there is no measurement named \"{other}\"")),
            }
        }
        if request.names.is_empty() {
            request.names = Name::ALL.to_vec();
        }
        if request.picture.is_some() && !request.names.contains(&Name::Contention) {
            return Err(
                "--picture draws the results of \"contention\", which was not asked for".to_owned(),
            );
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request, String> {
        Request::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn without_a_name_everything_is_measured() {
        assert_eq!(
            parse("--json").map(|r| (r.names, r.json)),
            Ok((Name::ALL.to_vec(), true))
        );
        assert_eq!(
            parse("fence").map(|r| (r.names, r.json)),
            Ok((vec![Name::Fence], false))
        );
        assert!(parse("speed").is_err_and(|what| what.contains("speed")));
    }

    #[test]
    fn one_contest_can_be_measured_alone() {
        let contest = |line: &str| parse(line).map(|request| (request.names, request.contest));
        assert_eq!(
            contest("--contest quorum-20"),
            Ok((vec![Name::Contention], Some("quorum-20")))
        );
        assert!(
            contest("--contest tennis")
                .is_err_and(|what| what.contains("tennis") && what.contains("quorum-20"))
        );
    }

    #[test]
    fn a_picture_is_drawn_of_contention_only() {
        let picture = |line: &str| parse(line).map(|request| request.picture);
        assert_eq!(
            picture("contention --picture a.svg"),
            Ok(Some("a.svg".into()))
        );
        assert!(picture("pair --picture a.svg").is_err_and(|what| what.contains("contention")));
        assert!(picture("--picture").is_err_and(|what| what.contains("file")));
    }
}
