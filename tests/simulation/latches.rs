//! What workers do with a latch: it is set for all of them, each counts down, and waits for the
//! others. Nobody comes through before all have counted, and no call counts twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockhound::{Error, Latch, Locker};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::plan::{Plan, one_in, up_to};
use crate::world::World;

const LATCH: &str = "start";

/// Those that gather.
struct Gathering {
    world: Arc<World>,
    plan: Plan,
    /// How many have to count.
    count: u64,
    /// How many calls have begun, and how many have certainly counted.
    begun: AtomicU64,
    counted: AtomicU64,
}

/// Sets the latch, while nothing is wrong yet. Returns the tasks that count and wait.
pub async fn gather(world: &Arc<World>, plan: Plan, lockers: &[Locker]) -> Vec<JoinHandle<()>> {
    let count = lockers.len() * plan.tasks;
    let gathering = Arc::new(Gathering {
        world: Arc::clone(world),
        plan,
        count: u64::try_from(count).unwrap(),
        begun: AtomicU64::new(0),
        counted: AtomicU64::new(0),
    });
    // As a task, in its turn among the others: what the runtime blocks on has its own.
    let (latch, count_of_all) = (lockers[0].latch(LATCH), gathering.count);
    let set = tokio::spawn(async move { latch.try_set(count_of_all).await });
    assert!(
        set.await.unwrap().unwrap(),
        "the last gathering has not ended"
    );
    let member = |at: usize, name: String| {
        let (gathering, latch) = (Arc::clone(&gathering), lockers[at].latch(LATCH));
        tokio::spawn(async move { gathering.come(&latch, &name).await })
    };
    let members = (0..count).map(|n| (n % lockers.len(), n));
    members
        .map(|(at, n)| member(at, format!("{at}:{n}")))
        .collect()
}

impl Gathering {
    async fn come(&self, latch: &Latch, who: &str) {
        sleep(up_to(self.plan.lease * 2)).await;
        // Without an answer it may have counted, or may yet.
        while !self.count_down(latch, who).await {
            sleep(up_to(self.plan.lease)).await;
        }
        while !self.wait(latch, who).await {}
        let begun = self.begun.load(Ordering::Relaxed);
        assert!(
            begun >= self.count,
            "{who} came through when {begun} of {} had begun to count",
            self.count
        );
        self.world
            .note(format_args!("{who} has come through {LATCH}"));
    }

    async fn count_down(&self, latch: &Latch, who: &str) -> bool {
        let before = self.counted.load(Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        let answer = if one_in(4) {
            // It counts all the same.
            let patience = up_to(self.plan.command_timeout);
            timeout(patience, latch.count_down()).await
        } else {
            Ok(latch.count_down().await)
        };
        match answer {
            Ok(Ok(left)) => {
                self.world.note(format_args!("{who} counts: {left} left"));
                self.counted.fetch_add(1, Ordering::Relaxed);
                self.check(left, before + 1, who);
                true
            }
            Err(_) | Ok(Err(Error::Unavailable { .. })) => {
                self.world.note(format_args!("{who} counts: no answer"));
                false
            }
            Ok(Err(other)) => panic!("{who} counts: {other}"),
        }
    }

    /// Returns whether the latch is open.
    async fn wait(&self, latch: &Latch, who: &str) -> bool {
        let (patience, before) = (
            up_to(self.plan.lease * 2),
            self.counted.load(Ordering::Relaxed),
        );
        let answer = match fastrand::u8(0..4) {
            0 => latch.wait_for(patience).await,
            1 => timeout(patience, latch.wait())
                .await
                .map_or(Ok(false), |answer| answer.map(|()| true)),
            2 => latch.count().await.map(|left| {
                self.check(left, before, who);
                left == 0
            }),
            _ => latch.wait().await.map(|()| true),
        };
        match answer {
            Ok(false) | Err(Error::Unavailable { .. }) => {
                sleep(up_to(self.plan.lease)).await;
                false
            }
            answer => answer.unwrap(),
        }
    }

    /// Checks a count that was read when so many had certainly counted.
    fn check(&self, left: u64, counted: u64, who: &str) {
        let begun = self.begun.load(Ordering::Relaxed);
        let (least, most) = (
            self.count.saturating_sub(begun),
            self.count.saturating_sub(counted),
        );
        assert!(
            (least..=most).contains(&left),
            "{who} finds {left}, where {counted} have counted and {begun} have begun"
        );
    }
}
