//! A TCP proxy in front of a server: it passes, refuses, black-holes, delays, swallows a reply and
//! cuts, or sends a huge one in its place.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Connections are accepted and closed.
    Refuse,
    /// Nothing is passed on, in either direction; connections stay open.
    BlackHole,
    /// A request that contains these bytes is passed on; its reply is swallowed and the connection
    /// is cut.
    SwallowReplyTo(Vec<u8>),
    /// Replies are delayed by this much.
    Delay(Duration),
    /// Requests that contain these bytes wait until the mode changes.
    Hold(Vec<u8>),
    /// Requests that contain these bytes are delayed by this much.
    Late(Vec<u8>, Duration),
    /// The first reply is replaced by this. No other reply is passed on.
    Flood(Flood),
}

/// A reply that keeps its reader busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flood {
    /// One string of this many bytes.
    String(usize),
    /// An array that has this many elements at once, and then one more every millisecond, without
    /// an end: a reader that parses it from the beginning each time has no time for anything else,
    /// and its memory does not grow.
    Array(usize),
}

/// How much of a huge reply is written at once, in bytes or elements.
const PIECE: usize = 16 * 1024;

pub struct Proxy {
    port: u16,
    to: Arc<AtomicU16>,
    shared: Arc<Shared>,
}

struct Shared {
    mode: Mutex<Mode>,
    swallowed: AtomicUsize,
    held: AtomicUsize,
    floods: AtomicBool,
    flooded: AtomicBool,
    /// Connections are numbered as they are opened; those whose number is in `frozen` are silent.
    opened: AtomicUsize,
    frozen: Mutex<HashSet<usize>>,
    open: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

impl Proxy {
    /// Listens on a free port in front of a server's.
    pub fn start(to: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            mode: Mutex::new(Mode::Pass),
            swallowed: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            floods: AtomicBool::new(false),
            flooded: AtomicBool::new(false),
            opened: AtomicUsize::new(0),
            frozen: Mutex::default(),
            open: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let to = Arc::new(AtomicU16::new(to));
        let (accepting, leads_to) = (Arc::clone(&shared), Arc::clone(&to));
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(client) = client {
                    accepting.serve(client, leads_to.load(Ordering::Relaxed));
                }
            }
        });
        Self { port, to, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads connections that are opened from now on to another server.
    pub fn lead_to(&self, port: u16) {
        self.to.store(port, Ordering::Relaxed);
    }

    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
    }

    /// Returns how many replies were swallowed.
    pub fn swallowed(&self) -> usize {
        self.shared.swallowed.load(Ordering::Relaxed)
    }

    /// Returns how many requests were held back.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::Relaxed)
    }

    /// Returns whether a client has read a huge reply: all of it, or all of it that comes at once.
    pub fn flooded(&self) -> bool {
        self.shared.flooded.load(Ordering::Relaxed)
    }

    /// Silences the connections that are open, for the proxy's life. New ones pass.
    pub fn freeze(&self) {
        let opened = self.shared.opened.load(Ordering::SeqCst);
        self.shared.frozen.lock().unwrap().extend(0..opened);
    }

    /// Silences the connection that was opened as the nth, counted from zero.
    pub fn freeze_one(&self, nth: usize) {
        self.shared.frozen.lock().unwrap().insert(nth);
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        for stream in self.shared.open.lock().unwrap().drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        self.cut();
    }
}

impl Shared {
    fn mode(&self) -> Mode {
        self.mode.lock().unwrap().clone()
    }

    fn serve(self: &Arc<Self>, client: TcpStream, to: u16) {
        if self.mode() == Mode::Refuse {
            return;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else {
            return;
        };
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let mut open = self.open.lock().unwrap();
        open.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
        drop(open);
        // Set once a request whose reply is to be swallowed was passed on.
        let swallow = Arc::new(AtomicBool::new(false));
        let (requests, replies) = (Arc::clone(self), Arc::clone(self));
        let number = self.opened.fetch_add(1, Ordering::SeqCst);
        let (from, into, marked) = (
            client.try_clone().unwrap(),
            server.try_clone().unwrap(),
            Arc::clone(&swallow),
        );
        thread::spawn(move || {
            requests.pump(number, from, into, |shared, bytes| {
                shared.request(bytes, &marked)
            });
        });
        let reader = client.try_clone().unwrap();
        thread::spawn(move || {
            replies.pump(number, server, client, |shared, _| {
                shared.reply(&swallow, &reader)
            });
        });
    }

    /// Passes bytes on until they end, or until `pass` returns false.
    fn pump(
        &self,
        number: usize,
        mut from: TcpStream,
        mut into: TcpStream,
        pass: impl Fn(&Self, &[u8]) -> bool,
    ) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            let silent =
                || self.mode() == Mode::BlackHole || self.frozen.lock().unwrap().contains(&number);
            while silent() && !self.ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(2));
            }
            if !pass(self, &buffer[..n]) || into.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        drop(from.shutdown(Shutdown::Both));
        drop(into.shutdown(Shutdown::Both));
    }

    fn request(&self, bytes: &[u8], swallow: &AtomicBool) -> bool {
        let has = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        match self.mode() {
            Mode::SwallowReplyTo(needle) if has(&needle) => swallow.store(true, Ordering::SeqCst),
            Mode::Late(needle, time) if has(&needle) => thread::sleep(time),
            Mode::Hold(needle) if has(&needle) => {
                self.held.fetch_add(1, Ordering::Relaxed);
                while matches!(self.mode(), Mode::Hold(_)) && !self.ended.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(2));
                }
            }
            _ => {}
        }
        true
    }

    fn reply(&self, swallow: &AtomicBool, reader: &TcpStream) -> bool {
        if let Mode::Flood(flood) = self.mode() {
            // One connection at a time: if its client hangs up, the next one that asks is flooded.
            if !self.floods.swap(true, Ordering::Relaxed) && self.flood(flood, reader).is_err() {
                self.floods.store(false, Ordering::Relaxed);
                return false;
            }
            while self.is_flooding() {
                thread::sleep(Duration::from_millis(2));
            }
            return false;
        }
        if let Mode::Delay(delay) = self.mode() {
            thread::sleep(delay);
        }
        if swallow.load(Ordering::SeqCst) {
            self.swallowed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn is_flooding(&self) -> bool {
        matches!(self.mode(), Mode::Flood(_)) && !self.ended.load(Ordering::Relaxed)
    }

    /// Replaces a piece that was read: a piece holds whole replies here, so that the flood begins
    /// between two replies.
    fn flood(&self, flood: Flood, mut reader: &TcpStream) -> io::Result<()> {
        const ELEMENT: &[u8] = b":1\r\n";
        let (head, unit, mut left) = match flood {
            Flood::String(bytes) => (format!("${bytes}\r\n"), &b"x"[..], bytes),
            Flood::Array(elements) => (format!("*{}\r\n", u32::MAX), ELEMENT, elements),
        };
        reader.write_all(head.as_bytes())?;
        let piece = unit.repeat(PIECE);
        while left > 0 && self.is_flooding() {
            let units = left.min(PIECE);
            reader.write_all(&piece[..unit.len() * units])?;
            left -= units;
        }
        self.flooded.store(true, Ordering::Relaxed);
        while matches!(flood, Flood::Array(_)) && self.is_flooding() {
            reader.write_all(ELEMENT)?;
            thread::sleep(Duration::from_millis(1));
        }
        reader.write_all(b"\r\n")
    }
}
