//! Owners: which branches, tasks and threads exclude each other, which may enter again, and which
//! warnings they cause.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use common::log::Log;
use common::{Server, builder, eventually, key, locker, ms};
use futures_util::future::try_join_all;
use futures_util::stream::{self, FuturesUnordered, StreamExt as _, TryStreamExt as _};
use lockhound::stats::CallOutcome;
use lockhound::{Error, Guard, Lock, Locker, MultiLock, Owner, Reentry};
use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::LevelFilter;

/// The warnings of all tests in this file. Each test looks for its own key.
static LOG: LazyLock<Log> = LazyLock::new(|| Log::collect_from(LevelFilter::WARN));

fn warnings(key: &str, about: &str) -> Vec<String> {
    let text = LOG.text();
    text.lines()
        .filter(|line| line.contains(key) && line.contains(about))
        .map(str::to_owned)
        .collect()
}

/// What the lock protects: a sum that is read and, a moment later, written back.
#[derive(Default)]
struct Account {
    sum: AtomicU32,
    inside: AtomicU32,
    most: AtomicU32,
}

impl Account {
    async fn credit(&self) {
        self.credit_slowly(ms(1)).await;
    }

    async fn credit_slowly(&self, time: Duration) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        let sum = self.sum.load(Ordering::SeqCst);
        sleep(time).await;
        self.sum.store(sum + 1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    #[track_caller]
    fn assert_exclusive(&self, credits: u32) {
        let found = (
            self.most.load(Ordering::SeqCst),
            self.sum.load(Ordering::SeqCst),
        );
        assert_eq!(found, (1, credits), "most inside at once, and the sum");
    }
}

type Credit = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// The ordinary ways to do a hundred things at once in one task.
const WAYS: [&str; 4] = [
    "buffer_unordered",
    "for_each_concurrent",
    "try_join_all",
    "join",
];

async fn hundred(way: &str, credit: impl Fn() -> Credit) {
    let credits = (0..100).map(|_| credit());
    match way {
        "buffer_unordered" => stream::iter(credits)
            .buffer_unordered(16)
            .try_collect()
            .await
            .unwrap(),
        "for_each_concurrent" => {
            stream::iter(credits)
                .for_each_concurrent(16, async |c| c.await.unwrap())
                .await;
        }
        "try_join_all" => _ = try_join_all(credits).await.unwrap(),
        "join" => {
            let mut credits = credits.collect::<Vec<_>>();
            let half = credits.split_off(50);
            let each = async |credits: Vec<Credit>| {
                for credit in credits {
                    credit.await.unwrap();
                }
            };
            tokio::join!(each(credits), each(half));
        }
        _ => unreachable!("{way}"),
    }
}

/// Runs a program in the root of the runtime, where wakers identify callers, and in a task, which
/// is one identity.
async fn in_task_and_root<F: Future<Output = ()> + Send + 'static>(program: impl Fn() -> F) {
    program().await;
    tokio::spawn(program()).await.unwrap();
}

#[tokio::test]
async fn runs_in_branches_of_one_task_exclude_each_other() {
    let server = Server::start();
    let locks = locker(&server).await;
    for way in WAYS {
        in_task_and_root(|| {
            let lock = locks.get(key());
            async move {
                let account = Arc::new(Account::default());
                let credit = || -> Credit {
                    let (lock, account) = (lock.clone(), Arc::clone(&account));
                    Box::pin(async move { lock.run(|_| async { account.credit().await }).await })
                };
                hundred(way, credit).await;
                account.assert_exclusive(100);
            }
        })
        .await;
    }
    assert_eq!(locks.stats().suspicious_reentries, 0);
}

#[tokio::test]
async fn runs_of_several_locks_in_branches_exclude_each_other() {
    let server = Server::start();
    let locks = locker(&server).await;
    in_task_and_root(|| {
        let names = [key(), key(), key()];
        let locks = locks.clone();
        async move {
            let account = Arc::new(Account::default());
            let next = AtomicU32::new(0);
            let credit = || -> Credit {
                // Any two of these sets share a lock.
                let n = next.fetch_add(1, Ordering::SeqCst) as usize;
                let (lock, account) = (
                    locks.multi([&names[n % 3], &names[(n + 1) % 3]]),
                    Arc::clone(&account),
                );
                Box::pin(async move { lock.run(|_| async { account.credit().await }).await })
            };
            hundred("buffer_unordered", credit).await;
            account.assert_exclusive(100);
        }
    })
    .await;
}

#[tokio::test]
async fn guards_in_branches_exclude_unless_the_task_is_the_owner() {
    let server = Server::start();
    for reentry in [Reentry::Scope, Reentry::Never] {
        let locks = Locker::builder()
            .node(server.url())
            .reentry(reentry)
            .connect()
            .await
            .unwrap();
        for way in WAYS {
            in_task_and_root(|| exclusive_guards(way, locks.get(key()))).await;
        }
        assert_eq!(locks.stats().attempts.of(CallOutcome::Reentered), 0);
    }
    let locks = locker(&server).await;
    in_task_and_root(|| exclusive_guards("buffer_unordered", locks.get(key()).non_reentrant()))
        .await;
}

