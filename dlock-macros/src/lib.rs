//! The attribute and the derive of dlock.
//!
//! Depend on `dlock-runtime`, which re-exports both and has their examples. Expansions refer to the
//! runtime only by path.
//!
//! # Layout
//!
//! ```text
//! expand                assembles the expansion
//! ├── args              name = value, ..            ── entry, values, duration, names, conflicts
//! ├── function          the annotated item          ── boxed, output, pattern
//! ├── key               placeholders and arguments  ── template, checks
//! └── outcome           the return value
//! key_part              the derive                  ── key_part_checks
//! report                many errors, one report
//! ```

mod args;
mod boxed;
mod checks;
mod conflicts;
mod duration;
mod entry;
mod expand;
mod function;
mod key;
mod key_part;
mod key_part_checks;
mod names;
mod outcome;
mod output;
mod pattern;
mod report;
mod template;
#[cfg(test)]
mod tests;
mod values;

use proc_macro::TokenStream;

#[doc = include_str!("docs/distributed_lock.md")]
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::distributed_lock(args.into(), item.into()).into()
}

#[doc = include_str!("docs/key_part.md")]
#[proc_macro_derive(KeyPart, attributes(key_part))]
pub fn key_part(item: TokenStream) -> TokenStream {
    key_part::derive(item.into()).into()
}
