//! What ends a command that runs: signals, `kill -9` of each process, and the loss of the lock.

use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Directory, PROGRAM, Running, Server, lockhound, runs, send, soon};

/// Runs a script with a directory as `$0`, once it has written its process id into `pid` there.
fn start(server: &Server, directory: &Directory, options: &[&str], script: &str) -> Running {
    let script = format!("echo $$ >\"$0/new\"; {script}");
    let args = [&["run"], options, &["k", "--", "sh", "-c", &script]].concat();
    let running = Running::start(lockhound(server, args).arg(directory.path()));
    directory.number("new");
    running
}

/// A script that tells when it is ready for signals, and then waits for them.
fn ready(traps: &str) -> String {
    format!(r#"{traps}; echo 1 >"$0/ready"; while :; do sleep 0.05; done"#)
}

/// A script with a process below it, both of which ignore TERM.
const STUBBORN: &str = r#"trap "" TERM
    sh -c 'echo $$ >"$0/below"; while :; do sleep 0.05; done' "$0" &
    wait; sleep 1000"#;

#[test]
fn signals_reach_the_command_and_its_status_returns() {
    let server = Server::start();
    let directory = Directory::new();
    let script = ready(
        r#"for s in INT HUP QUIT USR1 USR2 WINCH; do trap "echo $s >>\"$0/got\"" $s; done; trap "exit 5" TERM"#,
    );
    let running = start(&server, &directory, &[], &script);
    directory.number("ready");
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        running.send(signal);
        soon(name, || {
            directory.read("got").ends_with(&format!("{name}\n"))
        });
    }
    running.send(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code, Some(5));
    assert!(!ended.err.contains("lockhound:"), "{ended:?}");
    assert!(!server.exists("k"));
}

#[test]
fn a_signal_reaches_the_whole_group() {
    let server = Server::start();
    let directory = Directory::new();
    let below = r#"sh -c 'echo $$ >"$0/below"; exec sleep 1000' "$0" & wait"#;
    let running = start(&server, &directory, &[], below);
    let below = directory.number("below");
    running.send(Signal::TERM);
    assert_eq!(running.end().code, Some(143));
    soon("the process below has ended", || !runs(below));
}

#[test]
fn a_second_interrupt_ends_a_command_that_ignores_the_first() {
    let server = Server::start();
    let directory = Directory::new();
    let script = ready(r#"trap "echo 1 >\"$0/got\"" INT"#);
    let running = start(&server, &directory, &[], &script);
    directory.number("ready");
    running.send(Signal::INT);
    directory.number("got");
    assert!(runs(directory.number("new")));
    running.send(Signal::INT);
    assert_eq!(running.end().code, Some(137));
    assert!(!server.exists("k"));
}

#[test]
fn a_signal_ends_the_wait() {
    let server = Server::start();
    let directory = Directory::new();
    let holder = start(&server, &directory, &[], "sleep 1000");
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::USR1, 138)] {
        let args = ["run", "-v", "k", "--", "echo", "inside"];
        let mut command = lockhound(&server, args);
        let path = directory.file("waits");
        command.stderr(std::fs::File::create(&path).unwrap());
        let mut waiting = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        soon("it waits", || directory.read("waits").contains("waiting"));
        send(waiting.id(), signal);
        assert_eq!(waiting.wait().unwrap().code(), Some(code));
    }
    drop(holder);
    server.command::<()>(&["DEL", "k"]);
    // None of them has left anything behind.
    let next = lockhound(&server, ["run", "-n", "k", "--", "true"]).status();
    assert!(next.unwrap().success());
}

