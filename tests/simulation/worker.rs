//! What an owner does: takes locks, one or several at once, by guards and by runs, inside of each
//! other, and lets go.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockhound::{Error, Guard, Lock, Locker, MultiGuard, MultiLock, Owner};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::common::ms;
use crate::plan::{Plan, one_in, up_to};
use crate::world::{Entry, Inside, Leaving, Left, Role, World};

/// The names of the fair locks.
pub const FAIR: [&str; 1] = ["printer"];

/// How deep sections lie in each other.
pub const DEEPEST: u32 = 3;

/// By what a worker is known.
#[derive(Clone)]
pub enum Name {
    /// Its handles name it.
    Owner(Owner),
    /// It is in a scope, or in a run.
    Scope,
    /// It is a task.
    Task,
}

/// Somebody at work.
#[derive(Clone)]
pub struct Worker {
    pub world: Arc<World>,
    pub plan: Plan,
    pub who: String,
    pub name: Name,
    /// Which locker it uses.
    pub at: usize,
    pub locks: Locker,
    pub keys: Arc<[String]>,
    /// The read-write locks.
    pub read_write: Arc<[String]>,
    pub semaphores: Arc<[String]>,
    pub fair: Arc<[String]>,
    /// How many locks it is in.
    pub depth: u32,
    /// How many runs had an owner of their own.
    pub runs: Arc<AtomicU64>,
}

/// Returns the lock of this name.
pub fn lock(locks: &Locker, key: &str) -> Lock {
    match FAIR.contains(&key) {
        true => locks.fair(key),
        false => locks.get(key),
    }
}

