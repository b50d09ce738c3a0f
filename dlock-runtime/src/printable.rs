//! Escaping and shortening of foreign text in errors, events, and reports.

use std::borrow::Cow;
use std::fmt;

use crate::bounds::LONGEST_FOREIGN_TEXT;

/// Returns `true` if a terminal or a log viewer may act on `c` instead of showing it: a control
/// character, a line or paragraph separator, or an invisible character that reorders or hides its
/// neighbors.
///
/// The list is that of Unicode's "Trojan Source" report (UTS #55) and the format characters that
/// have no width.
pub(crate) fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Displays a text with every [unprintable](is_unprintable) character escaped, such as `\n` or
/// `\u{202e}`.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| {
            if is_unprintable(c) { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") }
        })
    }
}

/// Returns a foreign text with at most [`LONGEST_FOREIGN_TEXT`] bytes. If it is longer, `…` follows
/// its beginning.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST_FOREIGN_TEXT {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}{CUT}", prefix(text, LONGEST_FOREIGN_TEXT - CUT.len())))
}

/// Returns the beginning of a text, up to `limit` bytes.
pub(crate) fn prefix(text: &str, limit: usize) -> &str {
    let mut ends = (0..=limit.min(text.len())).rev();
    let end = ends.find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.get(..end).unwrap_or_default()
}

const CUT: &str = "…";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_shortened_between_two_characters() {
        for (text, shown) in [
            ("charge".to_owned(), "charge".to_owned()),
            ("y".repeat(512), "y".repeat(512)),
            ("y".repeat(513), "y".repeat(509) + "…"),
            ("ä".repeat(1_000), "ä".repeat(254) + "…"),
            ("👍".repeat(1_000), "👍".repeat(127) + "…"),
        ] {
            assert_eq!(shortened(&text), shown);
        }
        assert_eq!((prefix("äb", 0), prefix("äb", 1), prefix("äb", 2), prefix("äb", 9)), ("", "", "ä", "äb"));
    }

    #[test]
    fn characters_that_act_on_a_terminal_are_escaped() {
        for (text, shown) in [
            ("a\u{1b}[31mb", r"a\u{1b}[31mb"),
            ("a\nb\u{85}c", r"a\nb\u{85}c"),
            ("a\u{2028}b\u{2029}c", r"a\u{2028}b\u{2029}c"),
            ("\u{202e}7:redro\u{202c}", r"\u{202e}7:redro\u{202c}"),
            ("\u{2066}a\u{2069}\u{200f}\u{61c}", r"\u{2066}a\u{2069}\u{200f}\u{61c}"),
            ("a\u{200b}\u{feff}\u{2060}\u{ad}b", r"a\u{200b}\u{feff}\u{2060}\u{ad}b"),
            ("a\u{e0041}b", r"a\u{e0041}b"),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
        }
    }

    #[test]
    fn text_of_people_is_shown_as_it_is() {
        for text in ["order:7", "größe: 7 µs", "日本語", "שלום", "e\u{301}", "👍🏽", "a b\\c'd\"e"]
        {
            assert_eq!(Escaped(text).to_string(), text);
        }
    }
}
