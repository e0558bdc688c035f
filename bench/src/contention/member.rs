//! A process that contends, in Rust: `lockhound-bench contend CLIENT LOCKERS TASKS URL..`. It has
//! `LOCKERS` lockers with `TASKS` tasks each, and follows the protocol of [`line`](super::line).

use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::time::Duration;

use lockhound::{Format, Guard, Lock, Locker};
use rslock::{LockGuard, LockManager};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::line::{Order, Wait, now};
use crate::Failure;
use crate::contender::LEASE;

/// The user that may not use waiting lists, and its password.
pub(super) const UNLISTED: &str = "unlisted";

/// The client that takes the locks.
#[derive(Clone)]
enum Client {
    Lockhound(Locker),
    Rslock(LockManager),
}

/// One task's lock.
#[derive(Clone)]
enum Door {
    Lockhound(Lock),
    Rslock(LockManager, String),
}

enum Inside {
    Lockhound(Guard),
    Rslock(LockGuard),
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
        if let Client::Lockhound(locker) = client {
            runtime.block_on(locker.close());
        }
    }
    Ok(())
}

impl Client {
    async fn connect(client: &str, urls: &[String]) -> Result<Self, Failure> {
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
            other => return Err(format!("there is no client named \"{other}\"").into()),
        })
    }

    fn door(&self, key: &str) -> Door {
        match self {
            Self::Lockhound(locker) => Door::Lockhound(locker.get(key)),
            Self::Rslock(manager) => Door::Rslock(manager.clone(), key.to_owned()),
        }
    }
}

impl Door {
    async fn enter(&self) -> Result<Inside, Failure> {
        Ok(match self {
            Self::Lockhound(lock) => Inside::Lockhound(lock.lock().await?),
            Self::Rslock(manager, key) => {
                Inside::Rslock(manager.acquire(key.as_str(), LEASE).await?)
            }
        })
    }
}

impl Inside {
    async fn leave(self) -> Result<(), Failure> {
        match self {
            Self::Lockhound(guard) => guard.unlock().await?,
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
    let doors: Vec<Door> = clients
        .iter()
        .flat_map(|client| std::iter::repeat_n(client, tasks))
        .enumerate()
        .map(|(task, client)| client.door(&order.keys[task % order.keys.len()]))
        .collect();
    std::thread::sleep(Duration::from_nanos(order.begin.saturating_sub(now())));
    let (end, hold_us) = (order.end, order.hold_us);
    let tasks: Vec<_> = doors
        .into_iter()
        .map(|door| tokio::spawn(again_and_again(door, end, hold_us)))
        .collect();
    let mut waits = Vec::with_capacity(tasks.len());
    for task in tasks {
        waits.push(task.await??);
    }
    Ok(waits)
}

async fn again_and_again(door: Door, end: u64, hold_us: u64) -> Result<Vec<Wait>, Failure> {
    let deadline = Instant::now() + Duration::from_nanos(end.saturating_sub(now()));
    let mut waits = Vec::new();
    loop {
        let asked = now();
        if asked >= end {
            return Ok(waits);
        }
        let Ok(entered) = timeout_at(deadline, door.enter()).await else {
            waits.push(Wait {
                asked,
                inside: None,
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
        });
        guard.leave().await?;
    }
}
