//! How soon holders are told of a loss, by its kind.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use lockhound::{Guard, HoldState, Locker, Loss};
use tokio::task::JoinHandle;

use super::proxy::{Mode, Proxy};
use super::{Server, key};

/// The lease of these locks, which are renewed every third of it.
pub const LEASE: Duration = Duration::from_millis(3_000);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The server is stopped.
    Silence,
    /// Every reply to a renewal is swallowed, and its connection cut.
    SwallowedReplies,
    Deleted,
    Replaced,
    FlushAll,
    /// `force_unlock` by another locker.
    ForceUnlock,
    WrongType,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Silence,
        Self::SwallowedReplies,
        Self::Deleted,
        Self::Replaced,
        Self::FlushAll,
        Self::ForceUnlock,
        Self::WrongType,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Silence => "server stopped",
            Self::SwallowedReplies => "replies swallowed",
            Self::Deleted => "key deleted",
            Self::Replaced => "key replaced",
            Self::FlushAll => "FLUSHALL",
            Self::ForceUnlock => "force_unlock elsewhere",
            Self::WrongType => "key of another type",
        }
    }

    /// Returns whether time causes the loss: then its token has to fire before the lease is over.
    fn is_of_time(self) -> bool {
        matches!(self, Self::Silence | Self::SwallowedReplies)
    }
}

/// How soon the token of each lock fired: after the send of the last renewal that succeeded if time
/// caused the loss, after the deed (the deletion, say) otherwise.
pub struct Losses {
    pub kind: Kind,
    pub after: Vec<Duration>,
}

/// Causes losses of one kind, and measures them.
///
/// # Panics
/// If a token fires late: after the lease, or later than the next renewal and a round trip on a
/// busy machine.
pub async fn lose(kind: Kind, many: usize) -> Losses {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = Locker::builder()
        .node(proxy.url())
        .lease(LEASE)
        .connect()
        .await
        .unwrap();
    let mut guards: Vec<Guard> = Vec::new();
    for _ in 0..many {
        guards.push(locks.get(key()).lock().await.unwrap());
    }
    let keys: Vec<String> = server.command(&["KEYS", "test:*"]);
    let deed = Instant::now();
    // For the other kinds the tokens are watched from before the deed.
    let early = if kind.is_of_time() {
        None
    } else {
        Some(watch(std::mem::take(&mut guards), |_| deed))
    };
    commit(kind, &server, &proxy, &keys).await;
    let done = deed.elapsed();
    let watching = match early {
        Some(watching) => watching,
        None => {
            // An answer that was on its way may still count; after that nothing extends the
            // validity.
            tokio::time::sleep(Duration::from_millis(200)).await;
            watch(guards, sent)
        }
    };
    let mut after = Vec::new();
    for task in watching {
        let (fired, guard) = task.await.unwrap();
        let HoldState::Lost(loss) = guard.state() else {
            panic!("{kind:?}: {guard:?}")
        };
        let (bound, expected) = if kind.is_of_time() {
            (LEASE, [Loss::RenewalFailed, Loss::Expired])
        } else {
            (
                LEASE / 3 + done + Duration::from_millis(400),
                [Loss::NotOwner, Loss::NotOwner],
            )
        };
        assert!(expected.contains(&loss), "{kind:?}: {loss}");
        assert!(
            fired < bound,
            "{kind:?}: after {fired:?}, later than {bound:?}"
        );
        after.push(fired);
    }
    if kind == Kind::Silence {
        server.go_on();
    }
    proxy.set(Mode::Pass);
    after.sort_unstable();
    Losses { kind, after }
}

/// Returns when the last successful renewal was sent: validity is the lease less the drift, from
/// then on.
fn sent(guard: &Guard) -> Instant {
    let validity = LEASE - LEASE / 100 - Duration::from_millis(2);
    Instant::now() + guard.remaining() - validity
}

/// Waits for the tokens, and returns how long after `from` each of them fired.
fn watch(
    guards: Vec<Guard>,
    from: impl Fn(&Guard) -> Instant,
) -> Vec<JoinHandle<(Duration, Guard)>> {
    let waiting = guards.into_iter().map(|guard| {
        let from = from(&guard);
        tokio::spawn(async move {
            guard.lost().cancelled().await;
            (from.elapsed(), guard)
        })
    });
    waiting.collect()
}

