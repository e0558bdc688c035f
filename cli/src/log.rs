//! What the library reports while it works, for `-v`.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use tracing::Level;

use crate::say;

/// How many lines wait for a reader. More are dropped: the library renews locks on the thread that
/// reports, and must not wait.
const LINES: usize = 1_000;

/// Shows warnings from the first `-v` on, and every event of the library from the second on.
pub(crate) fn begin(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => Level::WARN,
        _ => Level::DEBUG,
    };
    let (lines, written) = sync_channel::<Vec<u8>>(LINES);
    thread::spawn(move || written.iter().for_each(|line| say::write(&line)));
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false)
        .with_writer(move || Line(lines.clone()))
        .init();
}

/// Where an event is written, which is done in one call.
struct Line(SyncSender<Vec<u8>>);

impl io::Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // If it is full, or no thread writes any more, the line is dropped.
        drop(self.0.try_send(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