#[test]
fn a_signal_that_the_caller_ignores_stays_ignored() {
    let server = Server::start();
    let directory = Directory::new();
    let script = format!(
        r#"trap "" HUP; exec {PROGRAM} run k -- sh -c 'echo $$ >"$0/new"; sleep 1000' "$0""#
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(directory.path());
    let running = Running::start(command.env("LOCKHOUND_URL", server.url()));
    let inside = directory.number("new");
    running.send(Signal::HUP);
    send(inside, Signal::HUP);
    // Signals are delivered in order: this one would come second.
    running.send(Signal::USR1);
    assert_eq!(running.end().code, Some(138));
}

#[test]
fn the_command_and_what_it_started_die_with_a_killed_wrapper() {
    let server = Server::start();
    let directory = Directory::new();
    let running = start(&server, &directory, &["--lease", "1s"], STUBBORN);
    let processes = [directory.number("new"), directory.number("below")];
    let killed = Instant::now();
    running.kill();
    for process in processes {
        soon("it has ended", || !runs(process));
    }
    let next = lockhound(&server, ["run", "--lease", "1s", "k", "--", "true"]).status();
    assert!(next.unwrap().success());
    assert!(killed.elapsed() < Duration::from_secs(20));
}

#[test]
fn nothing_is_left_when_a_command_ends() {
    let server = Server::start();
    let directory = Directory::new();
    let running = start(&server, &directory, &[], "exec sleep 1000");
    let command = directory.number("new");
    let children = children(running.id());
    assert_eq!(children.len(), 2, "the command, and the leash");
    send(command, Signal::KILL);
    assert_eq!(running.end().code, Some(137));
    assert!(!server.exists("k"), "it is free at once");
    assert!(children.into_iter().all(|child| !runs(child)));
}

#[test]
fn what_a_command_leaves_behind_lives_on() {
    let server = Server::start();
    let directory = Directory::new();
    let script = r#"sh -c 'echo $$ >"$0/below"; exec sleep 1000' "$0" >&- 2>&- &
        while ! [ -s "$0/below" ]; do sleep 0.01; done"#;
    assert_eq!(start(&server, &directory, &[], script).end().code, Some(0));
    let below = directory.number("below");
    assert!(runs(below));
    send(below, Signal::KILL);
}

#[test]
fn a_server_that_dies_ends_the_command() {
    let server = Server::start();
    let directory = Directory::new();
    let script = ready(r#"trap "echo 1 >\"$0/got\"; exit 0" TERM"#);
    let running = start(&server, &directory, &["--lease", "1s"], &script);
    directory.number("ready");
    server.kill();
    let ended = running.end();
    assert_eq!(ended.code, Some(74), "{ended:?}");
    assert_eq!(directory.read("got"), "1\n");
    // The shell may have a line of its own.
    assert_eq!(ended.err.matches("lockhound:").count(), 1, "{ended:?}");
    assert!(
        ended.err.contains("\"k\" is lost: its renewals failed"),
        "{ended:?}"
    );
}

#[test]
fn a_stubborn_command_is_killed_after_its_time() {
    let server = Server::start();
    let directory = Directory::new();
    let options = ["--lease", "1s", "--kill-after", "500ms"];
    let running = start(&server, &directory, &options, STUBBORN);
    let processes = [directory.number("new"), directory.number("below")];
    let deleted = Instant::now();
    server.command::<()>(&["DEL", "k"]);
    let ended = running.end();
    assert_eq!(ended.code, Some(74), "{ended:?}");
    assert!(
        ended.err.contains("is lost: the server no longer has it"),
        "{ended:?}"
    );
    assert!(deleted.elapsed() > Duration::from_millis(500));
    assert!(processes.into_iter().all(|process| !runs(process)));
}

/// A bug: it wrote to a reader that had stopped, before it ended the command.
#[test]
fn a_command_is_ended_though_nobody_reads_what_is_said() {
    let (server, directory) = (Server::start(), Directory::new());
    let (reader, writer) = std::io::pipe().unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let mut full = writer.try_clone().unwrap();
    let counts = Arc::clone(&written);
    let filler = std::thread::spawn(move || {
        while full.write_all(b"x").is_ok() {
            counts.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut last = 0;
    while last == 0 || last != written.load(Ordering::Relaxed) {
        last = written.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(100));
    }
    let script = format!("echo $$ >\"$0/new\"; {STUBBORN}");
    let options = ["run", "-vv", "--lease", "1s", "--kill-after", "500ms"];
    let words = [&options[..], &["k", "--", "sh", "-c", &script]].concat();
    let mut command = lockhound(&server, words);
    let running = command.arg(directory.path()).stderr(writer).spawn();
    let running = Mutex::new(running.unwrap());
    // The command has another end of the pipe.
    drop(command);
    let process = directory.number("new");
    server.command::<()>(&["DEL", "k"]);
    soon("it ends", || {
        let ended = running.lock().unwrap().try_wait().unwrap();
        ended.is_some_and(|status| status.code() == Some(74))
    });
    assert!(!runs(process));
    drop(reader);
    filler.join().unwrap();
}

/// The command itself ends at TERM, and what it started does not.
#[test]
fn what_a_command_started_ends_before_another_holder_is_told() {
    let server = Server::start();
    let directory = Directory::new();
    let options = ["--lease", "1s", "--kill-after", "300ms"];
    // Without the output, which this test would read until it ends.
    let script = r#"sh -c 'trap "" TERM; echo $$ >"$0/below"; while :; do sleep 0.05; done' "$0" \
        >&- 2>&- & wait"#;
    let running = start(&server, &directory, &options, script);
    let below = directory.number("below");
    server.command::<()>(&["DEL", "k"]);
    assert_eq!(running.end().code, Some(74));
    assert!(!runs(below));
}

#[test]
fn a_stopped_command_is_ended_as_well() {
    let server = Server::start();
    let directory = Directory::new();
    let running = start(&server, &directory, &["--lease", "1s"], "sleep 1000");
    send(directory.number("new"), Signal::STOP);
    server.command::<()>(&["DEL", "k"]);
    assert_eq!(running.end().code, Some(74));
}

#[test]
fn a_loss_may_be_a_warning_only() {
    let server = Server::start();
    let directory = Directory::new();
    let options = ["--lease", "1s", "--on-lost", "warn"];
    let script = r#"until [ -e "$0/go" ]; do sleep 0.02; done; exit 6"#;
    let running = start(&server, &directory, &options, script);
    server.command::<()>(&["DEL", "k"]);
    // Somebody else is inside by now.
    let other = lockhound(&server, ["run", "k", "--", "true"]).status();
    assert!(other.unwrap().success());
    // At least one renewal has found it.
    let third = Duration::from_millis(334);
    std::thread::sleep(3 * third);
    std::fs::write(directory.file("go"), "").unwrap();
    let ended = running.end();
    assert_eq!(ended.code, Some(6), "{ended:?}");
    assert_eq!(ended.err.matches("is lost: ").count(), 1, "{ended:?}");
}

#[test]
fn a_loss_that_only_the_release_finds_is_reported() {
    let server = Server::start();
    let directory = Directory::new();
    let script = r#"until [ -e "$0/go" ]; do sleep 0.02; done"#;
    let running = start(&server, &directory, &[], script);
    server.command::<()>(&["DEL", "k"]);
    std::fs::write(directory.file("go"), "").unwrap();
    let ended = running.end();
    assert_eq!(ended.code, Some(74), "{ended:?}");
    assert!(ended.err.contains("the command has ended"), "{ended:?}");
}

#[test]
fn a_maximum_ends_the_command() {
    let server = Server::start();
    let directory = Directory::new();
    let running = start(&server, &directory, &["--max-hold", "300ms"], "sleep 1000");
    let ended = running.end();
    assert_eq!(ended.code, Some(74), "{ended:?}");
    assert!(ended.err.contains("max_hold"), "{ended:?}");
}

/// Returns the processes that a process has started.
fn children(of: u32) -> Vec<u32> {
    let mut ps = Command::new("ps");
    let output = ps.args(["-o", "pid=", "--ppid", &of.to_string()]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    text.split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect()
}

/// A bug: the stop of a service, which sends TERM to each of its processes, ended the one that
/// kills the command.
#[test]
fn a_command_dies_with_its_wrapper_after_term_to_all() {
    let (server, directory) = (Server::start(), Directory::new());
    let running = start(&server, &directory, &[], STUBBORN);
    let below = directory.number("below");
    let command = directory.number("new");
    let leash = children(running.id());
    let leash = leash.into_iter().find(|it| *it != command).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        send(leash, signal);
    }
    running.kill();
    soon("it has ended", || !runs(below) && !runs(command));
}

/// A bug: they did not count once the command itself had ended.
#[test]
fn signals_reach_what_is_left_of_a_command_that_is_ended() {
    let (server, directory) = (Server::start(), Directory::new());
    let options = ["--lease", "1s", "--kill-after", "1h"];
    let script = r#"sh -c 'trap "" TERM; trap "echo USR1 >\"$0/got\"" USR1
        echo $$ >"$0/below"; while :; do sleep 0.05; done' "$0" >&- 2>&- & wait"#;
    let running = start(&server, &directory, &options, script);
    let below = directory.number("below");
    let command = directory.number("new");
    server.command::<()>(&["DEL", "k"]);
    soon("the command has ended", || !runs(command));
    running.send(Signal::USR1);
    soon("it got the signal", || directory.read("got") == "USR1\n");
    // Two of them may count as one.
    soon("a second INT kills it", || {
        running.send(Signal::INT);
        !runs(below)
    });
    assert_eq!(running.end().code, Some(74));
}

#[test]
fn a_command_that_was_stopped_is_continued_with_its_wrapper() {
    let (server, directory) = (Server::start(), Directory::new());
    let script = r#"until [ -e "$0/go" ]; do sleep 0.02; done; exit 6"#;
    let running = start(&server, &directory, &[], script);
    send(directory.number("new"), Signal::STOP);
    std::fs::write(directory.file("go"), "").unwrap();
    running.send(Signal::CONT);
    assert_eq!(running.end().code, Some(6));
}

#[test]
fn a_command_that_is_stopped_keeps_its_lock() {
    let (server, directory) = (Server::start(), Directory::new());
    let script = r#"until [ -e "$0/go" ]; do sleep 0.02; done; exit 6"#;
    let running = start(&server, &directory, &["--lease", "500ms"], script);
    let command = directory.number("new");
    send(command, Signal::STOP);
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(server.exists("k"), "it is renewed");
    std::fs::write(directory.file("go"), "").unwrap();
    send(command, Signal::CONT);
    let ended = running.end();
    assert_eq!((ended.code, &*ended.err), (Some(6), ""), "{ended:?}");
}

#[test]
fn a_server_that_dies_may_be_a_warning_only() {
    let (server, directory) = (Server::start(), Directory::new());
    let script = r#"until [ -e "$0/go" ]; do sleep 0.02; done; exit 6"#;
    let options = ["--lease", "1s", "--on-lost", "warn"];
    let mut running = start(&server, &directory, &options, script);
    server.kill();
    assert!(
        running
            .line()
            .contains("\"k\" is lost: its renewals failed")
    );
    assert!(runs(directory.number("new")));
    std::fs::write(directory.file("go"), "").unwrap();
    // It does not wait for the server: the lock is free after its lease.
    assert_eq!(running.end().code, Some(6));
}

/// The command has done its work under the lock, which is free after a lease at most.
#[test]
fn a_release_that_is_not_confirmed_keeps_the_status() {
    let (server, directory) = (Server::start(), Directory::new());
    let script = r#"until [ -e "$0/go" ]; do sleep 0.02; done; exit 6"#;
    let running = start(&server, &directory, &[], script);
    server.kill();
    std::fs::write(directory.file("go"), "").unwrap();
    let ended = running.end();
    assert_eq!(ended.code, Some(6), "{ended:?}");
    assert!(
        ended.err.contains("the release is not confirmed: "),
        "{ended:?}"
    );
}
