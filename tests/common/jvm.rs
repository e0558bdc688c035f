//! Redisson on a JVM, driven by lines. The program is in tests/foreign/redisson, and documents the
//! lines.
//! `./dev` has Maven build it in target/foreign/redisson on first use, and again when it has
//! changed.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Server, say, soon};

/// The bound on a call that has nothing to wait for: the first call in a JVM loads its classes.
const BOUND: Duration = Duration::from_secs(30);

/// A JVM with Redisson. It ends when its input ends, and so with this process at the latest.
pub struct Jvm {
    child: Mutex<Child>,
    to: Mutex<ChildStdin>,
    number: AtomicU64,
    waiting: Arc<Waiting>,
    /// What it has written to stderr.
    log: Arc<Mutex<String>>,
}

/// The callers that wait for an answer, by the line's number. `None` once there are no more
/// answers.
type Waiting = Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>;

/// The answer to a line.
#[derive(Debug)]
pub struct Answer {
    /// When it was read.
    pub at: Instant,
    /// A word, or the exception.
    pub said: Result<String, String>,
}

/// A line that was sent. Its answer is read whether this is awaited or not.
pub type Asked = JoinHandle<Answer>;

impl Jvm {
    /// Returns the JVM that tests share, each with clients of its own. `None`, and a line on
    /// stderr, if it cannot be run.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Jvm>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// Returns the command that runs a class of the program. `None`, and a line on stderr, if it
    /// cannot be run.
    pub fn program(class: &str) -> Option<Command> {
        static PREPARED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let prepared = match PREPARED.get_or_init(prepare) {
            Ok(prepared) => prepared,
            Err(reason) => {
                say(&format!("skipped: Redisson: {reason}"));
                return None;
            }
        };
        let mut path = OsString::from(prepared.join("classes"));
        path.push(":");
        path.push(prepared.join("lib/*"));
        let mut java = Command::new("java");
        // It has to start quickly and share two cores with many other processes.
        java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"]);
        java.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
            .arg("-cp")
            .arg(path)
            .arg(class);
        Some(java)
    }

    /// Starts a JVM. `None`, and a line on stderr, if it cannot be run.
    pub fn start() -> Option<Self> {
        let mut java = Self::program("Driver")?;
        let mut child = java
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let to = Mutex::new(child.stdin.take().unwrap());
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let log = Arc::<Mutex<String>>::default();
        let (answers, answered) = (
            BufReader::new(child.stdout.take().unwrap()),
            Arc::clone(&waiting),
        );
        std::thread::spawn(move || {
            for line in answers.lines().map_while(Result::ok) {
                tell(&answered, &line);
            }
            // Dropping the senders tells the callers that still wait.
            answered.lock().unwrap().take();
        });
        let (mut said, into) = (child.stderr.take().unwrap(), Arc::clone(&log));
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(read @ 1..) = said.read(&mut bytes) {
                into.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Some(Self {
            child: Mutex::new(child),
            to,
            number: AtomicU64::new(1),
            waiting,
            log,
        })
    }

    /// Kills it (SIGKILL).
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends a line for this Java thread.
    pub fn ask(&self, thread: &str, words: &str) -> Asked {
        let (sender, receiver) = oneshot::channel();
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        if let Some(waiting) = &mut *self.waiting.lock().unwrap() {
            waiting.insert(number, sender);
        }
        // A JVM that has ended takes no more lines; the answer then says so.
        drop(
            self.to
                .lock()
                .unwrap()
                .write_all(format!("{number} {thread} {words}\n").as_bytes()),
        );
        let gone = || Answer {
            at: Instant::now(),
            said: Err("the JVM has ended".to_owned()),
        };
        tokio::spawn(async move { receiver.await.unwrap_or_else(|_| gone()) })
    }

    /// Starts a client for these addresses, with this `lockWatchdogTimeout`.
    pub async fn connect(
        &self,
        mode: Mode,
        addresses: &[String],
        watchdog: Duration,
    ) -> Client<'_> {
        let name = format!("c{}", self.number.fetch_add(1, Ordering::Relaxed));
        let mode = match mode {
            Mode::Single => "single",
            Mode::Cluster => "cluster",
        };
        let line = format!(
            "connect {name} {mode} {} {}",
            addresses.join(","),
            watchdog.as_millis()
        );
        let id = self
            .done(self.ask(&name, &line))
            .await
            .said
            .unwrap_or_else(|e| panic!("{e}"));
        Client {
            jvm: self,
            name,
            id,
        }
    }