async fn exclusive_guards(way: &'static str, lock: Lock) {
    let account = Arc::new(Account::default());
    hundred(way, || guarded(&lock, &account)).await;
    account.assert_exclusive(100);
}

/// Makes one credit under a guard.
fn guarded(lock: &Lock, account: &Arc<Account>) -> Credit {
    let (lock, account) = (lock.clone(), Arc::clone(account));
    Box::pin(async move {
        let guard = lock.lock().await?;
        account.credit_slowly(ms(1 + fastrand::u64(0..8))).await;
        guard.unlock().await
    })
}

/// Runs, in a task, a program whose branches do not exclude each other, and expects a warning.
async fn is_warned_about<F: Future<Output = ()> + Send + 'static>(program: impl Fn(Lock) -> F) {
    LazyLock::force(&LOG);
    let server = Server::start();
    let (locks, key) = (locker(&server).await, key());
    let mut told = Vec::new();
    for tried in 1.. {
        tokio::spawn(program(locks.get(&key))).await.unwrap();
        told = warnings(
            &key,
            "a guard was released before a newer one of the same owner",
        );
        // If the process gets no core, all pauses end together, and so do all guards.
        if !told.is_empty() || !common::machine::again(tried) {
            break;
        }
    }
    assert_eq!(told.len(), 1, "at most one warning a minute: {told:?}");
    for part in [
        "WARN",
        "owner=",
        "lock.run(..)",
        "owned_by(Owner::new())",
        "detach()",
        "Reentry::Scope",
    ] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }
    let stats = locks.stats();
    assert!(
        stats.suspicious_reentries > 0 && stats.attempts.of(CallOutcome::Reentered) > 0,
        "{stats:?}"
    );
    eventually(ms(5_000), "all is released", || !server.exists(&key)).await;
}

#[tokio::test]
async fn guards_in_joined_branches_cause_a_warning() {
    is_warned_about(|lock| async move {
        let account = Arc::new(Account::default());
        hundred("try_join_all", || guarded(&lock, &account)).await;
        assert!(account.most.load(Ordering::SeqCst) > 1);
    })
    .await;
}

#[tokio::test]
async fn guards_in_for_each_concurrent_cause_a_warning() {
    is_warned_about(|lock| async move {
        let account = Arc::new(Account::default());
        hundred("for_each_concurrent", || guarded(&lock, &account)).await;
    })
    .await;
}

#[tokio::test]
async fn guards_in_buffer_unordered_cause_a_warning() {
    is_warned_about(|lock| async move {
        let account = Arc::new(Account::default());
        hundred("buffer_unordered", || guarded(&lock, &account)).await;
    })
    .await;
}

#[tokio::test]
async fn guards_in_two_loops_of_one_task_cause_a_warning() {
    is_warned_about(|lock| async move {
        let account = Arc::new(Account::default());
        hundred("join", || guarded(&lock, &account)).await;
    })
    .await;
}

#[tokio::test]
async fn guards_that_a_loop_moves_to_other_tasks_cause_a_warning() {
    is_warned_about(|lock| async move {
        let account = Arc::new(Account::default());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (guard, account) = (lock.lock().await.unwrap(), Arc::clone(&account));
            tasks.spawn(async move {
                account.credit_slowly(ms(5)).await;
                guard.unlock().await.unwrap();
            });
        }
        tasks.join_all().await;
    })
    .await;
}

/// A loop that means to skip a round while the last one is still at work never skips one.
#[tokio::test]
async fn guards_of_a_timer_loop_cause_a_warning() {
    is_warned_about(|lock| async move {
        let account = Account::default();
        let mut jobs = FuturesUnordered::new();
        for _ in 0..20 {
            tokio::select! {
                () = sleep(ms(5)) => {
                    let guard = lock.try_lock().await.unwrap().expect("it enters again");
                    jobs.push(async { account.credit_slowly(ms(18)).await; drop(guard) });
                }
                Some(()) = jobs.next() => {}
            }
        }
        while jobs.next().await.is_some() {}
    })
    .await;
}

#[tokio::test]
async fn guards_of_several_locks_in_branches_cause_a_warning() {
    LazyLock::force(&LOG);
    let server = Server::start();
    let (locks, names) = (locker(&server).await, [key(), key()]);
    let both: MultiLock = locks.multi(&names);
    let program = async move {
        let account = Account::default();
        let credit = async || {
            let guard = both.lock().await.unwrap();
            account.credit_slowly(ms(1 + fastrand::u64(0..8))).await;
            guard.unlock().await.unwrap();
        };
        stream::iter(0..50)
            .for_each_concurrent(8, async |_| credit().await)
            .await;
    };
    tokio::spawn(program).await.unwrap();
    assert!(
        names
            .iter()
            .all(|name| warnings(name, "a guard was released before a newer one").len() == 1)
    );
}

