//! The attribute `#[scheduled]`.
//!
//! ```text
//! args          the parameters                          ── values, conflicts
//! instants      when the job is due, checked at compile time
//! expansion     the generated code
//! vocabulary    names, and nouns of messages
//! ```

mod args;
mod conflicts;
mod expansion;
mod instants;
#[cfg(test)]
mod tests;
mod values;
mod vocabulary;

use proc_macro2::TokenStream;

use crate::function::Function;
use crate::report::{self, Report};
use crate::runtime;
use args::ScheduledArgs;
use expansion::ScheduledExpansion;

pub(crate) use vocabulary::VOCABULARY;

/// Expands the attribute.
pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    parse(args, item.clone()).unwrap_or_else(|errors| report::with_original_item(&errors, item))
}

fn parse(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let mut report = Report::default();
    let args = ScheduledArgs::parse(args, &mut report);
    let function = report.check(Function::parse(&VOCABULARY, item));
    let parts = args.zip(function).inspect(|(args, function)| {
        conflicts::check_function(args, function, &mut report);
    });
    let (args, function) = report.finish(parts)?;
    let private = runtime::private(args.options.runtime.as_ref());
    Ok(ScheduledExpansion { private, args: &args, function: &function }.function())
}