    /// Starts a client of one server.
    pub async fn client(&self, server: &Server, watchdog: Duration) -> Client<'_> {
        self.connect(Mode::Single, &[server.url()], watchdog).await
    }

    /// Returns the locks of this name of several clients as one ("multi" or "red"), with an owner
    /// of its own.
    pub fn lock_over(&self, kind: &str, clients: &[Client<'_>], key: &str) -> RLock<'_> {
        let names: Vec<&str> = clients.iter().map(|client| client.name.as_str()).collect();
        self.lock_of(kind, &names.join(","), key)
    }

    fn lock_of(&self, kind: &str, clients: &str, key: &str) -> RLock<'_> {
        let thread = format!("t{}", self.number.fetch_add(1, Ordering::Relaxed));
        RLock {
            jvm: self,
            name: format!("{kind} {clients} {key}"),
            thread,
        }
    }

    /// Waits for an answer that nothing delays.
    pub async fn done(&self, asked: Asked) -> Answer {
        self.within(BOUND, asked).await
    }

    /// Waits for an answer that has to come within this time.
    pub async fn within(&self, bound: Duration, asked: Asked) -> Answer {
        let Some(answer) = soon(bound, asked).await else {
            panic!(
                "no answer in {bound:?}; what the JVM says: {}",
                self.log.lock().unwrap()
            )
        };
        answer.unwrap()
    }
}

impl Drop for Jvm {
    fn drop(&mut self) {
        let child = self
            .child
            .get_mut()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        drop(child.kill());
        drop(child.wait());
    }
}

/// Passes an answer to the caller that waits for it.
fn tell(waiting: &Waiting, line: &str) {
    let at = Instant::now();
    let (number, said) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
    let said = match said.split_once(' ') {
        Some(("ok", word)) => Ok(word.to_owned()),
        Some(("error", exception)) => Err(exception.to_owned()),
        _ => panic!("{line}"),
    };
    let asked = waiting
        .lock()
        .unwrap()
        .as_mut()
        .and_then(|waiting| waiting.remove(&number.parse().unwrap()));
    // The line with number 0 is the greeting.
    if let Some(asked) = asked {
        drop(asked.send(Answer { at, said }));
    }
}

/// How a client treats its servers.
#[derive(Clone, Copy)]
pub enum Mode {
    Single,
    Cluster,
}

/// A `RedissonClient`, shut down when this is dropped.
pub struct Client<'a> {
    jvm: &'a Jvm,
    name: String,
    /// The first part of its owners.
    pub id: String,
}

impl<'a> Client<'a> {
    /// Returns a lock (`getLock`), used by a thread of its own.
    pub fn lock(&self, key: &str) -> RLock<'a> {
        self.lock_of("plain", key)
    }

    /// Has a thread begin a transaction that changes a bucket and stays open.
    pub async fn begin_to_change(&self, bucket: &str) -> Transaction<'a> {
        let thread = format!("t{}", self.jvm.number.fetch_add(1, Ordering::Relaxed));
        let asked = self
            .jvm
            .ask(&thread, &format!("transaction {} {bucket}", self.name));
        self.jvm.done(asked).await.said.unwrap();
        Transaction {
            jvm: self.jvm,
            thread,
        }
    }

    /// Returns a semaphore of this kind, or a latch ("latch"), used by a thread of its own.
    pub fn object(&self, kind: &str, key: &str) -> JvmObject<'a> {
        let number = self.jvm.number.fetch_add(1, Ordering::Relaxed);
        JvmObject {
            jvm: self.jvm,
            name: format!("{kind} {} {key}", self.name),
            thread: format!("t{number}"),
        }
    }

    /// Returns a lock of this kind, used by a thread of its own.
    pub fn lock_of(&self, kind: &str, key: &str) -> RLock<'a> {
        self.jvm.lock_of(kind, &self.name, key)
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // Nothing waits for the answer.
        if tokio::runtime::Handle::try_current().is_ok() {
            drop(self.jvm.ask(&self.name, &format!("shutdown {}", self.name)));
        }
    }
}

/// A semaphore or latch of Redisson ("permits", "semaphore" or "latch"), and the Java thread that
/// uses it.
pub struct JvmObject<'a> {
    jvm: &'a Jvm,
    name: String,
    thread: String,
}

impl JvmObject<'_> {
    /// Sends this verb with its words.
    pub fn ask(&self, verb: &str) -> Asked {
        self.jvm.ask(&self.thread, &format!("{} {verb}", self.name))
    }

    /// Does what nothing delays, and returns the word that is answered.
    pub async fn said(&self, verb: &str) -> String {
        self.jvm.done(self.ask(verb)).await.said.unwrap()
    }
}

/// An `RTransaction`, and its Java thread.
pub struct Transaction<'a> {
    jvm: &'a Jvm,
    thread: String,
}