/// The run enters although the guard was moved to another task, because this task still owns the
/// guard.
#[tokio::test]
async fn a_run_under_a_guard_moved_to_another_task_causes_a_warning() {
    is_warned_about(|lock| async move {
        let guard = lock.lock().await.unwrap();
        let (begun, go) = tokio::sync::oneshot::channel::<()>();
        let elsewhere = tokio::spawn(async move {
            go.await.unwrap();
            guard.unlock().await.unwrap();
        });
        let section = |_| async {
            begun.send(()).unwrap();
            elsewhere.await.unwrap();
        };
        lock.run(section).await.unwrap();
    })
    .await;
}

// ---- Exclusion and re-entry with `run` ----

#[tokio::test]
async fn sibling_runs_under_a_guard_exclude_each_other() {
    let server = Server::start();
    let locks = locker(&server).await;
    in_task_and_root(|| {
        let lock = locks.get(key());
        async move {
            let account = Account::default();
            let guard = lock.lock().await.unwrap();
            let credit = || lock.run(|_| account.credit());
            for _ in 0..25 {
                let (a, b, c, d) = tokio::join!(credit(), credit(), credit(), credit());
                assert!([a, b, c, d].iter().all(Result::is_ok));
            }
            assert_eq!(guard.hold_count(), 1);
            account.assert_exclusive(100);
            guard.unlock().await.unwrap();
        }
    })
    .await;
    assert_eq!(locks.stats().suspicious_reentries, 0);
}

/// In one task and in several.
#[tokio::test]
async fn sibling_runs_in_one_scope_exclude_each_other() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let (owner, account) = (Owner::new(), Arc::new(Account::default()));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (lock, account) = (lock.clone(), Arc::clone(&account));
            tokio::spawn(owner.clone().scope(async move {
                let credit = || lock.run(|_| account.credit());
                for _ in 0..10 {
                    let (a, b) = tokio::join!(credit(), credit());
                    a.and(b).unwrap();
                }
            }))
        })
        .collect();
    try_join_all(tasks).await.unwrap();
    account.assert_exclusive(80);
}

/// A child waited inside a run that is over when the child's turn comes.
#[tokio::test]
async fn tasks_that_outlive_their_section_exclude_the_next_run() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let account = Arc::new(Account::default());
    let program = async {
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let children = lock.run(|section| {
            let children: Vec<_> = (0..2)
                .map(|_| {
                    let (lock, account, begun) =
                        (lock.clone(), Arc::clone(&account), begun.clone());
                    tokio::spawn(section.scope(async move {
                        let mut credit =
                            std::pin::pin!(lock.run(|_| account.credit_slowly(ms(50))));
                        // The second one waits for the first.
                        assert!(futures_util::poll!(&mut credit).is_pending());
                        begun.send(()).unwrap();
                        credit.await.unwrap();
                    }))
                })
                .collect();
            async move {
                begins.recv().await.unwrap();
                begins.recv().await.unwrap();
                children
            }
        });
        let children = children.await.unwrap();
        lock.run(|_| account.credit_slowly(ms(50))).await.unwrap();
        try_join_all(children).await.unwrap();
    };
    Owner::new().scope(program).await;
    account.assert_exclusive(3);
}

/// The task takes the lock by a run or by a guard, and the section is of the same lock or of
/// another one.
#[tokio::test]
async fn a_task_outliving_its_section_shares_no_hold_with_the_caller() {
    let server = Server::start();
    let locks = locker(&server).await;
    for (by_run, same) in [(true, true), (true, false), (false, true), (false, false)] {
        let (lock, account) = (locks.get(key()), Arc::new(Account::default()));
        let outer = if same { lock.clone() } else { locks.get(key()) };
        let section = async |section: lockhound::Section| {
            let (begun, begins) = tokio::sync::oneshot::channel();
            let (lock, account) = (lock.clone(), Arc::clone(&account));
            let credit = async move {
                let nested = async {
                    begun.send(()).unwrap();
                    account.credit_slowly(ms(100)).await;
                    lock.try_lock()
                        .await
                        .unwrap()
                        .expect("nested code enters again")
                };
                if by_run {
                    drop(lock.run(|_| nested).await.unwrap());
                } else {
                    let _guard = lock.lock().await.unwrap();
                    drop(nested.await);
                }
            };
            let child = tokio::spawn(section.scope(credit));
            begins.await.unwrap();
            [child]
        };
        let [child] = outer.run(section).await.unwrap();
        lock.run(|_| account.credit_slowly(ms(50))).await.unwrap();
        child.await.unwrap();
        account.assert_exclusive(2);
    }
}

/// Counts the callers inside. Dropping it counts one down, however the caller ends.
struct Inside<'a>(&'a Account);

