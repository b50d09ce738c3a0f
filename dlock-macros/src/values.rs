//! The values that are no plain duration: one function per form, each with its error.
//!
//! Not here: the names of the parameters and how they are told apart (`args`), and durations (`duration`).

use std::time::Duration;

use proc_macro2::Ident;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, LitBool, Path};

use crate::args::{OnContended, OnLost};
use crate::duration::Time;

/// Reads `lease`: no shorter than the renewals of it could be.
pub(crate) fn lease(value: &Expr) -> syn::Result<Time> {
    let lease = Time::parse("lease", value, "30s")?;
    match lease.known() {
        Some((short, span)) if short < SHORTEST_LEASE => Err(Error::new(
            span,
            "a lease is at least 100 ms, since it must outlive the round trips that renew it: write `lease = \"30s\"`",
        )),
        _ => Ok(lease),
    }
}

/// Below this a renewal every third of the lease could not make its round trip.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Reads `true` or `false`.
pub(crate) fn boolean(name: &str, value: &Expr) -> syn::Result<LitBool> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Bool(value), .. }) => Ok(value.clone()),
        other => {
            let problem = format!("`{name}` is true or false: write `{name} = true` or `{name} = false`");
            Err(Error::new(other.span(), problem))
        }
    }
}

/// Reads `retry`: a number, or the path of a constant.
pub(crate) fn retry(value: Expr) -> syn::Result<Expr> {
    let number = match &value {
        Expr::Path(_) => true,
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse::<u32>().is_ok(),
        _ => false,
    };
    if number {
        return Ok(value);
    }
    Err(Error::new(
        value.span(),
        "`retry` is the number of further tries after the first: write `retry = 3`; to bound the time write `wait = \"5s\"`",
    ))
}

/// Reads `on_contended`.
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
                "`fallback` takes the path of an `async fn` with the same arguments: write `on_contended = fallback(other_fn)`",
            ));
        }
        _ => {}
    }
    Err(Error::new(
        span,
        "`on_contended` is one of `error`, `skip`, `return(value)` and `fallback(path)`: write `on_contended = skip`",
    ))
}

/// Reads `on_lost`.
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

/// Reads `guard`: the name that the body uses.
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

/// Reads `crate`: where the runtime is found from everywhere.
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
