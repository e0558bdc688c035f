//! Reads what scripts return, as `cmsgpack.pack` writes it:
//! <https://github.com/msgpack/msgpack/blob/master/spec.md>.
//!
//! One string for a whole answer costs a server less than converting a Lua table into a reply: it
//! looks in each table for the fields of every kind of reply. Compared with no number at all,
//! adding it costs the server 12 % for a lone pair as a table, and 5 % as a string.

use fred::bytes::{Buf as _, Bytes};

use super::reply::Reply;
use crate::shown::cut;

/// How deep arrays may nest: the answers of steps are in the answer of their script.
const DEEPEST: usize = 4;

/// A sequence of packed values.
pub(super) struct Packed(Bytes);

impl Packed {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next value, as the reply that a server would make of it.
    pub(super) fn next(&mut self) -> Option<Reply> {
        self.value(DEEPEST)
    }

    fn value(&mut self, depth: usize) -> Option<Reply> {
        let kind = self.byte()?;
        match kind {
            0x00..=0x7f => Some(Reply::Int(kind.into())),
            0xe0..=0xff => Some(Reply::Int(kind.cast_signed().into())),
            0xc0 | 0xc2 => Some(Reply::Nil),
            0xc3 => Some(Reply::Int(1)),
            0xcc..=0xcf => self
                .number(1 << (kind - 0xcc))
                .and_then(|n| i64::try_from(n).ok())
                .map(Reply::Int),
            0xd0..=0xd3 => self.signed(1 << (kind - 0xd0)).map(Reply::Int),
            // Fractions, which come from what another client wrote: a server truncates them.
            0xca => self
                .number(4)
                .and_then(|bits| u32::try_from(bits).ok())
                .map(|bits| whole(f32::from_bits(bits).into())),
            0xcb => self.number(8).map(|bits| whole(f64::from_bits(bits))),
            0xa0..=0xbf => self.bytes((kind & 0x1f).into()).map(Reply::Bytes),
            0xd9..=0xdb => self
                .size(1 << (kind - 0xd9))
                .and_then(|size| self.bytes(size))
                .map(Reply::Bytes),
            0x90..=0x9f => self.array((kind & 0x0f).into(), depth),
            0xdc | 0xdd => self
                .size(2 << (kind - 0xdc))
                .and_then(|size| self.array(size, depth)),
            0x80..=0x8f => self.error((kind & 0x0f).into(), depth),
            _ => None,
        }
    }

    fn array(&mut self, size: usize, depth: usize) -> Option<Reply> {
        let depth = depth.checked_sub(1)?;
        // Each item takes at least one byte.
        let mut items = Vec::with_capacity(size.min(self.0.len()));
        for _ in 0..size {
            items.push(self.value(depth)?);
        }
        Some(Reply::Array(items))
    }

    /// Reads an error: a table with names, in which newer servers also say where the error comes
    /// from.
    fn error(&mut self, size: usize, depth: usize) -> Option<Reply> {
        let depth = depth.checked_sub(1)?;
        let mut error = None;
        for _ in 0..size {
            let name = self.value(depth)?;
            let value = self.value(depth)?;
            match (name, value) {
                (Reply::Bytes(name), Reply::Bytes(text)) if *name == *b"err" => error = Some(text),
                _ => {}
            }
        }
        Some(Reply::Error(cut(&error?)))
    }

    fn byte(&mut self) -> Option<u8> {
        self.0.try_get_u8().ok()
    }

    fn size(&mut self, bytes: usize) -> Option<usize> {
        usize::try_from(self.number(bytes)?).ok()
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        self.0.try_get_uint(bytes).ok()
    }

    fn signed(&mut self, bytes: usize) -> Option<i64> {
        let unused = 64 - 8 * u32::try_from(bytes).ok()?;
        Some((self.number(bytes)? << unused).cast_signed() >> unused)
    }

    fn bytes(&mut self, size: usize) -> Option<Bytes> {
        (size <= self.0.len()).then(|| self.0.split_to(size))
    }
}

/// Truncates a number. One that is too large becomes the largest integer.
#[expect(clippy::cast_possible_truncation, reason = "truncation is intended")]
fn whole(number: f64) -> Reply {
    Reply::Int(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Option<Reply> {
        let mut packed = Packed::new(Bytes::copy_from_slice(bytes));
        packed.next().filter(|_| packed.is_empty())
    }

    #[test]
    fn numbers_are_read_as_they_are_packed() {
        for (bytes, number) in [
            (&[0x00][..], 0),
            (&[0x7f], 127),
            (&[0xff], -1),
            (&[0xe0], -32),
            (&[0xcc, 0xff], 255),
            (&[0xcd, 1, 0], 256),
            (&[0xce, 0xff, 0xff, 0xff, 0xff], 4_294_967_295),
            (&[0xcf, 0, 6, 0, 0, 0, 0, 0, 1], 0x0006_0000_0000_0001),
            (&[0xd0, 0x80], -128),
            (&[0xd1, 0xff, 0], -256),
            (&[0xd2, 0x80, 0, 0, 0], -2_147_483_648),
            (&[0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe], -2),
            (&[0xca, 0xbf, 0xc0, 0, 0], -1),
            (&[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0], 1),
            (&[0xcb, 0x7f, 0xf0, 0, 0, 0, 0, 0, 0], i64::MAX),
        ] {
            assert_eq!(read(bytes), Some(Reply::Int(number)), "{bytes:x?}");
        }
    }

    #[test]
    fn texts_arrays_and_errors_are_read() {
        let bytes = |text: &str| Reply::Bytes(text.to_owned().into());
        assert_eq!(read(b"\xa2ab"), Some(bytes("ab")));
        assert_eq!(read(b"\xd9\x02ab"), Some(bytes("ab")));
        assert_eq!(read(b"\xda\x00\x02ab"), Some(bytes("ab")));
        assert_eq!(read(b"\xdb\x00\x00\x00\x02ab"), Some(bytes("ab")));
        assert_eq!(read(b"\x90"), Some(Reply::Array(Vec::new())));
        assert_eq!(
            read(b"\x92\x01\xc0"),
            Some(Reply::Array(vec![Reply::Int(1), Reply::Nil]))
        );
        assert_eq!(
            read(b"\xdc\x00\x01\xc2"),
            Some(Reply::Array(vec![Reply::Nil]))
        );
        assert_eq!(
            read(b"\x82\xa3err\xa3OOM\xa4line\x01"),
            Some(Reply::Error("OOM".into()))
        );
    }

    #[test]
    fn values_that_are_cut_off_or_too_deep_are_refused() {
        for bytes in [
            &b""[..],
            b"\xa2a",
            b"\xdb\xff\xff\xff\xffa",
            b"\xdd\xff\xff\xff\xff\x01",
            b"\xcd\x01",
            b"\xcb\x01",
            b"\x81\xa2ok\xa2OK",
        ] {
            assert_eq!(read(bytes), None, "{bytes:x?}");
        }
        assert!(read(&[&[0x91; 4][..], &[1]].concat()).is_some());
        assert_eq!(read(&[0x91; 5]), None);
        assert_eq!(read(&[0x91; 1_000_000]), None);
    }
}
