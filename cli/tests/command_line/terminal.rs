//! `lockhound run` in a terminal, by tmux: keys, and who may read.

use std::ops::Deref;
use std::process::Command;

use crate::common::tmux::Tmux;
use crate::common::{Directory, PROGRAM, Running, Server, lockhound, runs, soon, state};

/// A terminal with a shell in it, which `L` leads to `lockhound run`.
struct Terminal {
    tmux: Tmux,
    directory: Directory,
}

impl Deref for Terminal {
    type Target = Tmux;

    fn deref(&self) -> &Tmux {
        &self.tmux
    }
}

impl Terminal {
    fn new(server: &Server) -> Self {
        let directory = Directory::new();
        let setup = format!(
            "PS1='$ '; export LOCKHOUND_URL={} D={}; L='{PROGRAM} run --lease 2s k --'\n",
            server.url(),
            directory.path().display()
        );
        let file = directory.file("setup");
        std::fs::write(&file, setup).unwrap();
        let shell = format!("bash --noprofile --rcfile {} -i", file.display());
        let tmux = Tmux::start(&shell);
        let terminal = Self { tmux, directory };
        terminal.shows("$");
        terminal
    }

    /// Waits until the screen has this text.
    fn shows(&self, text: &str) {
        soon(text, || self.screen().contains(text));
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
    soon("both are stopped", || {
        [inside, wrapper].iter().all(|it| state(*it) == Some('T'))
    });
    // The shell continues with the line after a stop.
    terminal.types("clear");
    terminal.types("fg; echo ended=$?");
    soon("both continue", || {
        [inside, wrapper].iter().all(|it| state(*it) == Some('S'))
    });
    terminal.types("hello");
    terminal.shows("got=hello");
    terminal.shows("ended=0");
    assert!(!server.exists("k"));
}

#[test]
fn a_lock_lost_while_stopped_ends_the_command_before_it_resumes() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    // The shell may see both signals together.
    let order = "trap 'echo continued >>$D/order' CONT\n\
                 trap 'trap : CONT; echo ended >>$D/order; exit' TERM\n\
                 sleep 1000 & while :; do wait; done";
    terminal.script("inner", order);
    terminal.types("$L sh $D/inner");
    terminal.inside();
    terminal.presses("C-z");
    terminal.shows("Stopped");
    soon("its lease is over", || !server.exists("k"));
    terminal.types("clear");
    terminal.types("fg; echo ended=$?");
    terminal.shows("ended=74");
    terminal.shows("its lease ran out");
    assert_eq!(terminal.directory.read("order"), "ended\n");
}

#[test]
fn ctrl_z_also_stops_a_wait() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    let hold = ["run", "k", "--", "sleep", "1000"];
    let holder = Running::start(&mut lockhound(&server, hold));
    soon("it is held", || server.exists("k"));
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

/// A bug: the terminal stayed as the editor had set it.
#[test]
fn a_loss_leaves_the_terminal_of_an_editor_as_it_was() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    let edit =
        "trap '' TERM; stty raw -echo </dev/tty; echo 1 >$D/ready; while :; do sleep 0.05; done";
    terminal.script("inner", edit);
    terminal
        .types("before=$(stty -g); ${L/k --/--kill-after 100ms k --} sh $D/inner; echo ended=$?");
    terminal.directory.number("ready");
    server.command::<()>(&["DEL", "k"]);
    terminal.shows("ended=74");
    terminal.types("[ \"$(stty -g)\" = \"$before\" ] && echo same$((1 + 1))");
    terminal.shows("same2");
}

/// An interactive shell ignores TERM.
#[test]
fn a_loss_takes_the_terminal_back_from_a_shell() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.types("${L/k --/--kill-after 100ms k --} bash --norc -i; echo ended=$?");
    terminal.types("echo $$ >$D/inside; echo in$((1 + 1))");
    terminal.shows("in2");
    terminal.inside();
    server.command::<()>(&["DEL", "k"]);
    terminal.shows("ended=74");
    terminal.types("echo again$((1 + 1))");
    terminal.shows("again2");
}

#[test]
fn quit_ends_a_script_and_not_only_its_command() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "exec sleep 1000");
    let outer = format!("ulimit -c 0; {PROGRAM} run k -- sh $D/inner\necho wrong");
    std::fs::write(terminal.directory.file("outer"), outer).unwrap();
    terminal.types("sh $D/outer");
    let inside = terminal.inside();
    terminal.presses("C-\\");
    terminal.types("echo ended=$?");
    terminal.shows("ended=131");
    assert!(!terminal.screen().contains("wrong") && !runs(inside));
}

