//! Foreign text as logs and errors show it: names of locks, owners, replies of servers.
//!
//! A name must not be able to forge a line of a log, or to send control sequences to a terminal.

use std::fmt::{self, Write as _};

/// Displays text with its control characters escaped, a line feed as `\n`. Ordinary text, and text
/// that is escaped already, stays as it is.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some((at, control)) = rest.char_indices().find(|&(_, c)| is_control(c)) {
            write!(f, "{}{}", &rest[..at], control.escape_default())?;
            rest = &rest[at + control.len_utf8()..];
        }
        f.write_str(rest)
    }
}

/// Returns whether a character ends a line, moves a cursor, or changes the writing direction.
pub(crate) fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How many characters of a server's text are shown.
const MOST: usize = 200;

/// Returns the first 200 characters of a foreign text, whose size is not bounded.
pub(crate) fn cut(text: &[u8]) -> String {
    // A character takes up to four bytes, and the last one may be in two parts.
    let head = String::from_utf8_lossy(&text[..text.len().min(4 * MOST + 4)]);
    if head.chars().nth(MOST).is_none() {
        return head.into_owned();
    }
    head.chars().take(MOST - 2).chain("..".chars()).collect()
}

/// Does the same as [`cut`] with a value's `Debug` form, and formats no more than it needs.
pub(crate) fn cut_debug(value: &impl fmt::Debug) -> String {
    let mut head = Truncated(String::new());
    // Ends with an error as soon as there is enough.
    let _: fmt::Result = write!(head, "{value:?}");
    cut(head.0.as_bytes())
}

/// Collects text until there is more than is shown.
struct Truncated(String);

impl fmt::Write for Truncated {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend(text.chars().take(MOST + 1));
        if self.0.len() > 4 * MOST + 4 {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_text_is_shown_as_it_is() {
        for text in [
            "",
            "orders:42",
            "{a}:\\n \"b\" 'c'",
            "Grüße 日本語 \u{1f512}",
        ] {
            assert_eq!(Shown(text).to_string(), text);
        }
    }

    #[test]
    fn line_ends_and_control_characters_are_escaped() {
        let text = "a\nb\r\tc\u{1b}[31m\0\u{7f}\u{85}\u{2028}\u{202e}d";
        let shown = Shown(text).to_string();
        assert_eq!(
            shown,
            "a\\nb\\r\\tc\\u{1b}[31m\\u{0}\\u{7f}\\u{85}\\u{2028}\\u{202e}d"
        );
        assert_eq!(Shown(&shown).to_string(), shown, "once is enough");
    }

    #[test]
    fn at_most_200_characters_of_a_foreign_text_are_shown() {
        assert_eq!(cut(b"ERR no"), "ERR no");
        let whole = "\u{20ac}".repeat(200);
        assert_eq!(cut(whole.as_bytes()), whole);
        let cut_off = cut("\u{20ac}".repeat(1_000_000).as_bytes());
        assert_eq!(cut_off, "\u{20ac}".repeat(198) + "..");
        assert_eq!(cut(&[0xff; 1_000]).chars().count(), 200);
        assert_eq!(cut_debug(&vec!["x"; 1_000_000]).chars().count(), 200);
        assert_eq!(cut_debug(&Some(1)), "Some(1)");
    }
}
