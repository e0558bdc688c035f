//! A private redis-server, which ends when the value is dropped.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::connection::Connection;

/// How long a server may take until its first answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server on a free port of the loopback interface that keeps nothing on disk.
#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
    directory: PathBuf,
    child: Child,
}

/// Returns whether redis-server is on the PATH.
pub(crate) fn is_installed() -> bool {
    let tried = Command::new("redis-server")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    !tried.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

impl Server {
    pub(crate) fn start() -> Result<Self, Failure> {
        Self::start_with(&[])
    }

    /// Starts a replica of this server, and waits until it acknowledges writes.
    pub(crate) fn replica(&self) -> Result<Self, Failure> {
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &self.port.to_string()])?;
        let (mut connection, start) = (self.connect()?, Instant::now());
        while start.elapsed() < PATIENCE {
            connection.call(&[b"SET", b"bench:in-step", b"1"])?;
            if connection.call(&[b"WAIT", b"1", b"100"])? == b":1\r\n" {
                return Ok(replica);
            }
        }
        Err(format!("the replica acknowledges nothing within {PATIENCE:?}").into())
    }

    /// Starts a cluster of one server, which has all slots.
    pub(crate) fn cluster() -> Result<Self, Failure> {
        let bus = TcpListener::bind(("127.0.0.1", 0))?
            .local_addr()?
            .port()
            .to_string();
        let server = Self::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus])?;
        let (mut connection, start) = (server.connect()?, Instant::now());
        connection.call(&[b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"16383"])?;
        while start.elapsed() < PATIENCE {
            let info = connection.call(&[b"CLUSTER", b"INFO"])?;
            if String::from_utf8_lossy(info).contains("cluster_state:ok") {
                return Ok(server);
            }
        }
        Err(format!("the cluster is not ok within {PATIENCE:?}").into())
    }

    pub(crate) fn cluster_url(&self) -> String {
        format!("redis-cluster://127.0.0.1:{}", self.port)
    }

    fn start_with(args: &[&str]) -> Result<Self, Failure> {
        // Another program may take the port before the server does; the server then ends at once.
        for _ in 0..10 {
            let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
            let mut server = Self::spawn(port, args)?;
            if server.answers()? {
                return Ok(server);
            }
        }
        Err("redis-server failed to start ten times; `redis-server --port 0` may show why".into())
    }

    fn spawn(port: u16, args: &[&str]) -> Result<Self, Failure> {
        let directory =
            std::env::temp_dir().join(format!("lockhound-bench-{}-{port}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
            ])
            .arg(&directory)
            .args(["--repl-diskless-sync", "no"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Ok(Self {
                port,
                directory,
                child,
            }),
            Err(error) => {
                std::fs::remove_dir_all(&directory)?;
                Err(format!("redis-server cannot be started: {error}").into())
            }
        }
    }

    /// Waits until the server answers. Returns false if it ends before.
    fn answers(&mut self) -> io::Result<bool> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE && self.child.try_wait()?.is_none() {
            // Another server may have the port, and ours is about to fail.
            let process = self
                .connect()
                .and_then(|mut connection| connection.info("server", "process_id"));
            if process.is_ok_and(|id| id == self.child.id().to_string()) {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(false)
    }

    pub(crate) fn connect(&self) -> io::Result<Connection> {
        Connection::open(self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server has nothing to save. An error means that it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}
