//! Histories of leaders and observers: some order of what they did explains all of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::SHORT;
use crate::common::history::{Call, History, Model, Op};
use crate::common::proxy::{Mode, Proxy};
use crate::common::record::now;
use crate::common::{Server, builder, key, ms};
use lockhound::{Election, Error};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// What all of them did.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<Call>>>);

impl Record {
    fn add(&self, key: &str, who: &str, op: Op, called: u64, returned: Option<u64>) {
        self.0.lock().unwrap().push(Call {
            key: key.to_owned(),
            who: who.to_owned(),
            op,
            called,
            returned,
        });
    }
}

/// What candidates are to do.
#[derive(Default)]
struct Orders {
    /// A leader does not resign.
    stays: AtomicBool,
    /// No candidate campaigns again.
    over: AtomicBool,
}

/// Campaigns and leads, again and again.
async fn leads(election: Election, who: String, record: Record, orders: Arc<Orders>) {
    let key = election.key().as_str().to_owned();
    while !orders.over.load(Ordering::SeqCst) {
        let called = now();
        let Ok(leadership) = election.campaign(&*who).await else {
            return;
        };
        let fence = leadership.term().get();
        record.add(&key, &who, Op::Lock { fence }, called, Some(now()));
        let mut held = now();
        let mut steps = fastrand::u32(1..6);
        while steps > 0 || orders.stays.load(Ordering::SeqCst) {
            steps = steps.saturating_sub(1);
            sleep(ms(fastrand::u64(1..20))).await;
            let checked = now();
            if leadership.check().is_err() {
                break;
            }
            held = checked;
            drop(leadership.proclaim(format!("{who} at {held}")).await);
        }
        let called = now();
        let (op, called, returned) = match leadership.resign().await {
            Ok(()) => (Op::Unlock, called, Some(now())),
            Err(Error::Lost { .. }) => (Op::Lose, held, Some(now())),
            Err(_) => (Op::Unlock, called, None),
        };
        record.add(&key, &who, op, called, returned);
    }
}

/// Notes each change that it sees. A leader whose term is not known yet shows it with its value.
async fn observes(election: Election, who: String, record: Record) {
    let key = election.key().as_str().to_owned();
    let mut observer = election.observe().await.unwrap();
    loop {
        let called = now();
        let Ok(leader) = observer.changed().await else {
            continue;
        };
        let term = leader.map_or(Some(0), |leader| leader.term().map(|term| term.get()));
        if let Some(term) = term {
            record.add(&key, &who, Op::See { term }, called, Some(now()));
        }
    }
}

/// Two lockers, one of which is cut off and silent at times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_observers_saw_is_explained_by_who_led() {
    let (server, key, record) = (Server::start(), key(), Record::default());
    let proxy = Proxy::start(server.port());
    let far = builder(&proxy.url(), SHORT).connect().await.unwrap();
    let near = builder(&server.url(), SHORT).connect().await.unwrap();
    let (mut leaders, mut observers) = (Vec::new(), Vec::new());
    let orders = Arc::<Orders>::default();
    let stays = &orders.stays;
    let election = near.election(&*key);
    let far_leads = async || {
        let leader = election.leader().await.unwrap();
        let value = leader.as_ref().and_then(|leader| leader.value());
        value.is_some_and(|value| value.starts_with("far"))
    };
    for (locks, place) in [(&far, "far"), (&near, "near")] {
        for n in 0..2 {
            let election = locks.election(&*key);
            let (who, orders) = (format!("{place}{n}"), Arc::clone(&orders));
            let leader = leads(election.clone(), who, record.clone(), orders);
            let observer = observes(election, format!("{place}-o{n}"), record.clone());
            leaders.push(tokio::spawn(leader));
            observers.push(tokio::spawn(observer));
        }
    }
    for silence in [0, 300, 2_000, 0, 1_500, 200] {
        sleep(ms(500)).await;
        stays.store(true, Ordering::SeqCst);
        // Twice: the first time it may be about to resign.
        while !far_leads().await || !far_leads().await {
            stays.store(false, Ordering::SeqCst);
            sleep(ms(1)).await;
            stays.store(true, Ordering::SeqCst);
        }
        proxy.set(Mode::BlackHole);
        sleep(ms(silence)).await;
        proxy.cut();
        proxy.set(Mode::Pass);
        stays.store(false, Ordering::SeqCst);
    }
    sleep(SHORT * 2).await;
    // The record of an aborted leader would be missing, though observers saw its term.
    orders.over.store(true, Ordering::SeqCst);
    for leader in leaders {
        leader.await.unwrap();
    }
    observers.iter().for_each(JoinHandle::abort);
    let calls = record.0.lock().unwrap().clone();
    let count = |is: fn(&Op) -> bool| calls.iter().filter(|call| is(&call.op)).count();
    let led = count(|op| matches!(op, Op::Lock { .. }));
    let lost = count(|op| matches!(op, Op::Lose));
    let seen = count(|op| matches!(op, Op::See { .. }));
    crate::common::say(&format!("{led} terms, {lost} lost; {seen} changes seen"));
    assert!(led > 20 && lost > 0 && seen > 20, "{led} {lost} {seen}");
    History { calls }.check(Model::Election).unwrap();
}
