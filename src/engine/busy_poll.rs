//! Busy polling: the engine stays awake for a moment if that pays.
//!
//! Waking a sleeping thread takes a system call and a switch of the scheduler, which on a quiet
//! machine takes as long as the server's part of a lock. A lone caller that locks and unlocks waits
//! for that four times. So the engine polls for a moment before it sleeps, while it waits for the
//! answer to a lone caller's question, and for the next question after the answer. Linux's busy
//! polling of sockets does the same. The engine learns from the result: if the server is far away,
//! if the caller has other things to do, or if there are many callers, it sleeps at once and only
//! tries again now and then, as adaptive mutexes and tokio's workers do. It also sleeps if a caller
//! waits for other lockers: they and the servers need the CPUs more.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::clock::{Clock, Instant};
use crate::sync::Mutex;

/// How long the engine stays awake for an event. A nearby server answers in less, and the end of a
/// sleep takes about a third of it.
const MOMENT: Duration = Duration::from_micros(150);

/// Whether it pays to stay awake for an event, by how often the event came in time.
#[derive(Debug)]
struct Habit {
    score: u8,
    skipped: u8,
}

impl Habit {
    const BEST: u8 = 8;
    const ENOUGH: u8 = 4;
    /// After this many skipped tries it tries again.
    const MOST_SKIPPED: u8 = 100;

    fn new() -> Self {
        Self {
            score: Self::ENOUGH,
            skipped: 0,
        }
    }

    fn hit(&mut self) {
        self.score = (self.score + 1).min(Self::BEST);
    }

    fn miss(&mut self) {
        self.score = self.score.saturating_sub(1);
    }

    fn reset(&mut self) {
        self.score = 0;
    }

    fn pays(&mut self) -> bool {
        if self.score < Self::ENOUGH && self.skipped < Self::MOST_SKIPPED {
            self.skipped += 1;
            return false;
        }
        // From here, one more miss is enough to sleep again, and a hit to stay.
        self.score = self.score.max(Self::ENOUGH);
        self.skipped = 0;
        true
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Question,
    Answer,
}

/// The awaited event. Callers pass the time.
#[derive(Debug)]
struct PollWindow {
    /// The event for which the engine stays awake, and until when.
    awaited: Option<(Activity, Instant)>,
    questions: Habit,
    answers: Habit,
}

impl PollWindow {
    fn new() -> Self {
        Self {
            awaited: None,
            questions: Habit::new(),
            answers: Habit::new(),
        }
    }

    /// Records an event. Returns whether the engine stays awake for the next one. It asks for the
    /// time only if that matters, since a busy engine has very many events.
    fn note(&mut self, event: Activity, now: impl Fn() -> Instant) -> bool {
        if let Some((awaited, until)) = self.awaited.take() {
            // Another event means that another caller came in between. With several callers busy
            // polling does not pay.
            let hit = awaited == event && now() <= until;
            let habit = self.habit(awaited);
            if hit { habit.hit() } else { habit.miss() }
        }
        let next = match event {
            Activity::Question => Activity::Answer,
            Activity::Answer => Activity::Question,
        };
        self.awaited = self.habit(next).pays().then(|| (next, now() + MOMENT));
        self.awaited.is_some()
    }

    /// Returns whether to stay awake any longer.
    fn is_on(&mut self, now: Instant) -> bool {
        match self.awaited {
            Some((_, until)) if now <= until => true,
            Some((awaited, _)) => {
                self.awaited = None;
                self.habit(awaited).miss();
                false
            }
            None => false,
        }
    }

    fn wait_for_others(&mut self) {
        self.awaited = None;
        self.questions.reset();
        self.answers.reset();
    }

    fn habit(&mut self, event: Activity) -> &mut Habit {
        match event {
            Activity::Question => &mut self.questions,
            Activity::Answer => &mut self.answers,
        }
    }
}

/// Keeps the engine awake.
#[derive(Debug)]
pub(super) struct BusyPoll {
    window: Mutex<PollWindow>,
    begun: Notify,
    /// Set if the engine never stays awake: with one CPU, the awaited caller or server could not
    /// run meanwhile.
    off: bool,
}

impl BusyPoll {
    pub(super) fn new() -> Self {
        let one_cpu = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
        Self {
            window: Mutex::new(PollWindow::new()),
            begun: Notify::new(),
            off: one_cpu,
        }
    }

    /// Makes one that never keeps the engine awake, for an engine without a thread.
    #[cfg(feature = "testing")]
    pub(super) fn off() -> Self {
        Self {
            off: true,
            ..Self::new()
        }
    }

    pub(super) fn asked(&self) {
        self.note(Activity::Question);
    }

