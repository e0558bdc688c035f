//! A subscriber, a recorder or a waker that panics harms only itself: no waiter and no hold is left
//! behind, no connection goes deaf, and the process does not abort. A scenario
//! (`foreign_panics/scenarios.rs`) is a child process with servers of its own, in which foreign
//! code panics at one event or call, or at all of them. The events are read from src/: a new one
//! has to occur in some scenario, or to be listed in [`UNPROVOKED`] with the reason.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod events;
mod scenarios;
mod sick;
mod wakers;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use self::events::Place;

/// Each scenario runs dozens of times, and a cluster or Sentinels take seconds to start.
const SLOW: &str =
    "it needs a cluster or Sentinels; tests/architecture checks that it is contained";

/// Each takes more than two command timeouts.
const LONG: &str =
    "a server has to be away for long: tests/logs; tests/architecture checks that it is contained";

/// A label is written beside the locks: before the end of a scenario, or not.
const BESIDE: &str =
    "tests/logs and tests/locks/labels.rs; tests/architecture checks that it is contained";

/// The locker that has made a server begin anew is told so in one answer, which may come too late
/// on a busy machine.
const TOLD_ONCE: &str = "tests/memory; tests/architecture checks that it is contained";

/// Events that no scenario provokes, by their messages, and why. Those that are [`LONG`],
/// [`BESIDE`] or [`TOLD_ONCE`] may occur.
const UNPROVOKED: [(&str, &str); 24] = [
    (
        "a server votes again although too few others could be asked: fences may repeat",
        "a server has to be away for two leases: tests/in_memory has one; tests/architecture has it contained",
    ),
    (
        "the machine was suspended: re-checking all locks",
        "only a suspend moves the two clocks apart: a unit test in src/watchdog has a subscriber panic at it",
    ),
    (
        "the watchdog panicked: every lock is lost, and no more are granted",
        "the watchdog's own code has to panic: a unit test in src/session has a subscriber panic at it",
    ),
    (
        "log events were dropped: the program's subscriber does not keep up",
        "a subscriber has to block: tests/stalls has one; tests/architecture checks that it is contained",
    ),
    (
        "a master of the cluster is away: it is connected once it is back",
        SLOW,
    ),
    (
        "a master of the cluster is away: callers wait for the locks of its slots",
        SLOW,
    ),
    (
        "a master that was away has no slots any more: it is not used",
        SLOW,
    ),
    (
        "the server is away: callers wait, and no lease is renewed",
        LONG,
    ),
    ("a server is away: the others continue without it", LONG),
    ("a server is away: one more failure stops locking", LONG),
    ("a server is away: too few are left to lock", LONG),
    (
        "this server is new, or has lost its data: it votes once the longest lease is over; check \
         its address unless the server was replaced or restarted",
        TOLD_ONCE,
    ),
    ("a label is neither written nor read this time", BESIDE),
    (
        "labels are off: the user has no right to ~lockhound_label:*",
        BESIDE,
    ),
    (
        "cannot subscribe to unlock messages of a master: waiters poll every sixth of a lease",
        SLOW,
    ),
    ("no server reported the slots", SLOW),
    (
        "this server belongs to another cluster: nothing is sent to it, and its connections are closed",
        SLOW,
    ),
    (
        "no known node of the cluster answers: switching to the new cluster at its address",
        SLOW,
    ),
    ("the Sentinels name another master: connecting to it", SLOW),
    ("the Sentinels name a master again", SLOW),
    (
        "the Sentinels have named no master for a while: no lock is granted",
        SLOW,
    ),
    ("this Sentinel cannot name the master", SLOW),
    ("this Sentinel names a master again", SLOW),
    (
        "this Sentinel is in TILT mode: its clock jumped or its machine was paused",
        SLOW,
    ),
];

/// The calls of a subscriber besides events. If one of the first two panics, no event is seen: a
/// scenario must not wait for one.
const CALLS: [&str; 6] = [
    "enabled",
    "register_callsite",
    "new_span",
    "enter",
    "exit",
    "try_close",
];
/// The calls of a recorder.
#[cfg(feature = "metrics")]
const RECORDER: [&str; 6] = [
    "describe_counter",
    "register_counter",
    "register_histogram",
    "increment",
    "record_value",
    "drop_meter",
];

