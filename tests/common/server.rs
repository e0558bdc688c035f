//! A private redis-server on a free port, ended when it is dropped.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::clock::Clock;

pub struct Server {
    port: u16,
    /// The port for TLS, if the server has a certificate.
    tls_port: Option<u16>,
    args: Vec<String>,
    /// Its own directory, so that it loads nothing that another server saved.
    directory: PathBuf,
    /// Its wall clock, if the test sets it.
    clock: Option<Clock>,
    child: Mutex<Child>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts with further arguments of redis-server.
    pub fn start_with(args: &[&str]) -> Self {
        Self::start_in(own_directory(), None, args)
    }

    /// Starts with a wall clock that is this many milliseconds ahead of the machine's, and further
    /// arguments. `None`, and a line on stderr, if the shim cannot be built.
    pub fn start_with_clock(offset_ms: i64, args: &[&str]) -> Option<Self> {
        let directory = own_directory();
        let Some(clock) = Clock::new(&directory, offset_ms) else {
            std::fs::remove_dir_all(&directory).unwrap();
            return None;
        };
        Some(Self::start_in(directory, Some(clock), args))
    }

    /// Sets the wall clock of a server that was started with one: this many milliseconds ahead of
    /// the machine's.
    pub fn set_clock(&self, offset_ms: i64) {
        self.clock
            .as_ref()
            .expect("it was started with a clock")
            .set(offset_ms);
    }

    /// Stops the wall clock of a server that was started with one, so many microseconds after the
    /// beginning of 1970.
    pub fn stop_clock(&self, at_us: i64) {
        self.clock
            .as_ref()
            .expect("it was started with a clock")
            .stop(at_us);
    }

    fn start_in(directory: PathBuf, clock: Option<Clock>, args: &[&str]) -> Self {
        Self::start_of(Vec::new(), directory, clock, args)
    }

    /// Starts with `all` before all other arguments.
    fn start_of(
        mut all: Vec<String>,
        directory: PathBuf,
        clock: Option<Clock>,
        args: &[&str],
    ) -> Self {
        all.extend(["--dir".to_owned(), directory.display().to_string()]);
        all.extend(args.iter().map(|&arg| arg.to_owned()));
        let wants_tls = all.iter().any(|arg| arg == "--tls-cert-file");
        // Another test may take the port before the server does.
        for _ in 0..10 {
            let (port, mut args) = (free_port(), all.clone());
            let tls_port = wants_tls.then(free_port);
            args.extend(
                tls_port
                    .iter()
                    .flat_map(|port| ["--tls-port".to_owned(), port.to_string()]),
            );
            let mut child = spawn(port, &args, clock.as_ref());
            if answers(port, &mut child) {
                return Self {
                    port,
                    tls_port,
                    args,
                    directory,
                    clock,
                    child: Mutex::new(child),
                };
            }
            drop(child.kill());
            drop(child.wait());
        }
        panic!(
            "redis-server did not start ten times{}",
            if wants_tls {
                ": was it built with TLS?"
            } else {
                ""
            }
        );
    }

    /// Starts a Sentinel with this file of settings, which it writes to, and which is deleted with
    /// it.
    pub fn start_as_sentinel(file: PathBuf) -> Self {
        let directory = own_directory();
        let settings = directory.join("sentinel.conf");
        std::fs::rename(file, &settings).unwrap();
        let settings = [settings.display().to_string(), "--sentinel".to_owned()];
        Self::start_of(settings.to_vec(), directory, None, &[])
    }

    /// Starts another server with the same arguments.
    pub fn another(&self) -> Self {
        let own = ["--dir".to_owned(), self.directory.display().to_string()];
        let args: Vec<_> = self
            .args
            .iter()
            .filter(|arg| !own.contains(arg))
            .map(String::as_str)
            .collect();
        Self::start_with(&args)
    }

    /// Starts a replica of this server, which may take a moment to be in sync.
    pub fn replica(&self) -> Self {
        Self::start_with(&["--replicaof", "127.0.0.1", &self.port.to_string()])
    }

