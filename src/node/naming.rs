//! Which server is the master, by what all Sentinels say. Pure: time comes from outside.
//!
//! Each failover has a number, its *configuration epoch*, which the Sentinels agree on by a
//! majority (*Redis Sentinel documentation*, "Configuration epochs"). So one Sentinel proves
//! nothing: it may be cut off with a deposed master, or may have been set up again. The order of
//! the epochs decides between Sentinels that differ.
//!
//! # Invariants
//! - A server is the master if more than half of the Sentinels that answer name it, unless a
//!   Sentinel that answers names another server with a later epoch. Then no server is, until they
//!   agree.
//! - The first master is not believed before more than half of all known Sentinels name it, or all
//!   have been asked and have had [`GRACE`] for it: one that is merely far away is heard.
//! - A master is replaced by one with a later epoch; by any other, and by one without an epoch,
//!   only after more than half of all known Sentinels have named it for [`GOING_BACK`], which a
//!   Sentinel that merely lags behind does not do.
//! - A master stays named while no Sentinel answers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::sync::watch;

use super::host_port::HostPort;
use crate::clock::Instant;
use crate::sync::Mutex;

/// How long Sentinels have to name a master with an earlier epoch: longer than the two seconds
/// after which a Sentinel that lags behind hears of a later one.
pub(super) const GOING_BACK: Duration = Duration::from_secs(5);

/// How long Sentinels have to answer before the first master is believed without a majority of them
/// all, unless `connect` has less time: a few round trips to another continent.
pub(super) const GRACE: Duration = Duration::from_secs(4);

/// What one Sentinel says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// It has not been heard yet.
    Nothing,
    /// It names this master, and the epoch of the last failover that it knows of, if it tells.
    Names {
        master: HostPort,
        epoch: Option<u64>,
    },
    /// It has no vote, for this reason.
    Fails(String),
}

/// Who is the master, or why that is unknown.
pub(super) type Verdict = Result<HostPort, String>;

/// What the Sentinels of one master say, and who is the master by that.
#[derive(Debug)]
pub(super) struct Naming {
    state: Mutex<State>,
    verdict: watch::Sender<Verdict>,
}

#[derive(Debug, Default)]
struct State {
    /// At most [`GRACE`].
    grace: Duration,
    sentinels: BTreeMap<HostPort, Sentinel>,
    /// When the first Sentinel named a master.
    first_heard: Option<Instant>,
    /// The last master that was named, and the epoch of the failover that made it the master.
    last: Option<(HostPort, u64)>,
    /// Since when more than half of all known Sentinels name another server, though its epoch is
    /// not later.
    going_back: Option<(HostPort, Instant)>,
}

#[derive(Debug, Clone)]
struct Sentinel {
    /// The id that it has under each of its addresses.
    id: Option<String>,
    said: Said,
    /// Whether the user names it.
    configured: bool,
    /// Whether it has ever named a master. The address that one Sentinel reports for another may
    /// lead nowhere.
    heard: bool,
}

impl Default for Naming {
    fn default() -> Self {
        let verdict = Err("no Sentinel has answered yet".to_owned());
        let state = State {
            grace: GRACE,
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            verdict: watch::Sender::new(verdict),
        }
    }
}

impl Naming {
    /// Leaves time to `connect` for what follows.
    pub(super) fn hurry(&self, connect_timeout: Duration) {
        self.state.lock().grace = GRACE.min(connect_timeout / 2);
    }

    /// Returns who is the master, and each change.
    pub(super) fn verdict(&self) -> watch::Receiver<Verdict> {
        self.verdict.subscribe()
    }

    /// Returns whether this server is the master now.
    pub(super) fn is_master(&self, place: &HostPort) -> bool {
        self.verdict.borrow().as_ref() == Ok(place)
    }

