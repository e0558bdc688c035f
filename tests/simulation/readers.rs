//! What an owner does with read-write locks: it reads and writes, reads inside its writes, goes
//! from a write to a read, and asks for what it is refused.

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use lockhound::{Error, ReadGuard, ReadLock, RwLock, Section, WriteGuard, WriteLock};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::common::ms;
use crate::plan::{one_in, up_to};
use crate::worker::{DEEPEST, Name, Takes, Worker, left, takes};
use crate::world::{Entry, Inside, Leaving, Left, Role};

/// A guard of a reader or of a writer.
trait RoleGuard: Deref<Target = Section> + Send + Sync + Sized {
    fn leave(self) -> impl Future<Output = Result<(), Error>> + Send;
}

impl RoleGuard for ReadGuard {
    fn leave(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.unlock()
    }
}

impl RoleGuard for WriteGuard {
    fn leave(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.unlock()
    }
}

impl Worker {
    pub async fn read_or_write(&self) {
        let key = &self.read_write[fastrand::usize(..self.read_write.len())];
        match fastrand::u8(0..12) {
            0..4 => self.read(key).await,
            4..8 => self.write(key).await,
            8 | 9 => self.run_read(key).await,
            10 => self.run_write(key).await,
            _ if self.plan.force && self.depth == 0 => {
                // A grant or a renewal may be on its way meanwhile.
                let force = async {
                    sleep(up_to(self.plan.command_timeout)).await;
                    let locks = self.locks.rw(&**key);
                    self.force_by(key, locks.force_unlock()).await;
                };
                tokio::join!(self.read(key), force);
            }
            _ => self.read(key).await,
        }
    }

    fn reader(&self, rw: &RwLock) -> ReadLock {
        match &self.name {
            Name::Owner(owner) => rw.read().owned_by(owner.clone()),
            Name::Scope | Name::Task => rw.read(),
        }
    }

    fn writer(&self, rw: &RwLock) -> WriteLock {
        match &self.name {
            Name::Owner(owner) => rw.write().owned_by(owner.clone()),
            Name::Scope | Name::Task => rw.write(),
        }
    }

    /// A limit of a hold, if it has one.
    fn max_hold(&self) -> Duration {
        ms(100) + up_to(self.plan.lease * 2)
    }

    // ---- By guards ----

    async fn read(&self, key: &str) {
        let (mut lock, mut is_renewed) = (self.reader(&self.locks.rw(key)), true);
        match fastrand::u8(0..6) {
            0 => (lock, is_renewed) = (lock.fixed_lease(self.plan.lease), false),
            1 => lock = lock.max_hold(self.max_hold()),
            _ => {}
        }
        let called = self.world.now();
        if let Some((how, guard)) = self.come_in(&lock).await {
            self.be_a_reader(guard, is_renewed, called, how).await;
        }
    }

    async fn be_a_reader(&self, guard: ReadGuard, is_renewed: bool, called: u64, how: &str) {
        let Some(inside) = self.enter_as(Role::Reads, &guard, is_renewed, called, how) else {
            return;
        };
        self.stay_inside(&guard, &inside).await;
        if guard.check().is_err() {
            let lock = self.reader(&self.locks.rw(guard.key().clone()));
            self.look_and_try_again(&guard, &lock).await;
        }
        self.go(guard, inside).await;
    }

    async fn write(&self, key: &str) {
        let (mut lock, mut is_renewed) = (self.writer(&self.locks.rw(key)), true);
        match fastrand::u8(0..6) {
            0 => (lock, is_renewed) = (lock.fixed_lease(self.plan.lease), false),
            1 => lock = lock.max_hold(self.max_hold()),
            _ => {}
        }
        let called = self.world.now();
        let Some((how, guard)) = self.come_in(&lock).await else {
            return;
        };
        let Some(inside) = self.enter_as(Role::Alone, &guard, is_renewed, called, how) else {
            return;
        };
        self.stay_inside(&guard, &inside).await;
        if guard.check().is_err() {
            self.look_and_try_again(&guard, &lock).await;
        }
        if one_in(3) {
            self.downgrade(guard, inside, is_renewed).await;
        } else {
            self.go(guard, inside).await;
        }
    }

    /// Reads from now on. It may be dropped meanwhile: then it is out.
    async fn downgrade(&self, guard: WriteGuard, inside: Inside, is_renewed: bool) {
        let key = guard.key().to_string();
        let (token, called) = (guard.lost(), self.world.now());
        let leaving = inside.leave();
        let answer = if one_in(3) {
            timeout(up_to(self.plan.command_timeout), guard.downgrade()).await
        } else {
            Ok(guard.downgrade().await)
        };
        let left = match &answer {
            Ok(Ok(_)) => Left::Released,
            // Either may be lost.
            Ok(Err(Error::Lost { .. })) | Err(_) if token.is_cancelled() => Left::Lost,
            Ok(Err(Error::Lost { .. } | Error::Unavailable { .. })) | Err(_) => Left::Unknown,
            Ok(Err(other)) => panic!("{} downgrades {key}: {other}", self.who),
        };
        let Ok(Ok(guard)) = answer else {
            leaving.end_of_several(left);
            return self.world.note(format_args!(
                "{} does not downgrade {key}: {left:?}",
                self.who
            ));
        };
        // It writes until it has released that, and reads before that.
        let deeper = self.be_a_reader(guard, is_renewed, called, "downgrades");
        leaving.end(left);
        Box::pin(deeper).await;
    }

