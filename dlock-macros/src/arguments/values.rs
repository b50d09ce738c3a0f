//! Parses the values that several attributes have and that are not durations, each form with its
//! error.

use std::time::Duration;

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, LitBool, LitInt, Path};

use super::duration::Time;
use crate::vocabulary::Vocabulary;

/// Parses `lease` or a duration that has the same bounds.
pub(crate) fn lease(words: &Vocabulary, name: &str, value: &Expr, example: &str) -> syn::Result<Time> {
    let lease = Time::parse_in(words, name, value, example, (SHORTEST_LEASE, LONGEST))?;
    match lease.known() {
        Some((short, span)) if short < SHORTEST_LEASE => Err(Error::new(
            span,
            format!(
                "`{name}` is at least 100 ms, since a lease must outlive the round trips that renew it: write `{name} = \"{example}\"`"
            ),
        )),
        _ => Ok(lease),
    }
}

/// Parses a duration that a server must store.
pub(crate) fn stored(words: &Vocabulary, name: &str, value: &Expr, example: &str) -> syn::Result<Time> {
    stored_for(words, name, value, example, Duration::from_millis(1))
}

/// Like [`stored`]. A suggested duration is at least `shortest`. The caller must check that a valid
/// one is, too.
pub(crate) fn stored_for(
    words: &Vocabulary,
    name: &str,
    value: &Expr,
    example: &str,
    shortest: Duration,
) -> syn::Result<Time> {
    Time::parse_in(words, name, value, example, (shortest, LONGEST))
}

/// The same bound as in the runtime. A server's arithmetic overflows only far beyond it.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// With a shorter lease, a renewal after a third of it would not have time for its round trip.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Returns the word, if a value is only one.
pub(crate) fn word(value: &Expr) -> Option<String> {
    match value {
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

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

/// Returns `true` for a number that is not negative, has no unit, and fits into 32 bits.
pub(crate) fn is_count(number: &LitInt) -> bool {
    matches!(number.suffix(), "" | "u32") && number.base10_parse::<u32>().is_ok()
}

/// Parses one of several words. `problem` says what to write instead of another value.
pub(crate) fn one_of<T: Copy>(value: &Expr, words: &[(&str, T)], problem: &str) -> syn::Result<T> {
    let is_word = |word: &str| matches!(value, Expr::Path(path) if path.path.is_ident(word));
    let found = words.iter().find(|(word, _)| is_word(word));
    found.map(|(_, meaning)| *meaning).ok_or_else(|| Error::new(value.span(), problem))
}

/// Parses `name`, the function's name in spans.
pub(crate) fn name(value: Expr) -> syn::Result<Expr> {
    let problem = match &value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if text.value().is_empty() => "is empty",
        Expr::Path(_) | Expr::Lit(ExprLit { lit: Lit::Str(_), .. }) => return Ok(value),
        _ => "is a string, or the path of a `const &str`",
    };
    Err(wrong_name(&value, problem))
}

/// Returns the error of a `name` with this problem.
pub(crate) fn wrong_name(value: &Expr, problem: &str) -> Error {
    let advice = "labels spans: write `name = \"place_order\"`";
    Error::new(value.span(), format!("`name` {problem}, and {advice}"))
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
            with_colon if with_colon.ends_with(':') => {
                "has no `:` at its end, since dlock puts one between it and the key"
            }
            _ => return Ok(value),
        },
        _ => "is a string, or the path of a `const &str`; put what varies into the `key`",
    };
    let span = value.span();
    Err(Error::new(span, format!("`namespace` {problem}: write `namespace = \"shop\"`")))
}

/// Parses the name of a variable that the body uses. `meaning` completes "the name by which the
/// body uses".
pub(crate) fn variable(name: &str, value: &Expr, meaning: &str, example: &str) -> syn::Result<Ident> {
    let ident = match value {
        Expr::Path(path) if path.qself.is_none() => path.path.get_ident(),
        _ => None,
    };
    ident
        .filter(|ident| *ident != "self" && *ident != "Self" && *ident != "crate" && *ident != "super")
        .cloned()
        .ok_or_else(|| {
            let problem =
                format!("`{name}` is the name by which the body uses {meaning}: write `{name} = {example}`");
            Error::new(value.span(), problem)
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

/// Returns `true` if the tokens contain the identifier `name`.
pub(crate) fn mentions(tokens: &TokenStream, name: &str) -> bool {
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
