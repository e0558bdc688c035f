//! Clients that are subscribed to a lock's channel and do not take the lock, beside a crew that
//! does.

use std::process::Command;
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use lockhound::Locker;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::line::{Mix, Order, now};
use super::member::Client;
use super::process::{Process, Program};
use crate::Failure;
use crate::connection::Connection;

/// A client, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outsider {
    Nobody,
    /// A locker that waits for 2 ms and leaves, once.
    Visitor,
    /// The same, twice a second.
    RegularVisitor,
    /// A process that waits for the lock, and is stopped.
    Stopped,
    /// `SUBSCRIBE` of the lock's channel.
    Subscriber,
    /// `PSUBSCRIBE *`.
    Monitor,
    /// A locker that waits for a lock of the same name in another database, which is held.
    OtherDatabase,
    /// So many readers of this client.
    Readers(&'static str, usize),
}

/// An outsider at work, until it is dropped.
pub(crate) enum Working {
    Nobody,
    Stopped {
        _process: Process,
    },
    Connected {
        _connection: Connection,
    },
    Locker {
        /// Its end ends the thread.
        over: Option<oneshot::Sender<()>>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Outsider {
    /// Starts it for the lock with this key, before anybody contends for that.
    pub(crate) fn start(self, url: &str, key: &str) -> Result<Working, Failure> {
        let connect = || {
            Connection::open(
                url.rsplit(':')
                    .next()
                    .unwrap_or_default()
                    .parse()
                    .unwrap_or_default(),
            )
        };
        let channel = format!("redisson_lock__channel:{{{key}}}");
        let subscribe = |words: &[&[u8]]| -> Result<Working, Failure> {
            let mut connection = connect()?;
            connection.call(words)?;
            Ok(Working::Connected {
                _connection: connection,
            })
        };
        match self {
            Self::Nobody => Ok(Working::Nobody),
            Self::Subscriber => subscribe(&[b"SUBSCRIBE", channel.as_bytes()]),
            Self::Monitor => subscribe(&[b"PSUBSCRIBE", b"*"]),
            Self::Readers(client, readers) => read(url, key, client, readers),
            Self::Visitor => Ok(visit(url, key, None)),
            Self::RegularVisitor => Ok(visit(url, key, Some(Duration::from_millis(500)))),
            Self::Stopped => {
                let mut control = connect()?;
                hold(&mut control, key)?;
                let mut process = Process::start(Program::Lockhound, 1, 1, &[url.to_owned()])?;
                process.ready()?;
                let end = now() + 600_000_000_000;
                process.tell(&Order {
                    keys: vec![key.to_owned()],
                    begin: now(),
                    end,
                    hold_us: 0,
                    mix: Mix::Locks,
                })?;
                let list = format!("lockhound_waiting:{{{key}}}");
                until(|| {
                    Ok(control
                        .call(&[b"ZCARD", list.as_bytes()])?
                        .starts_with(b":1"))
                })?;
                let stopped = Command::new("kill")
                    .args(["-STOP", &process.id().to_string()])
                    .status()?;
                if !stopped.success() {
                    return Err("the process could not be stopped".into());
                }
                control.call(&[b"DEL", key.as_bytes()])?;
                Ok(Working::Stopped { _process: process })
            }
            Self::OtherDatabase => {
                let mut control = connect()?;
                control.call(&[b"SELECT", b"1"])?;
                hold(&mut control, key)?;
                let (url, key) = (format!("{url}/1"), key.to_owned());
                Ok(Working::locker(move |over, runtime| {
                    let waiting = async {
                        let locker = Locker::connect(&url).await.expect("the server runs");
                        let lock = locker.get(&*key);
                        tokio::select! {
                            _ = lock.lock() => {}
                            _ = over => {}
                        }
                        locker.close().await;
                    };
                    runtime.block_on(waiting);
                }))
            }
        }
    }
}

/// Writes a lock that somebody holds.
fn hold(control: &mut Connection, key: &str) -> Result<(), Failure> {
    control.call(&[
        b"HSET",
        key.as_bytes(),
        b"8743c9c0-0795-4907-87fd-6c719a6b4586:1",
        b"1",
    ])?;
    Ok(control
        .call(&[b"PEXPIRE", key.as_bytes(), b"600000"])
        .map(drop)?)
}

/// Waits for the lock for 2 ms at most, once or again and again.
fn visit(url: &str, key: &str, every: Option<Duration>) -> Working {
    let (url, key) = (url.to_owned(), key.to_owned());
    Working::locker(move |mut over, runtime| {
        let visiting = async {
            let locker = Locker::connect(&url).await.expect("the server runs");
            let lock = locker.get(&*key);
            // Not before the others contend.
            let mut pause = Duration::from_millis(500);
            while tokio::time::timeout(pause, &mut over).await.is_err() {
                if let Ok(Some(guard)) = lock.try_lock_for(Duration::from_millis(2)).await {
                    // The others show it if the server is gone.
                    drop(guard.unlock().await);
                }
                pause = every.unwrap_or(Duration::from_secs(600));
            }
            locker.close().await;
        };
        runtime.block_on(visiting);
    })
}

/// Reads with so many tasks, which are all inside when this returns.
fn read(url: &str, key: &str, client: &'static str, readers: usize) -> Result<Working, Failure> {
    let (url, key) = (url.to_owned(), key.to_owned());
    let (inside, all_inside) = std::sync::mpsc::channel();
    let working = Working::locker(move |over, runtime| {
        let reading = async {
            let client = Client::connect(client, &[url])
                .await
                .expect("the server runs");
            let mut held = Vec::new();
            for _ in 0..readers {
                let door = client.door(&key, Mix::Reads).expect("a name like others");
                // Each in a task, which is an owner.
                let reader = tokio::spawn(async move { door.enter(false).await });
                held.push(reader.await.expect("no panic").expect("the server runs"));
            }
            let _: Result<_, _> = inside.send(());
            drop(over.await);
            for inside in held {
                drop(inside.leave().await);
            }
            client.close().await;
        };
        runtime.block_on(reading);
    });
    all_inside.recv_timeout(Duration::from_secs(10))?;
    Ok(working)
}

/// Waits until this is so.
fn until(mut is_so: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let begun = Instant::now();
    while !is_so()? {
        if begun.elapsed() > Duration::from_secs(10) {
            return Err("a process that should wait for a lock does not".into());
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Working {
    /// Runs a locker on a thread of its own.
    fn locker(run: impl FnOnce(oneshot::Receiver<()>, Runtime) + Send + 'static) -> Self {
        let (over, ends) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            run(ends, runtime.expect("a runtime"));
        });
        Self::Locker {
            over: Some(over),
            thread: Some(thread),
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Self::Locker { over, thread } = self {
            drop(over.take());
            // A panic was printed.
            drop(thread.take().map(JoinHandle::join));
        }
    }
}
