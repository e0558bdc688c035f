//! Lines for people, on standard error: standard output belongs to the command.

use std::fmt;
use std::io::Write as _;

/// Writes one line, begun with the name of the program.
pub(crate) fn say(message: impl fmt::Display) {
    // In one piece, so that the lines of several programs do not mix.
    let line = format!("lockhound: {message}\n");
    // If nobody can be told, the command still has to be supervised. The exit code tells.
    drop(std::io::stderr().write_all(line.as_bytes()));
}

/// Asks on standard error; the answer follows on the same line.
pub(crate) fn ask(question: impl fmt::Display) {
    let text = format!("lockhound: {question} [y/N] ");
    // Without it, the answer is still the person's.
    drop(std::io::stderr().write_all(text.as_bytes()));
}