    /// Returns the master.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn master(&self) -> Verdict {
        self.verdict.borrow().clone()
    }

    /// Adds a Sentinel that the user names (`configured`) or that another Sentinel reports, before
    /// it has been asked.
    pub(super) fn add(&self, sentinel: HostPort, configured: bool) {
        let unheard = Sentinel {
            id: None,
            said: Said::Nothing,
            configured,
            heard: false,
        };
        self.state
            .lock()
            .sentinels
            .entry(sentinel)
            .or_insert(unheard);
    }

    /// Forgets a Sentinel.
    pub(super) fn remove(&self, sentinel: &HostPort, now: Instant) {
        let mut state = self.state.lock();
        state.sentinels.remove(sentinel);
        self.judge(&mut state, now);
    }

    /// Takes in what a Sentinel says, and its id, if it tells.
    pub(super) fn hear(&self, sentinel: &HostPort, id: Option<String>, said: Said, now: Instant) {
        let mut state = self.state.lock();
        let Some(known) = state.sentinels.get_mut(sentinel) else {
            return;
        };
        let names = matches!(said, Said::Names { .. });
        known.heard |= names;
        if id.is_some() {
            known.id = id;
        }
        known.said = said;
        if names {
            state.first_heard.get_or_insert(now);
        }
        self.judge(&mut state, now);
    }

    /// Returns whether the user names this Sentinel.
    pub(super) fn is_configured(&self, place: &HostPort) -> bool {
        self.state
            .lock()
            .sentinels
            .get(place)
            .is_some_and(|known| known.configured)
    }

    /// Returns whether a Sentinel at this address is known, or one with this id that answers.
    pub(super) fn knows(&self, id: &str, place: &HostPort) -> bool {
        let is_it = |known: &Sentinel| {
            known.id.as_deref() == Some(id) && matches!(known.said, Said::Names { .. })
        };
        let state = self.state.lock();
        state.sentinels.contains_key(place) || state.sentinels.values().any(is_it)
    }

    /// Decides again, since time has passed.
    pub(super) fn reconsider(&self, now: Instant) {
        self.judge(&mut self.state.lock(), now);
    }

    fn judge(&self, state: &mut State, now: Instant) {
        let verdict = state.judge(now).ok_or_else(|| state.to_string());
        self.verdict.send_if_modified(|last| {
            let is_news = *last != verdict;
            *last = verdict;
            is_news
        });
    }
}

/// The server that more than half of the Sentinels that answer name.
struct Candidate {
    place: HostPort,
    /// The latest epoch that they tell.
    epoch: Option<u64>,
    /// Whether they are more than half of all known Sentinels, too.
    is_of_all: bool,
    /// Whether they would be so if every address that was told were that of one more Sentinel.
    is_certain: bool,
}

impl State {
    /// Returns the Sentinels, each once: one that is known by several addresses has one vote.
    fn voters(&self) -> Vec<&Sentinel> {
        let mut voters: Vec<&Sentinel> = Vec::new();
        for sentinel in self.sentinels.values() {
            match voters
                .iter_mut()
                .find(|other| other.id.is_some() && other.id == sentinel.id)
            {
                // The address that answers speaks for the others of the same Sentinel.
                Some(twin) if matches!(sentinel.said, Said::Names { .. }) => *twin = sentinel,
                Some(_) => {}
                None => voters.push(sentinel),
            }
        }
        voters
    }

    /// Returns whether a Sentinel names another server with a later epoch.
    fn is_deposed(&self, place: &HostPort, epoch: u64) -> bool {
        self.sentinels
            .values()
            .any(|sentinel| match &sentinel.said {
                Said::Names {
                    master,
                    epoch: Some(later),
                } => master != place && *later > epoch,
                _ => false,
            })
    }

