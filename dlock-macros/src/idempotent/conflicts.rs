//! Finds parameters that contradict each other, and parameters that do not fit the function.

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    BoundLifetimes, Error, FnArg, GenericParam, Lifetime, ParenthesizedGenericArguments, Receiver,
    ReceiverKind, Type, TypeFnPtr, TypeReference,
};

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
    if let Some(value) = output.optional_unit() {
        report.push(Error::new(
            value.span(),
            "`Some(())` is stored as `null`, and would be replayed as `None`: return `Result<(), E>`, or `Result<Option<T>, E>` where `T` is a value, such as `bool`",
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
    let mut finder = BorrowFinder { owned: Vec::new(), of_call: false, found: None };
    finder.visit_type_mut(&mut ty.clone());
    finder.found
}

/// Finds the first borrow in a type. It changes nothing.
struct BorrowFinder {
    /// The lifetimes that each `for<..>` names. Rust refuses a name with another meaning in scope,
    /// so each means the same in the whole type.
    owned: Vec<Ident>,
    /// Whether it visits the parameters or the return type of a function.
    of_call: bool,
    found: Option<Span>,
}

impl BorrowFinder {
    fn is_owned(&self, lifetime: &Lifetime) -> bool {
        let name = &lifetime.ident;
        name == "static" || (name == "_" && self.of_call) || self.owned.contains(name)
    }

    fn of_call(&mut self, visit: impl FnOnce(&mut Self)) {
        let outside = std::mem::replace(&mut self.of_call, true);
        visit(self);
        self.of_call = outside;
    }
}

impl VisitMut for BorrowFinder {
    fn visit_bound_lifetimes_mut(&mut self, bound: &mut BoundLifetimes) {
        let lifetimes = bound.lifetimes.iter().filter_map(|parameter| match parameter {
            GenericParam::Lifetime(parameter) => Some(parameter.lifetime.ident.clone()),
            _ => None,
        });
        self.owned.extend(lifetimes);
    }

    fn visit_type_fn_ptr_mut(&mut self, function: &mut TypeFnPtr) {
        self.of_call(|finder| visit_mut::visit_type_fn_ptr_mut(finder, function));
    }

    /// Visits the parameters and the return type of `Fn(..) -> ..` and the like.
    fn visit_parenthesized_generic_arguments_mut(&mut self, call: &mut ParenthesizedGenericArguments) {
        self.of_call(|finder| visit_mut::visit_parenthesized_generic_arguments_mut(finder, call));
    }

    fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
        let is_owned = reference.lifetime.as_ref().map_or(self.of_call, |lifetime| self.is_owned(lifetime));
        if is_owned {
            visit_mut::visit_type_reference_mut(self, reference);
        } else {
            self.found.get_or_insert(reference.and_token.span());
        }
    }

    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        if !self.is_owned(lifetime) {
            self.found.get_or_insert(lifetime.ident.span());
        }
    }
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
