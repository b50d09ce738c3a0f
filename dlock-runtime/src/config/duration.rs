//! Durations in URLs: `500ms`, `30s`, `5m`, `1h`.

use std::time::Duration;

/// Parses a duration. The error says what to write instead.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("`{text}` is not a duration: write `500ms`, `30s`, `5m` or `1h`"));
    }
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" => {
            return Err(format!("`{text}` has no unit: write `{text}ms` or `{text}s`"));
        }
        _ => return Err(format!("`{text}` is not a duration: write `500ms`, `30s`, `5m` or `1h`")),
    };
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    millis.map(Duration::from_millis).ok_or_else(|| format!("`{text}` is too long"))
}

/// Writes a duration as in a URL, if it has whole milliseconds.
pub(crate) fn shown(time: Duration) -> String {
    if time.is_zero() {
        return "0s".to_owned();
    }
    let millis = time.as_millis();
    if !time.as_nanos().is_multiple_of(1_000_000) || time == Duration::MAX {
        return format!("{time:?}");
    }
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let whole = units.into_iter().find(|(unit, _)| millis.is_multiple_of(*unit));
    whole.map_or_else(String::new, |(unit, name)| format!("{}{name}", millis / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_read() {
        let read: Vec<_> = ["500ms", "30s", "5m", "1h"].map(|text| parse(text).map(|d| d.as_millis())).into();

        assert_eq!(read, [Ok(500), Ok(30_000), Ok(300_000), Ok(3_600_000)]);
    }

    #[test]
    fn a_duration_is_shown_as_it_is_written() {
        for text in ["0s", "99ms", "5s", "90s", "2m", "366h", "1500ms"] {
            assert_eq!(shown(parse(text).expect("a duration")), text);
        }
        assert_eq!(shown(Duration::from_nanos(1)), "1ns");
        assert_eq!(shown(Duration::MAX), format!("{:?}", Duration::MAX));
    }

    #[test]
    fn invalid_durations_are_refused_with_examples() {
        assert_eq!(parse("30"), Err("`30` has no unit: write `30ms` or `30s`".into()));
        for text in ["", "s", "-1s", "1.5s", "1 s", "1S", "ms1"] {
            assert!(parse(text).is_err_and(|problem| problem.contains("`500ms`")), "{text}");
        }
        assert!(parse("99999999999999999999h").is_err());
    }
}
