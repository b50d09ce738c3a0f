//! Parses the values that only this attribute has, each form with its error.

use proc_macro2::TokenTree;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprCall, ExprLit, Lit};

use super::args::{OnContended, OnLost, OnUnavailable, ReleaseMode};
use crate::arguments::duration::Time;
use crate::arguments::values::{self as shared, is_count, one_of};
use crate::report::written;

/// Takes an expression that is evaluated at each call, or parses any other value with `parse`.
pub(crate) fn evaluated_or(
    value: &Expr,
    parse: impl FnOnce(&Expr) -> syn::Result<Time>,
) -> syn::Result<Time> {
    if is_evaluated(value) { Ok(Time::Named(value.clone())) } else { parse(value) }
}

/// Returns `true` for a form of expression that is evaluated at each call. Without a name in it, it
/// is a mistake, such as a calculation with numbers.
fn is_evaluated(value: &Expr) -> bool {
    let has_name = |value: &Expr| value.to_token_stream().into_iter().any(contains_name);
    match value {
        Expr::Field(_)
        | Expr::MethodCall(_)
        | Expr::Index(_)
        | Expr::Block(_)
        | Expr::If(_)
        | Expr::Match(_) => true,
        Expr::Unary(_) | Expr::Binary(_) | Expr::Paren(_) => has_name(value),
        _ => false,
    }
}

fn contains_name(token: TokenTree) -> bool {
    match token {
        TokenTree::Ident(_) => true,
        TokenTree::Group(group) => group.stream().into_iter().any(contains_name),
        _ => false,
    }
}

/// Parses `retry`: a number, a constant, or an expression that is evaluated at each call.
pub(crate) fn retry(value: Expr) -> syn::Result<Expr> {
    if is_evaluated(&value) {
        return Ok(value);
    }
    let number = match &value {
        Expr::Path(path) => !WITHOUT_END.iter().any(|word| path.path.is_ident(word)),
        Expr::Call(_) => true,
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => is_count(number),
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

/// Words that new users write for retries without a limit. None is a likely name of a variable.
const WITHOUT_END: [&str; 4] = ["infinite", "infinity", "forever", "unlimited"];

/// Parses `on_contended`.
pub(crate) fn on_contended(value: Expr) -> syn::Result<OnContended> {
    let span = value.span();
    match value {
        Expr::Path(path) if path.path.is_ident("error") => return Ok(OnContended::Error),
        Expr::Path(path) if path.path.is_ident("skip") => return Ok(OnContended::Skip(span)),
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

/// Parses `min_hold_on`. Returns `true` for `ok`.
pub(crate) fn min_hold_on(value: &Expr) -> syn::Result<bool> {
    let problem = "`min_hold_on` is `always` (every end of the body) or `ok` (success only, so that a failed run can be repeated at once): write `min_hold_on = ok`";
    one_of(value, &[("always", false), ("ok", true)], problem)
}

/// Parses `on_lost`.
pub(crate) fn on_lost(value: &Expr) -> syn::Result<OnLost> {
    let problem = "`on_lost` is `abort` (the body is dropped at its next await) or `finish` (it runs on): write `on_lost = abort`";
    one_of(value, &[("abort", OnLost::Abort), ("finish", OnLost::Finish)], problem)
}

/// Parses `on_unavailable`.
pub(crate) fn on_unavailable(value: &Expr) -> syn::Result<OnUnavailable> {
    let problem = "`on_unavailable` is `error`, `skip` (the body does not run) or `run` (the body runs WITHOUT the lock): write `on_unavailable = error`";
    let words = [("error", OnUnavailable::Error), ("skip", OnUnavailable::Skip), ("run", OnUnavailable::Run)];
    one_of(value, &words, problem)
}

/// Parses `release`.
pub(crate) fn release(value: &Expr) -> syn::Result<ReleaseMode> {
    let problem = "`release` is `awaited` (the call returns once the server has replied) or `background` (it returns at once): write `release = background`, or leave it out";
    one_of(value, &[("awaited", ReleaseMode::Awaited), ("background", ReleaseMode::Background)], problem)
}

/// Parses `name`, which is also written in `DLOCK_OVERRIDES`: a name cannot have the marks of
/// that text.
pub(crate) fn name(value: Expr) -> syn::Result<Expr> {
    if let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &value
        && (text.value().contains(|c: char| c.is_whitespace() || c == ';') || text.value().ends_with(':'))
    {
        let problem = "cannot have white space, a `;`, or a `:` at its end";
        return Err(shared::wrong_name(&value, problem));
    }
    shared::name(value)
}

/// Parses `kind`, which has one value.
pub(crate) fn kind(value: &Expr) -> syn::Result<()> {
    let written = match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => text.value(),
        other => other.to_token_stream().to_string(),
    };
    let instead = match written.to_ascii_lowercase().as_str() {
        _ if written == "mutex" && matches!(value, Expr::Path(_)) => return Ok(()),
        "read" | "shared" | "write" | "rw" | "rwlock" => {
            "readers exclude each other like writers, since a lock has one holder at a time"
        }
        "fair" | "fifo" => {
            "waiting calls of a process are served in their order, and a process that waits is queued"
        }
        "semaphore" | "permits" | "counting" => "a lock has one holder at a time",
        _ => {
            let problem = "`kind` is `mutex`: leave `kind` out, or write `kind = mutex`";
            return Err(Error::new(value.span(), problem));
        }
    };
    let problem =
        format!("there is no `kind = {written}`: {instead}; leave `kind` out, or write `kind = mutex`");
    Err(Error::new(value.span(), problem))
}
