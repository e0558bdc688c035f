//! A server's identity, its memory and its marks: `vet.lua`, `ask.lua`, `open.lua`.

use std::time::Duration;

use super::double::{exact, number, whole};
use super::keyspace::{Value, millis};
use super::store::{Failure, Run, no_number};
use crate::command::{Announced, Identity, MEMORY, Opening, Remembrance, Told};
use crate::key::Key;

impl Run<'_> {
    pub(super) fn vet(
        &mut self,
        announced: Option<&Announced>,
        run_id: &str,
        second: &str,
    ) -> Result<Identity, Failure> {
        let identity = Identity { run_id: run_id.into(), role: "master".into(), master: String::new(), memory: None };
        let Some(Announced { id, lease, servers, rank }) = announced else { return Ok(identity) };
        let (server, now) = (format!("{run_id}{second}"), exact(self.now_ms()));
        let was_replica = second.bytes().any(|byte| byte != b'0');
        let is_own = match self.keys.field(MEMORY, "server")? {
            Some(found) => found == server.as_bytes() || (!was_replica && found.starts_with(run_id.as_bytes())),
            None => false,
        };
        let known = self.text_of("id")?;
        let (lease, mut begun) = (self.number_of("lease")?.max(exact(millis(*lease))), self.number_of("begun")?);
        let is_whole = is_own && !known.is_empty() && self.keys.field(MEMORY, &known)?.is_some();
        if !is_whole {
            begun = now;
            self.remember(
                &server,
                id,
                &servers.to_string(),
                lease,
                begun,
                &[("named", &now.to_string()), ("rank", &rank.to_string())],
            );
        } else if begun > 0.0 {
            begun = begun.min(now);
            let (servers, rank) = (exact(*servers as u64), exact(*rank as u64));
            if rank >= self.number_of("rank")? || (now - self.number_of("named")?).abs() > lease {
                for (name, number) in [("seats", servers), ("named", now), ("rank", rank)] {
                    self.keys.set_field(MEMORY, name, &number.to_string())?;
                }
            }
            for (name, number) in [("lease", lease), ("begun", begun)] {
                self.keys.set_field(MEMORY, name, &number.to_string())?;
            }
        } else if self.text_of("seats")? == servers.to_string() && self.text_of("lease")? != lease.to_string() {
            self.keys.set_field(MEMORY, "lease", &lease.to_string())?;
        }
        let (id, servers) = (self.text_of("id")?, self.text_of("seats")?.parse().map_err(|_| Failure::Unreadable)?);
        let waited = (begun != 0.0).then(|| Duration::from_millis(whole(now - begun)));
        let memory = Remembrance { id, servers, lease: Duration::from_millis(whole(lease)), waited };
        Ok(Identity { memory: Some(memory), ..identity })
    }

    pub(super) fn ask(&mut self, about: &str) -> Result<Told, Failure> {
        let votes = self.text_of("begun")? == "0" && !self.text_of("with")?.contains(about);
        let lease = Duration::from_millis(whole(self.number_of("lease")?));
        let (mut highest, mut text, latest) = (0.0, "0".to_owned(), exact(self.latest()));
        for mark in Key::marks() {
            // MGET returns no errors: to it, a key of another type does not exist.
            let Ok(Some(mark)) = self.keys.text(mark) else { continue };
            let found = number(mark).ok_or_else(no_number)?;
            if found > highest && found <= latest {
                (highest, text) = (found, String::from_utf8_lossy(mark).into_owned());
            }
        }
        Ok(Told { votes, lease, mark: text })
    }

    pub(super) fn open(&mut self, opening: &Opening) -> Result<bool, Failure> {
        let Opening { from, to, waited, lease, marks, with, servers, named } = opening;
        if self.text_of("id")? != **from || self.text_of("seats")? != named.to_string() {
            return Ok(false);
        }
        let lease = self.number_of("lease")?.max(exact(millis(*lease)));
        if lease > exact(millis(*waited)) {
            self.keys.set_field(MEMORY, "lease", &lease.to_string())?;
            return Ok(false);
        }
        self.raise_all(marks)?;
        let server = self.text_of("server")?;
        self.remember(&server, to, &servers.to_string(), lease, 0.0, &[("with", with)]);
        Ok(true)
    }

    /// Replaces the whole memory.
    fn remember(&mut self, server: &str, id: &str, servers: &str, lease: f64, begun: f64, more: &[(&str, &str)]) {
        let (lease, begun) = (lease.to_string(), begun.to_string());
        let fields =
            [("server", server), ("id", id), ("seats", servers), ("lease", &lease), ("begun", &begun), (id, "")];
        let fields = fields.into_iter().chain(more.iter().copied());
        let fields = fields.map(|(field, value)| (field.into(), value.as_bytes().to_vec())).collect();
        self.keys.set(MEMORY, Value::Hash(fields), None);
    }

    /// Raises all marks to the highest of these numbers that is not too far ahead of this server's clock.
    fn raise_all(&mut self, told: &str) -> Result<(), Failure> {
        let numbers = told.split(|c: char| !c.is_ascii_digit()).filter_map(|text| text.parse().ok());
        let highest = numbers.filter(|number| *number <= self.latest()).max().unwrap_or(0_u64);
        for mark in Key::marks().iter().filter(|_| !told.is_empty()) {
            if self.number_in(mark)? < exact(highest) {
                self.set(mark, highest.to_string());
            }
        }
        Ok(())
    }

    /// Returns a number in the server's memory.
    fn number_of(&mut self, field: &str) -> Result<f64, Failure> {
        self.keys.field(MEMORY, field)?.map_or(Ok(0.0), |text| number(text).ok_or_else(no_number))
    }

    /// Returns a text in the server's memory.
    fn text_of(&mut self, field: &str) -> Result<String, Failure> {
        Ok(String::from_utf8_lossy(self.keys.field(MEMORY, field)?.unwrap_or_default()).into_owned())
    }
}