pub type Boxed<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Worker {
    pub async fn work(self) {
        for _ in 0..self.plan.rounds {
            // Now and then everybody is away for long.
            let pause = if one_in(40) {
                self.plan.lease * 20
            } else {
                self.plan.lease
            };
            sleep(ms(1) + up_to(pause)).await;
            self.act().await;
        }
    }

    /// Takes one lock, at once.
    pub async fn come(&self, key: usize) {
        self.take_one(&self.keys[key]).await;
    }

    /// Tries to take a lock that no worker takes.
    pub async fn ask(&self) -> Option<Guard> {
        self.locks
            .get("nobody's")
            .try_lock()
            .await
            .unwrap_or_default()
    }

    pub fn act(&self) -> Boxed<'_> {
        Box::pin(async move {
            if !self.read_write.is_empty() && one_in(3) {
                return self.read_or_write().await;
            }
            if !self.semaphores.is_empty() && one_in(3) {
                return self.take_permits().await;
            }
            if self.plan.elects && one_in(3) {
                return self.lead(self.any_key()).await;
            }
            match fastrand::u8(0..12) {
                0..6 => self.take_one(self.any_lock()).await,
                6..8 => self.take_several().await,
                8..11 => self.run_one().await,
                _ if self.plan.force && self.depth == 0 => {
                    // A grant or a renewal may be on its way meanwhile.
                    let key = self.any_lock();
                    let force = async {
                        sleep(up_to(self.plan.command_timeout)).await;
                        self.force_by(key, self.lock(key).force_unlock()).await;
                    };
                    tokio::join!(self.take_one(key), force);
                }
                _ => self.run_several().await,
            }
        })
    }

    fn any_key(&self) -> &str {
        &self.keys[fastrand::usize(..self.keys.len())]
    }

    /// The same, or a fair lock.
    fn any_lock(&self) -> &str {
        match fastrand::usize(..self.keys.len() + self.fair.len()) {
            at if at < self.keys.len() => &self.keys[at],
            at => &self.fair[at - self.keys.len()],
        }
    }

    fn some_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self
            .keys
            .iter()
            .filter(|_| fastrand::bool())
            .cloned()
            .collect();
        if keys.is_empty() {
            keys.push(self.any_key().to_owned());
        }
        keys
    }

    fn lock(&self, key: &str) -> Lock {
        let lock = lock(&self.locks, key);
        match &self.name {
            Name::Owner(owner) => lock.owned_by(owner.clone()),
            Name::Scope | Name::Task => lock,
        }
    }

    fn all(&self, keys: &[String]) -> MultiLock {
        let locks = self.locks.multi(keys);
        match &self.name {
            Name::Owner(owner) => locks.owned_by(owner.clone()),
            Name::Scope | Name::Task => locks,
        }
    }

    /// The same, where it has come in.
    pub fn deeper(&self) -> Self {
        Self {
            depth: self.depth + 1,
            ..self.clone()
        }
    }

    /// The same, in a scope.
    pub fn in_scope(&self, who: String) -> Self {
        Self {
            name: Name::Scope,
            who,
            depth: self.depth + 1,
            ..self.clone()
        }
    }

    fn patience(&self) -> Duration {
        up_to(self.plan.lease * 3)
    }

    // ---- By guards ----

    async fn take_one(&self, key: &str) {
        let (mut lock, mut is_renewed) = (self.lock(key), true);
        match fastrand::u8(0..8) {
            0 | 1 => (lock, is_renewed) = (lock.fixed_lease(self.plan.lease), false),
            2 => lock = lock.max_hold(ms(100) + up_to(self.plan.lease * 2)),
            // Longer than the quarantine of servers that forget it may not be.
            3 => lock = lock.min_hold((ms(100) + up_to(self.plan.lease)).min(self.plan.lease)),
            _ => {}
        }
        let called = self.world.now();
        let Some((how, guard)) = self.come_in(&lock).await else {
            return;
        };
        let key = lock.key().to_string();
        // It may be lost already: then it was never inside.
        if guard.check().is_err() {
            return self
                .world
                .note(format_args!("{} {how} {key}: lost at once", self.who));
        }
        let (who, fence, token) = (&*self.who, guard.fence().get(), guard.lost());
        let entry = Entry {
            key: &key,
            who,
            role: Role::Alone,
            locker: self.at,
            fence,
            is_renewed,
            token,
            called,
        };
        let inside = self.world.enter(entry, how);
        let mut children = JoinSet::new();
        for _ in 0..fastrand::u8(0..6) {
            sleep(self.stay()).await;
            let now = self.world.now();
            if guard.check().is_err() {
                self.look_again_at_what_is_lost(&guard).await;
                self.try_again_what_is_lost(&lock).await;
                break;
            }
            assert!(
                !inside.is_told(),
                "{} was told that {key} is lost, and now that it is not",
                self.who
            );
            inside.held(now);
            if self.depth < DEEPEST && one_in(4) {
                self.deeper().act().await;
            } else if self.depth < DEEPEST && one_in(10) {
                let child = self.in_scope(self.who.clone());
                children.spawn(guard.scope(async move { child.act().await }));
            }
        }
        while let Some(child) = children.join_next().await {
            child.unwrap();
        }
        self.leave(guard, inside).await;
    }

    /// For how long it stays before it looks.
    pub fn stay(&self) -> Duration {
        if one_in(60) {
            up_to(self.plan.lease * 20)
        } else {
            up_to(self.plan.lease)
        }
    }

    /// Nothing that was under way brings back what is lost.
    async fn look_again_at_what_is_lost(&self, guard: &Guard) {
        sleep(up_to(self.plan.command_timeout)).await;
        let is_lost = guard.check().is_err() && guard.lost().is_cancelled();
        assert!(
            is_lost,
            "{} has {} again, which it had lost",
            self.who,
            guard.key()
        );
    }

    /// Whoever still has a guard of what is lost does not come in again.
    async fn try_again_what_is_lost(&self, lock: &Lock) {
        if one_in(2) {
            let again = lock.try_lock().await;
            assert!(
                matches!(again, Err(Error::Lost { .. })),
                "{} has lost {}: {again:?}",
                self.who,
                lock.key()
            );
        }
    }

    async fn leave(&self, guard: Guard, inside: Inside) {
        let key = guard.key().to_string();
        let leaving = inside.leave();
        let left = if fastrand::bool() {
            let lost = guard.check().is_err();
            drop(guard);
            if lost { Left::Lost } else { Left::Unknown }
        } else {
            left(&guard.unlock().await)
        };
        leaving.end(left);
        self.world
            .note(format_args!("{} is out of {key}: {left:?}", self.who));
    }

    async fn take_several(&self) {
        let keys = self.some_keys();
        let locks = self.all(&keys);
        let called = self.world.now();
        let Some((how, guard)) = self.come_in(&locks).await else {
            return;
        };
        if guard.check().is_err() {
            return self
                .world
                .note(format_args!("{} {how} {keys:?}: lost at once", self.who));
        }
        let insides: Vec<Inside> = guard
            .fences()
            .map(|(key, fence)| self.enter(key, fence, guard.lost(), called, how))
            .collect();
        for _ in 0..fastrand::u8(0..4) {
            sleep(self.stay()).await;
            let now = self.world.now();
            if guard.check().is_err() {
                break;
            }
            insides.iter().for_each(|inside| inside.held(now));
            if self.depth < DEEPEST && one_in(3) {
                self.deeper().act().await;
            }
        }
        let leaving: Vec<Leaving> = insides.into_iter().map(Inside::leave).collect();
        let answer = left(&guard.unlock().await);
        leaving
            .into_iter()
            .for_each(|leaving| leaving.end_of_several(answer));
        self.world
            .note(format_args!("{} is out of {keys:?}: {answer:?}", self.who));
    }

    fn enter(
        &self,
        key: &lockhound::Key,
        fence: lockhound::Fence,
        token: lockhound::CancellationToken,
        called: u64,
        how: &str,
    ) -> Inside {
        let (key, who, fence) = (key.as_str(), &*self.who, fence.get());
        self.world.enter(
            Entry {
                key,
                who,
                role: Role::Alone,
                locker: self.at,
                fence,
                is_renewed: true,
                token,
                called,
            },
            how,
        )
    }

    /// Tries to get in, in one of several ways. Whoever is in another lock does not wait for ever:
    /// others come the other way.
    pub async fn come_in<L: Takes>(&self, lock: &L) -> Option<(&'static str, L::Guard)> {
        let (patience, called) = (self.patience(), self.world.now());
        let way = if self.depth > 0 {
            fastrand::u8(0..3)
        } else {
            fastrand::u8(0..5)
        };
        let (how, answer) = match way {
            0 => ("tries", lock.take_at_once().await),
            1 => ("tries for a while", lock.take_within(patience).await),
            // The future is dropped wherever it is.
            2 => (
                "gives up",
                timeout(patience, lock.take())
                    .await
                    .map_or(Ok(None), |answer| answer.map(Some)),
            ),
            _ => ("waits for", lock.take().await.map(Some)),
        };
        let who = &self.who;
        match answer {
            Ok(Some(guard)) => return Some((how, guard)),
            Ok(None) => self.world.note(format_args!("{who} {how}: no")),
            Err(Error::Unavailable { .. }) => {
                self.world.note(format_args!("{who} {how}: unavailable"));
            }
            // What it is in may be lost.
            Err(Error::Lost { loss, .. }) if self.depth > 0 => {
                self.world.note(format_args!("{who} {how}: {loss}"));
            }
            Err(Error::Config(_)) if lock.is_refused(self, called) => {
                self.world.note(format_args!("{who} {how}: reads already"));
            }
            Err(other) => panic!("{who} {how}: {other}"),
        }
        None
    }

    // ---- By runs ----

    /// As whom a run of these locks locks: its handle's or its scope's owner, or the task where
    /// that is in one of them. Else it is an owner of its own.
    pub fn runner<K: AsRef<str>>(&self, keys: &[K]) -> String {
        let enters = keys
            .iter()
            .any(|key| self.world.has(key.as_ref(), &self.who));
        match self.name {
            Name::Task if !enters => {
                format!("{}/{}", self.who, self.runs.fetch_add(1, Ordering::Relaxed))
            }
            _ => self.who.clone(),
        }
    }

    async fn run_one(&self) {
        let key = self.any_lock();
        let (lock, inner) = (self.lock(key), self.in_scope(self.runner(&[key])));
        let called = self.world.now();
        let run = lock.run(|section| {
            let inner = &inner;
            async move {
                section.check().ok()?;
                let inside = inner.enter(
                    &key.into(),
                    section.fence(),
                    section.lost(),
                    called,
                    "runs in",
                );
                let mut children = JoinSet::new();
                for _ in 0..fastrand::u8(0..5) {
                    sleep(inner.stay()).await;
                    let now = inner.world.now();
                    section.check().ok()?;
                    inside.held(now);
                    if inner.depth < DEEPEST && one_in(4) {
                        inner.act().await;
                    } else if inner.depth < DEEPEST && one_in(10) {
                        let child = inner.clone();
                        children.spawn(section.scope(async move { child.act().await }));
                    }
                }
                while let Some(child) = children.join_next().await {
                    child.unwrap();
                }
                Some(vec![inside.leave()])
            }
        });
        self.come_out(&inner.who, self.in_patience(run).await);
    }

    async fn run_several(&self) {
        let keys = self.some_keys();
        let (locks, inner) = (self.all(&keys), self.in_scope(self.runner(&keys)));
        let called = self.world.now();
        let run = locks.run(|section| {
            let (inner, keys) = (&inner, &keys);
            async move {
                section.check().ok()?;
                let enter = |key: &String| {
                    let fence = section.fence(key).unwrap();
                    inner.enter(&(&**key).into(), fence, section.lost(), called, "runs in")
                };
                let insides: Vec<Inside> = keys.iter().map(enter).collect();
                for _ in 0..fastrand::u8(0..4) {
                    sleep(inner.stay()).await;
                    let now = inner.world.now();
                    section.check().ok()?;
                    insides.iter().for_each(|inside| inside.held(now));
                    if inner.depth < DEEPEST && one_in(3) {
                        inner.act().await;
                    }
                }
                Some(insides.into_iter().map(Inside::leave).collect())
            }
        });
        self.come_out(&inner.who, self.in_patience(run).await);
    }

    /// A run, which is dropped after a while: by whoever is in another lock in any case.
    pub async fn in_patience<T>(
        &self,
        run: impl Future<Output = Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        if self.depth > 0 || one_in(4) {
            timeout(self.patience(), run).await.ok()
        } else {
            Some(run.await)
        }
    }

    pub fn come_out(&self, who: &str, answer: Option<Result<Option<Vec<Leaving>>, Error>>) {
        let told = match answer {
            // The release may not have been confirmed.
            Some(Ok(Some(leaving))) => {
                leaving
                    .into_iter()
                    .for_each(|leaving| leaving.end(Left::Unknown));
                "done"
            }
            Some(Ok(None)) => "lost",
            Some(Err(Error::Unavailable { .. })) => "unavailable",
            Some(Err(Error::Lost { .. })) => "lost",
            Some(Err(other)) => panic!("the run of {who}: {other}"),
            None => "given up",
        };
        self.world.note(format_args!("the run of {who}: {told}"));
    }

    // ---- Of others ----

    pub async fn force_by(&self, key: &str, forcing: impl Future<Output = Result<bool, Error>>) {
        let force = self.world.force(key, self.at);
        let answer = forcing.await;
        self.world.forced(force, matches!(answer, Ok(true)));
        match answer {
            Ok(forced) => self
                .world
                .note(format_args!("{} forces {key}: {forced}", self.who)),
            Err(Error::Unavailable { .. }) => {
                self.world
                    .note(format_args!("{} forces {key}: unavailable", self.who));
            }
            Err(other) => panic!("{} forces {key}: {other}", self.who),
        }
    }
}

