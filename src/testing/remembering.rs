//! A server's identity, its memory and its marks: `vet.lua`, `amend.lua`, `highest.lua`.

use std::time::Duration;

use super::double::{exact, number, whole};
use super::keyspace::{Value, millis};
use super::store::{Failure, Run, no_number};
use crate::command::{Amendment, Announced, Identity, MEMORY, Remembrance, sha1};
use crate::key::Key;

impl Run<'_> {
    pub(super) fn vet(
        &mut self,
        announced: Option<&Announced>,
        run_id: &str,
        second: &str,
    ) -> Result<Identity, Failure> {
        let identity = Identity { run_id: run_id.into(), role: "master".into(), master: String::new(), memory: None };
        let Some(Announced { begun, lease, last, age }) = announced else { return Ok(identity) };
        let server = format!("{run_id}{second}");
        let was_replica = second.bytes().any(|byte| byte != b'0');
        let is_own = match self.keys.field(MEMORY, "server")? {
            Some(found) => found == server.as_bytes() || (!was_replica && found.starts_with(run_id.as_bytes())),
            None => false,
        };
        let vote = self.keys.field(MEMORY, "vote")?.map(<[u8]>::to_vec);
        let (mut longest, mut listed) = (self.number_of("lease")?, self.number_of("age")?);
        let is_whole = match &vote {
            Some(vote) => is_own && self.keys.field(MEMORY, &digest(vote))?.is_some(),
            None => false,
        };
        let vote = vote.filter(|_| is_whole).unwrap_or_else(|| begun.as_bytes().to_vec());
        if !is_whole {
            listed = 0.0;
            self.remember(server.as_bytes(), &vote, longest, listed);
        }
        if longest < exact(millis(*lease)) {
            longest = exact(millis(*lease));
            self.keys.set_field(MEMORY, "lease", &longest.to_string())?;
        }
        if vote == last.as_bytes() && listed < exact(millis(*age)) {
            listed = exact(millis(*age));
            self.keys.set_field(MEMORY, "age", &listed.to_string())?;
        }
        Ok(Identity { memory: Some(remembrance(vote, longest, listed)?), ..identity })
    }

    pub(super) fn amend(
        &mut self,
        Amendment { from, to, listed, waited, marks }: &Amendment,
    ) -> Result<Remembrance, Failure> {
        let vote = self.keys.field(MEMORY, "vote")?.unwrap_or_default().to_vec();
        let (lease, mut age) = (self.number_of("lease")?, self.number_of("age")?);
        if vote != from.as_bytes() || waited.is_some_and(|waited| lease > exact(millis(waited))) {
            return remembrance(vote, lease, age);
        }
        if let Some(told) = marks {
            self.raise_all(told)?;
        }
        if *listed {
            age = 0.0;
        }
        let server = self.keys.field(MEMORY, "server")?.unwrap_or_default().to_vec();
        self.remember(&server, to.as_bytes(), lease, age);
        remembrance(to.as_bytes().to_vec(), lease, age)
    }

    /// Replaces the whole memory.
    fn remember(&mut self, server: &[u8], vote: &[u8], lease: f64, age: f64) {
        let (lease, age, digest) = (lease.to_string(), age.to_string(), digest(vote));
        let fields: [(&str, &[u8]); 5] =
            [("server", server), ("vote", vote), ("lease", lease.as_bytes()), ("age", age.as_bytes()), (&digest, b"")];
        let fields = fields.map(|(field, value)| (field.into(), value.to_vec()));
        self.keys.set(MEMORY, Value::Hash(fields.into()), None);
    }

    /// Raises all marks to the highest of these numbers that is not too far ahead of this server's clock.
    fn raise_all(&mut self, told: &str) -> Result<(), Failure> {
        let numbers = told.split(|c: char| !c.is_ascii_digit()).filter_map(|text| text.parse().ok());
        let highest = numbers.filter(|number| *number <= self.latest()).max().unwrap_or(0_u64);
        for mark in Key::marks() {
            if self.number_in(mark)? < exact(highest) {
                self.set(mark, highest.to_string());
            }
        }
        Ok(())
    }

    pub(super) fn highest(&mut self) -> Result<String, Failure> {
        let (mut highest, mut text, latest) = (0.0, "0".to_owned(), exact(self.latest()));
        for mark in Key::marks() {
            // MGET returns no errors: to it, a key of another type does not exist.
            let Ok(Some(mark)) = self.keys.text(mark) else { continue };
            let found = number(mark).ok_or_else(no_number)?;
            if found > highest && found <= latest {
                (highest, text) = (found, String::from_utf8_lossy(mark).into_owned());
            }
        }
        Ok(text)
    }

    /// Returns a number in the server's memory.
    fn number_of(&mut self, field: &str) -> Result<f64, Failure> {
        self.keys.field(MEMORY, field)?.map_or(Ok(0.0), |text| number(text).ok_or_else(no_number))
    }
}

/// Returns the field under which the memory stores this digest of a vote.
fn digest(vote: &[u8]) -> String {
    sha1(vote)[..16].to_owned()
}

fn remembrance(memory: Vec<u8>, lease: f64, age: f64) -> Result<Remembrance, Failure> {
    let memory = String::from_utf8(memory).map_err(|_| Failure::Unreadable)?;
    let duration = |ms: f64| if ms < 0.0 { Err(Failure::Unreadable) } else { Ok(Duration::from_millis(whole(ms))) };
    Ok(Remembrance { memory, lease: duration(lease)?, age: duration(age)? })
}
