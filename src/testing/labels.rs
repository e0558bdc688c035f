//! The labels of lockers, as their scripts write and read them.

use super::keyspace::{Value, millis};
use super::store::{Failure, Run};
use crate::command::Answer;
use crate::label::{LIFETIME, key_of};

/// How many bytes of a label are returned.
const MOST: usize = 512;

impl Run<'_> {
    pub(super) fn label(&mut self, locker: &str, label: Option<&str>) -> Answer {
        let key = key_of(locker);
        match label {
            Some(text) => self.keys.set(&key, Value::Text(text.into()), Some(millis(LIFETIME))),
            None => self.keys.delete(&key),
        }
        Answer::Label
    }

    pub(super) fn label_of(&mut self, locker: &str) -> Result<Option<Vec<u8>>, Failure> {
        let text = self.keys.text(&key_of(locker))?;
        Ok(text.map(|text| text[..text.len().min(MOST)].to_vec()))
    }
}
