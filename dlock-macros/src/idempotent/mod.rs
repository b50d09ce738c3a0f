//! The attribute `#[idempotent]`.
//!
//! ```text
//! args          the parameters                          ── values, scope, conflicts
//! expansion     the generated code
//! vocabulary    names, and nouns of messages
//! ```

mod args;
mod conflicts;
mod expansion;
mod scope;
#[cfg(test)]
mod tests;
mod values;
mod vocabulary;

use proc_macro2::TokenStream;

use crate::function::Function;
use crate::key::Key;
use crate::report::{self, Report};
use crate::runtime;
use crate::stacking;
use args::IdempotentArgs;
use expansion::IdempotentExpansion;

pub(crate) use vocabulary::VOCABULARY;

/// Expands the attribute.
pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    parse(args, item.clone()).unwrap_or_else(|errors| report::with_original_item(&errors, item))
}

fn parse(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let mut report = Report::default();
    let args = IdempotentArgs::parse(args, &mut report);
    let function = report.check(Function::parse(&VOCABULARY, item));
    let parts = args.zip(function).map(|(args, function)| {
        conflicts::check_function(&args, &function, &mut report);
        report.check(stacking::refuse_same_key(&VOCABULARY, "distributed_lock", &args.key, &function));
        let mut key = Key::parse(&VOCABULARY, &args.key, &function, &mut report);
        scope::apply(args.options.scope.as_ref(), &args.key, &mut key, &function, &mut report);
        (args, function, key)
    });
    let (args, function, key) = report.finish(parts)?;
    let private = runtime::private(args.options.runtime.as_ref());
    Ok(IdempotentExpansion { private, args: &args, function: &function, key }.function())
}
