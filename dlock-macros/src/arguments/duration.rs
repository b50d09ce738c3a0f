//! Parses durations: `"30s"`, or a constant `Duration`.
//!
//! ```text
//! duration := DIGITS unit | the path of a const Duration | a call of a const fn, such as Duration::from_secs(30)
//! unit     := "ms" | "s" | "m" | "h"
//! backoff  := duration | DIGITS unit ".." DIGITS unit
//! ```

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit};

use crate::vocabulary::Vocabulary;

/// A duration that is known now, or an expression that the compiler or each call evaluates.
#[derive(Clone)]
pub(crate) enum Time {
    Known(Duration, Span),
    Named(Expr),
}

impl Time {
    /// Parses the value of the parameter `name`. `example` is a valid duration for it.
    pub(crate) fn parse(words: &Vocabulary, name: &str, value: &Expr, example: &str) -> syn::Result<Self> {
        Self::parse_in(words, name, value, example, ANY)
    }

    /// Like [`parse`](Self::parse). The duration is at most the longest of `bounds`. A suggested
    /// one is within them. The caller must check that a valid one is at least the shortest.
    pub(super) fn parse_in(
        words: &Vocabulary,
        name: &str,
        value: &Expr,
        example: &str,
        bounds: Bounds,
    ) -> syn::Result<Self> {
        match value {
            Expr::Path(_) | Expr::Call(_) => Ok(Self::Named(value.clone())),
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
                let duration = parse(name, &text.value(), example, bounds);
                Ok(Self::Known(duration.map_err(|problem| Error::new(text.span(), problem))?, text.span()))
            }
            Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => Err(Error::new(
                number.span(),
                match number.suffix() {
                    "" => no_unit(name, number.base10_digits(), example, bounds),
                    _ => format!("a duration needs quotes: write `{name} = \"{number}\"`; {UNITS_ARE}"),
                },
            )),
            other => Err(Error::new(
                other.span(),
                format!(
                    "`{name}` takes a duration in quotes, with its unit, or a constant `Duration`: write `{name} = \"{example}\"`; for one that is known only at run time, {}: `manager.{}(key).{name}(..)`",
                    words.nouns.without, words.method
                ),
            )),
        }
    }

    /// Returns the position in the source.
    pub(crate) fn span(&self) -> Span {
        match self {
            Self::Known(_, span) => *span,
            Self::Named(value) => value.span(),
        }
    }

    /// Returns the expression, unless the duration is known.
    pub(crate) fn expression(&self) -> Option<&Expr> {
        match self {
            Self::Known(..) => None,
            Self::Named(value) => Some(value),
        }
    }

    /// Returns the duration if it is known.
    pub(crate) fn known(&self) -> Option<(Duration, Span)> {
        match self {
            Self::Known(duration, span) => Some((*duration, *span)),
            Self::Named(_) => None,
        }
    }
}

impl ToTokens for Time {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Self::Known(duration, span) => {
                let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
                let span = Span::mixed_site().located_at(*span);
                tokens.extend(quote_spanned!(span=> ::core::time::Duration::new(#seconds, #nanos)));
            }
            Self::Named(path) => path.to_tokens(tokens),
        }
    }
}

/// Parses the value of `backoff`: the first delay and the last.
pub(crate) fn parse_range(words: &Vocabulary, name: &str, value: &Expr) -> syn::Result<(Time, Time)> {
    let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = value else {
        let only = Time::parse(words, name, value, "100ms..2s")?;
        return Ok((only.clone(), only));
    };
    let wrong = |problem: String| Error::new(text.span(), problem);
    let range = text.value();
    let (first, last) = range.split_once("..").unwrap_or((&range, &range));
    let first = parse(name, first, "100ms..2s", ANY).map_err(wrong)?;
    let last = parse(name, last, "100ms..2s", ANY).map_err(wrong)?;
    if last < first {
        return Err(wrong(format!(
            "`{name}` goes from the first delay to the longest, and `{range}` goes down: write the shorter one first"
        )));
    }
    Ok((Time::Known(first, text.span()), Time::Known(last, text.span())))
}

/// Parses `30s`. The error says what is wrong and what to write.
fn parse(name: &str, text: &str, example: &str, bounds: Bounds) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits).unwrap_or((text, ""));
    let wrong = |problem: &str| format!("`{text}` {problem}: {}", how(name, example));
    let too_long = || {
        let (bound, longest) = (days_or_years(bounds.1), written(bounds.1));
        format!("`{text}` is longer than {bound}: the longest is `{name} = \"{longest}\"`; {UNITS_ARE}")
    };
    if number.is_empty() {
        return Err(wrong("is not a duration"));
    }
    if unit.is_empty() {
        return Err(no_unit(name, number, example, bounds));
    }
    let Some((_, millis)) = UNITS.iter().find(|(known, _)| *known == unit) else {
        return Err(match meant(number, unit) {
            Some(meant) if meant > bounds.1 => too_long(),
            Some(meant) if meant < bounds.0 => wrong("is not a valid duration"),
            Some(meant) => {
                let meant = written(meant);
                format!("`{text}` is not a valid duration: write `{name} = \"{meant}\"`; {UNITS_ARE}")
            }
            None => wrong("has an unknown unit of time"),
        });
    };
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*millis));
    match millis.filter(|millis| Duration::from_millis(*millis) <= bounds.1) {
        Some(0) => Err(format!("`{name}` cannot be zero: write `{name} = \"{example}\"`, or leave it out")),
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => Err(too_long()),
    }
}

