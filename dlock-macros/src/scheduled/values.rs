//! Parses the values that only this attribute has, each form with its error.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, LitStr};

use super::args::{OnCrash, Overlap};

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
    match word(value).as_deref() {
        Some("skip") => Ok(Overlap::Skip),
        Some("queue_one") => Ok(Overlap::QueueOne),
        Some("cancel_previous") => Ok(Overlap::CancelPrevious),
        _ => Err(Error::new(
            value.span(),
            "`overlap` is `skip`, `queue_one` (the first tick that waits runs next) or `cancel_previous` (the active run is dropped): write `overlap = skip`, or leave it out",
        )),
    }
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
    match word(value).as_deref() {
        Some("rerun") => Ok(OnCrash::Rerun),
        Some("skip") => Ok(OnCrash::Skip),
        _ => Err(Error::new(
            value.span(),
            "`on_crash` is `rerun` (a tick whose process crashed runs again) or `skip`: write `on_crash = rerun`, or leave it out",
        )),
    }
}

fn word(value: &Expr) -> Option<String> {
    match value {
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}