    fn candidate(&self) -> Option<Candidate> {
        let voters = self.voters();
        let named: Vec<_> = voters
            .iter()
            .filter_map(|voter| match &voter.said {
                Said::Names { master, epoch } => Some((master, *epoch)),
                Said::Nothing | Said::Fails(_) => None,
            })
            .collect();
        let votes = |place: &HostPort| named.iter().filter(|(master, _)| *master == place).count();
        let (place, _) = named
            .iter()
            .find(|(place, _)| 2 * votes(place) > named.len())?;
        let epoch = named
            .iter()
            .filter(|(master, _)| master == place)
            .filter_map(|named| named.1)
            .max();
        // An address that was only told may lead nowhere, and must make no majority impossible.
        let known = voters
            .iter()
            .filter(|voter| voter.configured || voter.heard)
            .count();
        let is_of_all = 2 * votes(place) > known;
        let is_certain = 2 * votes(place) > voters.len();
        let candidate = Candidate {
            place: (*place).clone(),
            epoch,
            is_of_all,
            is_certain,
        };
        let is_deposed = epoch.is_some_and(|epoch| self.is_deposed(place, epoch));
        (!is_deposed).then_some(candidate)
    }

    /// Decides who is the master now.
    fn judge(&mut self, now: Instant) -> Option<HostPort> {
        let candidate = self.candidate();
        let Some((last, last_epoch)) = self.last.clone() else {
            // Otherwise a Sentinel that lags behind would be believed because it is the nearest.
            let all_asked = self
                .sentinels
                .values()
                .all(|sentinel| sentinel.said != Said::Nothing)
                && self
                    .first_heard
                    .is_some_and(|first| now.since(first) >= self.grace);
            let first = candidate.filter(|candidate| candidate.is_certain || all_asked)?;
            self.last = Some((first.place.clone(), first.epoch.unwrap_or(0)));
            return Some(first.place);
        };
        let mut goes_back = None;
        if let Some(Candidate {
            place,
            epoch,
            is_of_all,
            ..
        }) = candidate
        {
            let is_later = epoch.is_some_and(|epoch| epoch > last_epoch);
            goes_back = is_of_all
                .then(|| self.since(&place, now))
                .filter(|_| place != last && !is_later);
            // A Sentinel that merely lags behind does not name an earlier master for so long.
            let is_over = goes_back
                .as_ref()
                .is_some_and(|(_, since)| now.since(*since) >= GOING_BACK);
            if is_later || is_over || (place == last && is_of_all) {
                self.going_back = None;
                self.last = Some((place.clone(), epoch.unwrap_or(last_epoch)));
                return Some(place);
            }
        }
        self.going_back = goes_back;
        // Without an agreement the last master stays, unless somebody knows of a later failover.
        (!self.is_deposed(&last, last_epoch)).then_some(last)
    }

    /// Returns since when more than half of all known Sentinels name this server.
    fn since(&self, place: &HostPort, now: Instant) -> (HostPort, Instant) {
        match &self.going_back {
            Some((named, since)) if named == place => (place.clone(), *since),
            _ => (place.clone(), now),
        }
    }
}

