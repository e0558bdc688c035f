//! Run it with `cargo run --example redlock`. It needs the program redis-server, and starts three
//! of them.
//!
//! A lock over three independent servers is held while two of them have it. One server is killed,
//! forgets everything and comes back. It gets the lock again, so that the next server may be
//! killed. The holder notices none of this.

use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use lockhound::{Guard, Locker};
use tokio::time::sleep;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Short, so that the example is. A restarted server abstains for as long (`restart_quarantine`).
const LEASE: Duration = Duration::from_secs(2);

const KEY: &str = "lockhound:example:redlock";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redlock: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome {
    let mut servers = [
        Server::start("A")?,
        Server::start("B")?,
        Server::start("C")?,
    ];
    let connect = || async {
        let nodes = servers.iter().fold(Locker::builder(), |builder, server| {
            builder.node(server.url())
        });
        nodes.lease(LEASE).connect().await
    };
    let (locks, others) = (connect().await?, connect().await?);

    println!(
        "three servers are started; each abstains, since it may have forgotten locks from before its start"
    );
    let start = Instant::now();
    let guard = locks.get(KEY).lock().await?;
    println!(
        "after {:.1?} they vote: locked, fence {}",
        start.elapsed(),
        guard.fence()
    );
    show(&servers, &guard);

    println!("B is killed");
    servers[1].kill()?;
    sleep(LEASE).await;
    show(&servers, &guard);

    println!(
        "B is back, empty. It grants no new lock yet, but the holder may put its own lock there again"
    );
    servers[1].spawn()?;
    let start = Instant::now();
    while !servers[1].has_it() {
        guard.check()?;
        sleep(Duration::from_millis(10)).await;
    }
    println!(
        "after {:.1?} B has the lock again: a renewal noticed that it was gone",
        start.elapsed()
    );
    show(&servers, &guard);

    println!("C is killed. Without B, only one of three servers would have the lock");
    servers[2].kill()?;
    sleep(LEASE).await;
    show(&servers, &guard);
    println!(
        "another program gets the lock: {}",
        others
            .get(KEY)
            .try_lock()
            .await
            .is_ok_and(|guard| guard.is_some())
    );

    guard.unlock().await?;
    println!("unlocked");
    println!("C is back, empty. A majority is there once B votes again");
    servers[2].spawn()?;
    let guard = others.get(KEY).lock().await?;
    println!("another program gets the lock; fence {}", guard.fence());
    guard.unlock().await?;
    locks.close().await;
    Ok(())
}

/// Prints which servers have the lock, and what its holder knows.
fn show(servers: &[Server], guard: &Guard) {
    let on: Vec<&str> = servers
        .iter()
        .filter(|server| server.has_it())
        .map(|server| server.name)
        .collect();
    println!(
        "    on {}; its holder: {:?}, for {:.1?} at least",
        on.join(" and "),
        guard.state(),
        guard.remaining()
    );
}

// ---- The servers ----

/// A private server. It keeps nothing on disk, and ends when this is dropped.
struct Server {
    name: &'static str,
    port: u16,
    directory: PathBuf,
    child: Option<Child>,
}

impl Server {
    fn start(name: &'static str) -> Outcome<Self> {
        // If another program takes the free port before the server does, this fails.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let directory = std::env::temp_dir().join(format!("lockhound-redlock-{port}"));
        std::fs::create_dir_all(&directory)?;
        let mut server = Self {
            name,
            port,
            directory,
            child: None,
        };
        server.spawn()?;
        Ok(server)
    }

    /// Starts the empty server, and waits until it answers.
    fn spawn(&mut self) -> Outcome {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &self.port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command
            .arg("--dir")
            .arg(&self.directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let missing = |error| {
            format!("redis-server does not start ({error}); it has to be installed and on the PATH")
        };
        let child = self.child.insert(command.spawn().map_err(missing)?);
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if child.try_wait()?.is_some() || start.elapsed() > Duration::from_secs(10) {
                return Err(format!("redis-server does not answer on port {}", self.port).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills the server, as a crash would.
    fn kill(&mut self) -> Outcome {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns whether the server has the lock's key.
    fn has_it(&self) -> bool {
        let ask = || {
            redis::cmd("EXISTS")
                .arg(KEY)
                .query(&mut redis::Client::open(self.url())?.get_connection()?)
        };
        self.child.is_some() && ask().unwrap_or(false)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.kill());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}