impl<'a> Inside<'a> {
    fn new(account: &'a Account) -> Self {
        account.most.fetch_max(
            account.inside.fetch_add(1, Ordering::SeqCst) + 1,
            Ordering::SeqCst,
        );
        Self(account)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns a run that works alone, or that spawns children in its scope: it awaits some of them,
/// leaves others behind and aborts some.
fn tree(lock: Lock, account: Arc<Account>, depth: u32) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let nested = lock.clone();
        let run = lock.run(|section| async move {
            let children = if depth == 0 { 0 } else { fastrand::u32(0..4) };
            if children == 0 {
                let _inside = Inside::new(&account);
                return sleep(ms(fastrand::u64(0..4))).await;
            }
            let mut awaited = Vec::new();
            for _ in 0..children {
                let child = tokio::spawn(section.scope(tree(
                    nested.clone(),
                    Arc::clone(&account),
                    depth - 1,
                )));
                match fastrand::u32(0..4) {
                    0 => child.abort(),
                    1 => awaited.push(child),
                    _ => {}
                }
            }
            for child in awaited {
                child.await.unwrap();
            }
        });
        match fastrand::u32(0..3) {
            0 => _ = timeout(ms(fastrand::u64(0..15)), run).await,
            _ => run.await.unwrap(),
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn trees_of_runs_exclude_each_other_and_leave_nothing_behind() {
    let server = Server::start();
    let locks = locker(&server).await;
    for round in 0..60 {
        let (lock, account) = (locks.get(key()), Arc::<Account>::default());
        let trees = futures_util::future::join_all(
            (0..4).map(|_| tree(lock.clone(), Arc::clone(&account), 3)),
        );
        match round % 3 {
            0 => _ = trees.await,
            1 => _ = Owner::new().scope(trees).await,
            _ => {
                let _guard = lock.lock().await.unwrap();
                trees.await;
            }
        }
        let other = lock.owned_by(Owner::new());
        drop(
            timeout(ms(20_000), other.lock())
                .await
                .expect("all have gone")
                .unwrap(),
        );
        assert!(account.most.load(Ordering::SeqCst) <= 1, "round {round}");
    }
}

/// When a run is dropped, the next one has its turn. When the locker closes, a run that waits for
/// its turn gets an error.
#[tokio::test]
async fn a_run_that_waits_for_its_turn_ends_with_a_drop_or_a_close() {
    let server = Server::start();
    let locks = locker(&server).await;
    let lock = locks.get(key());
    let guard = lock.lock().await.unwrap();
    let mut first = Box::pin(lock.run(|_| std::future::pending::<()>()));
    assert!(timeout(ms(100), &mut first).await.is_err());
    let mut second = Box::pin(lock.run(|_| std::future::ready(7)));
    assert!(timeout(ms(100), &mut second).await.is_err());
    drop(first);
    assert_eq!(second.await.unwrap(), 7);
    let mut first = Box::pin(lock.run(|_| std::future::pending::<()>()));
    assert!(timeout(ms(100), &mut first).await.is_err());
    let mut second = Box::pin(lock.run(|_| std::future::ready(7)));
    assert!(timeout(ms(100), &mut second).await.is_err());
    let (closed, told, ()) = tokio::join!(&mut second, &mut first, async {
        drop(guard);
        locks.close().await;
    });
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    assert!(
        matches!(
            told,
            Err(Error::Lost {
                loss: lockhound::Loss::Closed,
                ..
            })
        ),
        "{told:?}"
    );
}

#[tokio::test]
async fn nested_code_enters_a_run_again() {
    let server = Server::start();
    for reentry in [Reentry::Task, Reentry::Scope] {
        let locks = Locker::builder()
            .node(server.url())
            .reentry(reentry)
            .connect()
            .await
            .unwrap();
        in_task_and_root(|| {
            let (lock, other) = (locks.get(key()), locks.get(key()));
            async move { nested_in_a_run(lock, other).await }
        })
        .await;
        assert_eq!(locks.stats().suspicious_reentries, 0);
    }
}

async fn nested_in_a_run(lock: Lock, other: Lock) {
    let depth = lock
        .run(|section| {
            let (lock, other) = (lock.clone(), other.clone());
            async move {
                let guard = lock.lock().await.unwrap();
                assert_eq!((guard.hold_count(), guard.fence()), (2, section.fence()));
                // Through another lock, and back again.
                let depth = other
                    .run(|_| lock.run(async |_| lock.lock().await.unwrap().hold_count()))
                    .await;
                assert_eq!(depth.unwrap().unwrap(), 4);
                // In tasks that the section spawns: in the scope of its guard, of the section, and
                // of its owner.
                let run = |lock: Lock| async move {
                    lock.run(async |_| lock.try_lock().await.unwrap().is_some())
                        .await
                };
                assert!(
                    tokio::spawn(guard.scope(run(lock.clone())))
                        .await
                        .unwrap()
                        .unwrap()
                );
                assert!(
                    tokio::spawn(section.scope(run(lock.clone())))
                        .await
                        .unwrap()
                        .unwrap()
                );
                assert!(
                    tokio::spawn(Owner::current().unwrap().scope(run(lock.clone())))
                        .await
                        .unwrap()
                        .unwrap()
                );
                guard.hold_count()
            }
        })
        .await;
    assert_eq!(depth.unwrap(), 2);
    let guard = timeout(ms(5_000), lock.lock())
        .await
        .expect("all has gone")
        .unwrap();
    assert_eq!(guard.hold_count(), 1);
}

#[tokio::test]
async fn a_run_inside_a_guard_enters_again() {
    let server = Server::start();
    let (locks, name, other) = (locker(&server).await, key(), key());
    in_task_and_root(|| {
        let (lock, both) = (locks.get(&name), locks.multi([&name, &other]));
        async move {
            let guard = lock.lock().await.unwrap();
            assert_eq!(
                lock.run(async |section| section.fence()).await.unwrap(),
                guard.fence()
            );
            let name = lock.key().clone();
            assert_eq!(
                both.run(async |section| section.fence(&name))
                    .await
                    .unwrap(),
                Some(guard.fence())
            );
            let child = lock.clone();
            let nested = async move {
                child
                    .run(async |_| child.lock().await.unwrap().hold_count())
                    .await
                    .unwrap()
            };
            assert_eq!(tokio::spawn(guard.scope(nested)).await.unwrap(), 3);
            guard.unlock().await.unwrap();
        }
    })
    .await;
    let guard = locks.multi([&name, &other]).lock().await.unwrap();
    let lock = locks.get(&other);
    let child = tokio::spawn(guard.scope(async move { lock.lock().await.unwrap().hold_count() }));
    assert_eq!(child.await.unwrap(), 2);
}

#[tokio::test]
async fn a_guard_that_outlives_its_section_belongs_to_the_caller() {
    let server = Server::start();
    let locks = locker(&server).await;
    in_task_and_root(|| {
        let (lock, other) = (locks.get(key()), locks.get(key()));
        async move {
            let guards = lock
                .run(async |_| (lock.lock().await.unwrap(), other.lock().await.unwrap()))
                .await
                .unwrap();
            assert_eq!(guards.0.hold_count(), 1);
            for lock in [&lock, &other] {
                let again = timeout(ms(5_000), lock.lock())
                    .await
                    .expect("its caller enters again")
                    .unwrap();
                assert_eq!(again.hold_count(), 2);
                assert_eq!(lock.run(async |_| 7).await.unwrap(), 7);
            }
        }
    })
    .await;
}

/// The scope of a `MultiGuard` has the guard's owner, as the scope of a single guard has.
#[tokio::test]
async fn children_of_guards_that_outlived_their_section_do_not_wait() {
    let server = Server::start();
    let (locks, names) = (locker(&server).await, [key(), key()]);
    let guard = locks
        .get(key())
        .run(async |_| locks.multi(&names).lock().await.unwrap())
        .await
        .unwrap();
    let lock = locks.get(&names[0]);
    let child = guard.scope(async move { lock.lock().await.unwrap().hold_count() });
    assert_eq!(
        timeout(ms(5_000), tokio::spawn(child))
            .await
            .expect("it enters again")
            .unwrap(),
        2
    );
}

/// The section's child is in the scope of a guard or an outer section that began before the
/// section.
#[tokio::test]
async fn children_in_an_outer_scope_do_not_wait_for_their_section() {
    let server = Server::start();
    let locks = locker(&server).await;
    let lock = locks.get(key());
    let nested = || {
        let lock = lock.clone();
        async move {
            lock.run(async |_| lock.lock().await.unwrap().hold_count())
                .await
                .unwrap()
        }
    };
    let guard = lock.lock().await.unwrap();
    let run = lock.run(async |_| tokio::spawn(guard.scope(nested())).await.unwrap());
    assert_eq!(
        timeout(ms(5_000), run)
            .await
            .expect("it enters again")
            .unwrap(),
        4
    );
    drop(guard);
    let both = locks.multi([lock.key(), &key().into()]);
    let guard = both.lock().await.unwrap();
    let run = both.run(async |_| tokio::spawn(guard.scope(nested())).await.unwrap());
    assert_eq!(
        timeout(ms(5_000), run)
            .await
            .expect("it enters again")
            .unwrap(),
        4
    );
    drop(guard);
    let run = lock.run(async |outer| {
        lock.run(async |_| tokio::spawn(outer.scope(nested())).await.unwrap())
            .await
            .unwrap()
    });
    assert_eq!(
        timeout(ms(5_000), run)
            .await
            .expect("it enters again")
            .unwrap(),
        4
    );
}

#[tokio::test]
async fn a_run_that_would_wait_for_itself_is_refused() {
    let server = Server::start();
    let lock = locker(&server).await.get(key()).non_reentrant();
    let error = lock
        .run(|_| lock.run(async |_| ()))
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(&error, Error::Config(config) if config.option() == "run"),
        "{error}"
    );
    assert!(error.to_string().contains(lock.key().as_str()), "{error}");
    assert_eq!(
        lock.clone()
            .owned_by(Owner::new())
            .run(async |_| 7)
            .await
            .unwrap(),
        7
    );
}

// ---- No false warnings ----

/// A service that locks in every function, whoever calls it.
struct Service {
    lock: Lock,
}

impl Service {
    async fn outer(&self, fail: bool) -> Result<u32, Error> {
        let guard = self.lock.lock().await?;
        let depth = self.middle(fail).await?;
        guard.unlock().await?;
        Ok(depth)
    }

    async fn middle(&self, fail: bool) -> Result<u32, Error> {
        let _guard = self.lock.lock().await?;
        if fail {
            Err(Error::Closed)?;
        }
        self.inner().await
    }

    async fn inner(&self) -> Result<u32, Error> {
        let guard = self.lock.try_lock().await?.expect("it is held here");
        sleep(ms(2)).await;
        Ok(guard.hold_count())
    }

    async fn slow(&self) -> Result<(), Error> {
        let _guard = self.lock.lock().await?;
        let _nested = self.lock.lock().await?;
        std::future::pending().await
    }
}

/// Guards that are dropped together are not suspicious, in whatever order.
#[tokio::test]
async fn guards_in_structs_are_never_suspicious() {
    let server = Server::start();
    let locks = locker(&server).await;
    let (mut together, mut suspicious) = (0, 0);
    while together < 5 {
        let lock = locks.get(key());
        let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
        let work = Work {
            _outer: outer,
            _inner: inner,
        };
        sleep(ms(2)).await;
        let start = std::time::Instant::now();
        drop(work);
        let took = start.elapsed();
        let before = std::mem::replace(&mut suspicious, locks.stats().suspicious_reentries);
        // A pause of the thread between the two drops cannot be told from a task that keeps the
        // newer guard.
        if took < ms(1) {
            assert_eq!(suspicious, before);
            together += 1;
        }
    }
}

/// Its guards are dropped together, the oldest first.
struct Work {
    _outer: Guard,
    _inner: Guard,
}

#[tokio::test]
async fn nested_code_is_never_suspicious() {
    LazyLock::force(&LOG);
    let server = Server::start();
    let locks = locker(&server).await;
    in_task_and_root(|| nested_code(locks.get(key()))).await;
    let stats = locks.stats();
    assert_eq!(stats.suspicious_reentries, 0);
    assert!(
        stats.attempts.of(CallOutcome::Reentered) >= 2_000,
        "{stats:?}"
    );
}

async fn nested_code(lock: Lock) {
    let service = Service { lock: lock.clone() };
    assert_eq!(service.outer(false).await.unwrap(), 3);
    assert!(service.outer(true).await.is_err());
    // Cancelled while it holds two guards.
    assert!(timeout(ms(30), service.slow()).await.is_err());
    let guard = lock.lock().await.unwrap();
    assert!(timeout(ms(30), service.slow()).await.is_err());
    // `select!` cancels the branch that loses, wherever it is.
    tokio::select! {
        biased;
        _ = service.slow() => unreachable!("it never ends"),
        () = sleep(ms(5)) => {}
    }
    tokio::select! {
        biased;
        () = std::future::pending() => {}
        depth = service.outer(false) => assert_eq!(depth.unwrap(), 4),
    }
    drop(guard);
    // A retry loop.
    let tries = Cell::new(0);
    while service.outer(tries.get() < 5).await.is_err() {
        tries.set(tries.get() + 1);
    }
    let mut guards = Vec::new();
    for _ in 0..1_000 {
        guards.push(lock.lock().await.unwrap());
    }
    while let Some(guard) = guards.pop() {
        drop(guard);
    }
    // Taken and nested here, then moved to another task and released there.
    let guard = lock.lock().await.unwrap();
    drop(lock.lock().await.unwrap());
    let child = lock.clone();
    let nested = guard.scope(async move {
        let _nested = child.lock().await.unwrap();
        sleep(ms(3)).await;
    });
    tokio::spawn(nested).await.unwrap();
    tokio::spawn(async move { guard.unlock().await.unwrap() })
        .await
        .unwrap();
    assert_eq!(warnings(lock.key().as_str(), ""), Vec::<String>::new());
}

#[tokio::test]
async fn a_web_handler_with_nested_locks_is_never_suspicious() {
    let server = Server::start();
    let locks = locker(&server).await;
    let service = Arc::new(Service {
        lock: locks.get(key()),
    });
    let handler = |service: axum::extract::State<Arc<Service>>| async move {
        service.outer(false).await.unwrap().to_string()
    };
    let app = axum::Router::new()
        .route("/", axum::routing::get(handler))
        .with_state(service);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let requests = (0..40).map(|_| async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n3"),
            "{answer}"
        );
    });
    futures_util::future::join_all(requests).await;
    serving.abort();
    let stats = locks.stats();
    let of = |outcome| stats.attempts.of(outcome);
    let counts = (
        of(CallOutcome::Granted),
        of(CallOutcome::Reentered),
        stats.suspicious_reentries,
    );
    assert_eq!(counts, (40, 80, 0));
}