async fn commit(kind: Kind, server: &Server, proxy: &Proxy, keys: &[String]) {
    let each = |deed: &dyn Fn(&mut redis::Pipeline, &str)| {
        let mut pipeline = redis::pipe();
        keys.iter().for_each(|key| deed(&mut pipeline, key));
        pipeline.exec(&mut server.connection().unwrap()).unwrap();
    };
    match kind {
        Kind::Silence => server.stop(),
        Kind::SwallowedReplies => {
            proxy.set(Mode::SwallowReplyTo(b"EVALSHA".to_vec()));
        }
        Kind::Deleted => each(&|pipeline, key| _ = pipeline.cmd("DEL").arg(key)),
        Kind::Replaced => each(&|pipeline, key| {
            pipeline
                .cmd("DEL")
                .arg(key)
                .cmd("HSET")
                .arg(key)
                .arg("thief:1")
                .arg(1);
        }),
        Kind::FlushAll => server.command(&["FLUSHALL"]),
        Kind::ForceUnlock => {
            let elsewhere = Locker::connect(server.url()).await.unwrap();
            for key in keys {
                assert!(elsewhere.get(key).force_unlock().await.unwrap());
            }
        }
        Kind::WrongType => each(&|pipeline, key| _ = pipeline.cmd("SET").arg(key).arg("something")),
    }
}

/// Returns the distributions as a table.
pub fn table(all: &[Losses]) -> String {
    let mut text = format!(
        "lease {LEASE:?}, renewed every {:?}; times in ms\n",
        LEASE / 3
    );
    writeln!(
        text,
        "{:<24}{:>6}{:>8}{:>8}{:>8}{:>8}  after",
        "loss", "n", "min", "p50", "p99", "max"
    )
    .unwrap();
    for losses in all {
        let at = |q: usize| losses.after[(losses.after.len() - 1) * q / 100].as_millis();
        let (name, n) = (losses.kind.name(), losses.after.len());
        let since = if losses.kind.is_of_time() {
            "the send"
        } else {
            "the deed"
        };
        writeln!(
            text,
            "{name:<24}{n:>6}{:>8}{:>8}{:>8}{:>8}  {since}",
            at(0),
            at(50),
            at(99),
            at(100)
        )
        .unwrap();
    }
    text
}

/// Returns the distributions as a picture, with a row per kind and a stroke per loss.
pub fn picture(all: &[Losses]) -> String {
    let x = |time: Duration| 190.0 + time.as_secs_f64() / LEASE.as_secs_f64() * 480.0;
    let height = 60 + all.len() * 34;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let marks = [
        ("0", Duration::ZERO),
        ("lease / 3", LEASE / 3),
        ("2/3", LEASE * 2 / 3),
        ("lease", LEASE),
    ];
    for (name, time) in marks {
        let (x, bottom) = (x(time), height - 24);
        writeln!(
            svg,
            "<line x1=\"{x}\" x2=\"{x}\" y1=\"24\" y2=\"{bottom}\" stroke=\"#bbb\"/>"
        )
        .unwrap();
        writeln!(
            svg,
            "<text x=\"{x}\" y=\"16\" text-anchor=\"middle\" fill=\"#555\">{name}</text>"
        )
        .unwrap();
    }
    for (row, losses) in all.iter().enumerate() {
        let y = 34 + row * 34;
        let colour = if losses.kind.is_of_time() {
            "#b3541e"
        } else {
            "#1e6fb3"
        };
        writeln!(
            svg,
            "<text x=\"180\" y=\"{}\" text-anchor=\"end\">{}</text>",
            y + 14,
            losses.kind.name()
        )
        .unwrap();
        let strokes = losses.after.iter().fold(String::new(), |mut path, &time| {
            write!(path, "M{:.1} {y}v20", x(time)).unwrap();
            path
        });
        writeln!(
            svg,
            "<path d=\"{strokes}\" stroke=\"{colour}\" stroke-width=\"1\" stroke-opacity=\"0.15\"/>"
        )
        .unwrap();
    }
    let legend = "orange: after the send of the last success (it must end before the lease); blue: after the deed";
    writeln!(
        svg,
        "<text x=\"190\" y=\"{}\" fill=\"#555\">{legend}</text>\n</svg>",
        height - 8
    )
    .unwrap();
    svg
}
