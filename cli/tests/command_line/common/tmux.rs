//! A terminal, by tmux.

use std::process::{Command, Output};

use uuid::Uuid;

/// A terminal of 80 columns with a shell in it. It ends when it is dropped.
pub struct Tmux(String);

impl Tmux {
    pub fn start(shell: &str) -> Self {
        let tmux = Self(format!("lockhound-{}", Uuid::new_v4()));
        let size = ["-x", "80", "-y", "24", shell];
        tmux.tells(&[&["-f", "/dev/null", "new-session", "-d"][..], &size].concat());
        tmux
    }

    fn output(&self, args: &[&str]) -> Output {
        let output = Command::new("tmux")
            .args(["-L", &self.0])
            .args(args)
            .output();
        output.expect("tmux is needed: ./dev test installs it, or `apt-get install tmux`")
    }

    /// Gives tmux a command, and returns its answer.
    pub fn tells(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "tmux {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Types a line.
    pub fn types(&self, line: &str) {
        self.tells(&["send-keys", "-l", line]);
        self.presses("Enter");
    }

    /// Presses a key, by tmux's name.
    pub fn presses(&self, key: &str) {
        self.tells(&["send-keys", key]);
    }

    pub fn screen(&self) -> String {
        self.tells(&["capture-pane", "-p", "-J"])
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}", self.output(&["capture-pane", "-p"]));
        }
        drop(self.output(&["kill-server"]));
    }
}
