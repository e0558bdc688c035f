//! The bare socket: a blocking TcpStream that speaks as much RESP2 as the bench needs, without a
//! client library.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A socket and its two buffers, which are reused so that a call allocates nothing.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// The queued commands.
    request: Vec<u8>,
    /// The bytes that have been received. They begin with the reply that was returned last.
    replies: Vec<u8>,
    returned: usize,
}

/// What a server has counted for one command since its statistics were reset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Calls {
    pub(crate) count: f64,
    /// The time of all calls together.
    pub(crate) us: f64,
}

impl Connection {
    pub(crate) fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        // Far longer than a live server takes to answer. The bench must not hang on a dead one.
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self {
            stream,
            request: Vec::new(),
            replies: Vec::new(),
            returned: 0,
        })
    }

    /// Sends one command and returns its raw reply: one write, and as a rule one read.
    ///
    /// # Errors
    /// Errors of the socket, and an error reply.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> io::Result<&[u8]> {
        self.send(words)?;
        self.receive()
    }

    /// Sends one command; [`receive`](Self::receive) returns its reply.
    pub(crate) fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        self.queue(words)?;
        self.flush()
    }

    /// Keeps one command back until the next [`flush`](Self::flush).
    pub(crate) fn queue(&mut self, words: &[&[u8]]) -> io::Result<()> {
        write!(self.request, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.request, "${}\r\n", word.len())?;
            self.request.extend_from_slice(word);
            self.request.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    /// Sends the queued commands in one write. The replies come in their order.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let sent = self.stream.write_all(&self.request);
        self.request.clear();
        sent
    }

    /// Returns the next reply.
    ///
    /// # Errors
    /// Errors of the socket, and an error reply.
    pub(crate) fn receive(&mut self) -> io::Result<&[u8]> {
        self.replies.drain(..std::mem::take(&mut self.returned));
        let len = loop {
            if let Some(len) = reply_len(&self.replies) {
                break len;
            }
            let mut bytes = [0; 4096];
            let n = self.stream.read(&mut bytes)?;
            if n == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.replies.extend_from_slice(&bytes[..n]);
        };
        self.returned = len;
        let reply = &self.replies[..len];
        if reply.starts_with(b"-") {
            return Err(io::Error::other(
                String::from_utf8_lossy(reply).trim().to_owned(),
            ));
        }
        Ok(reply)
    }

    /// Receives a reply that begins with these bytes.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive), and any other reply: an attempt that did not lock would
    /// look fast.
    pub(crate) fn expect(&mut self, beginning: &[u8]) -> io::Result<()> {
        let reply = self.receive()?;
        if reply.starts_with(beginning) {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "the server answered {:?}",
            String::from_utf8_lossy(reply)
        )))
    }

    /// Loads a script into the server and returns its digest.
    pub(crate) fn load(&mut self, script: &str) -> io::Result<Vec<u8>> {
        let reply = self.call(&[b"SCRIPT", b"LOAD", script.as_bytes()])?;
        let digest = reply
            .split(|&byte| byte == b'\n')
            .nth(1)
            .unwrap_or_default();
        Ok(digest.trim_ascii().to_vec())
    }

    /// Returns a value of INFO as text.
    pub(crate) fn info(&mut self, section: &str, name: &str) -> io::Result<String> {
        let reply = String::from_utf8_lossy(self.call(&[b"INFO", section.as_bytes()])?);
        let value = reply
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value
            .map(str::to_owned)
            .ok_or_else(|| io::Error::other(format!("INFO {section} does not tell {name}")))
    }

    /// Resets the counts that [`calls`](Self::calls) returns.
    pub(crate) fn reset_calls(&mut self) -> io::Result<()> {
        self.call(&[b"CONFIG", b"RESETSTAT"]).map(drop)
    }

    /// Returns what the server has counted for a command.
    pub(crate) fn calls(&mut self, command: &str) -> io::Result<Calls> {
        let line = self.info("commandstats", &format!("cmdstat_{command}"))?;
        let value = |name: &str| {
            line.split(',')
                .find_map(|field| field.strip_prefix(name)?.parse().ok())
        };
        let calls = value("calls=")
            .zip(value("usec="))
            .map(|(count, us)| Calls { count, us });
        calls.ok_or_else(|| {
            io::Error::other(format!("INFO commandstats has changed its form: {line}"))
        })
    }

    /// Returns how often the server has run these commands in total, within scripts too.
    pub(crate) fn count(&mut self, commands: &[&str]) -> io::Result<f64> {
        let reply = String::from_utf8_lossy(self.call(&[b"INFO", b"commandstats"])?);
        let count = |line: &str| {
            let (name, value) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            commands
                .contains(&name)
                .then(|| value.split(',').next()?.parse::<f64>().ok())?
        };
        Ok(reply.lines().filter_map(count).sum())
    }

    /// Returns the seconds of CPU time that the server has used so far.
    pub(crate) fn cpu(&mut self) -> io::Result<f64> {
        let reply = String::from_utf8_lossy(self.call(&[b"INFO", b"cpu"])?);
        let of = |name| {
            reply
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
        };
        let seconds = of("used_cpu_user:")
            .zip(of("used_cpu_sys:"))
            .map(|(user, sys)| user + sys);
        seconds.ok_or_else(|| {
            io::Error::other("INFO cpu does not tell used_cpu_user and used_cpu_sys")
        })
    }
}

/// Returns the length of the reply that the bytes begin with, once it is complete.
fn reply_len(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")? + 2;
    let number = || {
        std::str::from_utf8(&bytes[1..line - 2])
            .ok()?
            .parse::<i64>()
            .ok()
    };
    match bytes[0] {
        // -1, nil, has no body.
        b'$' => Some(usize::try_from(number()?).map_or(line, |n| line + n + 2))
            .filter(|&end| end <= bytes.len()),
        b'*' => (0..number()?).try_fold(line, |end, _| Some(end + reply_len(&bytes[end..])?)),
        _ => Some(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_complete_with_its_last_byte() {
        for reply in [
            "+OK\r\n",
            ":-1\r\n",
            "$3\r\nabc\r\n",
            "$-1\r\n",
            "*2\r\n:1\r\n$2\r\n17\r\n",
            "*0\r\n",
        ] {
            let bytes = reply.as_bytes();
            assert_eq!(reply_len(bytes), Some(bytes.len()), "{reply:?}");
            assert!(
                (0..bytes.len()).all(|n| reply_len(&bytes[..n]).is_none()),
                "{reply:?}, cut short"
            );
        }
        assert_eq!(reply_len(b":1\r\n:2\r\n"), Some(4));
    }
}
