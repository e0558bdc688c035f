//! What is on the servers: which locks there are, who has them, and who waits.
//!
//! A key says by its type and shape which kind of lock it is (`kind`). The library's own calls tell
//! who has it (`Looking::read`), since they know about majorities, clusters and labels. What it has
//! no call for is asked on connections of our own (`post`): the waiters, and the fence.

mod kind;
mod names;
mod post;
mod scan;
mod seen;

use std::time::Duration;

use futures_util::future::join_all;
use humantime::parse_duration;
use lockhound::servers::Unanswered;
use lockhound::{Error, Locker};

pub(crate) use self::kind::Kind;
use self::kind::{At, Shape};
use self::post::Post;
pub(crate) use self::scan::Progress;
pub(crate) use self::seen::{Holding, Seen, Waiting, lease, shown};
use crate::exit::{self, Failure};
use crate::place::Place;

/// Reads the time between two refreshes.
///
/// # Errors
/// Refuses times that would keep a server busy.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|e| e.to_string())?;
    if time < Duration::from_millis(10) {
        return Err("it is less than 10ms".to_owned());
    }
    Ok(time)
}

/// A locker that locks nothing, and a connection to each of its servers.
pub(crate) struct Looking {
    locker: Locker,
    /// Of a cluster, the masters at the last question: see [`Self::find_servers`].
    posts: Vec<Post>,
    /// What the locker puts before each name.
    prefix: String,
}

impl Looking {
    /// Connects to the servers.
    pub(crate) async fn at(place: &Place) -> Result<Self, Failure> {
        let locker = place.builder()?.connect().await?;
        let named = locker.get("k");
        let prefix = named.key().as_str().strip_suffix('k');
        Ok(Self {
            posts: Vec::new(),
            prefix: prefix.unwrap_or_default().to_owned(),
            locker,
        })
    }

    /// Learns which servers there are now: a failover replaces the masters of a cluster.
    /// Connections to servers that are still there stay open.
    async fn find_servers(&mut self) -> Result<(), Failure> {
        let mut before = std::mem::take(&mut self.posts);
        let servers = self.locker.servers().await?;
        let posts = servers.into_iter().map(|server| {
            let known = before.iter().position(|post| post.name() == server.name());
            match known {
                Some(at) => before.swap_remove(at).at(server),
                None => Post::new(server),
            }
        });
        self.posts = posts.collect();
        Ok(())
    }

    pub(crate) fn locker(&self) -> &Locker {
        &self.locker
    }

    pub(crate) async fn close(&self) {
        self.locker.close().await;
    }

    /// Looks at one lock. Its kind is `None` if the key is free.
    ///
    /// # Errors
    /// [`exit::USAGE`] for a key that is no lock, [`exit::UNAVAILABLE`] without a server.
    pub(crate) async fn look(&mut self, name: &str) -> Result<Seen, Failure> {
        self.find_servers().await?;
        let shape = self.shape(name).await?;
        if let Some(other) = shape.other {
            let problem = format!("{} is no lock: it has a {other}", shown(name));
            return Err(Failure::usage(problem));
        }
        let mut seen = self.read(name, shape).await?;
        self.label(std::slice::from_mut(&mut seen)).await;
        Ok(seen)
    }

    /// Asks all servers what a key looks like.
    async fn shape(&mut self, name: &str) -> Result<Shape, Failure> {
        let key = format!("{}{name}", self.prefix);
        let asked = self.posts.iter_mut().map(|post| {
            let at = At {
                key: &key,
                in_cluster: post.is_in_cluster(),
            };
            post.ask(async move |visit| kind::shape(visit, at).await)
        });
        let mut shapes = Vec::new();
        let mut failure = None;
        for (answer, post) in join_all(asked).await.into_iter().zip(&self.posts) {
            match answer {
                Ok(shape) => shapes.push(shape),
                // Another master of the cluster has it.
                Err(Unanswered::Refused(why)) if post::is_moved(&why) => {}
                Err(why) => failure = Some(post.failure(why)),
            }
        }
        let is_cluster = self.posts.iter().any(Post::is_in_cluster);
        let needed = if is_cluster {
            1
        } else {
            self.posts.len() / 2 + 1
        };
        if shapes.len() < needed {
            let none = "no known master of the cluster has the slot of this key";
            return Err(failure.unwrap_or_else(|| Failure::new(exit::UNAVAILABLE, none)));
        }
        Ok(shapes.into_iter().reduce(Shape::or).unwrap_or_default())
    }

