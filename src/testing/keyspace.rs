//! The keys of a server, and what Redis does to them.
//!
//! # Invariants
//! - A key still exists in the millisecond in which its lease ends, and is gone in the next one, as in Redis.
//! - A hash keeps its fields in the order in which they were added, as Redis does while a hash is small.
//! - The caller sets the clock. Even if it goes back, a key that was found to have expired does not come back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    Hash(Vec<Field>),
    /// A sorted set: its members, in the order of their scores.
    Sorted(Vec<Member>),
    /// A value of a type that no script of this crate writes, by the name of the type.
    #[cfg_attr(not(test), expect(dead_code, reason = "nothing else writes to a server in memory yet"))]
    Other(&'static str),
}

/// A member of a sorted set. They are sorted by score, and then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) score: u64,
    pub(crate) name: Arc<str>,
}

/// A field of a hash: its name and its value.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// The error if a key holds a value of another type than the operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongType;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    value: Value,
    /// In milliseconds of the clock.
    expires: Option<u64>,
}

impl Entry {
    fn is_over(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| now > expires)
    }
}

/// All keys, and the time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keyspace {
    entries: BTreeMap<String, Entry>,
    now_ms: u64,
}

impl Keyspace {
    pub(crate) fn set_clock(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// TYPE.
    pub(crate) fn kind(&mut self, key: &str) -> &'static str {
        match self.find(key) {
            None => "none",
            Some(Entry { value: Value::Text(_), .. }) => "string",
            Some(Entry { value: Value::Hash(_), .. }) => "hash",
            Some(Entry { value: Value::Sorted(_), .. }) => "zset",
            Some(Entry { value: Value::Other(kind), .. }) => kind,
        }
    }

    /// GET.
    pub(crate) fn text(&mut self, key: &str) -> Result<Option<&[u8]>, WrongType> {
        match self.find(key) {
            None => Ok(None),
            Some(Entry { value: Value::Text(text), .. }) => Ok(Some(text)),
            Some(_) => Err(WrongType),
        }
    }

    /// SET, without a lifetime or, with PX, with this one.
    pub(crate) fn set(&mut self, key: &str, value: Value, lifetime_ms: Option<u64>) {
        let expires = lifetime_ms.map(|lifetime| self.now_ms + lifetime);
        self.entries.insert(key.to_owned(), Entry { value, expires });
    }

    /// What INCR writes: as SET, but a lifetime stays.
    pub(crate) fn replace(&mut self, key: &str, value: Value) {
        let expires = self.find(key).and_then(|entry| entry.expires);
        self.entries.insert(key.to_owned(), Entry { value, expires });
    }

    /// HGETALL.
    pub(crate) fn fields(&mut self, key: &str) -> Result<&[Field], WrongType> {
        match self.find(key) {
            None => Ok(&[]),
            Some(Entry { value: Value::Hash(fields), .. }) => Ok(fields),
            Some(_) => Err(WrongType),
        }
    }

    /// HGET.
    pub(crate) fn field(&mut self, key: &str, field: &str) -> Result<Option<&[u8]>, WrongType> {
        let mut fields = self.fields(key)?.iter();
        Ok(fields.find(|(name, _)| name == field.as_bytes()).map(|(_, value)| value.as_slice()))
    }

    /// HSET.
    pub(crate) fn set_field(&mut self, key: &str, field: &str, value: &str) -> Result<(), WrongType> {
        // A write to a key that has expired creates a new one.
        self.find(key);
        let new = || Entry { value: Value::Hash(Vec::new()), expires: None };
        let Value::Hash(fields) = &mut self.entries.entry(key.to_owned()).or_insert_with(new).value else {
            return Err(WrongType);
        };
        match fields.iter_mut().find(|(name, _)| name == field.as_bytes()) {
            Some((_, found)) => *found = value.into(),
            None => fields.push((field.into(), value.into())),
        }
        Ok(())
    }

    /// ZRANGE.
    pub(crate) fn members(&mut self, key: &str) -> Result<&[Member], WrongType> {
        match self.find(key) {
            None => Ok(&[]),
            Some(Entry { value: Value::Sorted(members), .. }) => Ok(members),
            Some(_) => Err(WrongType),
        }
    }

    /// ZADD.
    pub(crate) fn add(&mut self, key: &str, member: &str, score: u64) -> Result<(), WrongType> {
        self.find(key);
        let new = || Entry { value: Value::Sorted(Vec::new()), expires: None };
        let Value::Sorted(members) = &mut self.entries.entry(key.to_owned()).or_insert_with(new).value else {
            return Err(WrongType);
        };
        members.retain(|other| *other.name != *member);
        members.push(Member { score, name: member.into() });
        members.sort_unstable();
        Ok(())
    }

    /// ZREM.
    pub(crate) fn remove_member(&mut self, key: &str, member: &str) -> Result<(), WrongType> {
        self.members(key)?;
        let is_empty = match self.find(key).map(|entry| &mut entry.value) {
            Some(Value::Sorted(members)) => {
                members.retain(|other| *other.name != *member);
                members.is_empty()
            }
            _ => false,
        };
        if is_empty {
            self.delete(key);
        }
        Ok(())
    }

    /// PEXPIRE.
    pub(crate) fn expire(&mut self, key: &str, lifetime_ms: u64) {
        let expires = self.now_ms + lifetime_ms;
        if let Some(entry) = self.find(key) {
            entry.expires = Some(expires);
        }
    }

    /// PTTL of a key that exists: -1 without a lifetime.
    pub(crate) fn ttl(&mut self, key: &str) -> i64 {
        let now = self.now_ms;
        let left = |entry: &mut Entry| i64::try_from(entry.expires? - now).ok();
        self.find(key).and_then(left).unwrap_or(-1)
    }

    /// DEL.
    pub(crate) fn delete(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Returns each key that exists, its value, and its PTTL.
    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Value, Option<u64>)> {
        let there = self.entries.iter().filter(|(_, entry)| !entry.is_over(self.now_ms));
        there.map(|(key, entry)| (key.as_str(), &entry.value, entry.expires.map(|expires| expires - self.now_ms)))
    }

    fn find(&mut self, key: &str) -> Option<&mut Entry> {
        if self.entries.get(key)?.is_over(self.now_ms) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }
}

/// Returns a time as Redis counts it.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
