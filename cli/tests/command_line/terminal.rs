//! `lockhound run` in a terminal, by tmux: keys, and who may read.

use std::process::Command;

use crate::common::{Directory, PROGRAM, Running, Server, eventually, lockhound, runs, state};

/// A terminal with a shell in it, which `L` leads to `lockhound run`. It ends when it is dropped.
struct Terminal {
    name: String,
    directory: Directory,
}

impl Terminal {
    fn new(server: &Server) -> Self {
        let terminal = Self {
            name: format!("lockhound-{}", uuid::Uuid::new_v4()),
            directory: Directory::new(),
        };
        let setup = format!(
            "PS1='$ '; export LOCKHOUND_URL={} D={}; L='{PROGRAM} run --lease 2s k --'\n",
            server.url(),
            terminal.directory.path().display()
        );
        std::fs::write(terminal.directory.file("setup"), setup).unwrap();
        let setup = terminal.directory.file("setup");
        let shell = format!("bash --noprofile --rcfile {} -i", setup.display());
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "80",
            "-y",
            "24",
            &shell,
        ]);
        terminal.shows("$");
        terminal
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.name])
            .args(args)
            .output();
        let output =
            output.expect("tmux is needed: ./dev test installs it, or `apt-get install tmux`");
        assert!(output.status.success(), "tmux {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Types a line.
    fn types(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.presses("Enter");
    }

    /// Presses a key, by tmux's name.
    fn presses(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen has this text.
    fn shows(&self, text: &str) {
        eventually(text, || self.screen().contains(text));
    }

    /// Writes a script that begins with telling its process id, for [`inside`](Self::inside).
    fn script(&self, name: &str, text: &str) {
        let text = format!("echo $$ >$D/inside\n{text}\n");
        std::fs::write(self.directory.file(name), text).unwrap();
    }

    /// Returns the process that `lockhound` is.
    fn wrapper(&self) -> u32 {
        let id = self.inside().to_string();
        let output = Command::new("ps").args(["-o", "ppid=", "-p", &id]).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.trim().parse().unwrap()
    }

    /// Waits until the script inside has told its process id, and returns it.
    fn inside(&self) -> u32 {
        self.directory.number("inside")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let screen = Command::new("tmux")
                .args(["-L", &self.name, "capture-pane", "-p"])
                .output();
            eprintln!("{screen:?}");
        }
        let end = Command::new("tmux")
            .args(["-L", &self.name, "kill-server"])
            .output();
        drop(end);
    }
}

#[test]
fn ctrl_c_ends_the_command() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "exec sleep 1000");
    terminal.types("$L sh $D/inner");
    let inside = terminal.inside();
    terminal.presses("C-c");
    // The shell has its terminal again.
    terminal.types("echo ended=$?");
    terminal.shows("ended=130");
    assert!(!runs(inside) && !server.exists("k"));
}

#[test]
fn a_command_may_handle_ctrl_c_as_often_as_it_likes() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    let count = "trap 'n=$((n + 1)); echo got=$n' INT\nn=0; echo 1 >$D/ready\n\
                 while [ $n -lt 3 ]; do sleep 0.05; done; exit 7";
    terminal.script("inner", count);
    terminal.types("$L bash $D/inner; echo ended=$?");
    terminal.directory.number("ready");
    for n in 1..=3 {
        terminal.presses("C-c");
        terminal.shows(&format!("got={n}"));
    }
    terminal.shows("ended=7");
}

#[test]
fn ctrl_c_ends_a_script_and_not_only_its_command() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "exec sleep 1000");
    let outer = format!("{PROGRAM} run k -- sh $D/inner\necho wrong");
    std::fs::write(terminal.directory.file("outer"), outer).unwrap();
    terminal.types("bash $D/outer");
    terminal.inside();
    terminal.presses("C-c");
    terminal.types("echo ended=$?");
    terminal.shows("ended=130");
    assert!(!terminal.screen().contains("wrong"));
}