/// Re-entries that cause no warning still show in the stats and at debug level.
#[tokio::test]
async fn reentries_are_counted_and_logged_at_debug_level() {
    let server = Server::start();
    let lock = locker(&server).await.get(key());
    let log = Log::default();
    let events = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::DEBUG)
        .with_ansi(false);
    let guard = tracing::subscriber::set_default(events.with_writer(log.clone()).finish());
    let outer = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    drop(guard);
    let text = log.text();
    let line = text
        .lines()
        .find(|line| line.contains("entered again"))
        .expect("an event");
    for part in [
        "DEBUG",
        lock.key().as_str(),
        "owner=",
        "generation=",
        "guards=2",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    drop((inner, outer));
}

// ---- Self-deadlocks ----

#[tokio::test]
async fn a_call_that_waits_for_its_own_task_causes_one_warning() {
    LazyLock::force(&LOG);
    let server = Server::start();
    let about = "waits for a lock that was taken in its own task";
    for reentry in [Reentry::Task, Reentry::Scope, Reentry::Never] {
        let locks = builder(&server.url(), ms(900))
            .reentry(reentry)
            .connect()
            .await
            .unwrap();
        in_task_and_root(|| {
            let (lock, key) = (locks.get(key()), key());
            async move {
                // With `Reentry::Task` the task itself would enter, so the second call has an owner
                // of its own.
                let (mine, again) = match reentry {
                    Reentry::Task => (lock.clone(), lock.clone().owned_by(Owner::new())),
                    _ => (lock.clone(), lock.clone()),
                };
                let _guard = mine.lock().await.unwrap();
                assert!(again.try_lock_for(ms(400)).await.unwrap().is_none());
                assert!(again.try_lock_for(ms(400)).await.unwrap().is_none());
                let told = warnings(lock.key().as_str(), about);
                assert!(
                    told.len() == 1
                        && told[0].contains("WARN")
                        && told[0].contains("guard.scope(..)"),
                    "{told:?}"
                );
                assert_eq!(warnings(&key, about), Vec::<String>::new());
            }
        })
        .await;
    }
    // The guard was taken in a section, and outlived it.
    for reentry in [Reentry::Task, Reentry::Scope] {
        let lock = builder(&server.url(), ms(900))
            .reentry(reentry)
            .connect()
            .await
            .unwrap()
            .get(key());
        let _guard = lock
            .run(async |_| lock.lock().await.unwrap())
            .await
            .unwrap();
        assert!(
            lock.clone()
                .owned_by(Owner::new())
                .try_lock_for(ms(400))
                .await
                .unwrap()
                .is_none()
        );
        assert_eq!(warnings(lock.key().as_str(), about).len(), 1, "{reentry:?}");
    }
    // A call in a section waits for the run that it is in.
    let lock = builder(&server.url(), ms(900))
        .connect()
        .await
        .unwrap()
        .get(key());
    let waited = lock
        .run(async |_| {
            lock.clone()
                .non_reentrant()
                .try_lock_for(ms(400))
                .await
                .unwrap()
                .is_none()
        })
        .await;
    assert!(waited.unwrap());
    assert_eq!(warnings(lock.key().as_str(), about).len(), 1);
}

