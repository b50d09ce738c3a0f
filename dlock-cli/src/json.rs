//! JSON on one line, for `--json`.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::Value;

/// A JSON object whose fields keep their order.
///
/// It is written as text: a [`Value`] would round the numbers above 64 bits of a stored result.
#[derive(Default)]
pub(crate) struct Object(String);

impl Object {
    /// Adds a field. `None` is `null`.
    pub(crate) fn field(self, name: &str, value: impl Into<Value>) -> Self {
        self.json(name, Some(&value.into().to_string()))
    }

    /// Adds a field whose value is JSON already. `None` is `null`.
    pub(crate) fn json(mut self, name: &str, value: Option<&str>) -> Self {
        let comma = if self.0.is_empty() { "" } else { "," };
        _ = write!(self.0, "{comma}\"{name}\":{}", value.unwrap_or("null")); // to a string
        self
    }

    /// Returns the object as a line that is safe to print.
    pub(crate) fn line(&self) -> String {
        self.text() + "\n"
    }

    /// Returns the object without a line break, for a field of another object.
    pub(crate) fn text(&self) -> String {
        printable(&format!("{{{}}}", self.0))
    }
}

/// The output if there is nothing to show: it is JSON too.
pub(crate) const NOTHING: &str = "null\n";

/// Returns the stored bytes as JSON on one line that is safe to print; `None` if they are not JSON
/// that readers decode, such as `1e999`.
pub(crate) fn stored(bytes: &[u8]) -> Option<String> {
    serde_json::from_slice::<Value>(bytes).ok()?;
    std::str::from_utf8(bytes).ok().map(printable)
}

/// Returns JSON with the same value on one line, with every unprintable character escaped.
fn printable(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => json.push(c),
            '\n' | '\r' | '\t' => json.push(' '), // they are not allowed in strings
            c if c.escape_debug().len() == 1 => json.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    _ = write!(json, "\\u{unit:04x}"); // to a string
                }
            }
        }
    }
    json
}

/// Returns a duration in whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a time in UTC as in RFC 3339, with milliseconds.
///
/// RFC 3339 has no year above 9999, and another client may have written one. Such a time is the
/// latest of [`Timestamp`].
pub(crate) fn rfc3339(time: SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).expect("it is JSON")
    }

    #[test]
    fn an_object_keeps_the_order_of_its_fields() {
        let inner = Object::default().field("z", 1).field("a", None::<&str>).text();
        let object = Object::default()
            .field("text", "x \" \\ y")
            .field("steps", &["psp".to_owned()][..])
            .json("inner", Some(&inner))
            .json("absent", None);

        let text = object.text();

        assert_eq!(text, r#"{"text":"x \" \\ y","steps":["psp"],"inner":{"z":1,"a":null},"absent":null}"#);
        assert_eq!(Object::default().text(), "{}");
    }

    #[test]
    fn no_text_of_an_object_acts_on_a_terminal() {
        // The list of `dlock_runtime::printable`, and all controls.
        let ranges = ['\0'..='\u{1f}', '\u{7f}'..='\u{9f}', '\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}'];
        let more = ['\u{2060}'..='\u{206f}', '\u{fff9}'..='\u{fffb}', '\u{e0000}'..='\u{e007f}'];
        let single = ['\u{ad}', '\u{61c}', '\u{180e}', '\u{feff}'];
        for c in ranges.into_iter().chain(more).flatten().chain(single) {
            let text = format!("a{c}b");

            let printed = Object::default().field("text", &*text).text();

            assert!(!printed.contains(c), "{c:?}: {printed:?}");
            assert_eq!(parsed(&printed)["text"], *text);
        }
    }

    #[test]
    fn a_stored_result_is_json_that_can_be_pasted() {
        for (bytes, shown) in [
            (r#"{"paid":"x \" y","it's":[1.50,-2e9]}"#, r#"{"paid":"x \" y","it's":[1.50,-2e9]}"#),
            ("[1,\n\t2]", "[1,  2]"),
            ("\"ü \u{202e}7\u{9b}\u{e0001}\"", r#""ü \u202e7\u009b\udb40\udc01""#),
            ("340282366920938463463374607431768211455", "340282366920938463463374607431768211455"),
        ] {
            let printed = stored(bytes.as_bytes()).expect("it is JSON");

            assert_eq!(printed, shown);
            assert_eq!(parsed(&printed), parsed(bytes));
        }
        for bytes in [&b"{not JSON"[..], b"", b"1e999", b"\"\xff\"", br#""\ud800""#, b"1 2"] {
            assert_eq!(stored(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_time_is_printed_in_utc_with_milliseconds() {
        // `date --utc --date=@SECONDS` prints the same.
        for (millis, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (68_169_599_999, "1972-02-28T23:59:59.999Z"),
            (68_169_600_000, "1972-02-29T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_767_225_599_001, "2025-12-31T23:59:59.001Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (9_007_199_254_740_991, "9999-12-30T22:00:00.999Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(millis)), shown);
        }
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), "1969-12-31T23:59:59.000Z");
    }
}
