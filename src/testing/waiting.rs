//! The waiting lists of lockers, as the scripts keep them.

use super::keyspace::{Member, WrongType, millis};
use super::store::{Failure, Run};
use crate::command::{Acquire, Listing, Place, Release, Releaser, WAKE, Wakes};
use crate::key::Key;

/// The most lockers without a subscriber that one script takes off a list.
const MOST: usize = 100;

impl Run<'_> {
    /// Returns the answer to an acquire, and puts its locker into the list or takes it off.
    pub(super) fn enlist(
        &mut self,
        key: &Key,
        listing: &Listing,
        answer: Result<Acquire, Failure>,
    ) -> Result<Acquire, Failure> {
        let list = key.waiting();
        match answer {
            // With an unreadable fence the locker has the lock, too.
            Ok(Acquire::Granted(_)) | Err(Failure::Unreadable) => {
                let _: Result<_, _> = self.strike_out(key, &list, listing);
                answer
            }
            // A locker without a place in the list is told of releases by the lock's channel.
            Ok(Acquire::Held(ttl) | Acquire::Listed(ttl, _)) => match self.put_in(&list, listing) {
                Ok(place) => Ok(Acquire::Listed(ttl, Place::Behind(place))),
                Err(WrongType) => Ok(Acquire::Held(ttl)),
            },
            Err(Failure::Refused(_)) => answer,
        }
    }

    fn strike_out(&mut self, key: &Key, list: &str, listing: &Listing) -> Result<(), WrongType> {
        let members = self.keys.members(list)?;
        let before = members.iter().position(|other| other.name == listing.locker).filter(|_| listing.looked);
        let before = members[..before.unwrap_or_default().min(2)].to_vec();
        self.keys.remove_member(list, &listing.locker)?;
        for other in before {
            self.keys.remove_member(list, &other.name)?;
            self.wake_up(&other.name, "go", key);
        }
        Ok(())
    }

    fn put_in(&mut self, list: &str, listing: &Listing) -> Result<u64, WrongType> {
        let Listing { locker, lifetime, .. } = listing;
        if !self.keys.members(list)?.iter().any(|other| other.name == *locker) {
            self.add(list, locker)?;
        }
        let lifetime = millis(*lifetime);
        if u64::try_from(self.keys.ttl(list)).map_or(true, |left| left < lifetime) {
            self.keys.expire(list, lifetime);
        }
        self.place_in(list, locker).ok_or(WrongType)
    }

    pub(super) fn pass(&mut self, key: &Key, locker: &str) -> Release {
        let _: Result<_, _> = self.keys.remove_member(&key.waiting(), locker);
        if self.keys.kind(key.as_str()) != "none" {
            return Release::Released(0);
        }
        self.wake(key, &Wakes::Next(None))
    }

    /// Wakes the next of the list of a lock that is free now, or tells all.
    pub(super) fn wake(&mut self, key: &Key, wakes: &Wakes) -> Release {
        let woken = match wakes {
            Wakes::All => None,
            Wakes::Next(releaser) => self.wake_next(key, releaser.as_ref()).unwrap_or_default(),
        };
        woken.unwrap_or_else(|| Release::Released(self.tell_all(key)))
    }

    fn wake_next(&mut self, key: &Key, releaser: Option<&Releaser>) -> Result<Option<Release>, WrongType> {
        let list = &*key.waiting();
        if self.keys.members(list)?.is_empty() {
            return Ok(None);
        }
        let mut me = None;
        if let Some(Releaser { enlists, locker, lifetime, .. }) = releaser {
            if !*enlists {
                self.keys.remove_member(list, locker)?;
            } else {
                self.add(list, locker)?;
                let left = u64::try_from(self.keys.ttl(list)).unwrap_or_default();
                if left * 2 < millis(*lifetime) {
                    self.keys.expire(list, millis(*lifetime));
                }
            }
            me = Some(&**locker);
        }
        for tries in 0..MOST {
            let Some(Member { name: first, .. }) = self.keys.members(list)?.first().cloned() else { return Ok(None) };
            if Some(&*first) == me {
                self.keys.remove_member(list, &first)?;
                return Ok(None);
            }
            let listed = self.keys.members(list)?.len() as u64;
            let listens = releaser.is_some_and(|releaser| releaser.listens);
            let others = self.ears.listening(key.channel()).saturating_sub(listed + u64::from(listens));
            let turn = releaser.and_then(|releaser| releaser.offers).filter(|_| others > 0);
            if self.hears(&first) {
                match turn {
                    Some(turn) => self.wake_up(&first, &format!("turn {}", millis(turn)), key),
                    None => self.wake_up(&first, "go", key),
                }
                let is_watched = turn.is_none() && self.have_watched(list, me, key, MOST - tries)?;
                if others > 0 && !(is_watched && me.is_some()) {
                    self.tell_all(key);
                }
                let place = me.and_then(|me| self.place_in(list, me));
                return Ok(Some(Release::PassedOn { place, turn, others, waiting: listed }));
            }
            self.keys.remove_member(list, &first)?;
        }
        Ok(None)
    }

    /// Lets the second locker of a list watch the first. Returns whether there is a second one, or whether so many were
    /// gone that the search ended early.
    fn have_watched(&mut self, list: &str, me: Option<&str>, key: &Key, most: usize) -> Result<bool, WrongType> {
        for _ in 0..most {
            let Some(Member { name: next, .. }) = self.keys.members(list)?.get(1).cloned() else { return Ok(false) };
            if Some(&*next) == me {
                return Ok(true);
            }
            if self.hears(&next) {
                self.wake_up(&next, "watch", key);
                return Ok(true);
            }
            self.keys.remove_member(list, &next)?;
        }
        Ok(self.keys.members(list)?.len() > 1)
    }

    /// Tells all subscribers of the lock's channel, and returns their number.
    pub(super) fn tell_all(&mut self, key: &Key) -> u64 {
        self.ears.publish(key.channel(), "0")
    }

    /// Adds a locker behind all others.
    fn add(&mut self, list: &str, locker: &str) -> Result<(), WrongType> {
        let last = self.keys.members(list)?.last().map_or(0, |last| last.score);
        self.keys.add(list, locker, last + 1)
    }

    fn place_in(&mut self, list: &str, locker: &str) -> Option<u64> {
        let place = self.keys.members(list).ok()?.iter().position(|other| *other.name == *locker);
        place.map(|place| place as u64)
    }

    fn hears(&self, locker: &str) -> bool {
        self.ears.listening(&format!("{WAKE}{locker}")) > 0
    }

    fn wake_up(&mut self, locker: &str, word: &str, key: &Key) {
        self.ears.publish(&format!("{WAKE}{locker}"), &format!("{word} {key}"));
    }
}