impl fmt::Display for State {
    /// Formats what each Sentinel says, as the reason why there is no master.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disagree = self
            .sentinels
            .values()
            .any(|sentinel| matches!(sentinel.said, Said::Names { .. }));
        f.write_str(if disagree {
            "the Sentinels do not agree on a master"
        } else {
            "no Sentinel names a master"
        })?;
        for (at, (place, sentinel)) in self.sentinels.iter().enumerate() {
            f.write_str(if at == 0 { ": " } else { "; " })?;
            match &sentinel.said {
                Said::Nothing => write!(f, "{place} has not answered yet")?,
                Said::Names {
                    master,
                    epoch: Some(epoch),
                } => write!(f, "{place} names {master} (epoch {epoch})")?,
                Said::Names {
                    master,
                    epoch: None,
                } => write!(f, "{place} names {master}")?,
                Said::Fails(reason) => write!(f, "{place} {reason}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str) -> HostPort {
        HostPort {
            host: host.into(),
            port: 1,
        }
    }

    /// Three Sentinels that the user names.
    fn three() -> Naming {
        let naming = Naming::default();
        ["s0", "s1", "s2"]
            .iter()
            .for_each(|sentinel| naming.add(place(sentinel), true));
        naming
    }

    fn at(
        naming: &Naming,
        now: Instant,
        sentinel: &str,
        master: &str,
        epoch: impl Into<Option<u64>>,
    ) {
        naming.hear(
            &place(sentinel),
            None,
            Said::Names {
                master: place(master),
                epoch: epoch.into(),
            },
            now,
        );
    }

    fn fails(naming: &Naming, now: Instant, sentinel: &str) {
        naming.hear(
            &place(sentinel),
            None,
            Said::Fails("does not answer".to_owned()),
            now,
        );
    }

    fn master(naming: &Naming) -> Option<String> {
        naming.master().ok().map(|place| place.host.to_string())
    }

    fn is(naming: &Naming, host: &str) -> bool {
        master(naming).as_deref() == Some(host)
    }

    #[test]
    fn first_master_is_named_by_most_of_all_or_of_those_that_answer() {
        let now = Instant::now();
        // A stale Sentinel that is heard first decides nothing.
        for order in [["s0", "s1", "s2"], ["s1", "s0", "s2"], ["s1", "s2", "s0"]] {
            let naming = three();
            for (heard, sentinel) in order.into_iter().enumerate() {
                let stale = sentinel == "s0";
                at(
                    &naming,
                    now,
                    sentinel,
                    if stale { "a" } else { "b" },
                    u64::from(!stale),
                );
                assert!(
                    heard == 2 || master(&naming).is_none() || is(&naming, "b"),
                    "{order:?}"
                );
            }
            assert!(is(&naming, "b"), "{order:?}");
        }
        let naming = three();
        at(&naming, now, "s1", "b", 1);
        fails(&naming, now, "s0");
        naming.reconsider(now + GRACE);
        assert_eq!(master(&naming), None, "the third has not been asked");
        fails(&naming, now, "s2");
        assert_eq!(master(&naming), None, "the others may be far away");
        naming.reconsider(now + GRACE);
        assert!(is(&naming, "b"), "it is the only one that answers");
    }

    #[test]
    fn a_later_epoch_deposes_and_most_of_those_that_answer_name() {
        let now = Instant::now();
        let naming = three();
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "a", 0));
        at(&naming, now, "s1", "b", 1);
        let reason = naming
            .master()
            .expect_err("deposed, and no other server has a majority");
        assert!(
            reason.contains("s0:1 names a:1 (epoch 0); s1:1 names b:1 (epoch 1)"),
            "{reason}"
        );
        at(&naming, now, "s2", "b", 1);
        assert!(is(&naming, "b"));
        // It lags behind, for as long as it likes.
        at(&naming, now + GOING_BACK, "s0", "a", 0);
        at(&naming, now + 2 * GOING_BACK, "s0", "a", 0);
        assert!(is(&naming, "b"));
    }

