//! The answers that the engine gives to callers. They go out together, after the tasks that are
//! ready have run.
//!
//! An answer wakes a task of the program, and one script answers many callers. If each answer went
//! out at once, the thread that runs those tasks would wake up, run one of them and go to sleep
//! again, for each answer: the engine takes longer to give an answer than a caller to ask the next
//! question. Both sides of that are system calls.
//!
//! Not too many, though: a caller has to take a lock that it was granted within a time that begins
//! with the grant, and the tasks that an answer wakes are foreign code, which takes the engine's
//! time.
//!
//! # Invariants
//! - On the engine's own thread, replies are sent in the order in which they were queued. No mutex
//!   is held meanwhile.
//! - Each reply is sent: by the task, by the call that queues the [`MOST`]th, or by the end of the
//!   engine; after that, at once.

use tokio::sync::Notify;

use crate::foreign::contained;
use crate::sync::{Arc, Mutex};

/// Replies are flushed early once this many are queued.
const MOST: usize = 64;

/// Sends an answer to a caller.
type QueuedReply = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct ReplyBatch {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    replies: Vec<QueuedReply>,
    /// Whether the engine has ended.
    ended: bool,
}

impl ReplyBatch {
    pub(super) fn queue(&self, reply: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.replies.push(Box::new(reply));
        let is_due = state.ended || state.replies.len() >= MOST;
        drop(state);
        if is_due {
            // On this thread: the task is behind, or has ended with the engine.
            self.flush(&mut Vec::new());
        } else {
            self.news.notify_one();
        }
    }

    /// Sends all replies, by way of this empty list: the two lists take turns.
    fn flush(&self, replies: &mut Vec<QueuedReply>) {
        std::mem::swap(&mut self.state.lock().replies, replies);
        replies.drain(..).for_each(contained);
    }
}

impl std::fmt::Debug for ReplyBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyBatch")
            .field("replies", &self.state.lock().replies.len())
            .finish_non_exhaustive()
    }
}

/// Its drop ends the batches, whether or not their task has begun. Only the end of the engine drops
/// it.
pub(super) struct Flusher(pub(super) Arc<ReplyBatch>);

impl Drop for Flusher {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.flush(&mut Vec::new());
    }
}

/// Sends the replies that are queued. Started with the engine; ends with it; no task awaits it.
pub(super) async fn deliver(flusher: Flusher) {
    let mut replies = Vec::new();
    loop {
        // No wake-up is lost: only this task waits, and a reply meanwhile leaves a permit.
        flusher.0.news.notified().await;
        flusher.0.flush(&mut replies);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::super::Engine;
    use super::MOST;

    #[test]
    fn letters_go_out_together_after_the_tasks_that_are_ready() {
        let engine = Engine::start(1).expect("a thread");
        let (says, said) = channel();
        let other = engine.clone();
        engine.spawn(async move {
            for number in 0..3 {
                let engine = other.clone();
                let says = says.clone();
                // Two of them are opened in spite of a panic in the one between.
                other.spawn(async move {
                    let reply = says.clone();
                    engine.queue_reply(move || {
                        reply.send(("reply", number)).expect("the test listens");
                        assert_ne!(number, 1, "this one panics");
                    });
                    says.send(("task", number)).expect("the test listens");
                });
            }
        });
        let order: Vec<_> = said.iter().take(6).collect();
        let of = |who| (0..3).map(move |number| (who, number));
        assert_eq!(order, of("task").chain(of("reply")).collect::<Vec<_>>());
        engine.stop();
    }

    #[test]
    fn only_so_many_replies_wait() {
        let engine = Engine::start(1).expect("a thread");
        let (says, said) = channel();
        let other = engine.clone();
        engine.spawn(async move {
            for number in 0..=2 * MOST {
                let reply = says.clone();
                other.queue_reply(move || reply.send(Some(number)).expect("the test listens"));
            }
            says.send(None).expect("the test listens");
        });
        let order: Vec<_> = said.iter().take(2 * MOST + 2).collect();
        assert_eq!(
            order,
            (0..2 * MOST)
                .map(Some)
                .chain([None, Some(2 * MOST)])
                .collect::<Vec<_>>()
        );
        engine.stop();
    }

    #[test]
    fn letters_are_opened_when_the_engine_ends_and_then_at_once() {
        let engine = Engine::start(1).expect("a thread");
        let (says, said) = channel();
        let stopping = engine.clone();
        let reply = says.clone();
        engine.spawn(async move {
            stopping.queue_reply(move || reply.send("before").expect("the test listens"));
            stopping.stop();
        });
        assert_eq!(said.recv(), Ok("before"));
        let here = std::thread::current().id();
        loop {
            let reply = says.clone();
            engine.queue_reply(move || {
                let is_at_once = std::thread::current().id() == here;
                reply
                    .send(if is_at_once {
                        "at once"
                    } else {
                        "by the engine"
                    })
                    .expect("the test listens");
            });
            if said.recv() == Ok("at once") {
                break;
            }
        }
    }
}
