//! Foreign code that runs on our threads: `tracing` subscribers, `metrics` recorders, wakers. And
//! our code that runs on threads of the program: [`give_way`].
//!
//! fred calls loggers from within its own code: their panics end the command or the task that
//! called fred. [`survive`] and [`restarted`] handle that like a bug of our own.
//!
//! # Invariants
//! - A panic of foreign code is caught where that code was called. By then the panic hook has
//!   reported it.
//! - No mutex of ours is held while foreign code runs: it may block for as long as it likes.

mod journal;

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task;
use tokio::time::{Instant, sleep};

pub(crate) use self::journal::Journal;

/// The pause between restarts of a task that keeps panicking.
const BREATH: Duration = Duration::from_millis(100);

/// Calls foreign code, and catches its panic.
pub(crate) fn contained(foreign: impl FnOnce()) {
    caught(foreign);
}

/// Logs an event of this level: `log!(warn, %node, "it is away")`. The subscriber is foreign code,
/// and [`contained`].
macro_rules! log {
    ($level:ident, $($event:tt)+) => {
        $crate::foreign::contained(|| tracing::$level!($($event)+))
    };
}
pub(crate) use log;

/// Sends an answer to a caller, whose waker is foreign code. If the caller is gone, it drops the
/// answer.
pub(crate) fn answer<T>(reply: oneshot::Sender<T>, answer: T) {
    if reply.is_closed() {
        // This drop comes before that of the channel, which drops the waker: if that panics, a
        // value that is being returned is leaked.
        contained(|| drop(answer));
        return hang_up(reply);
    }
    contained(|| _ = reply.send(answer));
}

/// Creates a channel to a caller.
pub(crate) fn channel<T>() -> (oneshot::Sender<T>, AnswerReceiver<T>) {
    let (reply, answer) = oneshot::channel();
    (reply, AnswerReceiver(Some(answer)))
}

/// The answer for which a caller waits. Its waker is dropped with it, perhaps while the caller's
/// task unwinds.
#[derive(Debug)]
pub(crate) struct AnswerReceiver<T>(Option<oneshot::Receiver<T>>);

impl<T> AnswerReceiver<T> {
    /// Waits on this thread, which panics in async code.
    pub(crate) fn blocking_recv(mut self) -> Result<T, oneshot::error::RecvError> {
        // It is `None` only during the drop; then a closed channel takes its place.
        self.0
            .take()
            .unwrap_or_else(|| oneshot::channel().1)
            .blocking_recv()
    }
}