#[tokio::test]
async fn runs_and_tasks_that_wait_for_others_cause_no_warning() {
    LazyLock::force(&LOG);
    let server = Server::start();
    let lock = builder(&server.url(), ms(600))
        .connect()
        .await
        .unwrap()
        .get(key());
    let long = || lock.run(async |_| sleep(ms(400)).await);
    let other = lock.clone();
    let task = tokio::spawn(async move { drop(other.lock().await.unwrap()) });
    let (a, b) = tokio::join!(long(), long());
    a.and(b).unwrap();
    task.await.unwrap();
    assert_eq!(
        warnings(lock.key().as_str(), "waits for a lock"),
        Vec::<String>::new()
    );
}

// ---- Outside of tokio tasks ----

/// Runs a program on another executor than tokio's: several tasks, with nested code in each.
async fn workers<S: Fn(Pin<Box<dyn Future<Output = ()> + Send>>) -> T, T: Future>(
    lock: Lock,
    spawn: S,
) {
    let account = Arc::new(Account::default());
    let tasks: Vec<T> = (0..4)
        .map(|_| {
            let (lock, account) = (lock.clone(), Arc::clone(&account));
            spawn(Box::pin(async move {
                for _ in 0..10 {
                    let guard = lock.lock().await.unwrap();
                    let nested = lock.lock().await.unwrap();
                    assert_eq!((nested.hold_count(), nested.owner()), (2, guard.owner()));
                    let sum = account.sum.load(Ordering::SeqCst);
                    assert_eq!(account.inside.fetch_add(1, Ordering::SeqCst), 0);
                    // Meanwhile other tasks are polled, on this thread and on others.
                    for _ in 0..5 {
                        futures_lite_yield().await;
                    }
                    drop(nested);
                    let nested = lock.try_lock().await.unwrap().expect("it enters again");
                    account.inside.fetch_sub(1, Ordering::SeqCst);
                    account.sum.store(sum + 1, Ordering::SeqCst);
                    nested.unlock().await.unwrap();
                    guard.unlock().await.unwrap();
                }
            }))
        })
        .collect();
    for task in tasks {
        task.await;
    }
    assert_eq!(account.sum.load(Ordering::SeqCst), 40);
}