/// What an unlock tells.
pub fn left(answer: &Result<(), Error>) -> Left {
    match answer {
        Ok(()) => Left::Released,
        Err(Error::Lost { .. }) => Left::Lost,
        Err(_) => Left::Unknown,
    }
}

/// A lock, or several at once.
pub trait Takes: Sync {
    type Guard: Send;

    fn take(&self) -> impl Future<Output = Result<Self::Guard, Error>> + Send;
    fn take_at_once(&self) -> impl Future<Output = Result<Option<Self::Guard>, Error>> + Send;
    fn take_within(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Self::Guard>, Error>> + Send;

    /// Returns whether this may be refused to whoever has asked since then.
    fn is_refused(&self, _worker: &Worker, _since: u64) -> bool {
        false
    }
}

/// Takes a lock of this type by its methods of these names.
macro_rules! takes {
    ($lock:ty => $guard:ty $(, $more:item)?) => {
        impl Takes for $lock {
            type Guard = $guard;

            fn take(&self) -> impl Future<Output = Result<$guard, Error>> + Send {
                self.lock()
            }

            fn take_at_once(
                &self,
            ) -> impl Future<Output = Result<Option<$guard>, Error>> + Send {
                self.try_lock()
            }

            fn take_within(
                &self,
                wait: Duration,
            ) -> impl Future<Output = Result<Option<$guard>, Error>> + Send {
                self.try_lock_for(wait)
            }

            $($more)?
        }
    };
}
pub(crate) use takes;

takes!(Lock => Guard);
takes!(MultiLock => MultiGuard);
