//! A proxy that spoils single replies at random: it swallows them, repeats them, swaps them with
//! the next one, or replaces them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// What is done to a reply. Only the last of these leaves the replies behind it in step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    Swallow,
    Duplicate,
    /// It is sent after the next one, whenever that comes.
    Swap,
    /// The client cannot parse it, and takes the next one in its place.
    Unreadable,
    /// It is replaced by a reply that answers nothing.
    Garble,
}

pub const HARMS: [Harm; 5] = [
    Harm::Swallow,
    Harm::Duplicate,
    Harm::Swap,
    Harm::Unreadable,
    Harm::Garble,
];

const UNREADABLE: &[u8] = b"-ERR \xff\xfe\r\n";
const GARBLED: [&[u8]; 6] = [
    b"-ERR odd\r\n",
    b"+OK\r\n",
    b":1\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"-NOSCRIPT No matching script.\r\n",
];

/// The number of replies at the start of a connection that are left alone: they answer the client's
/// handshake.
const HANDSHAKE: usize = 6;

pub struct Meddler {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    /// One of this many replies is spoiled; zero: none.
    one_in: AtomicU32,
    harmed: [AtomicUsize; HARMS.len()],
    /// Replaces the next reply.
    instead: Mutex<Option<Vec<u8>>>,
}

impl Meddler {
    /// Listens on a free port in front of a server's. The seed decides what becomes of the nth
    /// reply of the nth connection.
    pub fn start(to: u16, seed: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            one_in: AtomicU32::new(0),
            harmed: Default::default(),
            instead: Mutex::default(),
        });
        let meddling = Arc::clone(&shared);
        thread::spawn(move || {
            for (number, client) in (0..).zip(listener.incoming()) {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to)))
                else {
                    return;
                };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (from, into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pass(from, into));
                let (meddling, rng) = (
                    Arc::clone(&meddling),
                    fastrand::Rng::with_seed(seed ^ (number << 32)),
                );
                thread::spawn(move || meddling.pass(server, client, rng));
            }
        });
        Self { port, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Spoils one of this many replies from now on; zero: none.
    pub fn spoil_one_in(&self, replies: u32) {
        self.shared.one_in.store(replies, Ordering::Relaxed);
    }

    /// Replaces the next reply of any connection.
    pub fn replace_next(&self, with: Vec<u8>) {
        *self.shared.instead.lock().unwrap() = Some(with);
    }

    /// Returns whether the replacement has been sent.
    pub fn has_replaced(&self) -> bool {
        self.shared.instead.lock().unwrap().is_none()
    }

    /// Returns how many replies each harm was done to.
    pub fn harmed(&self) -> [(Harm, usize); HARMS.len()] {
        HARMS.map(|harm| {
            (
                harm,
                self.shared.harmed[harm as usize].load(Ordering::Relaxed),
            )
        })
    }
}

impl Shared {
    fn pass(&self, mut from: TcpStream, mut into: TcpStream, mut rng: fastrand::Rng) {
        let (mut received, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        let (mut seen, mut held) = (0, None);
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            received.extend_from_slice(&buffer[..n]);
            let mut passed = Vec::new();
            while let Some(end) = frame(&received) {
                let reply: Vec<u8> = received.drain(..end).collect();
                seen += 1;
                // Messages are no answers.
                if seen <= HANDSHAKE || reply[0] == b'>' {
                    passed.extend(reply);
                    continue;
                }
                if let Some(other) = self.instead.lock().unwrap().take() {
                    passed.extend(other);
                    continue;
                }
                match self.harm(&mut rng) {
                    None => passed.extend(reply),
                    Some(Harm::Swallow) => {}
                    Some(Harm::Duplicate) => passed.extend(reply.repeat(2)),
                    Some(Harm::Swap) if held.is_none() => {
                        held = Some(reply);
                        continue;
                    }
                    Some(Harm::Swap) => passed.extend(reply),
                    Some(Harm::Unreadable) => passed.extend(UNREADABLE),
                    Some(Harm::Garble) => passed.extend(rng.choice(GARBLED).unwrap()),
                }
                passed.extend(held.take().unwrap_or_default());
            }
            if into.write_all(&passed).is_err() {
                break;
            }
        }
        drop(from.shutdown(Shutdown::Both));
        drop(into.shutdown(Shutdown::Both));
    }

    fn harm(&self, rng: &mut fastrand::Rng) -> Option<Harm> {
        let one_in = self.one_in.load(Ordering::Relaxed);
        let harm = (one_in > 0 && rng.u32(0..one_in) == 0).then(|| rng.choice(HARMS).unwrap());
        if let Some(harm) = harm {
            self.harmed[harm as usize].fetch_add(1, Ordering::Relaxed);
        }
        harm
    }
}

fn pass(mut from: TcpStream, mut into: TcpStream) {
    drop(std::io::copy(&mut from, &mut into));
    drop(from.shutdown(Shutdown::Both));
    drop(into.shutdown(Shutdown::Both));
}

/// Returns the length of the first reply, if it is complete.
fn frame(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")? + 2;
    let count = || {
        std::str::from_utf8(&bytes[1..line - 2])
            .unwrap()
            .parse::<i64>()
            .unwrap()
    };
    let items = |count: i64| (0..count).try_fold(line, |end, _| Some(end + frame(&bytes[end..])?));
    match bytes[0] {
        b'$' | b'=' | b'!' => {
            let end = usize::try_from(count()).map_or(line, |length| line + length + 2);
            (bytes.len() >= end).then_some(end)
        }
        b'*' | b'~' | b'>' => items(count()),
        b'%' => items(2 * count()),
        _ => Some(line),
    }
}
