//! Finds parameters that contradict each other, and parameters that do not fit the function.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Error, FnArg, Receiver, ReceiverKind, Type};

use super::args::{Fingerprint, IdempotentArgs, OnCrash, RecordOptions};
use crate::arguments::duration::{Time, written};
use crate::function::Function;
use crate::report::Report;

/// Reports each pair of parameters that contradict each other.
///
/// Only literals are known here. The runtime checks constants when the call runs.
pub(super) fn check(options: &RecordOptions, report: &mut Report) {
    let RecordOptions { ttl, lease, on_crash, record, .. } = options;
    let known = |time: &Option<Time>| time.as_ref().and_then(Time::known);
    if let (Some((ttl, _)), Some((lease, span))) = (known(ttl), known(lease))
        && lease > ttl
    {
        report.push(Error::new(
            span,
            format!(
                "the record ends after its `ttl`, before this `lease`: write `ttl = \"{}\"` or more, or a shorter `lease`",
                written(lease)
            ),
        ));
    }
    if let (Some((OnCrash::Resume, span)), None) = (on_crash, record) {
        report.push(Error::new(
            *span,
            "`on_crash = resume` replays the completed steps of a crashed call, and without `record` there are none: write `record = record`, and `record.step(\"name\", async || ..)` in the body, or `on_crash = rerun`",
        ));
    }
}

/// Reports what the function does not fit.
pub(super) fn check_function(args: &IdempotentArgs, function: &Function, report: &mut Report) {
    let options = &args.options;
    if let Some(record) = &options.record {
        report.check(function.refuse_hidden("record", record, "attempt"));
    }
    if options.manager.is_none() {
        report.check(function.refuse_main(&super::VOCABULARY));
    }
    let output = &function.output;
    if output.is_never() {
        report.push(Error::new(output.span, "`!` has no value to store: return `Result<T, E>`"));
    } else if output.opaque {
        report.push(Error::new(
            output.span,
            "`impl Trait` cannot be stored and replayed: return `Result<T, E>`, where `T` implements `Serialize` and `DeserializeOwned`",
        ));
    }
    if options.is_detached() {
        check_detached(function, report);
    }
}

/// Reports the arguments that a body on its own task cannot own.
fn check_detached(function: &Function, report: &mut Report) {
    for input in &function.signature.inputs {
        let problem = match input {
            FnArg::Receiver(receiver) if is_borrowed(receiver) => Some((
                receiver.span(),
                "a borrowed `self`".to_owned(),
                "take `self: Arc<Self>`, or write `detached = false`",
            )),
            FnArg::Receiver(_) => None,
            FnArg::Typed(typed) => borrow(&typed.ty).map(|span| {
                let name = typed.pat.to_token_stream().to_string();
                (
                    span,
                    format!("the argument `{name}`, which borrows"),
                    "take it by value, or write `detached = false`",
                )
            }),
        };
        if let Some((span, what, advice)) = problem {
            report.push(Error::new(
                span,
                format!(
                    "the body runs to its end on its own task even if the call is dropped, so it cannot use {what}: {advice}; then a dropped call leaves the outcome unknown"
                ),
            ));
        }
    }
}

/// Returns `true` for `&self`, and for `self: &Self` and the like.
fn is_borrowed(receiver: &Receiver) -> bool {
    match &receiver.kind {
        ReceiverKind::Reference(..) => true,
        ReceiverKind::Typed(_, ty) => borrow(ty).is_some(),
        _ => false,
    }
}

/// Returns the span of a reference or of a lifetime other than `'static` in a type.
///
/// A reference among the parameters or in the return type of a function, as in
/// `Fn(&Order) -> &str`, is one of its calls: the function borrows nothing. So is a lifetime that
/// `for<'a>` names. Another named lifetime there is that of a borrow.
fn borrow(ty: &Type) -> Option<Span> {
    let tokens = ty.to_token_stream();
    let mut owned = vec!["static".to_owned()];
    // Rust refuses a name with another meaning in scope, so it means the same in the whole type.
    collect_bound_lifetimes(tokens.clone(), &mut owned);
    borrow_within(tokens, &owned, false)
}

