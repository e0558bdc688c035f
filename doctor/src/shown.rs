//! Foreign text, such as replies of servers, as a report shows it.
//!
//! It must not be able to forge a line of a report, or to send control sequences to a terminal.

/// Returns text with its control characters escaped, a line feed as `\n`.
pub(crate) fn escaped(text: &str) -> String {
    let escape = |c: char| {
        let kept = (!is_control(c)).then_some(c);
        let escaped = is_control(c).then(|| c.escape_default());
        kept.into_iter().chain(escaped.into_iter().flatten())
    };
    text.chars().flat_map(escape).collect()
}

/// Returns whether a character ends a line, moves a cursor, or changes the writing direction.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How many characters of a server's text are shown.
const MOST: usize = 200;

/// Returns the first 200 characters of a foreign text, whose size is not bounded.
pub(crate) fn cut(text: &str) -> String {
    if text.chars().nth(MOST).is_none() {
        return text.to_owned();
    }
    text.chars().take(MOST - 2).chain("..".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_and_control_characters_are_escaped() {
        let shown = escaped("Gr\u{fc}\u{df}e\n\r\tc\u{1b}[31m\0\u{7f}\u{85}\u{2028}\u{202e}d");
        assert_eq!(
            shown,
            "Gr\u{fc}\u{df}e\\n\\r\\tc\\u{1b}[31m\\u{0}\\u{7f}\\u{85}\\u{2028}\\u{202e}d"
        );
        assert_eq!(escaped(&shown), shown, "once is enough");
    }

    #[test]
    fn at_most_200_characters_of_a_foreign_text_are_shown() {
        let whole = "\u{20ac}".repeat(200);
        assert_eq!((cut("ERR no"), cut(&whole)), ("ERR no".to_owned(), whole));
        assert_eq!(
            cut(&"\u{20ac}".repeat(1_000_000)),
            "\u{20ac}".repeat(198) + ".."
        );
    }
}
