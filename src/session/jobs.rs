//! What the engine's runner has to do, and how those that wait for it are told.
//!
//! # Invariants
//! - What a line has in flight tells it the outcome exactly once: also if the job ends before, by a
//!   panic or with the engine. Otherwise the callers would wait forever.

use std::sync::Arc;

use super::Session;
use super::state::{Task, UnderWay};
use crate::engine::Work;
use crate::error::Error;
use crate::foreign::{self, contained};
use crate::hold::Hold;
use crate::key::Key;
use crate::line::Event;
use crate::lines::{CallWaiter, LineAnswer};

impl UnderWay {
    pub(super) fn new(session: &Arc<Session>, key: &Key) -> Self {
        Self {
            session: Arc::clone(session),
            key: key.clone(),
            ended: false,
        }
    }

    pub(super) fn end(mut self, outcome: Event) {
        self.ended = true;
        self.session.lines.step(&self.key, outcome);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.ended {
            let Self { session, key, .. } = self;
            contained(|| {
                // What it has sent may come yet.
                session.lines.doubt(key, u64::MAX);
                // The callers first: the line would ask for the next one, whose job may end the
                // same way.
                refuse(session.lines.drain(key, |_| true), &stopped(session));
                session.lines.step(key, Event::Stopped);
            });
        }
    }
}

/// Runs a task for a caller that waits for its answer.
pub(super) fn ask(session: &Session, task: Task) {
    session.engine.asked();
    session.runner.submit(task);
}

/// Runs an operation as a task of the engine, so that dropping the caller's future drops no command
/// half-way. It begins with this call; the future, which is small, only waits.
pub(super) fn on_engine<T: Send + 'static, F>(
    session: &Arc<Session>,
    operation: F,
) -> impl Future<Output = Result<T, Error>> + use<T, F>
where
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let (reply, answer) = foreign::channel();
    match session.check_open() {
        Err(error) => foreign::answer(reply, Err(error)),
        Ok(()) => {
            // Closing waits for it: what it is granted has to be given back while there is a
            // connection.
            let pending = session.engine.track(Work::Operation);
            let owned = Arc::clone(session);
            ask(
                session,
                Task::Other(Box::pin(async move {
                    let panicked = |said: String| Err(owned.panicked(&said));
                    let result = foreign::survive(operation).await.unwrap_or_else(panicked);
                    owned.engine.answered();
                    owned.engine.queue_reply(move || {
                        // If the caller is gone, the answer is dropped, and a guard in it releases
                        // its lock.
                        foreign::answer(reply, result);
                        drop(pending);
                    });
                })),
            );
        }
    }
    async move { answer.await.unwrap_or(Err(Error::Closed)) }
}

/// Ends the waits of these callers with an error.
pub(super) fn refuse<G>(waiters: impl IntoIterator<Item = CallWaiter<G>>, error: &Error) {
    for waiter in waiters {
        foreign::answer(waiter.call.reply, Err(error.clone()));
    }
}

/// Sends these callers back, to come again.
pub(super) fn send_back<G>(waiters: impl IntoIterator<Item = CallWaiter<G>>) {
    for waiter in waiters {
        foreign::answer(waiter.call.reply, Ok(LineAnswer::SentBack));
    }
}

/// Sends those back that wait in line for this hold's owner to end it: they want the lock in the
/// other role.
pub(super) fn recall(session: &Session, hold: &Hold) {
    let kind = hold.claim.kind;
    if kind.hands_over() {
        return;
    }
    let waiters = session.lines.recall(hold);
    send_back(waiters);
}

/// Returns why what was in flight has no outcome.
fn stopped(session: &Session) -> Error {
    session
        .check_open()
        .err()
        .unwrap_or_else(|| session.panicked("the panic hook was told why"))
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;
    use crate::foreign::poll_sickly;

    /// The waker of one caller panics when the engine ends, e.g. by `close` while a server is
    /// silent.
    #[tokio::test]
    async fn a_sick_waker_keeps_no_other_caller_waiting_at_the_end() {
        let session = Session::over_nobody();
        let (begun, begins) = std::sync::mpsc::channel();
        let operation = || {
            let begun = begun.clone();
            on_engine(&session, async move {
                begun.send(()).expect("the test listens");
                pending::<Result<(), Error>>().await
            })
        };
        let mut answers: Vec<_> = (0..9).map(|_| Box::pin(operation())).collect();
        (0..9).for_each(|_| {
            begins
                .recv_timeout(Duration::from_secs(10))
                .expect("it begins");
        });
        let mut sick = answers.remove(4);
        poll_sickly(sick.as_mut());
        session.engine.stop();
        for answer in answers {
            let answer = tokio::time::timeout(Duration::from_secs(5), answer).await;
            assert!(
                matches!(answer, Ok(Err(Error::Closed))),
                "it waits forever: {answer:?}"
            );
        }
    }
}
