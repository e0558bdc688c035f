//! Text that others chose, as it is shown in logs and errors: names of locks, owners, what a server said.
//!
//! Whoever may choose a name must not be able to forge a line of a log with it, or to speak to a terminal.

use std::fmt;

/// Displays text with its control characters escaped, a line feed as `\n`. Ordinary text, and text that was escaped
/// before, stays as it is.
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

/// Whether a character ends a line, moves a cursor, or turns the direction of writing.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_text_is_shown_as_it_is() {
        for text in ["", "orders:42", "{a}:\\n \"b\" 'c'", "Grüße 日本語 \u{1f512}"] {
            assert_eq!(Shown(text).to_string(), text);
        }
    }

    #[test]
    fn no_text_ends_a_line_or_speaks_to_a_terminal() {
        let text = "a\nb\r\tc\u{1b}[31m\0\u{7f}\u{85}\u{2028}\u{202e}d";
        let shown = Shown(text).to_string();
        assert_eq!(shown, "a\\nb\\r\\tc\\u{1b}[31m\\u{0}\\u{7f}\\u{85}\\u{2028}\\u{202e}d");
        assert_eq!(Shown(&shown).to_string(), shown, "once is enough");
    }
}