#[test]
fn a_command_in_the_background_gets_the_terminal_by_fg() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "read -r x </dev/tty; echo got=$x");
    terminal.types("$L sh $D/inner &");
    let inside = terminal.inside();
    soon("it wants to read, and is stopped", || {
        state(inside) == Some('T')
    });
    terminal.types("jobs");
    terminal.shows("Stopped");
    terminal.types("fg; echo ended=$?");
    soon("it reads", || state(inside) == Some('S'));
    terminal.types("hello");
    terminal.shows("got=hello");
    terminal.shows("ended=0");
}

#[test]
fn others_of_a_pipeline_may_read_the_terminal() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "echo one; exec sleep 1000");
    let pager =
        "read -r line; echo line=$line; read -r x </dev/tty; echo got=$x; kill $(cat $D/inside)";
    std::fs::write(terminal.directory.file("pager"), pager).unwrap();
    terminal.types("$L sh $D/inner | sh $D/pager; echo ended=$?");
    terminal.shows("line=one");
    terminal.types("hello");
    terminal.shows("got=hello");
    terminal.shows("ended=0");
}

/// A bug: another process of the pipeline that wanted the terminal stopped the wrapper, which then
/// renewed nothing, while the command went on.
#[test]
fn waiting_for_a_commands_terminal_does_not_stop_its_renewals() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script(
        "inner",
        "read -r x </dev/tty; echo got=$x >&2; until [ -e $D/go ]; do sleep 0.05; done",
    );
    let reader = "echo $$ >$D/reader; until [ -e $D/read ]; do sleep 0.05; done\n\
                  read -r y </dev/tty; echo late=$y";
    std::fs::write(terminal.directory.file("pager"), reader).unwrap();
    terminal.types("$L sh $D/inner | sh $D/pager");
    let reader = terminal.directory.number("reader");
    let inside = terminal.inside();
    soon("it reads", || state(inside) == Some('S'));
    terminal.types("one");
    terminal.shows("got=one");
    std::fs::write(terminal.directory.file("read"), "").unwrap();
    soon("the other one waits", || state(reader) == Some('T'));
    // Longer than the lease.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(server.exists("k"), "it is renewed");
    std::fs::write(terminal.directory.file("go"), "").unwrap();
    soon("the other one continues", || state(reader) == Some('S'));
    terminal.types("two");
    terminal.shows("late=two");
}

/// A bug: the command took the terminal from the script, which then stopped.
#[test]
fn a_script_with_its_command_in_background_keeps_the_terminal() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "until [ -e $D/go ]; do sleep 0.05; done");
    let outer = format!(
        "{PROGRAM} run k -- sh $D/inner &\nuntil [ -s $D/inside ]; do sleep 0.05; done\n\
         read -r x; echo got=$x; echo >$D/go; wait $!; echo status=$?\n\
         {PROGRAM} run k -- sh -c 'read -r y; echo then=$y'"
    );
    std::fs::write(terminal.directory.file("outer"), outer).unwrap();
    terminal.types("bash $D/outer");
    terminal.inside();
    terminal.types("hello");
    terminal.shows("got=hello");
    terminal.shows("status=0");
    terminal.types("again");
    terminal.shows("then=again");
}

/// A bug: an interactive shell has TTIN ignored there, and so had the command.
#[test]
fn a_command_in_a_substitution_gets_the_terminal() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "read -r x </dev/tty; echo got=$x");
    terminal.types("y=$($L sh $D/inner); echo status=$?,$y");
    terminal.inside();
    terminal.types("hello");
    terminal.shows("status=0,got=hello");
}

#[test]
fn ctrl_c_ends_a_command_in_a_pipeline() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "exec sleep 1000");
    terminal.types("$L sh $D/inner | cat");
    let inside = terminal.inside();
    terminal.presses("C-c");
    soon("it has ended", || !runs(inside) && !server.exists("k"));
}

#[test]
fn a_terminal_that_closes_ends_the_command() {
    let server = Server::start();
    let terminal = Terminal::new(&server);
    terminal.script("inner", "exec sleep 1000");
    terminal.types("$L sh $D/inner");
    let inside = terminal.inside();
    terminal.tells(&["kill-session"]);
    soon("it has ended", || !runs(inside));
    soon("it is free", || !server.exists("k"));
}