impl<T> Future for AnswerReceiver<T> {
    type Output = Result<T, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Some(answer) => Pin::new(answer).poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for AnswerReceiver<T> {
    fn drop(&mut self) {
        contained(|| drop(self.0.take()));
    }
}

/// Closes the channel to a caller without an answer.
pub(crate) fn hang_up<T>(reply: oneshot::Sender<T>) {
    contained(|| drop(reply));
}

/// Makes a span, or none if the subscriber panics.
pub(crate) fn span(make: impl FnOnce() -> tracing::Span) -> Span {
    let span = caught(make).filter(|span| !span.is_disabled());
    Span(span.map(|span| Arc::new(Ending(Some(Arc::new(span))))))
}

/// How many calls in a row an executor without a budget runs before its other tasks have a turn.
const IN_A_ROW: u8 = 64;

/// Lets the other tasks of the caller's thread have a turn, once in a while. Every call of the API
/// that may be answered without a server comes by here: a loop around it would never be suspended
/// otherwise.
///
/// tokio gives each poll of a task a budget. Outside of its tasks the calls of the thread are
/// counted.
pub(crate) async fn give_way() {
    thread_local! {
        static CALLS: Cell<u8> = const { Cell::new(0) };
    }
    task::coop::consume_budget().await;
    if task::try_id().is_some() {
        return;
    }
    let calls = CALLS.with(|calls| calls.replace((calls.get() + 1) % IN_A_ROW));
    let mut waits = calls + 1 == IN_A_ROW;
    poll_fn(|cx| {
        if std::mem::take(&mut waits) {
            contained(|| cx.waker().wake_by_ref());
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

fn caught<T>(foreign: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(foreign)) {
        Ok(value) => Some(value),
        Err(payload) => {
            discard(payload);
            None
        }
    }
}

/// Drops the payload of a panic. The drop may panic too; the payload of that second panic is
/// leaked.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

/// Runs a future in a span, as `tracing`'s `Instrument` does; a subscriber that panics does not end
/// the future. It borrows the future, since an async function that owns a future stores it twice
/// and copies it.
pub(crate) fn in_span<T>(
    span: &Span,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> impl Future<Output = T> {
    poll_fn(move |cx| {
        let _entered = span.enter();
        future.as_mut().poll(cx)
    })
}

/// A span whose calls to the subscriber are contained, its end included. On the thread of an engine
/// the journal makes these calls. It ends with its last copy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Span(Option<Arc<Ending>>);

/// What all copies of a span share.
#[derive(Debug)]
struct Ending(Option<Arc<tracing::Span>>);

impl Span {
    fn inner(&self) -> Option<&Arc<tracing::Span>> {
        self.0.as_ref()?.0.as_ref()
    }

    /// Records a field of it, on the thread of a caller.
    pub(crate) fn record(&self, field: &'static str, value: &dyn fmt::Display) {
        if let Some(span) = self.inner() {
            contained(|| _ = span.record(field, tracing::field::display(value)));
        }
    }

    fn enter(&self) -> Entered<'_> {
        let Some(span) = self.inner() else {
            return Entered::Nothing;
        };
        match journal::enter(span) {
            Some(earlier) => Entered::Noted(earlier),
            None => {
                contained(|| _ = span.with_subscriber(|(id, subscriber)| subscriber.enter(id)));
                Entered::Here(span)
            }
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            contained(|| journal::end(span));
        }
    }
}

enum Entered<'a> {
    Nothing,
    Here(&'a tracing::Span),
    /// In the journal, in place of this one.
    Noted(Option<Arc<tracing::Span>>),
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        match self {
            Self::Nothing => {}
            Self::Here(span) => {
                contained(|| _ = span.with_subscriber(|(id, subscriber)| subscriber.exit(id)));
            }
            Self::Noted(earlier) => journal::leave(earlier.take()),
        }
    }
}

/// Runs a future to its end.
///
/// # Errors
/// The message of the panic that ended it. By then the future's state has been dropped.
pub(crate) async fn survive<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    poll_fn(
        |cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => {
                let said = said(&*payload);
                discard(payload);
                Poll::Ready(Err(said))
            }
        },
    )
    .await
}

/// Runs a task to its end. After a panic it starts the task again with `true`, since its last step
/// may be half done.
pub(crate) async fn restarted(mut task: impl AsyncFnMut(bool)) {
    let mut pace = Pace::default();
    while survive(task(pace.0.is_some())).await.is_err() {
        sleep(pace.pause(Instant::now())).await;
    }
}

/// The time of the last panic.
#[derive(Debug, Default)]
struct Pace(Option<Instant>);

impl Pace {
    /// Returns the pause before the restart: none after a first panic. A task that keeps panicking
    /// must not take the engine's time from all others.
    fn pause(&mut self, now: Instant) -> Duration {
        let last = self.0.replace(now);
        if last.is_some_and(|last| now.duration_since(last) < 10 * BREATH) {
            BREATH
        } else {
            Duration::ZERO
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    let formatted = || panic.downcast_ref::<String>().cloned();
    literal
        .or_else(formatted)
        .unwrap_or_else(|| "without a message".to_owned())
}

/// A waker that panics: a task of ours that wakes it panics as by a bug of its own.
#[cfg(test)]
pub(crate) struct Sick;

#[cfg(test)]
impl std::task::Wake for Sick {
    fn wake(self: std::sync::Arc<Self>) {
        panic!("sick");
    }
}

/// Polls a future once, as one that is not ready yet, with a [`Sick`] waker.
#[cfg(test)]
pub(crate) fn poll_sickly<T>(future: Pin<&mut impl Future<Output = T>>) {
    let waker = std::sync::Arc::new(Sick).into();
    assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
}

/// A subscriber that panics at each event.
#[cfg(test)]
pub(crate) struct SickOfEvents(Told);

/// The events before the panics.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Told(std::sync::Arc<std::sync::Mutex<String>>);

#[cfg(test)]
impl SickOfEvents {
    pub(crate) fn new() -> (Self, Told) {
        let told = Told::default();
        (Self(told.clone()), told)
    }
}

#[cfg(test)]
impl Told {
    /// Returns whether there was an event with this text.
    pub(crate) fn of(&self, text: &str) -> bool {
        self.0.lock().expect("sound").contains(text)
    }
}

#[cfg(test)]
impl tracing::field::Visit for Told {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        *self.0.lock().expect("sound") += &format!("{value:?}\n");
    }
}

#[cfg(test)]
impl tracing::Subscriber for SickOfEvents {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        unreachable!("no span is enabled")
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.0.clone());
        panic!("sick");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is dropped.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[test]
    fn a_panic_is_caught_where_foreign_code_was_called() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| panic!("foreign")), None::<()>);
        assert_eq!(caught(|| std::panic::panic_any(Bomb)), None::<()>);
    }

    #[tokio::test]
    async fn a_panic_ends_a_future_and_its_message_is_returned() {
        assert_eq!(survive(async { 7 }).await, Ok(7));
        assert_eq!(
            survive::<()>(async { panic!("literal") }).await,
            Err("literal".to_owned())
        );
        assert_eq!(
            survive::<()>(async { panic!("{} formatted", 1) }).await,
            Err("1 formatted".to_owned())
        );
        assert_eq!(
            survive::<()>(async { std::panic::panic_any(Bomb) }).await,
            Err("without a message".to_owned())
        );
    }

    #[tokio::test]
    async fn a_task_that_panics_is_restarted_and_knows_it() {
        let mut begun = Vec::new();
        restarted(async |again| {
            begun.push(again);
            tokio::task::yield_now().await;
            assert_eq!(begun.len(), 3, "sick");
        })
        .await;
        assert_eq!(begun, [false, true, true]);
    }

    #[test]
    fn only_a_task_that_keeps_panicking_is_restarted_after_a_pause() {
        let mut pace = Pace::default();
        let now = Instant::now();
        assert_eq!(pace.pause(now), Duration::ZERO);
        assert_eq!(pace.pause(now + BREATH), BREATH);
        assert_eq!(pace.pause(now + 2 * BREATH), BREATH);
        assert_eq!(
            pace.pause(now + 12 * BREATH),
            Duration::ZERO,
            "long after the last one"
        );
    }
}