    /// Asks who has a lock of this shape.
    async fn read(&self, name: &str, shape: Shape) -> Result<Seen, Error> {
        let mut seen = Seen {
            key: name.to_owned(),
            kind: shape.kind,
            is_unsure: shape.is_unsure,
            left: shape.count,
            fence: shape.fence,
            waiters: shape.waiters.into_iter().map(Waiting::new).collect(),
            ..Seen::default()
        };
        match shape.kind {
            None | Some(Kind::Counter) => {}
            Some(Kind::Lock | Kind::Fair | Kind::Election | Kind::Plain) => {
                seen.hold(self.locker.get(name).holder().await?.as_ref());
            }
            Some(Kind::ReadWrite) => seen.read_write(&self.locker.rw(name).holders().await?),
            Some(Kind::Permits) => seen.permits(&self.locker.permits(name).usage().await?),
            Some(Kind::Semaphore) => seen.permits(&self.locker.semaphore(name).usage().await?),
            Some(Kind::Latch) => {
                let count = self.locker.latch(name).count().await?;
                seen.left = Some(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        // It was released, or opened, since its shape was seen.
        let is_free = seen.holders.is_empty()
            && match shape.kind {
                Some(Kind::Permits | Kind::Semaphore | Kind::Counter) => seen.left.is_none(),
                Some(Kind::Latch) => seen.left == Some(0),
                _ => true,
            };
        if is_free {
            seen.kind = None;
        }
        Ok(seen)
    }

    /// Adds the labels of those that wait. Labels of holders come from the library.
    async fn label(&mut self, locks: &mut [Seen]) {
        let mut lockers: Vec<String> = locks
            .iter()
            .flat_map(|seen| &seen.waiters)
            .filter_map(|waiting| names::locker_of(&waiting.owner).map(str::to_owned))
            .collect();
        lockers.sort_unstable();
        lockers.dedup();
        if lockers.is_empty() {
            return;
        }
        // A label is in another slot than the lock.
        let asked = self.posts.iter_mut().map(|post| post.labels(&lockers));
        let found: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        for waiting in locks.iter_mut().flat_map(|seen| &mut seen.waiters) {
            let locker = names::locker_of(&waiting.owner);
            let label = found.iter().find(|(of, _)| Some(of.as_str()) == locker);
            waiting.label = label.map(|(_, label)| label.clone());
        }
    }

    /// Lists the locks whose names match a pattern, sorted by name, and what people should know
    /// about the list.
    ///
    /// # Errors
    /// [`exit::UNAVAILABLE`] if a master of the cluster, or a majority of several servers, does not
    /// answer.
    pub(crate) async fn list(
        &mut self,
        pattern: &str,
        progress: Progress,
    ) -> Result<(Vec<Seen>, Vec<String>), Failure> {
        self.find_servers().await?;
        let found = scan::scan(&mut self.posts, &self.prefix, pattern, progress).await?;
        let (found, mut notes) = found;
        let mut locks = Vec::with_capacity(found.len());
        let mut left_out = Vec::new();
        let found: Vec<_> = found.into_iter().collect();
        for some in found.chunks(scan::AT_ONCE) {
            let reads = some
                .iter()
                .map(async |(name, shape)| (name, self.read(name, shape.clone()).await));
            for (name, read) in join_all(reads).await {
                match read {
                    Ok(seen) => locks.extend(seen.kind.is_some().then_some(seen)),
                    Err(gone @ (Error::Unavailable { .. } | Error::Closed)) => {
                        return Err(gone.into());
                    }
                    Err(error) => left_out.push((name, error)),
                }
            }
        }
        if let [(name, error), ..] = &left_out[..] {
            let (count, name) = (left_out.len(), shown(name));
            notes.push(format!("left out {count}, such as {name}: {error}"));
        }
        self.label(&mut locks).await;
        Ok((locks, notes))
    }
}
