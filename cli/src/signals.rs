//! The signals that others send to this process.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::raw;

/// The signals that are meant for the command. The last two are for this process group: another
/// process of it, such as the next one of a pipeline, wants the terminal that the command has. They
/// must not stop this process, which has to renew the lock.
const HANDLED: [Signal; 11] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// The signals that this process receives, from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Begins to listen. A signal that the caller of this process had it ignore stays ignored, here
    /// and in the command.
    pub(crate) fn listen() -> io::Result<Self> {
        let heard = HANDLED.into_iter().filter(|it| !raw::is_ignored(*it));
        let stream = |it| Ok((it, unix::signal(SignalKind::from_raw(it as i32))?));
        Ok(Self {
            streams: heard.map(stream).collect::<io::Result<_>>()?,
        })
    }

    /// Returns the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Runs a future while no command runs: a signal that would end this process ends the future,
    /// and Ctrl-Z stops the process.
    ///
    /// # Errors
    /// The signal.
    pub(crate) async fn unless<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Signal> {
        let mut future = std::pin::pin!(future);
        loop {
            let signal = tokio::select! {
                biased;
                signal = self.next() => signal,
                output = &mut future => return Ok(output),
            };
            match signal {
                Signal::SIGWINCH | Signal::SIGCONT | Signal::SIGTTIN | Signal::SIGTTOU => {}
                // It fails only for a signal or a group that does not exist.
                Signal::SIGTSTP => drop(raw::stop_own_group()),
                _ => return Err(signal),
            }
        }
    }
}
