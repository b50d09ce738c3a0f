//! The attribute `#[distributed_lock]`.
//!
//! ```text
//! args          the parameters                  ── values, conflicts
//! expansion     the generated code              ── outcome
//! vocabulary    names, and nouns of messages
//! ```

mod args;
mod conflicts;
mod expansion;
mod outcome;
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
use args::{Args, Options};
use expansion::Expansion;

pub(crate) use vocabulary::VOCABULARY;

/// Expands the attribute.
pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    parse(args, item.clone()).unwrap_or_else(|errors| report::with_original_item(&errors, item))
}

fn parse(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let mut report = Report::default();
    let args = Args::parse(args, &mut report);
    let function = report.check(Function::parse(&VOCABULARY, item));
    let parts = args.zip(function).map(|(args, function)| {
        report.check(outcome::check(&function.output, &args.options));
        report.check(stacking::refuse_same_key(&VOCABULARY, "idempotent", &args.key, &function));
        report.check(check_names(&args.options, &function));
        let key = Key::parse(&VOCABULARY, &args.key, &function, &mut report);
        (args, function, key)
    });
    let (args, function, key) = report.finish(parts)?;
    let private = runtime::private(args.options.runtime.as_ref());
    Ok(Expansion { private, args: &args, function: &function, key }.function())
}

/// Finds invalid names: a guard that hides an argument, and a lock on `main`.
fn check_names(options: &Options, function: &Function) -> syn::Result<()> {
    if let Some(guard) = &options.guard {
        function.refuse_hidden("guard", guard, "held")?;
    }
    if options.manager.is_none() { function.refuse_main(&VOCABULARY) } else { Ok(()) }
}
