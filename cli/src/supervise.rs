//! What happens while the command runs: signals are passed on, Ctrl-Z stops both, and the loss of
//! the lock ends the command.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use lockhound::MultiGuard;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::getpgrp;
use tokio::time::{Instant, sleep, sleep_until};

use crate::child::Child;
use crate::exit::Failure;
use crate::raw;
use crate::say::say;
use crate::signals::Signals;
use crate::terminal::Terminal;

/// How often the rest of a group is looked for. Nothing says when it is gone.
const LOOK: Duration = Duration::from_millis(20);

/// How long processes may take to be gone that were killed.
const GONE: Duration = Duration::from_secs(1);

/// A command that runs while a lock is held.
#[derive(Debug)]
pub(crate) struct Supervisor<'a> {
    pub(crate) guard: &'a MultiGuard,
    pub(crate) child: Child,
    pub(crate) terminal: Option<&'a Terminal>,
    /// How long the command may continue after TERM if the lock is lost; `None` lets it run.
    pub(crate) kill_after: Option<Duration>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Whether the lock was lost before, and that was said.
    pub(crate) lost: bool,
    /// Whether Ctrl-C ended it.
    pub(crate) interrupted: bool,
}

/// What has happened so far.
#[derive(Debug, Default)]
struct State {
    lost: bool,
    interrupted: bool,
    /// Whether others of this process group wait for the terminal.
    others_wait: bool,
    /// When the group is killed.
    deadline: Option<Instant>,
}

impl Supervisor<'_> {
    /// Returns when the command has ended; if the lock was lost, when its whole group has.
    ///
    /// `children` ticks when a child may have changed, and was made before the command was started.
    pub(crate) async fn run(
        self,
        signals: &mut Signals,
        children: &mut tokio::signal::unix::Signal,
    ) -> Result<Ended, Failure> {
        let lost = self.guard.lost();
        let mut state = State::default();
        let status = loop {
            tokio::select! {
                biased;
                _ = children.recv() => if let Some(status) = self.changed(&mut state)? { break status },
                () = lost.cancelled(), if !state.lost => self.lose(&mut state),
                signal = signals.next() => self.pass_on(signal, &mut state),
                () = until(state.deadline) => self.kill(&mut state),
            }
        };
        let interrupted = self.end_terminal(status);
        if state.others_wait {
            // This process is in the group, so it exists.
            let _: nix::Result<()> = killpg(getpgrp(), Signal::SIGCONT);
        }
        if state.lost && self.kill_after.is_some() {
            self.end_group(signals, &mut state).await;
        }
        self.child.let_off();
        Ok(Ended {
            status,
            lost: state.lost,
            interrupted,
        })
    }

    /// Returns how the command ended, if it did.
    fn changed(&self, state: &mut State) -> Result<Option<ExitStatus>, Failure> {
        while let Some(status) = self.child.change()? {
            match status.stopped_signal() {
                Some(signal) => self.stopped(signal, state),
                None => return Ok(Some(status)),
            }
        }
        Ok(None)
    }

    /// Passes a signal on that others sent to this process. Ctrl-C does not come here while the
    /// command has the terminal.
    fn pass_on(&self, signal: Signal, state: &mut State) {
        if matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU) {
            state.others_wait = true;
            return;
        }
        let again = signal == Signal::SIGINT && std::mem::replace(&mut state.interrupted, true);
        self.child
            .send(if again { Signal::SIGKILL } else { signal });
    }

    /// Follows the command when the terminal has stopped it.
    ///
    /// It does not follow STOP: that comes from somebody who may also continue the command, and the
    /// lock has to be renewed then.
    fn stopped(&self, signal: i32, state: &mut State) {
        let Some(terminal) = self.terminal else {
            return;
        };
        let is = |one: Signal| signal == one as i32;
        let wants_terminal = is(Signal::SIGTTIN) || is(Signal::SIGTTOU);
        if !wants_terminal && !is(Signal::SIGTSTP) {
            return;
        }
        let group = self.child.group();
        let has_terminal = wants_terminal
            && (terminal.is_of(group) || terminal.is_ours() && terminal.give_to(group).is_ok());
        if !has_terminal && state.deadline.is_none() {
            if terminal.is_of(group) {
                terminal.take_back();
            }
            if let Err(e) = raw::stop_own_group() {
                say(format_args!("cannot stop: {e}"));
            }
            // Nothing was renewed meanwhile.
            if self.guard.is_lost() && !state.lost {
                self.lose(state);
            }
            if terminal.is_ours() {
                // If it fails, the command stops again when it needs the terminal.
                let _: nix::Result<()> = terminal.give_to(group);
            }
        }
        self.child.send(Signal::SIGCONT);
    }

    /// Says that the lock is lost, and begins to end the command.
    fn lose(&self, state: &mut State) {
        state.lost = true;
        let how = self.guard.check().err();
        let how = how.map_or_else(|| "the lock is lost".to_owned(), |lost| lost.to_string());
        let Some(kill_after) = self.kill_after else {
            say(format_args!("{how}; the command continues"));
            return;
        };
        self.child.send(Signal::SIGTERM);
        // If it was stopped, TERM is the first that it sees.
        self.child.send(Signal::SIGCONT);
        state.deadline = Some(Instant::now() + kill_after);
        // Behind that: it may take a while.
        say(format_args!("{how}; the command is ended"));
    }

    fn kill(&self, state: &mut State) {
        state.deadline = None;
        self.child.send(Signal::SIGKILL);
    }

    /// Waits until the group of a command that has ended is gone, and kills it when its time is
    /// over.
    async fn end_group(&self, signals: &mut Signals, state: &mut State) {
        let mut looks_until = Instant::now() + GONE;
        while self.child.group_lives() {
            match state.deadline {
                Some(deadline) if Instant::now() >= deadline => {
                    self.kill(state);
                    looks_until = Instant::now() + GONE;
                }
                None if Instant::now() >= looks_until => return,
                _ => {}
            }
            tokio::select! {
                signal = signals.next() => self.pass_on(signal, state),
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Takes the terminal back from a command that has ended, and returns whether Ctrl-C ended it.
    ///
    /// The others of this process group, such as the shell of a script, are notified of a key that
    /// ended it: they would have got the same signal from the terminal.
    fn end_terminal(&self, status: ExitStatus) -> bool {
        let group = self.child.group();
        let Some(terminal) = self.terminal.filter(|it| it.is_of(group)) else {
            return false;
        };
        terminal.take_back();
        if status.signal().is_some() {
            terminal.restore_modes();
        }
        let ended_by = |key: &Signal| status.signal() == Some(*key as i32);
        if let Some(key) = [Signal::SIGINT, Signal::SIGQUIT].into_iter().find(ended_by) {
            // This process is in the group, so it exists.
            let _: nix::Result<()> = killpg(getpgrp(), key);
        }
        ended_by(&Signal::SIGINT)
    }
}

/// Waits until then, or for ever.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
