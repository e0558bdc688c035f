//! What an owner does with elections: it campaigns, leads, proclaims and resigns. Observers beside
//! it believe a value only of the leader who wrote it, and see the last one go.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockhound::{Election, Error, Leadership, Locker, Observer};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::plan::{one_in, up_to};
use crate::worker::{DEEPEST, Takes, Worker, left};
use crate::world::{Entry, Role};

/// An election, and by what its locker is known.
struct Candidate(Election, String);

impl Takes for Candidate {
    type Guard = Leadership;

    async fn take(&self) -> Result<Leadership, Error> {
        let leadership = self.0.campaign("new").await?;
        self.proclaims(&leadership).await;
        Ok(leadership)
    }

    async fn take_at_once(&self) -> Result<Option<Leadership>, Error> {
        let leadership = self.0.try_campaign("new").await?;
        if let Some(leadership) = &leadership {
            self.proclaims(leadership).await;
        }
        Ok(leadership)
    }

    async fn take_within(&self, wait: Duration) -> Result<Option<Leadership>, Error> {
        timeout(wait, self.take())
            .await
            .map_or(Ok(None), |answer| answer.map(Some))
    }
}

impl Candidate {
    /// Its value says who it is.
    async fn proclaims(&self, leadership: &Leadership) {
        let name = format!("{}:{}:", self.1, leadership.owner());
        match leadership.proclaim(name).await {
            Ok(()) | Err(Error::Lost { .. } | Error::Unavailable { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

impl Worker {
    pub async fn lead(&self, key: &str) {
        let (election, called) = (self.locks.election(key), self.world.now());
        let candidate = Candidate(election, self.locks.id().to_string());
        let Some((how, leadership)) = self.come_in(&candidate).await else {
            return;
        };
        // Each campaign is an owner of its own.
        let who = &format!("{}/{}", self.who, self.runs.fetch_add(1, Ordering::Relaxed));
        if leadership.check().is_err() {
            return self
                .world
                .note(format_args!("{who} {how} {key}: lost at once"));
        }
        let entry = Entry {
            key,
            who,
            role: Role::Alone,
            locker: self.at,
            fence: leadership.term().get(),
            is_renewed: true,
            token: leadership.lost(),
            called,
        };
        let inside = self.world.enter(entry, how);
        for _ in 0..fastrand::u8(0..6) {
            sleep(self.stay()).await;
            let now = self.world.now();
            if leadership.check().is_err() {
                break;
            }
            inside.held(now);
            if one_in(2) {
                candidate.proclaims(&leadership).await;
            }
            if self.depth < DEEPEST && one_in(4) {
                self.deeper().act().await;
            }
        }
        let leaving = inside.leave();
        let answer = left(&leadership.resign().await);
        leaving.end(answer);
        self.world
            .note(format_args!("{who} has resigned {key}: {answer:?}"));
    }
}

/// Sees who leads, from the first act to the last.
pub struct Seeing {
    key: String,
    /// The owner of the last one.
    last: Arc<Mutex<Option<String>>>,
    task: JoinHandle<()>,
}

impl Seeing {
    pub async fn begin(locks: &Locker, key: &str) -> Self {
        let observer = locks.election(key).observe().await.unwrap();
        let last = Arc::default();
        let task = tokio::spawn(see(observer, Arc::clone(&last)));
        Self {
            key: key.to_owned(),
            last,
            task,
        }
    }

    /// Nobody has led for leases.
    pub fn sees_nobody(&self) {
        assert!(!self.task.is_finished(), "an observer of {}", self.key);
        let last = self.last.lock().unwrap();
        assert_eq!(*last, None, "an observer still sees a leader {}", self.key);
    }

    /// Its locker has closed.
    pub async fn end(self) {
        self.task.await.unwrap();
    }
}

async fn see(mut observer: Observer, last: Arc<Mutex<Option<String>>>) {
    loop {
        match observer.changed().await {
            Ok(leader) => {
                let value = leader.as_ref().and_then(|leader| leader.value());
                let owner = leader.as_ref().map(|leader| leader.owner().to_owned());
                let own = value.is_none_or(|value| {
                    value == "new" || owner.as_ref().is_some_and(|owner| owner.starts_with(value))
                });
                assert!(own, "{owner:?} leads, and {value:?} is another one's value");
                *last.lock().unwrap() = owner;
                sleep(up_to(Duration::from_millis(50))).await;
            }
            Err(Error::Unavailable { .. }) => {}
            Err(Error::Closed) => return,
            Err(other) => panic!("an observer: {other}"),
        }
    }
}
