//! `break` and `top` in a terminal, by tmux.

use std::ops::Deref;
use std::thread::sleep;
use std::time::Instant;

use rustix::process::Signal;
use uuid::Uuid;

use crate::common::distance::Distances;
use crate::common::tmux::Tmux;
use crate::common::{Directory, PROGRAM, SOON, Server, locker, lockhound, ms, said, send};

/// A terminal with a shell in it, which knows the program as `lockhound`.
struct Terminal(Tmux);

impl Deref for Terminal {
    type Target = Tmux;

    fn deref(&self) -> &Tmux {
        &self.0
    }
}

impl Terminal {
    fn new(server: &Server) -> Self {
        let shell = format!("env LOCKHOUND_URL={} PS1='$ ' sh", server.url());
        let terminal = Self(Tmux::start(&shell));
        terminal.shows("the shell", |screen| screen.starts_with('$'));
        terminal.types(&format!("lockhound() {{ {PROGRAM} \"$@\"; }}"));
        terminal
    }

    /// Types a line on an empty screen.
    fn runs(&self, line: &str) {
        self.types("clear");
        self.shows("an empty screen", |screen| screen.trim() == "$");
        self.types(line);
    }

    /// Waits until the screen is so, and returns it.
    fn shows(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
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

/// Each kind has a call of its own, and some of them ask a second time who has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_asked_about_each_kind() {
    let server = Server::start();
    let locks = locker(&server, "tester").await;
    let (desks, seats) = (locks.permits("desks"), locks.semaphore("seats"));
    let held = (
        locks.fair("queue").lock().await.unwrap(),
        locks.rw("book").read().lock().await.unwrap(),
        desks.capacity(2).acquire().await.unwrap(),
        seats.capacity(2).acquire().await.unwrap(),
        locks.election("boss").campaign("me").await.unwrap(),
    );
    server.command::<()>(&["SET", "plain", "5cb1f0b5c0de", "PX", "600000"]);
    let terminal = Terminal::new(&server);
    for (key, question) in [
        ("queue", "lock, held by tester "),
        ("book", "read-write (read), held by tester "),
        ("desks", "permits, 1 free, held by tester "),
        ("seats", "semaphore, 1 free, held by tester "),
        ("boss", "election, held by tester "),
        ("plain", "It may be no lock. Break it? [y/N]"),
    ] {
        terminal.runs(&format!("lockhound break {key}; echo code $?"));
        // The label may be written after the lock, and the line is wider than the screen.
        let asks = |screen: &str| {
            let screen = screen.replace('\n', "");
            screen.contains(question) && screen.contains("Break it? [y/N]")
        };
        terminal.shows(key, asks);
        terminal.types("yes");
        let screen = terminal.shows("the end", |screen| screen.contains("code 0\n"));
        assert!(screen.contains("broken: "), "{screen}");
    }
    for key in ["queue", "book", "boss", "plain"] {
        assert!(!server.exists(key), "{key}");
    }
    assert_eq!(
        server.command::<(u32, u32)>(&["MGET", "desks", "seats"]),
        (2, 2)
    );
    drop(held);
    locks.close().await;
}

#[test]
fn a_list_that_takes_long_says_how_far_it_is() {
    let server = Server::start();
    server.command::<()>(&["DEBUG", "POPULATE", "1000"]);
    hold(&server, "k");
    let far = Distances::new();
    let port = far.to(server.port(), ms(100));
    let terminal = Terminal::new(&server);
    let url = format!("redis://127.0.0.1:{port}");
    terminal.runs(&format!("lockhound ls --url {url}; echo code $?"));
    terminal.shows("progress", |screen| screen.contains("locks so far: "));
    // It is gone at the end, and nothing of it is in a file.
    let screen = terminal.shows("the end", |screen| screen.contains("code 0\n"));
    assert!(
        !screen.contains("so far") && screen.contains("\nk "),
        "{screen}"
    );
    terminal.runs(&format!(
        "lockhound ls --url {url} 2>&1 | grep -c 'so far'; echo over"
    ));
    terminal.shows("the end", |screen| screen.contains("\n0\nover\n"));
    // Nor does it stay before a message.
    terminal.runs(&format!("lockhound ls --url {url}; echo code $?"));
    terminal.shows("progress", |screen| screen.contains("locks so far: "));
    server.kill();
    let screen = terminal.shows("the end", |screen| screen.contains("code 69\n"));
    assert!(!screen.contains("so far"), "{screen}");
}

#[test]
fn a_signal_ends_the_screen_and_restores_the_terminal() {
    let (server, directory) = (Server::start(), Directory::new());
    let file = directory.file("pid");
    let top = format!("sh -c 'echo $$ >{}; exec {PROGRAM} top'", file.display());
    let terminal = Terminal::new(&server);
    terminal.runs("before=$(stty -g)");
    for (signal, code) in [
        (Signal::INT, 130),
        (Signal::QUIT, 131),
        (Signal::TERM, 143),
        (Signal::HUP, 129),
    ] {
        let same = "[ \"$(stty -g)\" = \"$before\" ] && echo same";
        terminal.runs(&format!("{top}; echo code $?; {same}"));
        terminal.shows("the screen", |screen| screen.starts_with("locks: 0"));
        send(directory.number("pid"), signal);
        let over = format!("code {code}\nsame\n");
        terminal.shows("the end", |screen| screen.contains(&over));
    }
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
    terminal.tells(&["resize-window", "-x", "200", "-y", "50"]);
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
    let busy = said(&mut lockhound(&server, ["top", "--interval", "9ms"]));
    assert_eq!(busy.code, Some(64), "{busy:?}");
    assert!(busy.err.contains("less than 10ms"), "{busy:?}");
    let piped = said(&mut lockhound(&server, ["top"]));
    assert_eq!((piped.code, &*piped.out), (Some(64), ""), "{piped:?}");
}
