//! A small process that kills the command if this process is killed and cannot do it itself.
//!
//! It is a shell that reads a pipe from this process. If the pipe ends without a word, this process
//! is gone, and the shell kills the process group of the command. The kernel would only kill the
//! command itself, and only on Linux.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use nix::unistd::Pid;

/// The first line is the group, the second that it may live. A signal that ends all processes of a
/// service, as its stop does, must not end this one first.
const WATCH: &str = r#"trap '' HUP INT QUIT TERM
read -r group || exit; read -r _ || kill -s KILL -- "-$group""#;

/// Dropping it kills the command, if it is tied and not yet let off.
#[derive(Debug)]
pub(crate) struct Leash {
    shell: Child,
}

impl Leash {
    /// Starts the process. It is in a group of its own, so that signals to this one's do not end
    /// it.
    pub(crate) fn start() -> io::Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", WATCH])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { shell })
    }

    /// Ties the group of the command to the life of this process.
    pub(crate) fn tie(&mut self, group: Pid) -> io::Result<()> {
        self.tell(&group.to_string())
    }

    /// Lets the group live. If somebody has killed the shell, it does that anyway.
    pub(crate) fn let_off(mut self) {
        let told = self.tell("live");
        if told.is_ok() {
            drop(self.shell.wait());
        }
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        let pipe = self.shell.stdin.as_mut();
        pipe.map_or(Ok(()), |pipe| {
            pipe.write_all(format!("{line}\n").as_bytes())
        })
    }
}
