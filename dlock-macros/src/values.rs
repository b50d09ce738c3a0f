//! Parses the values that are not durations, each form with its error.

use std::time::Duration;

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprCall, ExprLit, Lit, LitBool, Path};

use crate::args::{OnContended, OnLost, OnUnavailable, ReleaseMode};
use crate::duration::Time;
use crate::report::written;

/// Parses `lease` or `max_hold`, which have the same bounds.
pub(crate) fn lease(name: &str, value: &Expr, example: &str) -> syn::Result<Time> {
    let lease = Time::parse(name, value, example)?;
    match lease.known() {
        Some((short, span)) if short < SHORTEST_LEASE => Err(Error::new(
            span,
            format!(
                "`{name}` is at least 100 ms, since a lease must outlive the round trips that renew it: write `{name} = \"{example}\"`"
            ),
        )),
        Some((long, span)) if long > LONGEST => Err(Error::new(span, too_long(name, example))),
        _ => Ok(lease),
    }
}

/// Parses `min_hold`, which a server must store.
pub(crate) fn min_hold(value: &Expr) -> syn::Result<Time> {
    let min_hold = Time::parse("min_hold", value, "50s")?;
    match min_hold.known() {
        Some((long, span)) if long > LONGEST => Err(Error::new(span, too_long("min_hold", "50s"))),
        _ => Ok(min_hold),
    }
}

fn too_long(name: &str, example: &str) -> String {
    format!("`{name}` is at most 365 days: write `{name} = \"{example}\"`")
}

/// The same bound as in the runtime. A server's arithmetic overflows only far beyond it.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// With a shorter lease, a renewal after a third of it would not have time for its round trip.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Parses `true` or `false`.
pub(crate) fn boolean(name: &str, value: &Expr) -> syn::Result<LitBool> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Bool(value), .. }) => Ok(value.clone()),
        other => {
            let problem = format!("`{name}` is true or false: write `{name} = true` or `{name} = false`");
            Err(Error::new(other.span(), problem))
        }
    }
}

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

/// Parses `name`, the function's name in spans and metrics.
pub(crate) fn name(value: Expr) -> syn::Result<Expr> {
    let problem = match &value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if text.value().is_empty() => "is empty",
        Expr::Path(_) | Expr::Lit(ExprLit { lit: Lit::Str(_), .. }) => return Ok(value),
        _ => "is a string, or the path of a `const &str`",
    };
    let span = value.span();
    Err(Error::new(
        span,
        format!("`name` {problem}, and labels spans and metrics: write `name = \"place_order\"`"),
    ))
}

/// Parses `namespace`, the prefix of the key in Redis.
pub(crate) fn namespace(value: Expr) -> syn::Result<Expr> {
    let problem = match &value {
        Expr::Path(_) => return Ok(value),
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => match text.value() {
            placeholders if placeholders.contains(['<', '>']) => {
                "cannot have placeholders: put what varies into the `key`"
            }
            odd if odd.contains(|c: char| c.is_whitespace() || c.is_control() || "{}".contains(c)) => {
                "cannot have white space, control characters or braces"
            }
            _ => return Ok(value),
        },
        _ => "is a string, or the path of a `const &str`; put what varies into the `key`",
    };
    let span = value.span();
    Err(Error::new(span, format!("`namespace` {problem}: write `namespace = \"shop\"`")))
}

/// Parses `guard`, the guard's name in the body.
pub(crate) fn guard(value: &Expr) -> syn::Result<Ident> {
    let name = match value {
        Expr::Path(path) if path.qself.is_none() => path.path.get_ident(),
        _ => None,
    };
    name.filter(|name| *name != "self" && *name != "Self" && *name != "crate" && *name != "super")
        .cloned()
        .ok_or_else(|| {
            Error::new(
                value.span(),
                "`guard` is the name by which the body uses the held lock: write `guard = lock`",
            )
        })
}

/// Parses `manager`, an expression for an existing manager.
pub(crate) fn manager(value: Expr) -> syn::Result<Expr> {
    let problem = match &value {
        Expr::Lit(ExprLit { lit: Lit::Str(_), .. }) => {
            "`manager` is an expression for a `LockManager`: write `manager = self.locks`; a URL goes to `dlock_runtime::init(url).await`, once"
        }
        _ if ["LockManager", "connect"].iter().all(|name| mentions(&value.to_token_stream(), name)) => {
            "`manager` is evaluated at each call, and a manager that is created there shares its locks with no other call: create one at the start, and write `manager = self.locks`, or leave `manager` out"
        }
        _ => return Ok(value),
    };
    Err(Error::new_spanned(value, problem))
}

fn mentions(tokens: &TokenStream, name: &str) -> bool {
    tokens.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == name,
        TokenTree::Group(group) => mentions(&group.stream(), name),
        _ => false,
    })
}

/// Parses `crate`, the absolute path of the runtime.
pub(crate) fn runtime(value: Expr) -> syn::Result<Path> {
    let span = value.span();
    match value {
        Expr::Path(path) if path.qself.is_none() && is_absolute(&path.path) => Ok(path.path),
        _ => Err(Error::new(
            span,
            "`crate` is an absolute path to the runtime: write `crate = ::dlock_runtime` or `crate = crate::reexports::dlock`",
        )),
    }
}

fn is_absolute(path: &Path) -> bool {
    path.leading_colon.is_some()
        || path.segments.first().is_some_and(|first| first.ident == "crate" || first.ident == "$crate")
}
