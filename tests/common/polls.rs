//! Futures that are polled a number of times and dropped, and tasks that their wakers poll.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// A waker that can be waited for.
struct Bell(tokio::sync::Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Polls a future this many times: at once, and then each time it is woken, or after 100 ms.
/// Returns its value if it completes.
pub async fn poll_times<T>(
    mut future: Pin<Box<dyn Future<Output = T> + '_>>,
    times: usize,
) -> Option<T> {
    let bell = Arc::new(Bell(tokio::sync::Notify::new()));
    let waker = Waker::from(Arc::clone(&bell));
    for _ in 0..times {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        drop(tokio::time::timeout(super::ms(100), bell.0.notified()).await);
    }
    None
}

/// A task that runs where it is woken.
struct Inline {
    task: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// Whether it was woken since its last poll began.
    woken: AtomicBool,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        while self.woken.load(Ordering::SeqCst) {
            // It is being polled, and is polled again after that.
            let Some(mut task) = self.task.lock().unwrap().take() else {
                return;
            };
            self.woken.store(false, Ordering::SeqCst);
            if task
                .as_mut()
                .poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self))))
                .is_ready()
            {
                return;
            }
            *self.task.lock().unwrap() = Some(task);
        }
    }
}

/// Runs a task here, and then each time within the call that wakes it. It takes no part in the
/// budget of a tokio task that wakes it: that would be used up by many such tasks, and not filled
/// up before they return.
pub fn run_inline(task: impl Future<Output = ()> + Send + 'static) {
    let task = tokio::task::unconstrained(task);
    Arc::new(Inline {
        task: Mutex::new(Some(Box::pin(task))),
        woken: AtomicBool::new(false),
    })
    .wake();
}
