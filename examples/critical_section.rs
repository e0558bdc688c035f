//! Run it with `cargo run --example critical_section`, or with `./dev demo`, which starts a server
//! for it.
//!
//! Three processes contend for one lock and get it one after the other; nested calls enter again.
//! Then the lock is deleted on the server without its holder's knowledge, and the holder stops.

use std::env;
use std::error::Error as _;
use std::fs;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockhound::{Error, HoldState, Lock, Locker};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, Lines};
use tokio::process::{ChildStdout, Command};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// The watchdog renews it every third of this.
const LEASE: Duration = Duration::from_secs(3);
const VISITS: u32 = 2;
/// The demo takes about four seconds. If it takes longer than this, something is wrong with the
/// server.
const LONGEST: Duration = Duration::from_secs(12);

/// What a child tells the demo, between its lines for people.
const ENTERED: &str = "@entered with fence ";
const STOPPED: &str = "@stopped";

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        // Without arguments it is the demo. With arguments it is one of the processes that the demo
        // starts.
        [] => demo().await,
        ["visitor", who, key, start, colour] => {
            visitor(&Stage::of_child(who, key, start, colour)).await
        }
        ["holder", who, key, start, colour] => {
            holder(&Stage::of_child(who, key, start, colour)).await
        }
        _ => Err("it takes no arguments".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("critical_section: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn demo() -> Outcome {
    let stage = Stage::new();
    let locks = connect().await.map_err(|error| advice(&error))?;
    let lock = locks.get(&stage.key);
    fs::write(stage.tally(), "0")?;
    let both = async {
        one_at_a_time(&stage).await?;
        loss(&stage, &locks, &lock).await
    };
    let late =
        |_| Err(format!("it is not done after {LONGEST:?}: is the server very slow?").into());
    let outcome = timeout(LONGEST, both).await.unwrap_or_else(late);
    drop(fs::remove_file(stage.tally()));
    locks.close().await;
    outcome
}

// ---- First part: one at a time, and nested calls ----

async fn one_at_a_time(stage: &Stage) -> Outcome {
    stage.heading("Three processes want one lock, twice each.\nOne at a time gets it; nested calls enter again.");
    let mut children = Vec::new();
    for who in ["A", "B", "C"] {
        children.push((who, stage.child("visitor", who)?.spawn()?));
    }
    for (who, child) in &mut children {
        if !child.wait().await?.success() {
            return Err(format!("process {who} failed").into());
        }
    }
    let (counted, made) = (fs::read_to_string(stage.tally())?, 3 * VISITS);
    if counted != made.to_string() {
        return Err(format!(
            "{made} visits were made, but {counted} were counted: two held the lock at once"
        )
        .into());
    }
    stage.say(&stage.good(&format!(
        "{made} visits, {counted} counted: never two at the same time"
    )));
    Ok(())
}

/// A process that does what goes wrong if two do it at once: it reads a number, waits, and writes
/// it back one higher.
async fn visitor(stage: &Stage) -> Outcome {
    let locks = connect().await?;
    let lock = locks.get(&stage.key);
    for _ in 0..VISITS {
        stage.say("wants the lock");
        let guard = lock.lock().await?;
        let count: u32 = fs::read_to_string(stage.tally())?.parse()?;
        stage.say(&stage.good(&format!("has the lock, and reads the count: {count}")));
        bill(stage, &lock).await?;
        fs::write(stage.tally(), (count + 1).to_string())?;
        stage.say(&format!("writes {}, and unlocks", count + 1));
        guard.unlock().await?;
        // A process that locks again at once often wins against those that have to be woken first.
        sleep(Duration::from_millis(50)).await;
    }
    locks.close().await;
    Ok(())
}

/// Takes the lock itself, since it cannot know whether its caller has it.
async fn bill(stage: &Stage, lock: &Lock) -> Outcome {
    let guard = lock.lock().await?;
    stage.say(&format!(
        "    calls bill(), which takes the lock too: hold count {}",
        guard.hold_count()
    ));
    print_it(stage, lock).await?;
    guard.unlock().await?;
    Ok(())
}

async fn print_it(stage: &Stage, lock: &Lock) -> Outcome {
    let guard = lock.lock().await?;
    stage.say(&format!(
        "        calls print_it(), which does the same: hold count {}",
        guard.hold_count()
    ));
    sleep(Duration::from_millis(250)).await;
    guard.unlock().await?;
    Ok(())
}

// ---- Second part: the lock is lost ----

async fn loss(stage: &Stage, locks: &Locker, lock: &Lock) -> Outcome {
    stage.heading("Process D has the lock and works.\nThen the lock is deleted on the server without its knowledge.");
    let mut child = stage
        .child("holder", "D")?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(output), Some(mut input)) = (child.stdout.take(), child.stdin.take()) else {
        return Err("no pipe".into());
    };
    let mut lines = tokio::io::BufReader::new(output).lines();
    let fence: u64 = show_until(&mut lines, ENTERED).await?.parse()?;
    let deleting = async {
        sleep(Duration::from_millis(1300)).await;
        delete(&stage.key)?;
        let deleted = Instant::now();
        stage.say(&stage.bad(&format!("deletes the key: DEL {}", stage.key)));
        Ok(deleted)
    };
    let (deleted, _) = tokio::try_join!(deleting, show_until(&mut lines, STOPPED))?;
    let late = deleted.elapsed().as_millis();
    stage.say(&stage.good(&format!(
        "D stopped {late} ms later: the next renewal noticed"
    )));
    stage.say(&format!(
        "(a lease of {LEASE:?} is renewed every {:?})",
        LEASE / 3
    ));

    let guard = lock.lock().await?;
    if guard.fence().get() <= fence {
        return Err("the fence did not grow".into());
    }
    stage.say(&format!(
        "takes the free lock; fence {}, greater than D's",
        guard.fence()
    ));
    // D waits for a line on its input, and then unlocks a lock that the demo has by now.
    input.write_all(b"\n").await?;
    show_until(&mut lines, "").await?;
    if !child.wait().await?.success() {
        return Err("process D failed".into());
    }
    let holder = lock
        .holder()
        .await?
        .ok_or("the late unlock has released another holder's lock")?;
    if !holder.owner().starts_with(locks.id()) {
        return Err(format!("the lock is held by {holder:?}").into());
    }
    stage.say("still has the lock: D's late unlock did not affect it");
    guard.unlock().await?;
    stage.say(&stage.good("unlocks, and the server confirms it"));
    Ok(())
}

