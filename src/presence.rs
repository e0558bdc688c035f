//! Which servers of a locker are there: since when, and who is notified of a change.
//!
//! A connection that looks after a server says what it sees (`Presence::seen`), again and again. A
//! server that is away for longer than two command timeouts is logged once, and so is its return.
//!
//! # Invariants
//! - Nothing foreign runs while the mutex is held.
//! - A server counts for as long as its `Presence` lives.

use std::time::Duration;

use crate::clock::Instant;
use crate::foreign::log;
use crate::lease::majority;
use crate::stats::{Levels, NodeState, tell_server};
use crate::sync::{Arc, Mutex, OnceLock};

/// All servers of a locker.
#[derive(Default)]
pub(crate) struct Roll {
    servers: Mutex<Servers>,
    levels: Levels<2>,
    /// Called now and then, by a task that runs in any case.
    beat: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Servers {
    last: u64,
    entries: Vec<Entry>,
}

/// How the servers of a locker are related.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// It is the only one, or one of several that vote.
    Voter,
    /// It is a master of a cluster.
    Master,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    name: Arc<str>,
    part: Part,
    is_up: bool,
    /// Since when that is so.
    since: Instant,
    /// Whether it was logged that it is away.
    is_told: bool,
    /// Whether its vote counts while it is there.
    votes: bool,
}

impl Roll {
    /// Adds a server.
    pub(crate) fn add(self: &Arc<Self>, name: &Arc<str>, part: Part, is_up: bool) -> Arc<Presence> {
        let mut servers = self.servers.lock();
        servers.last += 1;
        let number = servers.last;
        let name = Arc::clone(name);
        let since = Instant::now();
        let entry = Entry {
            number,
            name: Arc::clone(&name),
            part,
            is_up,
            since,
            is_told: false,
            votes: true,
        };
        servers.entries.push(entry);
        drop(servers);
        tell_server(&name, is_up);
        self.tell_levels();
        Arc::new(Presence {
            roll: Arc::clone(self),
            number,
            name,
        })
    }

    /// Returns what is known about each server.
    pub(crate) fn nodes(&self, now: Instant) -> Vec<NodeState> {
        let state = |entry: &Entry| NodeState {
            node: Arc::clone(&entry.name),
            up: entry.is_up,
            lasts: now.since(entry.since),
            votes: entry.counts(),
        };
        self.servers.lock().entries.iter().map(state).collect()
    }

    /// Has this called now and then, from now on.
    pub(crate) fn on_beat(&self, call: impl Fn() + Send + Sync + 'static) {
        // It is set once, when the session begins.
        let _: Result<_, _> = self.beat.set(Box::new(call));
    }

    fn tell_levels(&self) {
        let servers = self.servers.lock();
        let counts = [servers.voting(), servers.entries.len()];
        drop(servers);
        self.levels.tell(
            [
                ("lockhound_servers_voting", None),
                ("lockhound_servers", None),
            ],
            counts,
        );
    }
}

impl std::fmt::Debug for Roll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Roll")
            .field("servers", &self.servers.lock().entries)
            .finish_non_exhaustive()
    }
}

impl Servers {
    fn voting(&self) -> usize {
        self.entries.iter().filter(|entry| entry.counts()).count()
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.number == number)
    }
}

impl Entry {
    fn counts(&self) -> bool {
        self.is_up && self.votes
    }
}

/// One server, for as long as the locker uses it.
#[derive(Debug)]
pub(crate) struct Presence {
    roll: Arc<Roll>,
    number: u64,
    name: Arc<str>,
}

impl Presence {
    /// Notes whether the server answers now, and if not, why. It is logged as away if that has
    /// lasted for longer than `blip`.
    pub(crate) fn seen(
        &self,
        is_up: bool,
        now: Instant,
        blip: Duration,
        reason: impl FnOnce() -> String,
    ) {
        let mut servers = self.roll.servers.lock();
        let Some(entry) = servers.entry(self.number) else {
            return;
        };
        let changes = entry.is_up != is_up;
        let lasted = now.since(entry.since);
        let was_told = entry.is_told;
        if changes {
            (entry.is_up, entry.since) = (is_up, now);
        }
        let is_news = if is_up {
            changes && was_told
        } else {
            !changes && !was_told && lasted > blip
        };
        if is_news {
            entry.is_told = !is_up;
        }
        let part = entry.part;
        let voting = servers.voting();
        let count = servers.entries.len();
        drop(servers);
        if changes {
            tell_server(&self.name, is_up);
            self.roll.tell_levels();
        }
        if is_news && is_up {
            let node = &self.name;
            log!(info, %node, away = ?lasted, voting, servers = count, "a server is back");
        } else if is_news {
            self.log_absence(part, voting, count, &reason());
        }
    }

