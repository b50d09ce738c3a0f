//! Parses the values that only this attribute has, each form with its error.

use std::time::Duration;

use proc_macro2::Span;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, LitInt, LitStr};

use super::VOCABULARY;
use super::args::{Fingerprint, OnCrash, OnDuplicate, OnError, Otherwise};
use crate::arguments::duration::Time;
use crate::arguments::names::{nearest, plain};
use crate::arguments::values::{self as shared, word};

/// Parses `ttl`, how long a result is kept.
pub(super) fn ttl(value: &Expr) -> syn::Result<Time> {
    let ttl = shared::stored_for(&VOCABULARY, "ttl", value, "24h", SHORTEST_TTL)?;
    match ttl.known() {
        Some((short, span)) if short < SHORTEST_TTL => Err(Error::new(
            span,
            "`ttl` is at least 1 min, since a client that repeats a request after it has passed runs the body again: write `ttl = \"24h\"`",
        )),
        _ => Ok(ttl),
    }
}

/// The same bound as in the runtime.
const SHORTEST_TTL: Duration = Duration::from_secs(60);

/// Parses `fingerprint`.
pub(super) fn fingerprint(value: Expr) -> syn::Result<Fingerprint> {
    match value {
        Expr::Path(path) if path.path.is_ident("none") => Ok(Fingerprint::None),
        Expr::Lit(ExprLit { lit, .. }) => Err(Error::new(
            lit.span(),
            "`fingerprint` is a value that equal requests have in common, and a literal is the same in all of them: write `fingerprint = (amount, &currency)` with arguments, or `fingerprint = none`",
        )),
        value => Ok(Fingerprint::Of(Box::new(value))),
    }
}

/// Parses `on_duplicate`.
pub(super) fn on_duplicate(value: &Expr) -> syn::Result<OnDuplicate> {
    let problem = "`on_duplicate` is `error`, `wait(duration)` or `skip`";
    match value {
        Expr::Path(path) if path.path.is_ident("error") => Ok(OnDuplicate::Error),
        Expr::Path(path) if path.path.is_ident("skip") => Ok(OnDuplicate::Skip),
        Expr::Path(path) if path.path.is_ident("wait") => Err(Error::new(
            value.span(),
            "`wait` needs the longest time to wait for the stored result: write `on_duplicate = wait(\"10s\")`",
        )),
        Expr::Call(call) if word(&call.func).as_deref() == Some("wait") => {
            let mut times = call.args.iter();
            match (times.next(), times.next()) {
                (Some(time), None) => {
                    // The message names the parameter as it is written in this position.
                    Time::parse(&VOCABULARY, "wait", time, "10s").map(OnDuplicate::Wait).map_err(|error| {
                        let text =
                            error.to_string().replace("`wait = \"10s\"`", "`on_duplicate = wait(\"10s\")`");
                        Error::new(error.span(), text)
                    })
                }
                _ => Err(Error::new(
                    call.span(),
                    "`wait` takes the longest time to wait for the stored result: write `on_duplicate = wait(\"10s\")`",
                )),
            }
        }
        other => Err(Error::new(other.span(), format!("{problem}: write `on_duplicate = wait(\"10s\")`"))),
    }
}

/// Parses `on_crash`.
pub(super) fn on_crash(value: &Expr) -> syn::Result<(OnCrash, Span)> {
    let policy = match word(value).as_deref() {
        Some("fail") => OnCrash::Fail,
        Some("rerun") => OnCrash::Rerun,
        Some("resume") => OnCrash::Resume,
        other => {
            let meant = other.and_then(meant_on_crash).map_or_else(
                || "write `on_crash = fail`, or leave it out".to_owned(),
                |meant| format!("did you mean `on_crash = {meant}`"),
            );
            return Err(Error::new(
                value.span(),
                format!(
                    "`on_crash` is `fail` (no second run: an operator decides), `rerun` (the body runs again) or `resume` (it runs again, and completed steps are replayed): {meant}"
                ),
            ));
        }
    };
    Ok((policy, value.span()))
}