    /// Comes in, unless the lock is lost already: then it was never inside.
    fn enter_as(
        &self,
        role: Role,
        section: &Section,
        is_renewed: bool,
        called: u64,
        how: &str,
    ) -> Option<Inside> {
        let key = section.key().to_string();
        if section.check().is_err() {
            self.world
                .note(format_args!("{} {how} {key}: lost at once", self.who));
            return None;
        }
        let entry = Entry {
            key: &key,
            who: &self.who,
            role,
            locker: self.at,
            fence: section.fence().get(),
            is_renewed,
            token: section.lost(),
            called,
        };
        Some(self.world.enter(entry, how))
    }

    /// Stays for a while, or until it is lost.
    async fn stay_inside(&self, section: &Section, inside: &Inside) {
        let mut children = JoinSet::new();
        for _ in 0..fastrand::u8(0..6) {
            sleep(self.stay()).await;
            let now = self.world.now();
            if section.check().is_err() {
                break;
            }
            assert!(
                !inside.is_told(),
                "{} was told that {} is lost, and now that it is not",
                self.who,
                section.key()
            );
            inside.held(now);
            if self.depth < DEEPEST && one_in(4) {
                self.deeper().act().await;
            } else if self.depth < DEEPEST && one_in(4) {
                let inner = self.deeper();
                Box::pin(inner.read(section.key().as_str())).await;
            } else if self.depth < DEEPEST && one_in(10) {
                let child = self.in_scope(self.who.clone());
                children.spawn(section.scope(async move { child.act().await }));
            }
        }
        while let Some(child) = children.join_next().await {
            child.unwrap();
        }
    }

    /// Nothing that was under way brings back what is lost, and whoever still has a guard of it
    /// does not come in again.
    async fn look_and_try_again<L: Takes>(&self, section: &Section, lock: &L) {
        sleep(up_to(self.plan.command_timeout)).await;
        let (who, key) = (&self.who, section.key());
        let is_lost = section.check().is_err() && section.lost().is_cancelled();
        assert!(is_lost, "{who} has {key} again, which it had lost");
        if one_in(2) {
            let again = lock.take_at_once().await.map(|taken| taken.is_some());
            assert!(
                matches!(again, Err(Error::Lost { .. })),
                "{who} has lost {key}: {again:?}"
            );
        }
    }

    async fn go<G: RoleGuard>(&self, guard: G, inside: Inside) {
        let key = guard.key().to_string();
        let leaving = inside.leave();
        let left = if fastrand::bool() {
            let lost = guard.check().is_err();
            drop(guard);
            if lost { Left::Lost } else { Left::Unknown }
        } else {
            left(&guard.leave().await)
        };
        leaving.end(left);
        self.world
            .note(format_args!("{} is out of {key}: {left:?}", self.who));
    }

    // ---- By runs ----

    async fn run_read(&self, key: &str) {
        let (lock, inner) = self.in_run(key, |rw| self.reader(rw));
        let called = self.world.now();
        let run = lock.run(|section| inner.section(Role::Reads, section, called));
        self.come_out(&inner.who, self.in_patience(run).await);
    }

    async fn run_write(&self, key: &str) {
        let (lock, inner) = self.in_run(key, |rw| self.writer(rw));
        let called = self.world.now();
        let run = lock.run(|section| inner.section(Role::Alone, section, called));
        let answer = self.in_patience(run).await;
        if let Some(Err(Error::Config(_))) = answer {
            let is_reader = self.world.has_read(key, &inner.who, called);
            assert!(is_reader, "{} writes, and does not read", inner.who);
            return self
                .world
                .note(format_args!("the run of {} reads already", inner.who));
        }
        self.come_out(&inner.who, answer);
    }

    /// What runs, and as whom.
    fn in_run<L>(&self, key: &str, lock: impl FnOnce(&RwLock) -> L) -> (L, Self) {
        let inner = self.in_scope(self.runner(&[key]));
        (lock(&self.locks.rw(key)), inner)
    }

    async fn section(&self, role: Role, section: Section, called: u64) -> Option<Vec<Leaving>> {
        let inside = self.enter_as(role, &section, true, called, "runs in")?;
        self.stay_inside(&section, &inside).await;
        section.check().ok()?;
        Some(vec![inside.leave()])
    }
}

takes!(ReadLock => ReadGuard);
takes!(
    WriteLock => WriteGuard,
    /// An owner that reads would wait for itself.
    fn is_refused(&self, worker: &Worker, since: u64) -> bool {
        worker
            .world
            .has_read(self.key().as_str(), &worker.who, since)
    }
);