    /// Notes that it was logged elsewhere that the server is away.
    pub(crate) fn is_known_to_be_away(&self) {
        if let Some(entry) = self.roll.servers.lock().entry(self.number) {
            entry.is_told = !entry.is_up;
        }
    }

    /// Ends what was logged of its absence: the locker uses the server no longer.
    pub(crate) fn is_out_of_use(&self) {
        let was_told = self
            .roll
            .servers
            .lock()
            .entry(self.number)
            .is_some_and(|entry| std::mem::take(&mut entry.is_told));
        if was_told {
            let node = &self.name;
            log!(info, %node, "a master that was away has no slots any more: it is not used");
        }
    }

    /// Notes whether the server's vote counts while it is there.
    pub(crate) fn votes(&self, votes: bool) {
        let mut servers = self.roll.servers.lock();
        let Some(entry) = servers.entry(self.number) else {
            return;
        };
        let changes = std::mem::replace(&mut entry.votes, votes) != votes;
        drop(servers);
        if changes {
            self.roll.tell_levels();
        }
    }

    /// Gives the locker an opportunity to report what it does not report at each change.
    pub(crate) fn beat(&self) {
        if let Some(call) = self.roll.beat.get() {
            call();
        }
    }

    fn log_absence(&self, part: Part, voting: usize, servers: usize, reason: &str) {
        let node = &self.name;
        if part == Part::Master {
            log!(
                warn, %node, reason,
                "a master of the cluster is away: callers wait for the locks of its slots"
            );
        } else if servers == 1 {
            log!(
                warn, %node, reason, "the server is away: callers wait, and no lease is renewed"
            );
        } else if voting > majority(servers) {
            log!(
                warn, %node, reason, voting, servers, "a server is away: the others continue without it"
            );
        } else if voting == majority(servers) {
            log!(
                warn, %node, reason, voting, servers, "a server is away: one more failure stops locking"
            );
        } else {
            log!(
                warn, %node, reason, voting, servers, "a server is away: too few are left to lock"
            );
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.roll
            .servers
            .lock()
            .entries
            .retain(|entry| entry.number != self.number);
        self.roll.tell_levels();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLIP: Duration = Duration::from_secs(6);
    const SECOND: Duration = Duration::from_secs(1);

    fn states(roll: &Roll) -> Vec<(bool, bool)> {
        roll.nodes(Instant::now())
            .iter()
            .map(|node| (node.up, node.votes))
            .collect()
    }

    fn is_told(presence: &Presence) -> bool {
        presence
            .roll
            .servers
            .lock()
            .entry(presence.number)
            .expect("it counts")
            .is_told
    }

    #[test]
    fn a_server_is_told_of_once_it_is_away_for_longer_than_a_blip() {
        let roll = Arc::<Roll>::default();
        let server = roll.add(&"redis://a".into(), Part::Voter, true);
        let now = Instant::now();
        let seen = |is_up, at| server.seen(is_up, now + at, BLIP, String::new);
        seen(false, SECOND);
        seen(false, SECOND * 7);
        assert!(!is_told(&server), "no longer than a blip");
        seen(true, SECOND * 7);
        seen(false, SECOND * 8);
        seen(false, SECOND * 14);
        assert!(!is_told(&server), "the time begins with each absence");
        seen(false, SECOND * 15);
        assert!(is_told(&server));
        assert_eq!(roll.nodes(now + SECOND * 20)[0].lasts, SECOND * 12);
        seen(true, SECOND * 20);
        assert!(!is_told(&server));
    }

    #[test]
    fn a_server_votes_if_it_is_there_and_its_vote_counts() {
        let roll = Arc::<Roll>::default();
        let [one, other] = ["a", "b"].map(|name| roll.add(&name.into(), Part::Voter, name == "a"));
        assert_eq!(states(&roll), [(true, true), (false, false)]);
        one.votes(false);
        other.seen(true, Instant::now(), BLIP, String::new);
        assert_eq!(states(&roll), [(true, false), (true, true)]);
        drop(one);
        assert_eq!(
            (states(&roll), roll.levels.told()),
            (vec![(true, true)], [1, 1])
        );
    }
}