/// Returns the policy that another library calls `word`, or that was misspelled.
fn meant_on_crash(word: &str) -> Option<&'static str> {
    match plain(word).as_str() {
        "retry" | "again" | "runagain" | "repeat" | "restart" | "run" => Some("rerun"),
        "continue" | "recover" | "replay" => Some("resume"),
        "error" | "abort" | "never" | "none" | "skip" => Some("fail"),
        _ => nearest(word, ["fail", "rerun", "resume"]),
    }
}

/// Parses `on_error`.
pub(super) fn on_error(value: &Expr) -> syn::Result<OnError> {
    match value {
        Expr::Path(path) if path.path.is_ident("forget") => Ok(OnError::Forget),
        Expr::Path(path) if path.path.is_ident("remember") => Ok(OnError::Remember),
        Expr::Path(path) if path.path.is_ident("remember_if") => Err(remember_if(value.span())),
        Expr::Call(call) if word(&call.func).as_deref() == Some("remember_if") => {
            let mut predicates = call.args.iter();
            match (predicates.next(), predicates.next()) {
                (Some(Expr::Path(path)), None) => Ok(OnError::RememberIf(path.clone())),
                _ => Err(remember_if(call.span())),
            }
        }
        other => Err(Error::new(
            other.span(),
            "`on_error` is `forget` (the next call runs the body), `remember` (the next call gets the same error) or `remember_if(path)`: write `on_error = forget`, or leave it out",
        )),
    }
}

fn remember_if(span: Span) -> Error {
    Error::new(
        span,
        "`remember_if` takes the path of a `fn(&E) -> bool`, which says which errors are final: write `on_error = remember_if(is_final)`, or `remember_if(MyError::is_final)`",
    )
}

/// Parses `on_unavailable`.
pub(super) fn on_unavailable(value: &Expr) -> syn::Result<Otherwise> {
    otherwise(
        value,
        "`on_unavailable` is `error` or `run` (the body runs WITHOUT a record, so it can run twice): write `on_unavailable = error`, or leave it out",
    )
}

/// Parses `on_missing`.
pub(super) fn on_missing(value: &Expr) -> syn::Result<Otherwise> {
    otherwise(
        value,
        "`on_missing` is `error` or `run` (a call whose key has a missing value runs WITHOUT a record): write `on_missing = error`, or leave it out",
    )
}

fn otherwise(value: &Expr, problem: &str) -> syn::Result<Otherwise> {
    shared::one_of(value, &[("error", Otherwise::Error), ("run", Otherwise::Run)], problem)
}

/// Parses `version`, the version of the stored type.
pub(super) fn version(value: &Expr) -> syn::Result<LitInt> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) if shared::is_count(number) => Ok(number.clone()),
        other => Err(Error::new(
            other.span(),
            "`version` is a number that you increase if a stored result can no longer be decoded: write `version = 2`",
        )),
    }
}

/// Parses `result_type`, the name of the stored type.
pub(super) fn result_type(value: &Expr) -> syn::Result<LitStr> {
    let text = match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text),
        _ => None,
    };
    let name = text.map_or_else(|| value.to_token_stream().to_string(), LitStr::value);
    let (problem, instead) = match (text, type_name(&name)) {
        (Some(_), plain) if plain.is_empty() => ("is empty", "receipt".to_owned()),
        (Some(text), plain) if plain == name => return Ok(text.clone()),
        (Some(_), plain) => ("cannot have white space, since a return type is stored without it", plain),
        (None, path) if matches!(value, Expr::Path(_)) => ("is a string in quotes", path),
        (None, _) => ("is a string in quotes", "receipt".to_owned()),
    };
    Err(Error::new(
        value.span(),
        format!(
            "`result_type` {problem}: it names the type of stored results; write `result_type = \"{instead}\"`, or leave it out for the return type as it is written"
        ),
    ))
}

/// Returns the name of a type in a record: the type as the source writes it, without white space.
pub(super) fn type_name(written: &str) -> String {
    written.split_whitespace().collect()
}