#[test]
fn ctrl_z_stops_both_and_fg_resumes_both() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "read -r x </dev/tty; echo got=$x");
    terminal.types("$L sh $D/inner; echo ended=$?");
    let inside = terminal.inside();
    let wrapper = terminal.wrapper();
    terminal.presses("C-z");
    terminal.shows("Stopped");
    eventually("both are stopped", || {
        [inside, wrapper].iter().all(|it| state(*it) == Some('T'))
    });
    // The shell goes on with the line after a stop.
    terminal.types("clear");
    terminal.types("fg; echo ended=$?");
    eventually("both go on", || {
        [inside, wrapper].iter().all(|it| state(*it) == Some('S'))
    });
    terminal.types("hello");
    terminal.shows("got=hello");
    terminal.shows("ended=0");
    assert!(!server.exists("k"));
}

#[test]
fn a_lock_that_was_lost_while_it_was_stopped_ends_the_command_before_it_goes_on() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "while read -r x </dev/tty; do echo got=$x; done");
    terminal.types("$L sh $D/inner");
    terminal.inside();
    terminal.presses("C-z");
    terminal.shows("Stopped");
    eventually("its lease is over", || !server.exists("k"));
    terminal.types("clear");
    terminal.types("fg; echo ended=$?");
    terminal.shows("ended=74");
    let screen = terminal.screen();
    assert!(
        screen.contains("its lease ran out") && !screen.contains("got="),
        "{screen}"
    );
}

#[test]
fn ctrl_z_also_stops_a_wait() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    let hold = ["run", "k", "--", "sleep", "1000"];
    let holder = Running::start(&mut lockhound(&server, hold));
    eventually("it is held", || server.exists("k"));
    terminal.types("${L/run/run -v} echo inside; echo ended=$?");
    terminal.shows("is held by");
    terminal.presses("C-z");
    terminal.shows("Stopped");
    terminal.types("clear");
    terminal.types("fg; echo ended=$?");
    holder.send(rustix::process::Signal::TERM);
    assert_eq!(holder.end().code, Some(143));
    terminal.shows("inside");
    terminal.shows("ended=0");
}

/// Reads single keys without echo, as an editor does.
#[test]
fn an_editor_has_the_terminal() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    let edit = "old=$(stty -g </dev/tty); stty raw -echo </dev/tty; printf 'ready>'\n\
                keys=$(dd bs=1 count=3 2>/dev/null </dev/tty | od -An -tx1); stty $old </dev/tty; echo \"keys=$keys\"";
    terminal.script("inner", edit);
    terminal.types("$L sh $D/inner; echo ended=$?");
    terminal.shows("ready>");
    for key in ["a", "C-c", "C-z"] {
        terminal.presses(key);
    }
    terminal.shows("keys= 61 03 1a");
    terminal.shows("ended=0");
}

#[test]
fn a_command_in_the_background_gets_the_terminal_by_fg() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "read -r x </dev/tty; echo got=$x");
    terminal.types("$L sh $D/inner &");
    let inside = terminal.inside();
    eventually("it wants to read, and is stopped", || {
        state(inside) == Some('T')
    });
    terminal.types("jobs");
    terminal.shows("Stopped");
    terminal.types("fg; echo ended=$?");
    eventually("it reads", || state(inside) == Some('S'));
    terminal.types("hello");
    terminal.shows("got=hello");
    terminal.shows("ended=0");
}

#[test]
fn others_of_a_pipeline_may_read_the_terminal() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "echo one; sleep 1000");
    let pager =
        "read -r line; echo line=$line; read -r x </dev/tty; echo got=$x; kill $(cat $D/inside)";
    std::fs::write(terminal.directory.file("pager"), pager).unwrap();
    terminal.types("$L sh $D/inner | sh $D/pager; echo ended=$?");
    terminal.shows("line=one");
    terminal.types("hello");
    terminal.shows("got=hello");
    terminal.shows("ended=0");
}

#[test]
fn ctrl_c_ends_a_command_in_a_pipeline() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "exec sleep 1000");
    terminal.types("$L sh $D/inner | cat");
    let inside = terminal.inside();
    terminal.presses("C-c");
    eventually("it has ended", || !runs(inside) && !server.exists("k"));
}

#[test]
fn a_terminal_that_closes_ends_the_command() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "exec sleep 1000");
    terminal.types("$L sh $D/inner");
    let inside = terminal.inside();
    terminal.tmux(&["kill-session"]);
    eventually("it has ended", || !runs(inside));
    eventually("it is free", || !server.exists("k"));
}
