//! The exit codes, after `sysexits.h` and the shell, and the failures that end a subcommand.

use std::fmt;
use std::io::{self, Write as _};
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
    let text = refusal.render().to_string();
    let shown = without_logins(&text);
    let printed = if shown == text {
        refusal.print()
    } else {
        io::stderr().write_all(shown.as_bytes())
    };
    match printed {
        _ if refusal.use_stderr() => USAGE.into(),
        Ok(()) => ExitCode::SUCCESS,
        // As with `lockhound --help | head -1`.
        Err(gone) if gone.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => SOFTWARE.into(),
    }
}

/// Returns a text with `***` for the user and the password of each address in it. An address that
/// is not behind `--url` by mistake is an argument that clap repeats.
fn without_logins(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find(char::is_whitespace).unwrap_or(after.len());
        let (address, behind) = after.split_at(end);
        shown.push_str(before);
        shown.push_str("://");
        match address.rsplit_once('@') {
            Some((_, host)) => {
                shown.push_str("***@");
                shown.push_str(host);
            }
            None => shown.push_str(address),
        }
        rest = behind;
    }
    shown.push_str(rest);
    shown
}
