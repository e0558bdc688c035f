//! The command, in a process group of its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::exit::{self, Failure};
use crate::leash::Leash;
use crate::raw;
use crate::say::say;
use crate::terminal::Terminal;

/// The command that runs. Dropping it kills the command.
#[derive(Debug)]
pub(crate) struct Child {
    /// Also the id of its group.
    pid: Pid,
    leash: Leash,
}

impl Child {
    /// Starts a command with these variables, in the foreground of the terminal if this process is
    /// there.
    ///
    /// # Errors
    /// Has the exit code of a shell.
    pub(crate) fn start(
        words: &[OsString],
        variables: &[(&str, String)],
        terminal: Option<&Terminal>,
    ) -> Result<Self, Failure> {
        let watched = |e| Failure::new(exit::CANNOT_RUN, format!("cannot watch the command: {e}"));
        let leash = Leash::start().map_err(watched)?;
        let [program, arguments @ ..] = words else {
            return Err(Failure::usage("no command is given"));
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .process_group(0);
        let device = terminal.and_then(Terminal::for_command);
        let foreground = device.is_some();
        raw::prepare(&mut command, device);
        let started = command.spawn().map_err(|e| {
            // It got the terminal before it failed.
            terminal.filter(|_| foreground).inspect(|it| it.take_back());
            let code = match e.kind() {
                io::ErrorKind::NotFound => exit::NOT_FOUND,
                _ => exit::CANNOT_RUN,
            };
            Failure::new(code, format!("{}: {e}", program.display()))
        })?;
        let pid = Pid::from_raw(started.id().cast_signed());
        let mut child = Self { pid, leash };
        child.leash.tie(pid).map_err(|e| {
            child.send(Signal::SIGKILL);
            watched(e)
        })?;
        Ok(child)
    }

    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Returns how it has changed since the last call: it stopped or ended.
    pub(crate) fn change(&self) -> Result<Option<ExitStatus>, Failure> {
        raw::change(self.pid).map_err(|e| {
            let text = format!("cannot tell how the command ends: {e}");
            Failure::new(exit::SOFTWARE, text)
        })
    }

    /// Sends a signal to the whole group, and says if that is not permitted, as with sudo(8).
    pub(crate) fn send(&self, signal: Signal) {
        match killpg(self.pid, signal) {
            // All have ended.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(e) => say(format_args!("cannot send {signal} to the command: {e}")),
        }
    }

    /// Returns whether a process of its group is there. Its id is not used for anything else until
    /// then.
    pub(crate) fn group_lives(&self) -> bool {
        killpg(self.pid, None) != Err(Errno::ESRCH)
    }

    /// Lets what is left of its group live on after this process.
    pub(crate) fn let_off(self) {
        self.leash.let_off();
    }
}