/// A process that works until it has lost the lock.
async fn holder(stage: &Stage) -> Outcome {
    let locks = connect().await?;
    let guard = locks.get(&stage.key).lock().await?;
    stage.say(&stage.good(&format!("has the lock; fence {}", guard.fence())));
    show(&format!("{ENTERED}{}", guard.fence()));
    let lost = guard.lost();
    tokio::select! {
        // The loss is polled first.
        biased;
        () = lost.cancelled() => {}
        () = work(stage) => return Err("the deletion was not noticed".into()),
    }
    let HoldState::Lost(loss) = guard.state() else {
        return Err("the token fired, but nothing is lost".into());
    };
    stage.say(&stage.bad(&format!("stops at once. Lost: {loss}")));
    show(STOPPED);
    // This blocks the thread, which does not keep lockhound from working: it has a thread of its
    // own.
    io::stdin().read_line(&mut String::new())?;
    match guard.unlock().await {
        Err(Error::Lost { loss, .. }) => stage.say(&format!("unlocks late. Lost: {loss}")),
        answer => return Err(format!("the late unlock was answered with {answer:?}").into()),
    }
    locks.close().await;
    Ok(())
}

async fn work(stage: &Stage) {
    for step in 1..=20 {
        stage.say(&format!("works, step {step}"));
        sleep(Duration::from_millis(300)).await;
    }
}

/// Deletes a key as any client can that reaches the server, with a few words of the Redis protocol.
fn delete(key: &str) -> Outcome {
    let url = url();
    let address = url
        .strip_prefix("redis://")
        .ok_or("this part of the demo needs an address with redis://")?;
    let (credentials, address) = address.rsplit_once('@').unwrap_or(("", address));
    let (server, db) = address.split_once('/').unwrap_or((address, ""));
    let port = if server.ends_with(']') || !server.contains(':') {
        ":6379"
    } else {
        ""
    };
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let (user, password) = (percent_decoded(user), percent_decoded(password));
    let mut commands: Vec<Vec<&str>> = Vec::new();
    if !password.is_empty() {
        commands.push(
            ["AUTH", &user, &password]
                .into_iter()
                .filter(|word| !word.is_empty())
                .collect(),
        );
    }
    if !db.is_empty() {
        commands.push(vec!["SELECT", db]);
    }
    commands.push(vec!["DEL", key]);

    let mut stream = BufReader::new(TcpStream::connect(format!("{server}{port}"))?);
    stream
        .get_ref()
        .set_read_timeout(Some(Duration::from_secs(2)))?;
    for words in &commands {
        let words_sent: String = words
            .iter()
            .map(|word| format!("${}\r\n{word}\r\n", word.len()))
            .collect();
        stream
            .get_mut()
            .write_all(format!("*{}\r\n{words_sent}", words.len()).as_bytes())?;
        let mut reply = String::new();
        stream.read_line(&mut reply)?;
        // `+OK`, or for DEL how many keys were deleted.
        if !reply.starts_with('+') && reply != ":1\r\n" {
            return Err(format!(
                "the server answers {} with {:?}",
                words[0],
                reply.trim_end()
            )
            .into());
        }
    }
    Ok(())
}