/// Returns the duration that `5 min`, `1.5s`, `1m30s`, or `2d` means, if it is clear.
fn meant(number: &str, unit: &str) -> Option<Duration> {
    let several = unit.find(|c: char| c.is_ascii_digit()).filter(|_| !unit.starts_with('.'));
    if let Some((first, rest)) = several.and_then(|at| unit.split_at_checked(at)) {
        let rest = rest.split_at_checked(rest.find(|c: char| !c.is_ascii_digit())?)?;
        let sum = millis(number, first)?.checked_add(millis(rest.0, rest.1)?)?;
        return Some(Duration::from_millis(sum));
    }
    millis(number, unit).map(Duration::from_millis)
}

/// Returns the milliseconds of `number` in `unit`, in any spelling.
fn millis(number: &str, unit: &str) -> Option<u64> {
    let (fraction, unit) = match unit.strip_prefix('.') {
        Some(rest) => rest.split_at_checked(rest.find(|c: char| !c.is_ascii_digit())?)?,
        None => ("", unit),
    };
    let unit = unit.trim_matches([' ', '_']).to_lowercase();
    let millis =
        SPELLINGS.iter().find(|(spellings, _)| spellings.contains(&&*unit)).map(|(_, millis)| millis)?;
    let whole = number.parse::<u64>().ok()?.checked_mul(*millis)?;
    let part = match u32::try_from(fraction.len()).ok().and_then(|digits| 10_u64.checked_pow(digits)) {
        Some(_) if fraction.is_empty() => 0,
        Some(scale) => fraction.parse::<u64>().ok()?.checked_mul(*millis)? / scale,
        None => return None,
    };
    whole.checked_add(part).filter(|millis| *millis > 0)
}

/// Formats a duration in the largest unit that divides it.
pub(crate) fn written(duration: Duration) -> String {
    let millis = duration.as_millis();
    let unit = UNITS.iter().rev().find(|(_, unit)| millis.is_multiple_of(u128::from(*unit)));
    unit.map_or_else(String::new, |(name, unit)| format!("{}{name}", millis / u128::from(*unit)))
}

/// Formats an upper bound of durations.
fn days_or_years(bound: Duration) -> String {
    let days = bound.as_secs() / (24 * 60 * 60);
    if days > 365 { format!("{} years", days / 365) } else { format!("{days} days") }
}

/// Returns the error for a number alone: it is meant in seconds, or in one of the units that keep
/// it within the bounds.
fn no_unit(name: &str, number: &str, example: &str, (shortest, longest): Bounds) -> String {
    if number.chars().all(|digit| digit == '0') {
        return format!("`{name}` cannot be zero and needs a unit: {}", how(name, example));
    }
    let fits = |(_, millis): &&(&str, u64)| {
        let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*millis));
        millis.map(Duration::from_millis).is_some_and(|time| (shortest..=longest).contains(&time))
    };
    let seconds = UNITS.iter().filter(|(unit, _)| *unit == "s").find(fits);
    let units: Vec<_> = seconds.map_or_else(|| UNITS.iter().filter(fits).collect(), |seconds| vec![seconds]);
    let meant: Vec<_> = units.iter().map(|(unit, _)| format!("`{name} = \"{number}{unit}\"`")).collect();
    match meant.join(" or ") {
        none if none.is_empty() => format!("`{number}` has no unit: {}", how(name, example)),
        meant => format!("`{number}` has no unit: write {meant}; {UNITS_ARE}"),
    }
}

fn how(name: &str, example: &str) -> String {
    format!("write `{name} = \"{example}\"`; {UNITS_ARE}")
}

/// The shortest and the longest duration that a parameter can have.
pub(super) type Bounds = (Duration, Duration);

/// The bounds of every duration. 100 years are longer than any use needs, and far below the point
/// where sums of durations overflow.
const ANY: Bounds = (Duration::from_millis(1), Duration::from_secs(100 * 365 * 24 * 60 * 60));