    /// Returns whether it has this many replicas that are in sync. A replica may be "online" for a
    /// second before it is.
    pub fn has_replicas(&self, count: usize) -> bool {
        let mut connection = self.connection().unwrap();
        let waited = redis::pipe()
            .cmd("SET")
            .arg("in:step")
            .arg(1)
            .ignore()
            .cmd("WAIT")
            .arg(count)
            .arg(20)
            .query(&mut connection);
        waited.is_ok_and(|(acknowledged,): (usize,)| acknowledged >= count)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the encrypted address of a server that was started with a certificate, with this
    /// host name.
    pub fn tls_url(&self, host: &str) -> String {
        format!(
            "rediss://{host}:{}",
            self.tls_port.expect("it was started with a certificate")
        )
    }

    /// Runs a command on a connection of its own and returns the reply.
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words)
            .unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    pub fn try_command<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        self.connection().and_then(|mut connection| {
            let mut command = redis::cmd(words[0]);
            words[1..].iter().for_each(|&word| _ = command.arg(word));
            command.query(&mut connection)
        })
    }

    pub fn connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(self.url())?.get_connection_with_timeout(Duration::from_secs(5))
    }

    pub fn exists(&self, key: &str) -> bool {
        self.command(&["EXISTS", key])
    }

    pub fn pttl(&self, key: &str) -> i64 {
        self.command(&["PTTL", key])
    }

    /// Returns the fields of a lock and their counts.
    pub fn fields(&self, key: &str) -> Vec<(String, u64)> {
        self.command(&["HGETALL", key])
    }

    /// Returns how often a command was called since the start, or since CONFIG RESETSTAT.
    pub fn calls(&self, command: &str) -> u64 {
        let stats: String = self.command(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    /// Stops the process as it is (SIGSTOP): connections stay open, and nothing is answered.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Deletes its directory, so that it cannot save any more.
    pub fn remove_directory(&self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
    }

    /// Lets a stopped process continue.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends the process at once.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Restarts it on the same port, empty.
    pub fn restart(&self) {
        let mut child = self.child.lock().unwrap();
        *child = spawn(self.port, &self.args, self.clock.as_ref());
        assert!(
            answers(self.port, &mut child),
            "redis-server did not start again"
        );
    }

    /// Restarts it on another port.
    pub fn restart_at(&mut self, port: u16) {
        self.port = port;
        self.restart();
    }

    /// Cuts every connection except that of this command.
    pub fn cut_connections(&self) -> u64 {
        self.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.lock().unwrap().id();
        kill_process(Pid::from_raw(i32::try_from(id).unwrap()).unwrap(), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut child = self
            .child
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        drop(child.kill());
        drop(child.wait());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

fn own_directory() -> PathBuf {
    let directory = std::env::temp_dir().join(format!("lockhound-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&directory).unwrap();
    directory
}

fn spawn(port: u16, args: &[String], clock: Option<&Clock>) -> Child {
    let mut server = Command::new("redis-server");
    server.envs(clock.into_iter().flat_map(Clock::environment));
    let (settings, args) = args.split_at(args.iter().position(|arg| arg == "--dir").unwrap_or(0));
    // A Sentinel's file of settings and its option have to come first.
    server
        .args(settings)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    if settings.is_empty() {
        server.args(["--save", "", "--appendonly", "no"]);
        if version() >= (7, 0) {
            server.args(["--enable-debug-command", "yes"]);
        }
        server.args(["--repl-diskless-sync", "no", "--hz", "100"]);
    }
    server
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is needed: ./dev test installs it, or `apt-get install redis-server`")
}

/// Returns the version (major, minor) of the redis-server that is started here.
pub fn version() -> (u32, u32) {
    static VERSION: LazyLock<(u32, u32)> = LazyLock::new(|| {
        let said = Command::new("redis-server")
            .arg("--version")
            .output()
            .expect("redis-server is needed")
            .stdout;
        let said = String::from_utf8(said).unwrap();
        let (_, version) = said.split_once(" v=").unwrap_or_else(|| panic!("{said}"));
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    });
    *VERSION
}

/// Finds a free port below those of outgoing connections, which could take it while the server is
/// restarted.
fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(16_384..32_768);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Returns whether this server comes up. Another test's server may have taken the port first, and
/// answer on it.
fn answers(port: u16, child: &mut Child) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            return is_process(stream, child.id()).unwrap_or(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Returns whether a server is this process, or has a password and cannot be asked.
fn is_process(mut stream: TcpStream, id: u32) -> std::io::Result<bool> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"INFO server\r\n")?;
    let mut reply = String::new();
    for line in BufReader::new(stream).lines() {
        reply = line?;
        if reply.starts_with('-') || reply.starts_with("process_id:") {
            break;
        }
    }
    Ok(reply.starts_with("-NOAUTH") || reply == format!("process_id:{id}"))
}

/// Records every command that the server runs (MONITOR).
pub struct Monitor {
    lines: std::sync::Arc<Mutex<Vec<String>>>,
    stream: TcpStream,
    url: String,
}

impl Monitor {
    pub fn start(server: &Server) -> Self {
        use std::io::{BufRead, BufReader, Write};
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        let lines = std::sync::Arc::<Mutex<Vec<String>>>::default();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap()).lines();
        assert_eq!(reader.next().unwrap().unwrap(), "+OK");
        let into = std::sync::Arc::clone(&lines);
        std::thread::spawn(move || {
            while let Some(Ok(line)) = reader.next() {
                into.lock().unwrap().push(line);
            }
        });
        Self {
            lines,
            stream,
            url: server.url(),
        }
    }

    /// Returns the lines so far that contain this and that clients sent, not scripts.
    pub fn sent(&self, needle: &str) -> Vec<String> {
        self.of(needle, |line| !is_of_a_script(line))
    }

    /// Returns the lines so far that contain this and that scripts called. Unlike what is sent,
    /// these do not depend on which commands share a batch, or which are sent again with the text
    /// of their script.
    pub fn called(&self, needle: &str) -> Vec<String> {
        self.of(needle, is_of_a_script)
    }

    fn of(&self, needle: &str, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        self.catch_up();
        let lines = self.lines.lock().unwrap();
        lines
            .iter()
            .filter(|line| line.contains(needle) && wanted(line))
            .cloned()
            .collect()
    }
}

impl Monitor {
    /// Waits for the line of a command that is sent now: all earlier lines have been read then.
    fn catch_up(&self) {
        let mark = uuid::Uuid::new_v4().to_string();
        let client = redis::Client::open(self.url.as_str()).unwrap();
        let mut connection = client
            .get_connection_with_timeout(Duration::from_secs(5))
            .unwrap();
        redis::cmd("ECHO").arg(&mark).exec(&mut connection).unwrap();
        let start = Instant::now();
        while !self
            .lines
            .lock()
            .unwrap()
            .iter()
            .rev()
            .any(|line| line.contains(&mark))
        {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "MONITOR shows no more commands"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn is_of_a_script(line: &str) -> bool {
    line.contains(" lua] ")
}

impl Drop for Monitor {
    fn drop(&mut self) {
        drop(self.stream.shutdown(std::net::Shutdown::Both));
    }
}
