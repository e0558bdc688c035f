//! The answers that the engine gives to callers. They go out together, after the tasks that are ready have run.
//!
//! An answer wakes a task of the program, and one script answers many callers. If each answer went out at once, the
//! thread that runs those tasks would wake up, run one of them and go to sleep again, for each answer: the engine takes
//! longer to give an answer than a caller to ask the next question. Both sides of that are system calls.
//!
//! Not too many, though: a caller has to take a lock that it was granted within a time that begins with the grant, and
//! the tasks that an answer wakes are foreign code, which takes the engine's time.
//!
//! # Invariants
//! - On the engine's own thread, letters are opened in the order in which they were posted. No mutex is held meanwhile.
//! - Each letter is opened: by the task, by the post that makes [`MOST`], or by the end of the engine; after that, at
//!   once.

use tokio::sync::Notify;

use crate::foreign::contained;
use crate::sync::{Arc, Mutex};

/// So many letters do not wait for any further task.
const MOST: usize = 64;

/// Gives an answer to a caller.
type Letter = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct Outbox {
    tray: Mutex<Tray>,
    news: Notify,
}

#[derive(Default)]
struct Tray {
    letters: Vec<Letter>,
    /// Whether the engine has ended.
    ended: bool,
}

impl Outbox {
    pub(super) fn post(&self, letter: impl FnOnce() + Send + 'static) {
        let mut tray = self.tray.lock();
        tray.letters.push(Box::new(letter));
        let is_due = tray.ended || tray.letters.len() >= MOST;
        drop(tray);
        if is_due { self.open(&mut Vec::new()) } else { self.news.notify_one() }
    }

    /// Opens all letters, into this empty list and out of it: the two lists take turns.
    fn open(&self, letters: &mut Vec<Letter>) {
        std::mem::swap(&mut self.tray.lock().letters, letters);
        letters.drain(..).for_each(contained);
    }
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("letters", &self.tray.lock().letters.len()).finish_non_exhaustive()
    }
}

/// Its drop ends the outbox, whether or not its task has begun. Only the end of the engine drops it.
pub(super) struct Postman(pub(super) Arc<Outbox>);

impl Drop for Postman {
    fn drop(&mut self) {
        self.0.tray.lock().ended = true;
        self.0.open(&mut Vec::new());
    }
}

/// Opens letters. Started with the engine; ends with it; nobody awaits it.
pub(super) async fn deliver(postman: Postman) {
    let mut letters = Vec::new();
    loop {
        postman.0.news.notified().await;
        postman.0.open(&mut letters);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::super::Engine;
    use super::MOST;

    #[test]
    fn letters_go_out_together_after_the_tasks_that_are_ready() {
        let engine = Engine::start(Duration::ZERO, 1).expect("a thread");
        let (says, said) = channel();
        let posts = engine.clone();
        engine.spawn(async move {
            for number in 0..3 {
                let (engine, says) = (posts.clone(), says.clone());
                // Two of them are opened in spite of a panic in the one between.
                posts.spawn(async move {
                    let letter = says.clone();
                    engine.post(move || {
                        letter.send(("letter", number)).expect("the test listens");
                        assert_ne!(number, 1, "this one panics");
                    });
                    says.send(("task", number)).expect("the test listens");
                });
            }
        });
        let order: Vec<_> = said.iter().take(6).collect();
        let of = |who| (0..3).map(move |number| (who, number));
        assert_eq!(order, of("task").chain(of("letter")).collect::<Vec<_>>());
        engine.stop();
    }

    #[test]
    fn only_so_many_letters_wait() {
        let engine = Engine::start(Duration::ZERO, 1).expect("a thread");
        let (says, said) = channel();
        let posts = engine.clone();
        engine.spawn(async move {
            for number in 0..=2 * MOST {
                let letter = says.clone();
                posts.post(move || letter.send(Some(number)).expect("the test listens"));
            }
            says.send(None).expect("the test listens");
        });
        let order: Vec<_> = said.iter().take(2 * MOST + 2).collect();
        assert_eq!(order, (0..2 * MOST).map(Some).chain([None, Some(2 * MOST)]).collect::<Vec<_>>());
        engine.stop();
    }

    #[test]
    fn letters_are_opened_when_the_engine_ends_and_after_that_at_once() {
        let engine = Engine::start(Duration::ZERO, 1).expect("a thread");
        let (says, said) = channel();
        let (stopping, letter) = (engine.clone(), says.clone());
        engine.spawn(async move {
            stopping.post(move || letter.send("before").expect("the test listens"));
            stopping.stop();
        });
        assert_eq!(said.recv(), Ok("before"));
        let here = std::thread::current().id();
        loop {
            let letter = says.clone();
            engine.post(move || {
                let is_at_once = std::thread::current().id() == here;
                letter.send(if is_at_once { "at once" } else { "by the engine" }).expect("the test listens");
            });
            if said.recv() == Ok("at once") {
                break;
            }
        }
    }
}
