//! The programs that contend, each in a process of its own. They follow the protocol of
//! [`line`](super::line).

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::line::{Order, Wait, now};
use crate::Failure;

/// The variable that names the directory in which `./dev` prepares the clients in other languages.
const FOREIGN: &str = "LOCKHOUND_FOREIGN";
/// A program whose time differs from ours by more than this reads another clock.
const SAME_CLOCK_NS: u64 = 5_000_000_000;

/// A program that contends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Lockhound,
    /// lockhound with `Format::Plain`.
    Plain,
    /// lockhound as a user that may not use waiting lists.
    Unlisted,
    Rslock,
    /// The read-write locks of these two, which are contenders nowhere else.
    Rlock,
    Distkit,
    Redisson,
    RedisPy,
    NodeRedlock,
    Redsync,
}

impl Program {
    /// Returns the command that starts it with this many lockers and tasks.
    ///
    /// # Errors
    /// The reason why it cannot run here.
    fn command(self, lockers: usize, tasks: usize, urls: &[String]) -> Result<Command, Failure> {
        let client = match self {
            Self::Lockhound => "lockhound",
            Self::Plain => "plain",
            Self::Unlisted => "unlisted",
            Self::Rslock => "rslock",
            Self::Rlock => "rlock",
            Self::Distkit => "distkit",
            Self::Redisson | Self::RedisPy | Self::NodeRedlock | Self::Redsync => {
                return self.foreign(tasks, urls);
            }
        };
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["contend", client, &lockers.to_string(), &tasks.to_string()])
            .args(urls);
        Ok(command)
    }

    fn foreign(self, tasks: usize, urls: &[String]) -> Result<Command, Failure> {
        let Some(foreign) = std::env::var_os(FOREIGN).map(PathBuf::from) else {
            return Err("it is prepared by ./dev bench, which did not start this program".into());
        };
        let (name, program): (_, fn(PathBuf) -> Vec<OsString>) = match self {
            Self::RedisPy => ("python", |at| {
                vec![at.join("bin/python").into(), at.join("main.py").into()]
            }),
            Self::NodeRedlock => ("node", |at| vec!["node".into(), at.join("main.js").into()]),
            Self::Redsync => ("go", |at| vec![at.join("main").into()]),
            _ => ("redisson", |at| {
                let mut path = OsString::from(at.join("classes"));
                path.push(":");
                path.push(at.join("lib/*"));
                let few = [
                    "-XX:+UseSerialGC",
                    "-Xmx128m",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    "-cp",
                ];
                let java = std::iter::once("java").chain(few).map(OsString::from);
                java.chain([path, "Contender".into()]).collect()
            }),
        };
        let at = foreign.join(name);
        if !at.join("prepared").exists() {
            return Err(format!(
                "{} is not prepared; the output of ./dev above says why",
                at.display()
            )
            .into());
        }
        let words = program(at);
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .arg("contend")
            .args(urls)
            .arg(tasks.to_string());
        Ok(command)
    }

    /// Returns whether it is a separate program, which may be missing.
    pub(crate) fn is_foreign(self) -> bool {
        matches!(
            self,
            Self::Redisson | Self::RedisPy | Self::NodeRedlock | Self::Redsync
        )
    }

    /// Returns the commands that count as its scripts: scripts, and the commands with which other
    /// clients take a lock.
    pub(crate) fn commands(self) -> &'static [&'static str] {
        match self {
            // Their SETs run within scripts, and must not be counted twice.
            Self::Lockhound
            | Self::Plain
            | Self::Unlisted
            | Self::Rlock
            | Self::Distkit
            | Self::Redisson => &["evalsha", "eval"],
            Self::Rslock | Self::RedisPy | Self::NodeRedlock | Self::Redsync => {
                &["evalsha", "eval", "set", "setnx"]
            }
        }
    }
}

/// A running program, which is killed on drop.
pub(crate) struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a program. [`ready`](Self::ready) waits until it is connected.
    ///
    /// # Errors
    /// The reason why it cannot run here.
    pub(crate) fn start(
        program: Program,
        lockers: usize,
        tasks: usize,
        urls: &[String],
    ) -> Result<Self, Failure> {
        let mut command = program.command(lockers, tasks, urls)?;
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child =
            started.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (to, from) = to
            .zip(from)
            .ok_or("a process was started without its pipes")?;
        Ok(Self {
            child,
            to,
            from: BufReader::new(from),
        })
    }

    /// Waits until it is connected.
    ///
    /// # Errors
    /// The reason why it cannot run here.
    pub(crate) fn ready(&mut self) -> Result<(), Failure> {
        let line = self.line()?;
        let theirs: u64 = line
            .strip_prefix("ready ")
            .ok_or_else(|| format!("it says {line:?}"))?
            .parse()?;
        if now().abs_diff(theirs) > SAME_CLOCK_NS {
            return Err("it has another clock, so that overlaps could not be seen".into());
        }
        Ok(())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, order: &Order) -> Result<(), Failure> {
        self.to.write_all(order.line().as_bytes())?;
        Ok(self.to.flush()?)
    }

    /// Returns the waits of the last order, each with its task.
    pub(crate) fn hear(&mut self) -> Result<Vec<(usize, Wait)>, Failure> {
        let mut waits = Vec::new();
        loop {
            let line = self.line()?;
            if line == "over" {
                return Ok(waits);
            }
            waits.push(Wait::parse(&line)?);
        }
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(format!(
                "a process that contends has ended ({status}); its output is above"
            )
            .into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
