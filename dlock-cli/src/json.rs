//! Prints a finding on one line, for programs.

use std::fmt::Write as _;

use dlock_runtime::doctor::Finding;

/// Returns a finding as a JSON object without line breaks. A missing value is `null`.
pub(crate) fn line(finding: &Finding) -> String {
    let fields = [
        ("severity", Some(finding.severity().name())),
        ("check", Some(finding.check())),
        ("server", finding.server()),
        ("found", Some(finding.found())),
        ("meaning", Some(finding.meaning())),
        ("do", finding.remedy()),
    ];
    let fields = fields.map(|(name, value)| {
        let value = value.map_or("null".to_owned(), quoted);
        format!("\"{name}\":{value}")
    });
    format!("{{{}}}", fields.join(","))
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(quoted("a \"b\" c:\\d\n\u{1b}é"), r#""a \"b\" c:\\d\u000a\u001bé""#);
    }
}
