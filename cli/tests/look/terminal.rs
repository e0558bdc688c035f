//! `break` and `top` in a terminal, by tmux.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::common::{PROGRAM, Server, lockhound, ms, said};

const SOON: Duration = Duration::from_secs(20);

/// A terminal with a shell in it, which knows the program as `lockhound`. It ends when it is
/// dropped.
struct Terminal(String);

impl Terminal {
    fn new(server: &Server) -> Self {
        let terminal = Self(format!("lockhound-{}", Uuid::new_v4()));
        let shell = format!("env LOCKHOUND_URL={} PS1='$ ' sh", server.url());
        let size = ["-x", "80", "-y", "24"];
        let start = ["-f", "/dev/null", "new-session", "-d"];
        terminal.tmux(&[&start[..], &size, &[&shell]].concat());
        terminal.shows("the shell", |screen| screen.starts_with('$'));
        terminal.types(&format!("lockhound() {{ {PROGRAM} \"$@\"; }}"));
        terminal
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.0])
            .args(args)
            .output();
        let output = output.expect("tmux is needed: `apt-get install tmux`");
        assert!(output.status.success(), "tmux {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Types a line on an empty screen.
    fn runs(&self, line: &str) {
        self.types("clear");
        self.shows("an empty screen", |screen| screen.trim() == "$");
        self.types(line);
    }

    fn types(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.presses("Enter");
    }

    fn presses(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Waits until the screen is so, and returns it.
    fn shows(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p", "-J"]);
            let lines = screen.lines().map(|line| format!("{}\n", line.trim_end()));
            let screen: String = lines.collect();
            if so(&screen) {
                return screen;
            }
            assert!(
                start.elapsed() < SOON,
                "{what}: not within {SOON:?}:\n{screen}"
            );
            sleep(ms(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(
            Command::new("tmux")
                .args(["-L", &self.0, "kill-server"])
                .output(),
        );
    }
}

/// Has the lock held by somebody who does not renew it.
fn hold(server: &Server, key: &str) -> String {
    let owner = format!("{}:1", Uuid::new_v4());
    server.command::<()>(&["HSET", key, &owner, "1"]);
    owner
}

#[test]
fn a_person_is_asked_before_a_lock_is_broken() {
    let server = Server::start();
    let owner = hold(&server, "k");
    let terminal = Terminal::new(&server);
    let asks = |screen: &str| screen.contains(&format!("held by {owner}. Break it? [y/N]"));
    for (answer, code, said, stays) in [
        ("", 1, "nothing is broken", true),
        ("y", 0, "broken: \"k\", lock", false),
    ] {
        terminal.runs("lockhound break k; echo code $?");
        terminal.shows("the question", asks);
        assert!(server.exists("k"));
        terminal.types(answer);
        let over = |screen: &str| screen.contains(&format!("code {code}\n"));
        let screen = terminal.shows("the end", over);
        assert!(screen.contains(said), "{screen}");
        assert_eq!(server.exists("k"), stays);
    }
    // Somebody else has it by the time of the answer.
    hold(&server, "k");
    terminal.runs("lockhound break k; echo code $?");
    terminal.shows("the question", |screen| screen.contains("Break it?"));
    server.command::<()>(&["DEL", "k"]);
    let other = hold(&server, "k");
    terminal.types("y");
    let screen = terminal.shows("the end", |screen| screen.contains("code 1\n"));
    assert!(
        screen.contains(&format!(
            "nothing is broken: by now it is lock, held by {other}"
        )),
        "{screen}"
    );
    assert!(server.exists("k"));
}

#[test]
fn the_screen_follows_locks_keys_and_its_size() {
    let server = Server::start();
    let owner = hold(&server, "orders:1");
    let terminal = Terminal::new(&server);
    terminal.runs("lockhound top --interval 50ms; echo code $?");
    terminal.shows("the lock", |screen| {
        screen.starts_with("locks: 1, by name\n")
            && screen.contains("\norders:1 ")
            && screen.contains("q quit")
    });
    hold(&server, "jobs:1");
    terminal.shows("both", |screen| {
        screen.starts_with("locks: 2,") && screen.contains("\njobs:1 ")
    });
    terminal.tmux(&["resize-window", "-x", "200", "-y", "50"]);
    let whole = |screen: &str| {
        screen
            .lines()
            .nth(49)
            .is_some_and(|foot| foot.starts_with("q quit"))
    };
    let screen = terminal.shows("all rows", whole);
    assert!(screen.contains(&owner), "{screen}");
    for key in ["Down", "Enter"] {
        terminal.presses(key);
    }
    let one = |screen: &str| screen.contains("\nkey      orders:1\n") && screen.contains(&owner);
    terminal.shows("one lock", one);
    server.command::<()>(&["DEL", "orders:1"]);
    terminal.shows("it is free", |screen| screen.contains("\nkind     free\n"));
    // The screen is as it was before.
    terminal.presses("q");
    terminal.shows("the end", |screen| {
        screen.contains("code 0\n") && !screen.contains("kind     free")
    });
    let piped = said(&mut lockhound(&server.url(), ["top"]));
    assert_eq!((piped.code, &*piped.out), (Some(64), ""), "{piped:?}");
}