/// More scenarios at once than there are CPUs, since they mostly wait.
const AT_ONCE: usize = 6;

#[test]
fn a_subscriber_that_panics_at_any_call_leaves_nothing_behind() {
    let events = events::listed();
    let known = |message: &str| events.values().any(|other| other == message);
    let stale = UNPROVOKED.iter().find(|(message, _)| !known(message));
    assert_eq!(
        stale, None,
        "is listed in UNPROVOKED, and no longer an event: remove it"
    );
    // First with a panic at everything, which also shows which scenario provokes what.
    let mut stories = run(scenarios::NAMES
        .map(|scenario| Job::new(scenario, "all"))
        .into());
    stories.sort_by_key(|story| story.took);
    let happened: BTreeSet<&String> = stories.iter().flat_map(|story| &story.happened).collect();
    let unlisted = happened
        .iter()
        .find(|place| place.starts_with("src/") && !events.contains_key(**place));
    assert_eq!(
        unlisted, None,
        "happened, but was not found in src/: see tests/foreign_panics/events.rs"
    );
    assert_provoked(&events, &happened);
    let quickest = |poison: &str| {
        let story = stories.iter().find(|story| story.happened.contains(poison));
        story.map(|story| Job::new(story.job.scenario, poison))
    };
    let sure = events.iter().filter(|(_, message)| !may_occur(message));
    let one_by_one = sure.filter_map(|(place, _)| quickest(place));
    let unwinding = CALLS
        .iter()
        .map(|call| Job::new("guards_of_a_task_that_unwinds", call));
    let spans = CALLS[2..]
        .iter()
        .map(|call| Job::new("an_ordinary_day", call));
    // An event that came from a race may not come again in that scenario: then another one where it
    // came is tried.
    let elsewhere = |job: Job, tried: usize| {
        let came =
            |story: &&Story| job.poison.starts_with("src/") && story.happened.contains(&job.poison);
        let others: Vec<_> = stories
            .iter()
            .filter(came)
            .map(|story| story.job.scenario)
            .collect();
        let scenario = others
            .get(tried % others.len().max(1))
            .copied()
            .unwrap_or(job.scenario);
        Job { scenario, ..job }
    };
    happens_somewhere(
        one_by_one.chain(unwinding).chain(spans).collect(),
        elsewhere,
    );
}

/// Returns whether an event occurs in some runs of a scenario and not in others.
fn may_occur(message: &str) -> bool {
    [LONG, BESIDE, TOLD_ONCE]
        .iter()
        .any(|why| UNPROVOKED.contains(&(message, why)))
}

/// Asserts that each event has occurred in some scenario, or is listed in [`UNPROVOKED`].
fn assert_provoked(events: &BTreeMap<Place, String>, happened: &BTreeSet<&String>) {
    for (place, message) in events {
        let excused = UNPROVOKED
            .iter()
            .any(|(unprovoked, _)| unprovoked == message);
        match happened.contains(place) {
            // On a busy machine a server may be away for longer than a scenario meant.
            true if may_occur(message) => {}
            true => assert!(
                !excused,
                "{place}: \"{message}\" is listed in UNPROVOKED, but occurs: remove it"
            ),
            false => assert!(
                excused,
                "{place}: \"{message}\" occurs in no scenario. Let it occur in tests/foreign_panics/scenarios.rs \
                 (its head says how), or put it into UNPROVOKED in tests/foreign_panics with the reason"
            ),
        }
    }
}

/// Runs jobs like [`happens_somewhere`], with the same jobs at each retry.
fn happens(jobs: Vec<Job>) {
    happens_somewhere(jobs, |job, _| job);
}

/// Runs jobs, and retries those in which the panic did not happen: on a busy machine a server may
/// be faster or slower than a scenario assumes. Asserts that each ends well and that its panic
/// happens.
fn happens_somewhere(mut jobs: Vec<Job>, elsewhere: impl Fn(Job, usize) -> Job) {
    for tried in 1..=5 {
        let stories = run(std::mem::take(&mut jobs));
        let again = stories
            .into_iter()
            .filter(|story| !story.happened.contains(&story.job.poison));
        jobs.extend(again.map(|story| elsewhere(story.job, tried)));
        if jobs.is_empty() {
            return;
        }
    }
    panic!("{jobs:?}: did not happen in five runs");
}

