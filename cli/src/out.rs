//! Standard output.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};

use crate::exit::{Failure, SOFTWARE};

/// Writes a line at once. Returns whether anybody reads on, as `head` does not.
pub(crate) fn line(line: impl fmt::Display) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(gone) if gone.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(SOFTWARE, format!("cannot write: {error}"))),
    }
}
