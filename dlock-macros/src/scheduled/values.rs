//! Parses the values that only this attribute has, each form with its error.

use proc_macro2::{Ident, Span};
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprAssign, ExprLit, Lit, LitStr};

use super::VOCABULARY;
use super::args::{CatchUp, OnCrash, Overlap};
use crate::arguments::values::{self as shared, word};

/// Parses `name`, the name of the job.
pub(super) fn name(value: &Expr) -> syn::Result<LitStr> {
    let problem = match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => match text.value() {
            empty if empty.is_empty() => "is empty",
            marked if marked.contains("##") => "cannot contain `##`",
            odd if odd.contains(['<', '>', '{', '}']) || odd.contains(char::is_control) => {
                "has no placeholders, and cannot have braces, angle brackets, or control characters"
            }
            _ => return Ok(text.clone()),
        },
        _ => "is a string",
    };
    Err(Error::new(
        value.span(),
        format!("`name` {problem}, and is the identity of the job: write `name = \"nightly-report\"`"),
    ))
}

/// Parses `overlap`.
pub(super) fn overlap(value: &Expr) -> syn::Result<Overlap> {
    let problem = "`overlap` is `skip`, `queue_one` (the first tick that waits runs next) or `cancel_previous` (the active run is dropped): write `overlap = skip`, or leave it out";
    let words = [
        ("skip", Overlap::Skip),
        ("queue_one", Overlap::QueueOne),
        ("cancel_previous", Overlap::CancelPrevious),
    ];
    shared::one_of(value, &words, problem)
}

/// Parses `catch_up`.
pub(super) fn catch_up(value: &Expr) -> syn::Result<CatchUp> {
    match word(value).as_deref() {
        Some("none") => return Ok(CatchUp::None),
        Some("latest") => return Ok(CatchUp::Latest(value.span())),
        _ => {}
    }
    let wrong = || {
        Error::new(
            value.span(),
            "`catch_up` is `none`, `latest`, or `all(max = 10, window = \"1h\")` (the latest 10 missed ticks that were due within the last hour): write `catch_up = latest`, or leave it out",
        )
    };
    let Expr::Call(call) = value else { return Err(wrong()) };
    if word(&call.func).as_deref() != Some("all") {
        return Err(wrong());
    }
    let without_bounds = || {
        Error::new(
            value.span(),
            "`all` has the most ticks that run, and how long ago they were due: write `catch_up = all(max = 10, window = \"1h\")`",
        )
    };
    let (mut max, mut window) = (None, None);
    for argument in &call.args {
        match bound(argument) {
            Some((name, bound)) if name == "max" => max = Some(most_caught_up(bound)?),
            Some((name, bound)) if name == "window" => {
                window = Some(shared::stored(&VOCABULARY, "window", bound, "1h")?);
            }
            _ => return Err(without_bounds()),
        }
    }
    match (max, window) {
        (Some(max), Some(window)) => Ok(CatchUp::All { max, window, span: value.span() }),
        _ => Err(without_bounds()),
    }
}

/// Parses `name = value` inside a value.
fn bound(argument: &Expr) -> Option<(&Ident, &Expr)> {
    let Expr::Assign(ExprAssign { left, right, .. }) = argument else { return None };
    let Expr::Path(name) = &**left else { return None };
    name.path.get_ident().map(|name| (name, &**right))
}

/// Parses the `max` of `all`.
fn most_caught_up(value: &Expr) -> syn::Result<u32> {
    let number = match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<u32>().ok(),
        _ => None,
    };
    number.filter(|number| (1..=1_000).contains(number)).ok_or_else(|| {
        Error::new(
            value.span(),
            "`max` is a number of ticks from 1 to 1000: write `all(max = 10, window = \"1h\")`, or `catch_up = none` to run no missed tick",
        )
    })
}

/// Parses `on_error`. Returns the number of retries.
pub(super) fn on_error(value: &Expr) -> syn::Result<u32> {
    let wrong = |span: Span| {
        Error::new(
            span,
            "`on_error` is `done` or `retry(3)`, with the number of further runs of a failed tick: write `on_error = retry(3)`, or leave it out",
        )
    };
    match value {
        Expr::Path(path) if path.path.is_ident("done") => Ok(0),
        Expr::Call(call) if word(&call.func).as_deref() == Some("retry") => {
            let mut counts = call.args.iter();
            match (counts.next(), counts.next()) {
                (Some(Expr::Lit(ExprLit { lit: Lit::Int(count), .. })), None) => count
                    .base10_parse::<u32>()
                    .ok()
                    .filter(|count| *count > 0)
                    .ok_or_else(|| wrong(count.span())),
                _ => Err(wrong(call.span())),
            }
        }
        other => Err(wrong(other.span())),
    }
}

/// Parses `on_crash`.
pub(super) fn on_crash(value: &Expr) -> syn::Result<OnCrash> {
    let problem = "`on_crash` is `rerun` (a tick whose process crashed runs again) or `skip`: write `on_crash = rerun`, or leave it out";
    shared::one_of(value, &[("rerun", OnCrash::Rerun), ("skip", OnCrash::Skip)], problem)
}
