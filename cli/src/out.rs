//! Standard output.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd as _;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::exit::{Failure, SOFTWARE};

/// Returns whether no process reads any more, as after `head -1`.
pub(crate) fn is_closed() -> bool {
    let out = io::stdout();
    // Without an event to wait for, it reports errors only.
    let mut asked = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let known = poll(&mut asked, PollTimeout::ZERO).is_ok();
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    known && asked[0].revents().is_some_and(|it| it.intersects(gone))
}

/// Writes a line at once. Returns whether it is still read: `head` ends early.
pub(crate) fn line(line: impl fmt::Display) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(gone) if gone.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(SOFTWARE, format!("cannot write: {error}"))),
    }
}