    #[test]
    fn a_stale_sentinel_that_comes_back_first_is_not_believed() {
        let now = Instant::now();
        let naming = three();
        at(&naming, now, "s0", "a", 0);
        ["s1", "s2"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "b", 1));
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| fails(&naming, now, sentinel));
        assert!(
            is(&naming, "b"),
            "the master stays while no Sentinel answers"
        );
        for seconds in 0..100 {
            at(&naming, now + Duration::from_secs(seconds), "s0", "a", 0);
            assert!(is(&naming, "b"), "one of three, after {seconds} s");
        }
        // Neither while the later epoch was only told by one that is gone again.
        at(&naming, now, "s1", "c", 2);
        assert_eq!(master(&naming), None, "deposed");
        fails(&naming, now, "s1");
        assert!(is(&naming, "b"));
    }

    #[test]
    fn sentinels_that_were_set_up_again_are_believed_after_seconds() {
        let now = Instant::now();
        let naming = three();
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "b", 7));
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| fails(&naming, now, sentinel));
        ["s0", "s1"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "a", 0));
        assert!(is(&naming, "b"), "they may lag behind");
        let later = now + GOING_BACK;
        at(&naming, later, "s1", "a", 0);
        assert!(is(&naming, "a"), "most of all name it for long enough");
        // They count from there on.
        ["s0", "s1"]
            .into_iter()
            .for_each(|sentinel| at(&naming, later, sentinel, "b", 1));
        assert!(is(&naming, "b"));
    }

    #[test]
    fn going_back_begins_anew_when_the_majority_is_interrupted() {
        let now = Instant::now();
        let naming = three();
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "b", 7));
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| fails(&naming, now, sentinel));
        ["s0", "s1"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "a", 0));
        fails(&naming, now + GOING_BACK / 2, "s1");
        at(&naming, now + GOING_BACK, "s1", "a", 0);
        assert!(is(&naming, "b"));
        // The third one still knows of the later failover.
        at(&naming, now + GOING_BACK, "s2", "b", 7);
        at(&naming, now + 3 * GOING_BACK, "s1", "a", 0);
        assert!(is(&naming, "b"));
    }

    #[test]
    fn sentinels_that_count_again_with_the_same_master_are_followed() {
        let now = Instant::now();
        let naming = three();
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "a", 7));
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "a", 0));
        ["s0", "s1"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "b", 1));
        assert!(is(&naming, "b"));
    }

    #[test]
    fn a_sentinel_with_two_addresses_has_one_vote() {
        let now = Instant::now();
        let naming = three();
        naming.add(place("10.0.0.1"), false);
        let hear = |sentinel: &str, id: &str, master: &str| {
            let said = Said::Names {
                master: place(master),
                epoch: Some(0),
            };
            naming.hear(&place(sentinel), Some(id.to_owned()), said, now);
        };
        assert!(!naming.knows("zero", &place("10.0.0.9")));
        hear("s0", "zero", "a");
        hear("10.0.0.1", "zero", "a");
        assert!(
            naming.knows("zero", &place("10.0.0.9")) && naming.knows("other", &place("10.0.0.1"))
        );
        hear("s1", "one", "b");
        assert_eq!(master(&naming), None, "one against one");
        hear("s2", "two", "b");
        assert!(is(&naming, "b"));
    }

    #[test]
    fn an_address_that_was_told_and_leads_nowhere_does_not_count() {
        let now = Instant::now();
        let naming = Naming::default();
        naming.add(place("s0"), true);
        ["t1", "t2"]
            .into_iter()
            .for_each(|told| naming.add(place(told), false));
        at(&naming, now, "s0", "a", 7);
        assert_eq!(
            master(&naming),
            None,
            "it names two more, who have not been asked"
        );
        ["t1", "t2"]
            .into_iter()
            .for_each(|told| fails(&naming, now, told));
        naming.reconsider(now + GRACE);
        assert!(is(&naming, "a"));
        at(&naming, now, "s0", "b", 0);
        at(&naming, now + GOING_BACK, "s0", "b", 0);
        assert!(is(&naming, "b"));
    }

    #[test]
    fn a_sentinel_that_tells_no_epoch_counts_and_deposes_nobody() {
        let now = Instant::now();
        let naming = three();
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "a", 7));
        ["s0", "s1"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "b", None));
        assert!(is(&naming, "a"), "they may lag behind");
        at(&naming, now + GOING_BACK, "s1", "b", None);
        assert!(is(&naming, "b"));
    }

    #[test]
    fn a_lone_stale_sentinel_without_an_epoch_is_not_believed() {
        let now = Instant::now();
        let naming = three();
        ["s1", "s2"]
            .into_iter()
            .for_each(|sentinel| at(&naming, now, sentinel, "b", 1));
        at(&naming, now, "s0", "a", 0);
        ["s0", "s1", "s2"]
            .into_iter()
            .for_each(|sentinel| fails(&naming, now, sentinel));
        at(&naming, now, "s0", "a", None);
        naming.reconsider(now + 2 * GOING_BACK);
        assert!(is(&naming, "b"), "{:?}", naming.master());
    }

    #[test]
    fn an_id_counts_as_known_only_while_its_sentinel_answers() {
        let now = Instant::now();
        let naming = three();
        let said = Said::Names {
            master: place("a"),
            epoch: Some(0),
        };
        naming.hear(&place("s0"), Some("zero".to_owned()), said, now);
        assert!(naming.knows("zero", &place("moved")));
        fails(&naming, now, "s0");
        assert!(
            !naming.knows("zero", &place("moved")),
            "it may have moved there"
        );
    }
}
