//! The exit codes, after `sysexits.h` and the shell, and the failures that end a subcommand.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use lockhound::Error;

use crate::say::say;

/// The lock is held, and the call was not to wait, as flock(1).
pub(crate) const HELD: u8 = 1;
/// The lock that was asked about is free.
pub(crate) const FREE: u8 = 1;
/// An option, an address or a name cannot be used.
pub(crate) const USAGE: u8 = 64;
/// No server, or no majority of several, gave a usable answer.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The library reported a fault of its own.
pub(crate) const SOFTWARE: u8 = 70;
/// A file cannot be written.
pub(crate) const CANNOT_WRITE: u8 = 73;
/// The lock was lost while it was needed.
pub(crate) const LOST: u8 = 74;
/// The lock is held, and the time to wait is over.
pub(crate) const WAITED: u8 = 75;
/// The command was found, but cannot be run, as in a shell.
pub(crate) const CANNOT_RUN: u8 = 126;
/// The command was not found, as in a shell.
pub(crate) const NOT_FOUND: u8 = 127;
/// What is added to the number of the signal that ended something, as in a shell.
const SIGNALLED: i32 = 128;

/// Why a subcommand ends before it has done its work.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        Self { code, message }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether servers that come back may end it.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.code == UNAVAILABLE
    }

    /// Tells people why it ends, and returns the exit code for programs.
    pub(crate) fn tell(self) -> u8 {
        say(&self.message);
        self.code
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Config(_) => USAGE,
            Error::Unavailable { .. } | Error::Server { .. } => UNAVAILABLE,
            Error::Lost { .. } => LOST,
            _ => SOFTWARE,
        };
        Self::new(code, error)
    }
}

/// Returns the exit code for something that a signal ended.
pub(crate) fn of_signal(signal: i32) -> u8 {
    // Signals end at 64, so the sum is in range.
    u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX)
}

/// Returns a command's own exit code, as a shell does.
pub(crate) fn of_status(status: ExitStatus) -> u8 {
    match status.code() {
        // The system keeps eight bits of it.
        Some(code) => u8::try_from(code).unwrap_or(u8::MAX),
        None => of_signal(status.signal().unwrap_or_default()),
    }
}

/// Prints what clap says about the command line: help, the version, or what is wrong with it.
pub(crate) fn of_parsing(refusal: &clap::Error) -> ExitCode {
    let code = if refusal.use_stderr() { USAGE } else { 0 };
    match refusal.print() {
        Ok(()) => code.into(),
        // Nobody reads it any more, such as `lockhound --help | head -1`.
        Err(_) => ExitCode::FAILURE,
    }
}