    pub(super) fn answered(&self) {
        self.note(Activity::Answer);
    }

    pub(super) fn waits_for_others(&self) {
        self.window.lock().wait_for_others();
    }

    fn note(&self, event: Activity) {
        if !self.off && self.window.lock().note(event, || Clock::machine().now()) {
            self.begun.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn is_out_of_habit(&self) -> bool {
        let window = self.window.lock();
        window.awaited.is_none() && window.questions.score + window.answers.score == 0
    }

    /// Runs on the engine until the engine ends.
    pub(super) async fn keep(&self) {
        loop {
            // No wake-up is lost: only this task waits, and a note meanwhile leaves a permit.
            self.begun.notified().await;
            while self.window.lock().is_on(Clock::machine().now()) {
                // The runtime polls the sockets, and runs the tasks that are ready.
                yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(40);
    const LONG: Duration = Duration::from_micros(400);

    /// Plays this many pairs of a question and its answer, with these pauses after each. Returns
    /// how often it stayed awake.
    fn awake(
        window: &mut PollWindow,
        now: &mut Instant,
        pairs: usize,
        answer: Duration,
        question: Duration,
    ) -> usize {
        let mut awake = 0;
        for _ in 0..pairs {
            for (event, pause) in [(Activity::Question, answer), (Activity::Answer, question)] {
                awake += usize::from(window.note(event, || *now));
                *now = *now + pause;
                window.is_on(*now);
            }
        }
        awake
    }

    #[test]
    fn a_lone_caller_with_a_server_nearby_finds_the_engine_awake() {
        let mut window = PollWindow::new();
        let mut now = Instant::now();
        assert_eq!(awake(&mut window, &mut now, 100, SHORT, SHORT), 200);
    }

    #[test]
    fn the_engine_sleeps_while_it_waits_for_a_server_far_away() {
        let mut window = PollWindow::new();
        let mut now = Instant::now();
        let stayed = awake(&mut window, &mut now, 1_000, LONG, LONG);
        assert!(stayed <= 2 * (1 + 10), "{stayed} of 2000");
        // The habit can change again.
        awake(&mut window, &mut now, 200, SHORT, SHORT);
        assert_eq!(awake(&mut window, &mut now, 100, SHORT, SHORT), 200);
    }

    #[test]
    fn the_engine_is_awake_for_answers_but_sleeps_if_asked_rarely() {
        let mut window = PollWindow::new();
        let mut now = Instant::now();
        let stayed = awake(&mut window, &mut now, 1_000, SHORT, LONG);
        assert!((1_000..=1_011).contains(&stayed), "{stayed} of 2000");
    }

    #[test]
    fn with_many_callers_nothing_is_polled_busily() {
        let mut window = PollWindow::new();
        let mut now = Instant::now();
        let mut awake = 0;
        for _ in 0..1_000 {
            for event in [
                Activity::Question,
                Activity::Question,
                Activity::Question,
                Activity::Answer,
                Activity::Answer,
                Activity::Answer,
            ] {
                awake += usize::from(window.note(event, || now));
                now = now + Duration::from_micros(5);
            }
        }
        assert!(awake <= 300, "{awake} of 6000");
    }

    #[test]
    fn with_other_lockers_in_line_nothing_is_polled_busily() {
        let mut window = PollWindow::new();
        let mut now = Instant::now();
        awake(&mut window, &mut now, 100, SHORT, SHORT);
        let mut stayed = 0;
        for _ in 0..1_000 {
            stayed += usize::from(window.note(Activity::Question, || now));
            window.wait_for_others();
            assert!(!window.is_on(now), "its answer does not come soon");
            stayed += usize::from(window.note(Activity::Answer, || now));
            stayed += awake(&mut window, &mut now, 1, SHORT, SHORT);
        }
        assert!(stayed <= 100, "{stayed} of 4000");
        // The habit comes back with the lone caller.
        awake(&mut window, &mut now, 200, SHORT, SHORT);
        assert_eq!(awake(&mut window, &mut now, 100, SHORT, SHORT), 200);
    }

    #[test]
    #[cfg(feature = "testing")]
    fn an_engine_without_a_thread_does_not_poll_busily() {
        let busy_poll = BusyPoll::off();
        busy_poll.asked();
        assert_eq!(busy_poll.window.lock().awaited, None);
    }

    #[test]
    fn busy_polling_ends_by_itself() {
        let mut window = PollWindow::new();
        let now = Instant::now();
        assert!(window.note(Activity::Question, || now));
        assert!(window.is_on(now + MOMENT));
        assert!(!window.is_on(now + MOMENT + Duration::from_nanos(1)));
        assert!(!window.is_on(now), "once it has ended");
    }
}
