//! Tells which command an answer belongs to: every script returns the number that it was sent with.
//!
//! A connection answers in order, and its client counts: the nth reply is for the nth command. If
//! one reply is lost, comes twice, or cannot be read, every later one goes to the wrong command.
//! The grant of one lock would then go to another.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

use super::packed::Packed;
use super::reply::Reply;
use crate::shown::cut;

/// The number of one send. It is a string, since Lua rounds large numbers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Number(String);

impl Number {
    /// Returns a number that this process has not used, and that others cannot guess.
    pub(super) fn next() -> Self {
        static NEXT: LazyLock<AtomicU64> =
            LazyLock::new(|| AtomicU64::new(Uuid::new_v4().as_u64_pair().0));
        Self(format!("{:x}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns what the script returned, if this reply has its number.
    pub(super) fn take(&self, reply: Reply) -> Option<Reply> {
        let Reply::Bytes(packed) = reply else {
            return None;
        };
        let mut packed = Packed::new(packed);
        match packed.next()? {
            Reply::Bytes(number) if *number == *self.0.as_bytes() => {}
            _ => return None,
        }
        let ended_well = packed.next()? == Reply::Int(1);
        let answer = if packed.is_empty() {
            Reply::Nil
        } else {
            packed.next()?
        };
        if !packed.is_empty() {
            return None;
        }
        match answer {
            // Redis 6 raises an error as a string.
            Reply::Bytes(text) if !ended_well => Some(Reply::Error(cut(&text))),
            answer => Some(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_another_send_is_no_answer() {
        let one = Number::next();
        let other = Number::next();
        let answer = |number: &Number, rest: &[u8]| {
            let length = 0xa0 | u8::try_from(number.as_str().len()).expect("a short text");
            Reply::Bytes(
                [&[length], number.as_str().as_bytes(), rest]
                    .concat()
                    .into(),
            )
        };
        assert_eq!(one.take(answer(&one, b"\xc3\x01")), Some(Reply::Int(1)));
        assert_eq!(one.take(answer(&one, b"\xc3\xc0")), Some(Reply::Nil));
        assert_eq!(one.take(answer(&one, b"\xc3")), Some(Reply::Nil));
        assert_eq!(
            one.take(answer(&one, b"\xc2\xa3OOM")),
            Some(Reply::Error("OOM".into()))
        );
        assert_eq!(
            one.take(answer(&one, b"\xc2\x81\xa3err\xa3OOM")),
            Some(Reply::Error("OOM".into()))
        );
        assert_eq!(one.take(answer(&other, b"\xc3\x01")), None);
        assert_eq!(
            one.take(answer(&one, b"\xc3\x01\x01")),
            None,
            "something behind it"
        );
        assert_eq!(one.take(answer(&one, b"")), None);
        let text = Reply::Bytes(one.as_str().to_owned().into());
        for reply in [
            Reply::Nil,
            Reply::Int(1),
            text.clone(),
            Reply::Array(vec![text, Reply::Int(1)]),
        ] {
            assert_eq!(one.take(reply.clone()), None, "{reply:?}");
        }
    }
}