/// fred logs in the middle of its work, in its own tasks and in ours.
#[test]
fn a_panic_of_fred_at_any_log_line_leaves_nothing_behind() {
    let rehearsal = run(vec![Job::new(scenarios::ALL_OF_FRED, sick::LOGGED)]).remove(0);
    let logged = rehearsal
        .happened
        .iter()
        .filter(|place| place.starts_with(sick::LOGGED));
    let jobs: Vec<_> = logged
        .map(|place| Job::new(scenarios::ALL_OF_FRED, place))
        .collect();
    assert!(jobs.len() > 5, "{jobs:?}");
    happens(jobs);
}

#[cfg(feature = "metrics")]
#[test]
fn a_recorder_that_panics_at_any_call_leaves_nothing_behind() {
    let each = RECORDER
        .iter()
        .map(|call| Job::new("an_ordinary_day", call));
    let others = [
        "guards_of_a_task_that_unwinds",
        "a_server_falls_silent",
        "one_of_three_servers",
    ];
    let others = others
        .iter()
        .map(|scenario| Job::new(scenario, "record_value"));
    happens(each.chain(others).collect());
}

#[cfg(feature = "metrics")]
#[test]
fn a_recorder_that_blocks_a_thread_holds_no_mutex_meanwhile() {
    run(vec![Job::new(scenarios::BLOCKED_RECORDER, sick::BLOCKS)]);
}

/// A scenario, and the event or call at which foreign code panics in it.
#[derive(Debug, Clone)]
struct Job {
    scenario: &'static str,
    poison: String,
}

impl Job {
    fn new(scenario: &'static str, poison: &str) -> Self {
        Self {
            scenario,
            poison: poison.to_owned(),
        }
    }
}

/// What happened in a job that ended well.
struct Story {
    job: Job,
    happened: BTreeSet<String>,
    took: Duration,
}

/// Runs jobs, a few at once.
///
/// # Panics
/// With the output of the jobs that failed.
fn run(jobs: Vec<Job>) -> Vec<Story> {
    let (waiting, stories) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let next = || waiting.lock().unwrap().pop();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let story = play(&job);
                    stories.lock().unwrap().push(story);
                }
            });
        }
    });
    let (mut ended, mut failures) = (Vec::new(), Vec::new());
    for story in stories.into_inner().unwrap() {
        match story {
            Ok(story) => ended.push(story),
            Err(failure) => failures.push(failure),
        }
    }
    assert!(
        failures.is_empty(),
        "{} did not end well:\n{}",
        failures.len(),
        failures.join("\n")
    );
    ended
}

/// Plays a job. Its bounds assume that it has a core: while cores are missing it is retried.
fn play(job: &Job) -> Result<Story, String> {
    for tried in 1.. {
        match play_once(job.clone()) {
            Err(_) if common::machine::again(tried) => {}
            story => return story,
        }
    }
    unreachable!("it is played a few times")
}

fn play_once(job: Job) -> Result<Story, String> {
    let (out, began) = (common::children::scratch("happened"), Instant::now());
    let child = Command::new(std::env::current_exe().unwrap())
        .env(
            common::children::CHILD,
            format!("{} {} {}", job.scenario, job.poison, out.display()),
        )
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if !child.status.success() {
        let said = String::from_utf8_lossy(&child.stderr);
        return Err(format!("{job:?}: {}\n{said}", child.status));
    }
    let happened = std::fs::read_to_string(&out)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    std::fs::remove_file(&out).unwrap();
    Ok(Story {
        job,
        happened,
        took: began.elapsed(),
    })
}

/// The child processes are this binary too: they end here, before any test begins.
#[ctor::ctor(unsafe)]
fn child_process() {
    common::children::play_if_child(play_as_child);
}

/// Plays a scenario with this poison, and writes what happened.
fn play_as_child([scenario, poison, out]: [String; 3]) {
    sick::install(&poison);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bounded =
        async { tokio::time::timeout(Duration::from_secs(240), scenarios::play(&scenario)).await };
    runtime.block_on(bounded).expect("a scenario ends");
    assert_eq!(sick::odd_panics(), [""; 0], "nothing else panicked");
    let happened: Vec<String> = sick::happened().into_iter().collect();
    std::fs::write(out, happened.join("\n")).unwrap();
}