async fn futures_lite_yield() {
    smol::future::yield_now().await;
}

#[test]
fn tasks_of_other_executors_are_told_apart_by_their_wakers() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let locks = runtime.block_on(locker(&server));
    let lock = || locks.get(key());

    let executor = async_executor::Executor::new();
    smol::block_on(executor.run(workers(lock(), |task| executor.spawn(task))));
    // The same where every poll is in a tokio context.
    let executor = async_executor::Executor::new();
    smol::block_on(executor.run(workers(lock(), |task| {
        executor.spawn(async_compat::Compat::new(task))
    })));
    // On the threads of smol.
    smol::block_on(workers(lock(), smol::spawn));
    {
        let _context = runtime.enter();
        smol::block_on(workers(lock(), smol::spawn));
        let executor = async_executor::LocalExecutor::new();
        smol::block_on(executor.run(workers(lock(), |task| executor.spawn(task))));
    }
    // All callers may share a no-op waker, so it identifies none of them.
    let lock = lock();
    let refused = futures_util::FutureExt::now_or_never(lock.try_lock()).expect("at once");
    assert!(
        matches!(&refused, Err(Error::Config(error)) if error.to_string().contains("owned_by")),
        "{refused:?}"
    );
}

/// A waker's data, which looks at the hold when the last clone of the waker is dropped.
struct Last {
    guard: Mutex<Option<Guard>>,
    counted: std::sync::mpsc::Sender<u32>,
}

