//! Foreign code that runs on our threads: `tracing` subscribers, `metrics` recorders, wakers.
//!
//! # Invariants
//! - A panic of foreign code ends where that code was called. The panic hook has reported it by then.
//! - No mutex of ours is held while foreign code runs: it may block for as long as it likes.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;

use tokio::sync::oneshot;
use tracing::Span;

/// Calls foreign code, whose panic ends here.
pub(crate) fn contained(foreign: impl FnOnce()) {
    caught(foreign);
}

/// Answers a caller, whose waker is foreign code. A caller that is gone does not want to know.
pub(crate) fn answer<T>(reply: oneshot::Sender<T>, answer: T) {
    contained(|| _ = reply.send(answer));
}

/// Makes a span; a subscriber that panics gets none.
pub(crate) fn span(make: impl FnOnce() -> Span) -> Span {
    caught(make).unwrap_or_else(Span::none)
}

fn caught<T>(foreign: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(foreign)) {
        Ok(value) => Some(value),
        Err(payload) => {
            // Whatever the panic carried may panic in its turn when it is dropped; what that carries is leaked.
            if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(another);
            }
            None
        }
    }
}

/// Runs a future in a span, as `tracing`'s `Instrument` does; a subscriber that panics does not end the future.
pub(crate) async fn in_span<T>(span: Span, future: impl Future<Output = T>) -> T {
    let span = Closing(Some(span));
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _entered = span.enter();
        future.as_mut().poll(cx)
    })
    .await
}

/// A span whose end tells the subscriber.
struct Closing(Option<Span>);

impl Closing {
    fn enter(&self) -> Entered<'_> {
        if let Some(span) = &self.0 {
            contained(|| _ = span.with_subscriber(|(id, subscriber)| subscriber.enter(id)));
        }
        Entered(self)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        contained(|| drop(self.0.take()));
    }
}

struct Entered<'a>(&'a Closing);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(span) = &self.0.0 {
            contained(|| _ = span.with_subscriber(|(id, subscriber)| subscriber.exit(id)));
        }
    }
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
    fn a_panic_ends_where_foreign_code_was_called() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| panic!("foreign")), None::<()>);
        assert_eq!(caught(|| std::panic::panic_any(Bomb)), None::<()>);
    }
}
