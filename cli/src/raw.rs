//! The calls that Rust has no safe form for. All `unsafe` code of this crate is here.
#![allow(unsafe_code, reason = "signals, and a child between fork and exec")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::ptr;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, killpg, raise, sigaction};
use nix::unistd::{Pid, getpgrp, getpid};

use crate::terminal;

/// Returns whether this process ignores a signal, as nohup(1) has its command ignore HUP.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call changes nothing, and writes the one in place.
    let known = unsafe { libc::sigaction(signal as i32, ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: the call that succeeded has written it.
    known && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Stops the process group of this process, as Ctrl-Z would if the signal were not handled here.
///
/// Returns when the group is continued, and at once if no process could continue it (an orphaned
/// process group). The kernel chooses the main thread to act on the signal, and that thread calls
/// this.
pub(crate) fn stop_own_group() -> nix::Result<()> {
    let usual = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this process.
    let handler = unsafe { sigaction(Signal::SIGTSTP, &usual) }?;
    let stopped = killpg(getpgrp(), Signal::SIGTSTP);
    // SAFETY: it is the handler that was in place before.
    unsafe { sigaction(Signal::SIGTSTP, &handler) }?;
    stopped
}

/// Ends this process by a signal, as if it had not been handled here.
pub(crate) fn end_by(signal: Signal) -> nix::Result<()> {
    let usual = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this process.
    unsafe { sigaction(signal, &usual) }?;
    raise(signal)
}

/// Returns how the state of a child has changed since the last call: it stopped or ended.
pub(crate) fn change(child: Pid) -> io::Result<Option<ExitStatus>> {
    let mut status = 0;
    let flags = libc::WNOHANG | libc::WUNTRACED;
    // SAFETY: the call writes a number to where a number is.
    match unsafe { libc::waitpid(child.as_raw(), &raw mut status, flags) } {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Some(ExitStatus::from_raw(status))),
    }
}

/// Has a command die with this process, and begin in the foreground of a terminal if one is given.
pub(crate) fn prepare(command: &mut Command, terminal: Option<File>) {
    let parent = getpid();
    let prepare = move || {
        die_with(parent)?;
        // Where they are ignored, as in a shell's `$(..)`, reading from the background fails: the
        // command could not be given the terminal when it needs it.
        for signal in [Signal::SIGTTIN, Signal::SIGTTOU] {
            let usual = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            // SAFETY: the default action runs no code of this process.
            unsafe { sigaction(signal, &usual) }?;
        }
        if let Some(terminal) = &terminal {
            // If it fails, the command begins in the background, and stops as soon as it needs the
            // terminal: it is given it then.
            let _: nix::Result<()> = terminal::set_foreground(terminal, getpid());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls may be made, since another thread
    // may have held any lock at the fork. These are prctl, getppid, raise, sigaction,
    // pthread_sigmask, tcsetpgrp and getpid, and nothing allocates.
    unsafe { command.pre_exec(prepare) };
}

/// Has the kernel kill the calling process when the thread that forked it ends.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn die_with(parent: Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // It may have ended before the call: then no signal comes.
    if nix::unistd::getppid() != parent {
        raise(Signal::SIGKILL)?;
    }
    Ok(())
}

/// Elsewhere only the leash kills the command.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn die_with(_parent: Pid) -> io::Result<()> {
    Ok(())
}