/// The units and their milliseconds.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

const UNITS_ARE: &str = "the units are `ms`, `s`, `m`, `h`";

/// Other spellings of units, and their milliseconds.
const SPELLINGS: [(&[&str], u64); 5] = [
    (&["ms", "msec", "msecs", "milli", "millis", "millisecond", "milliseconds"], 1),
    (&["s", "sec", "secs", "second", "seconds"], 1_000),
    (&["m", "min", "mins", "minute", "minutes"], 60_000),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000),
    (&["d", "day", "days"], 86_400_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Duration, String> {
        parse("lease", text, "30s", ANY)
    }

    #[test]
    fn each_unit_means_what_it_says() {
        assert_eq!(read("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(read("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(read("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(read("1h"), Ok(Duration::from_secs(3600)));
    }

    #[test]
    fn missing_unit_is_suggested() {
        assert_eq!(
            read("30").expect_err("no unit"),
            "`30` has no unit: write `lease = \"30s\"`; the units are `ms`, `s`, `m`, `h`"
        );
    }

    #[test]
    fn other_text_is_refused() {
        for text in
            ["", "s", "30 s", "-1s", "1.5s", "30sec", "0s", "99999999999999999999s", "9999999999999h", "µs"]
        {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_valid_form_is_suggested() {
        let told = |text| read(text).expect_err("it is not a duration");

        for (text, meant) in [
            ("5 min", "5m"),
            ("1.5s", "1500ms"),
            ("0.25 h", "15m"),
            ("2d", "48h"),
            ("1m30s", "90s"),
            ("1h 30 min", "90m"),
            ("30sec", "30s"),
            ("30S", "30s"),
            ("90_000 ms", ""),
        ] {
            assert!(told(text).contains(&format!("write `lease = \"{meant}")), "{}", told(text));
        }
        assert!(told("3w").contains("an unknown unit of time"));
    }

    #[test]
    fn a_duration_is_at_most_100_years() {
        let longest = Duration::from_secs(3_153_600_000);

        for text in ["3153600000000ms", "3153600000s", "876000h"] {
            assert_eq!(read(text), Ok(longest), "{text}");
        }
        for text in ["3153600000001ms", "3153600001s", "876001h", "18446744073709551615h"] {
            assert!(read(text).is_err_and(|told| told.contains("is longer than 100 years")), "{text}");
        }
        assert_eq!(read("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn a_form_with_a_meaning_out_of_bounds_gets_the_example() {
        let bounds = (Duration::from_millis(100), Duration::from_secs(365 * 24 * 3_600));
        let told = |text| parse("lease", text, "30s", bounds).expect_err("it is not a duration");

        for (text, problem) in [
            ("366d", "`366d` is longer than 365 days: the longest is `lease = \"8760h\"`"),
            ("0.01s", "`0.01s` is not a valid duration: write `lease = \"30s\"`"),
            ("365d", "`365d` is not a valid duration: write `lease = \"8760h\"`"),
        ] {
            assert!(told(text).starts_with(problem), "{}", told(text));
        }
        assert!(read("36501d").expect_err("too long").starts_with("`36501d` is longer than 100 years"));
    }

    #[test]
    fn a_form_without_a_meaning_gets_the_example() {
        for text in
            ["0.0001s", "0min", "1m30", "1m30x", "1m2m3", "1.5", "99999999999999999999 min", "1.5x", "2 ds"]
        {
            let told = read(text).expect_err("it is not a duration");

            let start = format!("`{text}` has an unknown unit of time: write `lease = \"30s\"`");
            assert!(told.starts_with(&start), "{told}");
        }
    }

    #[test]
    fn every_spelling_of_a_unit_is_understood() {
        for (spellings, millis) in SPELLINGS {
            for spelling in spellings {
                for unit in
                    [(*spelling).to_owned(), format!(" {}", spelling.to_uppercase()), format!("_{spelling}")]
                {
                    assert_eq!(super::millis("3", &unit), Some(3 * millis), "{unit}");
                }
                assert_eq!(super::millis("1", &format!(".5 {spelling}")), Some(3 * millis / 2), "{spelling}");
            }
        }
    }

    #[test]
    fn a_duration_is_written_in_its_largest_unit() {
        assert_eq!(written(Duration::from_millis(1_500)), "1500ms");
        assert_eq!(written(Duration::from_secs(7_200)), "2h");
    }

    #[test]
    fn a_range_goes_upward() {
        let range: Expr = syn::parse_quote!("2s..100ms");

        assert!(parse_range(&crate::distributed_lock::VOCABULARY, "backoff", &range).is_err());
    }
}