fn percent_decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part
            .get(..2)
            .and_then(|code| u8::from_str_radix(code, 16).ok())
        {
            Some(byte) => bytes.extend([&[byte], &part.as_bytes()[2..]].concat()),
            None => bytes.extend([b"%", part.as_bytes()].concat()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

// ---- The server ----

fn url() -> String {
    let named = env::var("REDIS_URL").ok().filter(|url| !url.is_empty());
    named.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned())
}

async fn connect() -> Result<Locker, Error> {
    Locker::builder().node(url()).lease(LEASE).connect().await
}

/// What to do about a server that cannot be used. The error names the address, without its
/// password.
fn advice(error: &Error) -> String {
    let cause = error
        .source()
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    format!(
        "the demo needs a Redis, and found none that it can use:\n  {error}{cause}\n\n\
         Do one of these:\n  \
         ./dev demo                                                            starts one for the demo\n  \
         redis-server                                                          starts one at the usual address\n  \
         REDIS_URL=redis://HOST:PORT cargo run --example critical_section      uses a server that runs already"
    )
}

// ---- The show ----

/// What the processes of the demo share, and how they print what they do.
struct Stage {
    who: String,
    key: String,
    /// The start of the demo in milliseconds since 1970. All processes count from it.
    start: u64,
    colour: bool,
}

impl Stage {
    fn new() -> Self {
        let colour = io::stdout().is_terminal()
            && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        // Short enough to read, and different from every other key on a server with other uses.
        let key = format!("lockhound:demo:{:.12}", Uuid::new_v4().simple().to_string());
        Self {
            who: "demo".to_owned(),
            key,
            start: millis(),
            colour,
        }
    }

    fn of_child(who: &str, key: &str, start: &str, colour: &str) -> Self {
        let start = start.parse().unwrap_or_else(|_| millis());
        Self {
            who: who.to_owned(),
            key: key.to_owned(),
            start,
            colour: colour == "true",
        }
    }

    /// Returns the command that runs this program in another role.
    fn child(&self, role: &str, who: &str) -> io::Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        command.args([
            role,
            who,
            &self.key,
            &self.start.to_string(),
            &self.colour.to_string(),
        ]);
        command.stdin(Stdio::null()).kill_on_drop(true);
        Ok(command)
    }

    /// Returns the path of the file with the count of visits.
    fn tally(&self) -> PathBuf {
        env::temp_dir().join(self.key.replace(':', "-"))
    }

    fn say(&self, what: &str) {
        let seconds = Duration::from_millis(millis().saturating_sub(self.start)).as_secs_f64();
        let colour = match self.who.as_str() {
            "A" => "36",
            "B" => "33",
            "C" => "35",
            "D" => "34",
            _ => "1",
        };
        show(&format!(
            "{seconds:7.2} s  {}  {what}",
            self.painted(colour, &format!("{:4}", self.who))
        ));
    }

    fn heading(&self, text: &str) {
        show(&format!("\n{}\n", self.painted("1", text)));
    }

    fn good(&self, text: &str) -> String {
        self.painted("32", text)
    }

    fn bad(&self, text: &str) -> String {
        self.painted("31", text)
    }

    fn painted(&self, colour: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{colour}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Prints a line in one write, since other processes print too. Does not panic if the reader of the
/// output has gone.
fn show(line: &str) {
    drop(io::stdout().write_all(format!("{line}\n").as_bytes()));
}

/// Prints a child's lines up to the one that starts with this mark, and returns the rest of that
/// one. An empty mark stands for the end of the output.
async fn show_until(
    lines: &mut Lines<tokio::io::BufReader<ChildStdout>>,
    mark: &str,
) -> Outcome<String> {
    while let Some(line) = lines.next_line().await? {
        match line.strip_prefix(mark) {
            Some(rest) if !mark.is_empty() => return Ok(rest.to_owned()),
            _ => show(&line),
        }
    }
    if mark.is_empty() {
        Ok(String::new())
    } else {
        Err("process D ended too soon".into())
    }
}

fn millis() -> u64 {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}
