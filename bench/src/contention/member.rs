//! A process that contends, in Rust: `lockhound-bench contend CLIENT LOCKERS TASKS URL..`. It has
//! `LOCKERS` lockers with `TASKS` tasks each, and follows the protocol of [`line`](super::line).

use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::sync::Arc;
use std::time::Duration;

use distkit::DistkitRedisKey;
use distkit::lock::{self as distkit_lock, LockOptions};
use lockhound::{Format, Guard, Lock, Locker, Permit, ReadGuard, RwLock, Semaphore, WriteGuard};
use redis::aio::ConnectionManager;
use rlock::async_lock::{RLock, RReadLockGuard, RWriteLockGuard};
use rslock::{LockGuard, LockManager};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

use super::line::{Mix, Order, PAUSE, PERMITS, Wait, now};
use crate::Failure;
use crate::contender::LEASE;

/// The user that may not use waiting lists, and its password.
pub(super) const UNLISTED: &str = "unlisted";

/// The client that takes the locks.
#[derive(Clone)]
pub(super) enum Client {
    Lockhound(Locker),
    Rslock(LockManager),
    Rlock(RLock),
    Distkit(ConnectionManager),
}

/// One task's lock.
#[derive(Clone)]
pub(super) enum Door {
    Lockhound(Lock),
    ReadWrite(RwLock),
    Permits(Semaphore),
    Rslock(LockManager, String),
    Rlock(RLock, String),
    Distkit(Arc<distkit_lock::RwLock>),
}

pub(super) enum Inside {
    Lockhound(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    Rslock(LockGuard),
    RlockRead(RReadLockGuard),
    RlockWrite(RWriteLockGuard),
    DistkitRead(distkit_lock::RwLockReadGuard),
    DistkitWrite(distkit_lock::RwLockWriteGuard),
}

/// Contends as the orders say, until there are no more lines.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let [client, lockers, tasks, urls @ ..] = arguments else {
        return Err("CLIENT LOCKERS TASKS URL..".into());
    };
    let (lockers, tasks): (usize, usize) = (lockers.parse()?, tasks.parse()?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut clients = Vec::with_capacity(lockers);
    for _ in 0..lockers {
        clients.push(runtime.block_on(Client::connect(client, urls))?);
    }
    let (mut orders, mut answers) = (stdin().lock().lines(), stdout().lock());
    writeln!(answers, "ready {}", now())?;
    while let Some(order) = orders.next().transpose()? {
        let order = Order::parse(&order)?;
        for (task, waits) in runtime
            .block_on(contend(&clients, tasks, &order))?
            .into_iter()
            .enumerate()
        {
            for wait in waits {
                answers.write_all(wait.line(task).as_bytes())?;
            }
        }
        writeln!(answers, "over")?;
    }
    for client in clients {
        runtime.block_on(client.close());
    }
    Ok(())
}

impl Client {
    pub(super) async fn connect(client: &str, urls: &[String]) -> Result<Self, Failure> {
        let builder = urls
            .iter()
            .fold(Locker::builder(), |builder, url| builder.node(url));
        // The servers are new and have forgotten nothing.
        let builder = builder.restart_quarantine(Duration::ZERO);
        Ok(match client {
            "lockhound" => Self::Lockhound(builder.connect().await?),
            "unlisted" => {
                let urls = urls
                    .iter()
                    .map(|url| url.replace("://", &format!("://{UNLISTED}:{UNLISTED}@")));
                Self::Lockhound(
                    urls.fold(Locker::builder(), |builder, url| builder.node(url))
                        .connect()
                        .await?,
                )
            }
            "plain" => Self::Lockhound(builder.format(Format::Plain).connect().await?),
            "rslock" => Self::Rslock(LockManager::new(urls.to_vec())),
            "rlock" => Self::Rlock(RLock::new(&*urls[0]).await?),
            "distkit" => {
                Self::Distkit(ConnectionManager::new(redis::Client::open(&*urls[0])?).await?)
            }
            other => return Err(format!("there is no client named \"{other}\"").into()),
        })
    }