impl Transaction<'_> {
    pub async fn roll_back(self) {
        self.jvm
            .done(self.jvm.ask(&self.thread, "rollback"))
            .await
            .said
            .unwrap();
    }
}

/// A lock object of Redisson, and the Java thread that uses it: an owner.
pub struct RLock<'a> {
    jvm: &'a Jvm,
    name: String,
    thread: String,
}

impl RLock<'_> {
    /// Sends this verb, with `rest` after the lock's name.
    pub fn ask(&self, verb: &str, rest: &str) -> Asked {
        let line = format!("{verb} {} {rest}", self.name);
        self.jvm.ask(&self.thread, line.trim_end())
    }

    /// Sends this verb, which nothing delays, and returns the word that is answered, or the
    /// exception.
    pub async fn done(&self, verb: &str) -> Result<String, String> {
        self.said(verb, "").await
    }

    /// Returns the lock of another kind with the same name, used by the same thread: the same
    /// owner.
    #[must_use]
    pub fn as_kind(&self, kind: &str) -> Self {
        let (_, rest) = self.name.split_once(' ').unwrap();
        Self {
            jvm: self.jvm,
            name: format!("{kind} {rest}"),
            thread: self.thread.clone(),
        }
    }

    /// Asks for the lock, which others hold, and returns when the thread sleeps: only a message, or
    /// the end of the lease of which it was told, wakes it. A thread that has been refused and does
    /// not sleep yet misses the message of a read-write lock's writer (`1`), which wakes only the
    /// threads that sleep.
    pub async fn falls_asleep(&self) -> Asked {
        let asked = self.ask("lock", "");
        let line = format!("asleep {}", self.thread);
        let start = Instant::now();
        while self
            .jvm
            .done(self.jvm.ask("watch", &line))
            .await
            .said
            .unwrap()
            != "true"
        {
            assert!(!asked.is_finished(), "nobody keeps it out");
            assert!(start.elapsed() < BOUND, "it does not sleep");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        asked
    }

    async fn said(&self, verb: &str, rest: &str) -> Result<String, String> {
        self.jvm.done(self.ask(verb, rest)).await.said
    }

    async fn word<T: std::str::FromStr>(&self, verb: &str, rest: &str) -> T {
        let said = self
            .said(verb, rest)
            .await
            .unwrap_or_else(|e| panic!("{verb}: {e}"));
        said.parse().unwrap_or_else(|_| panic!("{verb}: {said}"))
    }

    /// Locks a lock that is free or held by this thread.
    pub async fn lock(&self) {
        self.word::<String>("lock", "").await;
    }

    /// Locks with a lease that is not renewed.
    pub async fn lock_leased(&self, lease: Duration) {
        self.word::<String>("lock", &lease.as_millis().to_string())
            .await;
    }

    pub async fn try_lock(&self) -> bool {
        self.word("try", "").await
    }

    pub async fn unlock(&self) -> Result<(), String> {
        self.said("unlock", "").await.map(drop)
    }

    pub async fn force_unlock(&self) -> bool {
        self.word("force", "").await
    }

    pub async fn is_held(&self) -> bool {
        self.word("held", "").await
    }

    pub async fn is_locked(&self) -> bool {
        self.word("locked", "").await
    }

    pub async fn hold_count(&self) -> u64 {
        self.word("count", "").await
    }

    /// Locks a fenced lock and returns its token.
    pub async fn lock_and_get_token(&self) -> u64 {
        self.word("token", "").await
    }
}

/// Builds the program, if needed, and returns its directory.
///
/// # Errors
/// Why the program cannot be run.
///
/// # Panics
/// In CI, if the tools are there and the program cannot be prepared.
fn prepare() -> Result<PathBuf, String> {
    for tool in ["java", "mvn"] {
        if !Command::new("sh")
            .args(["-c", "command -v \"$0\"", tool])
            .output()
            .unwrap()
            .status
            .success()
        {
            return Err(format!("there is no {tool}"));
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The unit tests share this module, and have no such variable.
    let target = option_env!("CARGO_TARGET_TMPDIR")
        .and_then(|of| Path::new(of).parent())
        .unwrap_or(root);
    let prepared = target.join("foreign/redisson");
    if !root.join("dev").exists() {
        return Err("its program is not part of the package".to_owned());
    }
    let mut dev = Command::new(root.join("dev"));
    let run = dev
        .args(["foreign", "redisson"])
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    if prepared.join("prepared").exists() {
        return Ok(prepared);
    }
    let said = [run.stdout, run.stderr]
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .concat();
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{said}"
    );
    Err(format!("it cannot be prepared: {said}"))
}
