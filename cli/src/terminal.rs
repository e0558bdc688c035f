//! The terminal, and which process group is in its foreground: only that one may read it, and gets
//! the signals of its keys.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::FileTypeExt as _;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal that controls this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    device: File,
    /// The modes at the start, such as echo. An editor that is killed does not restore them.
    modes: Option<Termios>,
}

impl Terminal {
    /// Returns the terminal, or `None` for a process without one, such as a cron job.
    pub(crate) fn open() -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/tty");
        device.ok().map(|device| Self {
            modes: tcgetattr(&device).ok(),
            device,
        })
    }

    /// Returns the device if a command should begin in the foreground: this process is there, reads
    /// the terminal, and is not in a pipeline, whose other processes may need the terminal, as in
    /// `lockhound run k -- list | less`. A shell without job control gives what it starts with `&`
    /// another input; the script itself may need the terminal then.
    pub(crate) fn for_command(&self) -> Option<File> {
        let is_pipe = fs::metadata("/dev/fd/1").is_ok_and(|it| it.file_type().is_fifo());
        let reads = io::stdin().is_terminal();
        (reads && !is_pipe && self.is_ours())
            .then(|| self.device.try_clone().ok())
            .flatten()
    }

    /// Returns whether this process is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_of(getpgrp())
    }

    /// Returns whether this group is in the foreground.
    pub(crate) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.device) == Ok(group)
    }

    /// Sets the modes that it had at the start, as a shell does when a signal has ended a command.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes {
            // If it fails, the terminal is gone.
            let _: nix::Result<()> = tcsetattr(&self.device, SetArg::TCSANOW, modes);
        }
    }

    /// Puts this group into the foreground.
    pub(crate) fn give_to(&self, group: Pid) -> nix::Result<()> {
        set_foreground(&self.device, group)
    }

    /// Puts this process into the foreground. If it fails, the terminal is gone, and no process
    /// needs it any more.
    pub(crate) fn take_back(&self) {
        let _: nix::Result<()> = self.give_to(getpgrp());
    }
}

/// Puts a group into the foreground of a terminal. Who does that from the background is stopped by
/// TTOU, unless the signal is blocked.
pub(crate) fn set_foreground(terminal: &File, group: Pid) -> nix::Result<()> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTTOU);
    let before = mask.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    let set = tcsetpgrp(terminal, group);
    before.thread_set_mask()?;
    set
}