/// Adds the lifetimes that each `for<..>` names.
fn collect_bound_lifetimes(tokens: TokenStream, bound: &mut Vec<String>) {
    let mut in_binder = false;
    let mut before: Option<TokenTree> = None;
    for token in tokens {
        match &token {
            TokenTree::Punct(mark) if mark.as_char() == '<' => {
                in_binder = matches!(&before, Some(TokenTree::Ident(name)) if name == "for");
            }
            TokenTree::Punct(mark) if mark.as_char() == '>' => in_binder = false,
            TokenTree::Ident(name) if in_binder => bound.push(name.to_string()),
            TokenTree::Group(group) => collect_bound_lifetimes(group.stream(), bound),
            _ => {}
        }
        before = Some(token);
    }
}

/// Returns the span of a borrow in tokens of a type. `of_call`: they are parameters of a function.
fn borrow_within(tokens: TokenStream, owned: &[String], of_call: bool) -> Option<Span> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_mark = |at: Option<usize>, mark: char| {
        let token = at.and_then(|at| tokens.get(at));
        matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
    };
    let is_owned = |at: usize| {
        tokens.get(at).is_some_and(|lifetime| owned.iter().any(|owned| lifetime.to_string() == *owned))
    };
    let has_parameters = |at: usize| {
        at.checked_sub(1).is_some_and(|before| is_function(&tokens[before]))
            && matches!(tokens.get(at), Some(TokenTree::Group(_)))
    };
    // In a return type, how many angle brackets are open: one more that closes ends it.
    let mut returned: Option<usize> = None;
    for (at, token) in tokens.iter().enumerate() {
        let of_call = of_call || returned.is_some();
        let found = match token {
            TokenTree::Punct(mark) => match mark.as_char() {
                '\'' => {
                    let is_elided = of_call && tokens.get(at + 1).is_some_and(|next| next.to_string() == "_");
                    let span = || tokens.get(at + 1).map_or_else(|| mark.span(), TokenTree::span);
                    (!is_owned(at + 1) && !is_elided).then(span)
                }
                '&' => {
                    let is_of_owned = is_mark(Some(at + 1), '\'') && is_owned(at + 2);
                    (!is_of_owned && !of_call).then(|| mark.span())
                }
                '>' if is_mark(at.checked_sub(1), '-') => {
                    if at.checked_sub(2).is_some_and(has_parameters) {
                        returned.get_or_insert(0);
                    }
                    None
                }
                '<' => {
                    returned = returned.map(|open| open + 1);
                    None
                }
                '>' => {
                    returned = returned.and_then(|open| open.checked_sub(1));
                    None
                }
                '+' | ',' if returned == Some(0) => {
                    returned = None;
                    None
                }
                _ => None,
            },
            TokenTree::Group(group) => borrow_within(group.stream(), owned, of_call || has_parameters(at)),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Returns `true` for the word before the parameters of a function type.
fn is_function(before: &TokenTree) -> bool {
    let names = ["fn", "Fn", "FnMut", "FnOnce", "AsyncFn", "AsyncFnMut", "AsyncFnOnce"];
    matches!(before, TokenTree::Ident(name) if names.iter().any(|function| name == function))
}

/// Returns the arguments that are in neither the key nor the fingerprint, if the attribute does not
/// say that this is intended.
///
/// An argument of which the key uses only a part counts as well: two requests can differ in the
/// rest.
pub(super) fn uncovered(args: &IdempotentArgs, function: &Function, whole: &[syn::Ident]) -> Vec<Span> {
    let RecordOptions { fingerprint, manager, .. } = &args.options;
    if let Some(Fingerprint::None | Fingerprint::Of(_)) = fingerprint {
        return Vec::new();
    }
    let managers = manager.as_ref().map(|manager| manager.to_token_stream().to_string()).unwrap_or_default();
    let arguments = function.names().filter(|name| name != "self");
    arguments
        .filter(|name| !name.to_string().starts_with('_'))
        .filter(|name| !whole.contains(name) && !managers.split(' ').any(|word| name == word))
        .map(|name| name.span())
        .collect()
}
