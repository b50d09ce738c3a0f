//! Durations as the attribute writes them: `"30s"`, or a path to a `const Duration`.
//!
//! ```text
//! duration := DIGITS unit | a path to a const Duration
//! unit     := "ms" | "s" | "m" | "h"
//! backoff  := duration | DIGITS unit ".." DIGITS unit
//! ```
//!
//! Not here: which parameters take one (`args`).

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, ExprPath, Lit};

/// A duration that is known now, or the path of one that the compiler will know.
#[derive(Clone)]
pub(crate) enum Time {
    Known(Duration, Span),
    Named(ExprPath),
}

impl Time {
    /// Reads the value of the parameter `name`. `example` is a duration that fits the parameter.
    pub(crate) fn parse(name: &str, value: &Expr, example: &str) -> syn::Result<Self> {
        match value {
            Expr::Path(path) => Ok(Self::Named(path.clone())),
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
                let duration = parse(name, &text.value(), example);
                Ok(Self::Known(duration.map_err(|problem| Error::new(text.span(), problem))?, text.span()))
            }
            Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => {
                Err(Error::new(number.span(), no_unit(name, &number.to_string(), example)))
            }
            other => Err(Error::new(
                other.span(),
                format!(
                    "`{name}` takes a duration with a unit or a path to a `const Duration`: write `{name} = \"{example}\"`"
                ),
            )),
        }
    }

    /// Returns the duration where it is known.
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

/// Reads the value of `backoff`: the first delay and the last.
pub(crate) fn parse_range(name: &str, value: &Expr) -> syn::Result<(Time, Time)> {
    let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = value else {
        let only = Time::parse(name, value, "100ms..2s")?;
        return Ok((only.clone(), only));
    };
    let wrong = |problem: String| Error::new(text.span(), problem);
    let range = text.value();
    let (first, last) = range.split_once("..").unwrap_or((&range, &range));
    let first = parse(name, first, "100ms..2s").map_err(wrong)?;
    let last = parse(name, last, "100ms..2s").map_err(wrong)?;
    if last < first {
        return Err(wrong(format!(
            "`{name}` goes from the first delay to the longest, and `{range}` goes down: write the shorter one first"
        )));
    }
    Ok((Time::Known(first, text.span()), Time::Known(last, text.span())))
}

/// Reads `30s`. The error says what is wrong and what to write.
fn parse(name: &str, text: &str, example: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits).unwrap_or((text, ""));
    if number.is_empty() {
        return Err(format!("`{text}` is not a duration: {}", how(name, example)));
    }
    if unit.is_empty() {
        return Err(no_unit(name, number, example));
    }
    let too_long = || format!("`{text}` is longer than any lock lives: {}", how(name, example));
    let number: u64 = number.parse().map_err(|_| too_long())?;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return Err(format!("`{text}` has no unit of time: {}", how(name, example))),
    };
    // A century: far above every use, and far below where sums of durations overflow.
    match millis.filter(|millis| *millis <= 100 * 365 * 24 * 3_600_000) {
        Some(0) => Err(format!("`{name}` cannot be zero: {}", how(name, example))),
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => Err(too_long()),
    }
}

fn no_unit(name: &str, number: &str, example: &str) -> String {
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    if digits.is_empty() || digits.chars().all(|digit| digit == '0') {
        format!("`{name}` cannot be zero and needs a unit: {}", how(name, example))
    } else {
        format!("`{number}` has no unit: write `{name} = \"{digits}s\"`; the units are `ms`, `s`, `m`, `h`")
    }
}

fn how(name: &str, example: &str) -> String {
    format!("write `{name} = \"{example}\"`; the units are `ms`, `s`, `m`, `h`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Duration, String> {
        parse("lease", text, "30s")
    }

    #[test]
    fn each_unit_means_what_it_says() {
        assert_eq!(read("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(read("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(read("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(read("1h"), Ok(Duration::from_secs(3600)));
    }

    #[test]
    fn a_duration_without_a_unit_is_told_the_unit() {
        assert_eq!(
            read("30").expect_err("no unit"),
            "`30` has no unit: write `lease = \"30s\"`; the units are `ms`, `s`, `m`, `h`"
        );
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in
            ["", "s", "30 s", "-1s", "1.5s", "30sec", "0s", "99999999999999999999s", "9999999999999h", "µs"]
        {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_goes_upward() {
        let range: Expr = syn::parse_quote!("2s..100ms");

        assert!(parse_range("backoff", &range).is_err());
    }
}
