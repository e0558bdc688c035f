//! What the library reports while it works, for `-v`.

use std::io;

use tracing::Level;

/// Shows warnings from the first `-v` on, and every event of the library from the second on.
pub(crate) fn begin(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => Level::WARN,
        _ => Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .with_writer(io::stderr)
        .init();
}
