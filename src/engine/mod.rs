//! The engine: one thread with a runtime of its own, which drives everything that talks to a server.
//!
//! Because of it a dropped future drops no command half-way, a guard can be dropped where there is no runtime, a blocked
//! user runtime loses no lock, and any executor will do. It is never joined: whoever ends it may be async code.

mod leaving;
mod vigil;

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

pub(crate) use self::leaving::Debt;
use self::leaving::Ledger;
use self::vigil::Vigil;

/// A handle on the engine. The thread ends when it is told to, and not before.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    handle: Handle,
    stop: CancellationToken,
    vigil: Arc<Vigil>,
    /// What is under way on it for the program.
    debts: Arc<Ledger>,
}

impl Engine {
    /// Starts the thread "lockhound", which stays awake for so long where that is worth it.
    pub(crate) fn start(busy_poll: Duration) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let engine = Self {
            handle: runtime.handle().clone(),
            stop: CancellationToken::new(),
            vigil: Arc::new(Vigil::new(busy_poll)),
            debts: Ledger::new(),
        };
        let (stop, vigil) = (engine.stop.clone(), Arc::clone(&engine.vigil));
        // If the thread cannot be made, the runtime is still here: async code may not drop one, only send it away.
        let runtime = Arc::new(Mutex::new(Some(runtime)));
        let taken = Arc::clone(&runtime);
        let started = std::thread::Builder::new().name("lockhound".into()).spawn(move || {
            let runtime = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(runtime) = runtime {
                runtime.block_on(stop.run_until_cancelled(vigil.keep()));
                // Dropping the runtime drops its tasks, and with them the connections.
            }
        });
        if let Err(error) = started {
            if let Some(runtime) = runtime.lock().unwrap_or_else(PoisonError::into_inner).take() {
                runtime.shutdown_background();
            }
            return Err(error);
        }
        Ok(engine)
    }

    /// Runs a task on the engine. After the engine's end it is dropped at once.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> tokio::task::AbortHandle {
        self.handle.spawn(task).abort_handle()
    }

    /// Runs a task of a caller, who waits for its [`answered`](Self::answered).
    pub(crate) fn ask(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.vigil.asked();
        self.handle.spawn(task);
    }

    /// A caller is given its answer, and may ask again at once.
    pub(crate) fn answered(&self) {
        self.vigil.answered();
    }

    /// Counts something that is to be done before a thread that asked for it, or `main`, ends: see [`leaving`].
    pub(crate) fn owe(&self) -> Debt {
        Debt::new(&self.debts)
    }

    /// The calling thread uses this engine.
    pub(crate) fn greet(&self) {
        leaving::greet(&self.debts);
    }

    /// Whether this process is a copy of the one that started the engine: a fork copies no thread but the one that
    /// calls. A mutex that another thread held at that moment stays locked, so that this is asked before any is taken.
    pub(crate) fn is_forked(&self) -> bool {
        self.debts.is_inherited()
    }

    /// Waits for a future on this thread, which must not be one that runs async code.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.handle.block_on(future)
    }

    /// Ends the thread, and every task with it.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Runs this on the engine, as a caller's question.
    fn ask<T: Send + 'static>(engine: &Engine, question: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (reply, answer) = channel();
        let answering = engine.clone();
        engine.ask(async move {
            let value = question();
            answering.answered();
            let _: Result<_, _> = reply.send(value);
        });
        answer
    }

    /// The CPU time of the thread that this runs on.
    fn cpu() -> Duration {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).expect("below a second"))
    }

    #[test]
    fn an_engine_that_nobody_asks_sleeps() {
        let engine = Engine::start(Duration::from_micros(150)).expect("a thread");
        for number in 0..1_000 {
            assert_eq!(ask(&engine, move || number).recv(), Ok(number));
        }
        let before = ask(&engine, cpu).recv().expect("an answer");
        std::thread::sleep(Duration::from_millis(300));
        let after = ask(&engine, cpu).recv().expect("an answer");
        engine.stop();
        assert!(after - before < Duration::from_millis(30), "{:?}", after - before);
    }
}
