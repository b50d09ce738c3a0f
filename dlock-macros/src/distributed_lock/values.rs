//! Parses the values that only this attribute has, each form with its error.

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprCall, ExprLit, Lit};

use super::args::{OnContended, OnLost, OnUnavailable, ReleaseMode};
use crate::report::written;

/// Parses `retry`: a number, or a constant.
pub(crate) fn retry(value: Expr) -> syn::Result<Expr> {
    let number = match &value {
        Expr::Path(_) | Expr::Call(_) => true,
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<u32>().is_ok(),
        _ => false,
    };
    if number {
        return Ok(value);
    }
    Err(Error::new(
        value.span(),
        "`retry` is the number of retries after the first attempt: write `retry = 3`; to limit the time, write `wait = \"5s\"`",
    ))
}

/// Parses `on_contended`.
pub(crate) fn on_contended(value: Expr) -> syn::Result<OnContended> {
    let span = value.span();
    match value {
        Expr::Path(path) if path.path.is_ident("error") => return Ok(OnContended::Error),
        Expr::Path(path) if path.path.is_ident("skip") => return Ok(OnContended::Skip),
        Expr::Return(value) => {
            if let Some(value) = value.expr {
                return Ok(OnContended::Return(match *value {
                    Expr::Paren(inner) => *inner.expr,
                    plain => plain,
                }));
            }
            return Err(Error::new(
                span,
                "`return` needs the value to return: write `on_contended = return(value)`",
            ));
        }
        Expr::Call(call) if matches!(&*call.func, Expr::Path(name) if name.path.is_ident("fallback")) => {
            let mut targets = call.args.into_iter();
            if let (Some(Expr::Path(path)), None) = (targets.next(), targets.next()) {
                return Ok(OnContended::Fallback(path));
            }
            return Err(Error::new(
                span,
                "`fallback` takes the path of an `async fn` with the same arguments: write `on_contended = fallback(other_fn)`, and in a method `fallback(Self::other_fn)`, whose first argument is `self`",
            ));
        }
        Expr::Call(call) => return Err(Error::new(span, no_outcome(&call))),
        _ => {}
    }
    Err(Error::new(span, OUTCOMES.to_owned() + ": write `on_contended = skip`"))
}

/// Returns the error for a call that is not one of the outcomes.
fn no_outcome(call: &ExprCall) -> String {
    let name = match &*call.func {
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string).unwrap_or_default(),
        _ => String::new(),
    };
    let call = written(call);
    match name.as_str() {
        "wait" => {
            "a call waits before it is contended: write `wait = \"5s\"` instead of `on_contended`".to_owned()
        }
        "retry" => "a call tries again before it is contended: write `retry = 3` instead of `on_contended`"
            .to_owned(),
        "Err" | "Ok" | "Some" => format!("{OUTCOMES}: write `on_contended = return({call})`"),
        _ => format!("{OUTCOMES}: write `on_contended = return({call})` for its value"),
    }
}

const OUTCOMES: &str = "`on_contended` is one of `error`, `skip`, `return(value)` and `fallback(path)`";

/// Parses `on_lost`.
pub(crate) fn on_lost(value: &Expr) -> syn::Result<OnLost> {
    match value {
        Expr::Path(path) if path.path.is_ident("abort") => Ok(OnLost::Abort),
        Expr::Path(path) if path.path.is_ident("finish") => Ok(OnLost::Finish),
        other => Err(Error::new(
            other.span(),
            "`on_lost` is `abort` (the body is dropped at its next await) or `finish` (it runs on): write `on_lost = abort`",
        )),
    }
}

/// Parses `on_unavailable`.
pub(crate) fn on_unavailable(value: &Expr) -> syn::Result<OnUnavailable> {
    match value {
        Expr::Path(path) if path.path.is_ident("error") => Ok(OnUnavailable::Error),
        Expr::Path(path) if path.path.is_ident("skip") => Ok(OnUnavailable::Skip),
        Expr::Path(path) if path.path.is_ident("run") => Ok(OnUnavailable::Run),
        other => Err(Error::new(
            other.span(),
            "`on_unavailable` is `error`, `skip` (the body does not run) or `run` (the body runs WITHOUT the lock): write `on_unavailable = error`",
        )),
    }
}

/// Parses `release`.
pub(crate) fn release(value: &Expr) -> syn::Result<ReleaseMode> {
    match value {
        Expr::Path(path) if path.path.is_ident("awaited") => Ok(ReleaseMode::Awaited),
        Expr::Path(path) if path.path.is_ident("background") => Ok(ReleaseMode::Background),
        other => Err(Error::new(
            other.span(),
            "`release` is `awaited` (the call returns once the server has replied) or `background` (it returns at once): write `release = background`, or leave it out",
        )),
    }
}

/// Parses `kind`, of which this version has one.
pub(crate) fn kind(value: &Expr) -> syn::Result<()> {
    let problem = match value {
        Expr::Path(path) if path.path.is_ident("mutex") => return Ok(()),
        Expr::Path(path) if ["fair", "read", "write"].iter().any(|kind| path.path.is_ident(kind)) => {
            format!("`kind = {}` is not available in this version of dlock", path.path.to_token_stream())
        }
        _ => "`kind` is `mutex`".to_owned(),
    };
    Err(Error::new(value.span(), format!("{problem}: leave `kind` out, or write `kind = mutex`")))
}
