//! Histories of latches: some order of what was called explains all of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::SHORT;
use crate::common::history::{Call, History, Model, Op};
use crate::common::proxy::{Mode, Proxy};
use crate::common::record::now;
use crate::common::{Server, builder, key, ms};
use lockhound::{Error, Latch};
use tokio::time::sleep;

/// What all of them did.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<Call>>>);

impl Record {
    fn add(&self, latch: &Latch, who: &str, op: Op, called: u64, returned: Option<u64>) {
        self.0.lock().unwrap().push(Call {
            key: latch.key().to_string(),
            who: who.to_owned(),
            op,
            called,
            returned,
        });
    }

    /// Makes a random call, and notes it.
    async fn call(&self, latch: &Latch, who: &str) {
        let called = now();
        let (op, unknown) = match fastrand::u8(..8) {
            0 | 1 => {
                let count = fastrand::u32(1..4);
                let set = latch.try_set(count.into()).await;
                // One without an answer may have set it; if it has not, that changes nothing.
                let has_set = *set.as_ref().unwrap_or(&true);
                (Op::SetCount { count, has_set }, set.err())
            }
            2..=5 => (Op::CountDown, latch.count_down().await.err()),
            6 => match latch.count().await {
                Ok(count) => {
                    let count = u32::try_from(count).unwrap();
                    (Op::ReadCount { count }, None)
                }
                Err(_) => return,
            },
            _ => match latch.wait_for(ms(200)).await {
                Ok(true) => (Op::WaitOpen, None),
                Ok(false) | Err(_) => return,
            },
        };
        let returned = match unknown {
            None => Some(now()),
            Some(Error::Unavailable { .. }) => None,
            Some(error) => panic!("{error}"),
        };
        self.add(latch, who, op, called, returned);
    }
}

/// Two lockers, one of which is cut off, silent, or loses answers at times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_callers_were_told_is_explained_by_a_counter() {
    let (server, record) = (Server::start(), Record::default());
    let keys = [key(), key()];
    let proxy = Proxy::start(server.port());
    let connect = |url: String| {
        let locks = builder(&url, SHORT).command_timeout(ms(150));
        locks.outage_tolerance(ms(2_500)).connect()
    };
    let far = connect(proxy.url()).await.unwrap();
    let near = connect(server.url()).await.unwrap();
    let (mut tasks, over) = (Vec::new(), Arc::<AtomicBool>::default());
    for (locks, place) in [(&far, "far"), (&near, "near")] {
        for (n, key) in keys.iter().enumerate() {
            for m in 0..2 {
                let (latch, record) = (locks.latch(&**key), record.clone());
                let (who, over) = (format!("{place}{n}{m}"), Arc::clone(&over));
                tasks.push(tokio::spawn(async move {
                    while !over.load(Ordering::SeqCst) {
                        record.call(&latch, &who).await;
                        sleep(ms(fastrand::u64(1..40))).await;
                    }
                }));
            }
        }
    }
    let mut lost = 0;
    for silence in [0, 400, 100, 700, 0, 300] {
        sleep(ms(300)).await;
        let key = fastrand::choice(&keys).unwrap().clone();
        let before = proxy.swallowed();
        proxy.set(Mode::SwallowReplyTo(key.into_bytes()));
        let so = || proxy.swallowed() > before;
        crate::common::eventually(crate::SOON, "an answer is lost", so).await;
        lost += 1;
        proxy.set(Mode::BlackHole);
        sleep(ms(silence)).await;
        proxy.cut();
        proxy.set(Mode::Pass);
    }
    sleep(ms(300)).await;
    // An aborted call would be missing, though others saw what it did.
    over.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    let calls = record.0.lock().unwrap().clone();
    let count = |is: fn(&Op) -> bool| calls.iter().filter(|call| is(&call.op)).count();
    let set = count(|op| matches!(op, Op::SetCount { has_set: true, .. }));
    let counted = count(|op| *op == Op::CountDown);
    let waited = count(|op| *op == Op::WaitOpen);
    crate::common::say(&format!(
        "{set} rounds, {counted} counts, {waited} waits; {lost} answers lost"
    ));
    assert!(
        set > 10 && counted > 20 && waited > 5,
        "{set} {counted} {waited}"
    );
    History { calls }.check(Model::Latch).unwrap();
}
