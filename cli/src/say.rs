//! Lines for people, on standard error: standard output belongs to the command.

use std::fmt;
use std::io::Write as _;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// How long a line may take. Whoever reads may have stopped, and a command without its lock has to
/// be ended all the same.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes one line, begun with the name of the program.
pub(crate) fn say(message: impl fmt::Display) {
    // In one piece, so that the lines of several programs do not mix.
    let line = format!("lockhound: {message}\n");
    let (done, written) = mpsc::channel();
    let writer = thread::Builder::new().spawn(move || {
        write(line.as_bytes());
        drop(done);
    });
    // If the line cannot be written, the command still has to be supervised. The exit code tells.
    if writer.is_ok() {
        let _: Result<(), _> = written.recv_timeout(PATIENCE);
    }
}

/// Writes to standard error, for as long as that takes: on a thread of its own.
///
/// A terminal may stop those in its background that write, unless they block the signal.
pub(crate) fn write(text: &[u8]) {
    let mut stopped_by = SigSet::empty();
    stopped_by.add(Signal::SIGTTOU);
    // It fails only for a signal that does not exist.
    let _: nix::Result<()> = stopped_by.thread_block();
    drop(std::io::stderr().write_all(text));
}

/// Asks on standard error; the answer follows on the same line.
pub(crate) fn ask(question: impl fmt::Display) {
    let text = format!("lockhound: {question} [y/N] ");
    // Without it, the answer is still the person's.
    drop(std::io::stderr().write_all(text.as_bytes()));
}
