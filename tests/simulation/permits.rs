//! What an owner does with semaphores: it takes permits, one or several at once, inside of each
//! other and of locks, and gives them back.

use std::time::Duration;

use lockhound::{Error, Locker, Permit, Semaphore};
use tokio::time::sleep;

use crate::common::ms;
use crate::plan::{one_in, up_to};
use crate::worker::{DEEPEST, Takes, Worker, left};
use crate::world::World;

/// How many permits each semaphore has.
pub const CAPACITY: u32 = 3;

/// The names of the semaphores. The second one is shared with `getSemaphore`.
pub const SEMAPHORES: [&str; 2] = ["calls", "seats"];

pub fn semaphore(locks: &Locker, key: &str) -> Semaphore {
    let semaphore = if key == SEMAPHORES[0] {
        locks.permits(key)
    } else {
        locks.semaphore(key)
    };
    semaphore.capacity(CAPACITY)
}

/// A semaphore, and how many permits of it are wanted.
struct Want(Semaphore, u32);

impl Takes for Want {
    type Guard = Permit;

    async fn take(&self) -> Result<Permit, Error> {
        self.0.acquire_many(self.1).await
    }

    async fn take_at_once(&self) -> Result<Option<Permit>, Error> {
        self.0.try_acquire_many(self.1).await
    }

    async fn take_within(&self, wait: Duration) -> Result<Option<Permit>, Error> {
        self.0.try_acquire_many_for(self.1, wait).await
    }
}

/// Permits that somebody has. Dropped before they are given back.
struct Having<'a> {
    world: &'a World,
    taken: usize,
    /// When they were certainly held.
    held: u64,
}

impl Drop for Having<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.world.give(self.taken, self.held);
        }
    }
}

impl Worker {
    pub async fn take_permits(&self) {
        let key = &self.semaphores[fastrand::usize(..self.semaphores.len())];
        let permits = fastrand::u32(1..=CAPACITY);
        let mut semaphore = semaphore(&self.locks, key);
        match fastrand::u8(0..6) {
            0 => semaphore = semaphore.fixed_lease(self.plan.lease),
            1 => semaphore = semaphore.max_hold(ms(100) + up_to(self.plan.lease * 2)),
            _ => {}
        }
        let Some((how, permit)) = self.come_in(&Want(semaphore, permits)).await else {
            return;
        };
        let (who, world, held) = (&self.who, &*self.world, self.world.now());
        if permit.check().is_err() {
            return self
                .world
                .note(format_args!("{who} {how} {key}: lost at once"));
        }
        let taken = world.take(key, who, permits, permit.lost());
        let mut having = Having { world, taken, held };
        self.world
            .note(format_args!("{who} {how} {key}: has {permits} permits"));
        for _ in 0..fastrand::u8(0..6) {
            sleep(self.stay()).await;
            let now = self.world.now();
            if permit.check().is_err() {
                sleep(up_to(self.plan.command_timeout)).await;
                let is_lost = permit.check().is_err() && permit.lost().is_cancelled();
                assert!(
                    is_lost,
                    "{who} has permits of {key} again, which it had lost"
                );
                break;
            }
            having.held = now;
            if self.depth < DEEPEST && one_in(4) {
                self.deeper().act().await;
            }
        }
        let now = world.now();
        if permit.check().is_ok() {
            having.held = now;
        }
        drop(having);
        let answer = if fastrand::bool() {
            drop(permit);
            "drops its permits".to_owned()
        } else {
            format!("releases its permits: {:?}", left(&permit.release().await))
        };
        self.world.note(format_args!("{who} {answer}"));
    }
}