    pub(super) fn door(&self, key: &str, mix: Mix) -> Result<Door, Failure> {
        Ok(match self {
            Self::Lockhound(locker) if mix == Mix::Locks => Door::Lockhound(locker.get(key)),
            Self::Lockhound(locker) if mix == Mix::InTurn => Door::Lockhound(locker.fair(key)),
            Self::Lockhound(locker) if mix == Mix::Permits => {
                Door::Permits(locker.permits(key).capacity(PERMITS))
            }
            Self::Lockhound(locker) => Door::ReadWrite(locker.rw(key)),
            Self::Rslock(manager) => Door::Rslock(manager.clone(), key.to_owned()),
            Self::Rlock(manager) => Door::Rlock(manager.clone(), key.to_owned()),
            Self::Distkit(connection) => {
                // distkit allows no such characters in names.
                let key = DistkitRedisKey::try_from(key.replace([':', '/'], "-"))?;
                let options = LockOptions::new(key, connection.clone());
                Door::Distkit(distkit_lock::RwLock::new(options))
            }
        })
    }

    pub(super) async fn close(self) {
        match self {
            Self::Lockhound(locker) => locker.close().await,
            Self::Rlock(manager) => manager.shutdown().await,
            Self::Rslock(_) | Self::Distkit(_) => {}
        }
    }
}

impl Door {
    pub(super) async fn enter(&self, writes: bool) -> Result<Inside, Failure> {
        Ok(match self {
            Self::Lockhound(lock) => Inside::Lockhound(lock.lock().await?),
            Self::Permits(semaphore) => Inside::Permit(semaphore.acquire().await?),
            Self::ReadWrite(lock) if writes => Inside::Write(lock.write().lock().await?),
            Self::ReadWrite(lock) => Inside::Read(lock.read().lock().await?),
            Self::Rlock(manager, key) if writes => {
                Inside::RlockWrite(manager.acquire_write(key).await?)
            }
            Self::Rlock(manager, key) => Inside::RlockRead(manager.acquire_read(key).await?),
            Self::Distkit(lock) if writes => Inside::DistkitWrite(lock.write().await?),
            Self::Distkit(lock) => Inside::DistkitRead(lock.read().await?),
            Self::Rslock(manager, key) => {
                Inside::Rslock(manager.acquire(key.as_str(), LEASE).await?)
            }
        })
    }
}

impl Inside {
    pub(super) async fn leave(self) -> Result<(), Failure> {
        match self {
            Self::Lockhound(guard) => guard.unlock().await?,
            Self::Read(guard) => guard.unlock().await?,
            Self::Write(guard) => guard.unlock().await?,
            Self::Permit(permit) => permit.release().await?,
            Self::RlockRead(mut guard) => guard.release().await?,
            Self::RlockWrite(mut guard) => guard.release().await?,
            Self::DistkitRead(guard) => drop(guard.release().await?),
            Self::DistkitWrite(guard) => drop(guard.release().await?),
            Self::Rslock(guard) => guard.release().await,
        }
        Ok(())
    }
}

/// Contends, and returns the waits of each task.
async fn contend(
    clients: &[Client],
    tasks: usize,
    order: &Order,
) -> Result<Vec<Vec<Wait>>, Failure> {
    let doors = clients
        .iter()
        .flat_map(|client| std::iter::repeat_n(client, tasks))
        .enumerate()
        .map(|(task, client)| client.door(&order.keys[task % order.keys.len()], order.mix))
        .collect::<Result<Vec<Door>, _>>()?;
    std::thread::sleep(Duration::from_nanos(order.begin.saturating_sub(now())));
    let tasks: Vec<_> = doors
        .into_iter()
        .enumerate()
        .map(|(task, door)| tokio::spawn(again_and_again(door, task, order.clone())))
        .collect();
    let mut waits = Vec::with_capacity(tasks.len());
    for task in tasks {
        waits.push(task.await??);
    }
    Ok(waits)
}

async fn again_and_again(door: Door, task: usize, order: Order) -> Result<Vec<Wait>, Failure> {
    let (end, hold_us, mix) = (order.end, order.hold_us, order.mix);
    let deadline = Instant::now() + Duration::from_nanos(end.saturating_sub(now()));
    let mut waits = Vec::new();
    loop {
        let asked = now();
        if asked >= end {
            return Ok(waits);
        }
        let writes = mix.writes(task, waits.len());
        let Ok(entered) = timeout_at(deadline, door.enter(writes)).await else {
            waits.push(Wait {
                asked,
                inside: None,
                reads: !writes,
            });
            return Ok(waits);
        };
        let (guard, entered) = (entered?, now());
        if hold_us > 0 {
            // tokio's timers would turn one millisecond into two.
            spawn_blocking(move || std::thread::sleep(Duration::from_micros(hold_us))).await?;
        }
        waits.push(Wait {
            asked,
            inside: Some((entered, now())),
            reads: !writes,
        });
        guard.leave().await?;
        if mix == Mix::OneWriter && writes {
            sleep(PAUSE).await;
        }
    }
}