impl std::task::Wake for Last {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Last {
    fn drop(&mut self) {
        let guard = self
            .guard
            .get_mut()
            .unwrap()
            .take()
            .expect("a guard of the hold");
        self.counted.send(guard.hold_count()).unwrap();
    }
}

#[test]
fn a_waker_may_look_at_the_hold_when_it_is_dropped() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lock = runtime.block_on(locker(&server)).get(key());
    let (counted, count) = std::sync::mpsc::channel();
    // A thread of its own: if it deadlocks, the test still ends.
    std::thread::spawn(move || {
        let last = Arc::new(Last {
            guard: Mutex::default(),
            counted,
        });
        let waker = std::task::Waker::from(Arc::clone(&last));
        let lock = || {
            let mut future = Box::pin(lock.lock());
            loop {
                match future
                    .as_mut()
                    .poll(&mut std::task::Context::from_waker(&waker))
                {
                    std::task::Poll::Ready(guard) => return guard.unwrap(),
                    std::task::Poll::Pending => std::thread::sleep(ms(1)),
                }
            }
        };
        let (outer, inner) = (lock(), lock());
        *last.guard.lock().unwrap() = Some(outer);
        drop((last, waker));
        drop(inner.detach());
    });
    assert_eq!(count.recv_timeout(ms(5_000)), Ok(2));
}

/// Blocking threads exclude each other, and a thread that blocks again enters again.
#[test]
fn a_thread_that_blocks_is_its_own_owner() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lock = runtime.block_on(locker(&server)).get(key());
    let (sum, inside) = (Mutex::new(0), AtomicU32::new(0));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..10 {
                    let guard = lock.blocking_lock().unwrap();
                    let nested = lock.blocking_try_lock().unwrap().expect("the same thread");
                    assert_eq!(
                        (nested.hold_count(), inside.fetch_add(1, Ordering::SeqCst)),
                        (2, 0)
                    );
                    *sum.lock().unwrap() += 1;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(nested);
                    guard.blocking_unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(*sum.lock().unwrap(), 40);
}

/// Two runtime roots on one thread are two callers. The second gets the warning that it may wait
/// for ever.
#[test]
fn two_roots_on_one_thread_are_two_callers() {
    LazyLock::force(&LOG);
    let server = Server::start();
    let root = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (one, other) = (root(), root());
    let lock = one
        .block_on(builder(&server.url(), ms(900)).connect())
        .unwrap()
        .get(key());
    let guard = one.block_on(lock.lock()).unwrap();
    assert_eq!(
        one.block_on(lock.lock()).unwrap().hold_count(),
        2,
        "the same root"
    );
    assert!(
        other
            .block_on(lock.try_lock_for(ms(400)))
            .unwrap()
            .is_none()
    );
    assert_eq!(warnings(lock.key().as_str(), "waits for a lock").len(), 1);
    drop(guard);
}
