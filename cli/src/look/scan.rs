//! Which locks there are, by SCAN.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockhound::servers::{ServerReply, Unanswered, Visit};

use super::kind::{At, Shape, sure_shape};
use super::post::{self, Post, ask, text, texts};
use crate::exit::{Failure, UNAVAILABLE};

/// How many keys a server looks at for one SCAN: it serves no other client meanwhile.
const COUNT: &str = "200";
/// How many keys are asked about at once.
pub(super) const AT_ONCE: usize = 50;
/// Progress is shown from then on, and so often.
const PROGRESS: Duration = Duration::from_secs(1);

/// What a scan tells: the locks by their names without the prefix, and notes for people.
type Told = (BTreeMap<String, Shape>, Vec<String>);

/// Asks all servers for keys that are locks.
pub(super) async fn scan(
    posts: &mut [Post],
    prefix: &str,
    pattern: &str,
    progress: Progress,
) -> Result<Told, Failure> {
    let all = posts.len();
    let in_cluster = posts.iter().any(Post::is_in_cluster);
    let needed = if in_cluster { all } else { all / 2 + 1 };
    let mut scan = Scan {
        pattern: format!("{}{pattern}", escaped(prefix)),
        prefix,
        in_cluster,
        found: BTreeMap::new(),
        unreadable: 0,
        moved: 0,
        progress,
    };
    let mut answered = 0;
    let mut notes = Vec::new();
    for post in posts {
        match scan.server(post).await {
            Ok(()) => answered += 1,
            // No other server has its locks.
            Err(why) if needed == all => return Err(post.failure(why)),
            Err(why) => notes.push(post.failure(why).message().to_owned()),
        }
    }
    if answered < needed {
        let problem = format!("only {answered} of {all} servers answered");
        return Err(Failure::new(UNAVAILABLE, problem));
    }
    if scan.unreadable > 0 {
        let unreadable = scan.unreadable;
        notes.push(format!(
            "this user may not read {unreadable} keys: they may be locks"
        ));
    }
    if scan.moved > 0 {
        let moved = scan.moved;
        notes.push(format!(
            "left out {moved} keys that have moved to another master: ask again"
        ));
    }
    Ok((scan.found, notes))
}

struct Scan<'a> {
    pattern: String,
    prefix: &'a str,
    in_cluster: bool,
    found: BTreeMap<String, Shape>,
    unreadable: usize,
    /// How many keys one master listed that another one has. That one may have been asked before it
    /// had them.
    moved: usize,
    progress: Progress,
}

impl Scan<'_> {
    async fn server(&mut self, post: &mut Post) -> Result<(), Unanswered> {
        let mut cursor = "0".to_owned();
        loop {
            let words = ["SCAN", &cursor, "MATCH", &self.pattern, "COUNT", COUNT];
            let page = post.ask(async |visit| ask(visit, &words).await).await?;
            let ServerReply::List(parts) = &page else {
                return Err(odd());
            };
            let (Some(next), Some(keys)) = (parts.first().and_then(text), parts.get(1)) else {
                return Err(odd());
            };
            for keys in texts(keys).chunks(AT_ONCE) {
                self.keys(post, keys).await?;
            }
            self.progress.tell(self.found.len());
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    async fn keys(&mut self, post: &mut Post, keys: &[String]) -> Result<(), Unanswered> {
        let in_cluster = self.in_cluster;
        let shapes = post
            .ask(async |visit| shapes(visit, keys, in_cluster).await)
            .await?;
        for (key, shape) in keys.iter().zip(shapes) {
            let Some(name) = key.strip_prefix(self.prefix) else {
                continue;
            };
            let shape = match shape {
                Ok(shape) => shape,
                Err(Unanswered::Forbidden(_)) => {
                    self.unreadable += 1;
                    continue;
                }
                // It has become something else.
                Err(Unanswered::Refused(why)) if why.contains("WRONGTYPE") => continue,
                Err(Unanswered::Refused(why)) if post::is_moved(&why) => {
                    self.moved += 1;
                    continue;
                }
                Err(why) => return Err(why),
            };
            let Some(shape) = shape else { continue };
            let shape = match self.found.remove(name) {
                Some(before) => before.or(shape),
                None => shape,
            };
            self.found.insert(name.to_owned(), shape);
        }
        Ok(())
    }
}

type Shapes = Vec<Result<Option<Shape>, Unanswered>>;

/// # Errors
/// [`Unanswered::Silent`], if one of the keys has no answer: then all are asked about again.
async fn shapes(visit: &Visit, keys: &[String], in_cluster: bool) -> Result<Shapes, Unanswered> {
    let shapes = keys
        .iter()
        .map(|key| sure_shape(visit, At { key, in_cluster }));
    let shapes = join_all(shapes).await.into_iter();
    shapes
        .map(|shape| match shape {
            Err(silent @ Unanswered::Silent(_)) => Err(silent),
            answered => Ok(answered),
        })
        .collect()
}

fn odd() -> Unanswered {
    Unanswered::Refused("the answer to SCAN is odd".to_owned())
}

/// Returns a pattern that matches only this text.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if "*?[]\\".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// A line on a terminal that says how far it is.
pub(crate) struct Progress {
    /// `None` if nothing is shown.
    next: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    /// Is shown on standard error if that is a terminal.
    pub(crate) fn shown() -> Self {
        let next = stderr().is_terminal().then(|| Instant::now() + PROGRESS);
        Self {
            next,
            is_shown: false,
        }
    }

    pub(crate) const fn hidden() -> Self {
        Self {
            next: None,
            is_shown: false,
        }
    }

    fn tell(&mut self, found: usize) {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = Some(now + PROGRESS);
        self.is_shown = true;
        // Nothing depends on it.
        drop(stderr().write_all(format!("\rlocks so far: {found}").as_bytes()));
    }
}

impl Drop for Progress {
    /// Clears its line, for what follows.
    fn drop(&mut self) {
        if self.is_shown {
            drop(stderr().write_all(b"\r\x1b[K"));
        }
    }
}
