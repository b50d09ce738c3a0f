//! The attributes and the derive of dlock.
//!
//! Depend on `dlock-runtime`, which re-exports them and has their examples. Expansions refer to the
//! runtime only by path.
//!
//! # Layout
//!
//! ```text
//! distributed_lock    an attribute: its parameters, its generated code, its vocabulary
//! idempotent          an attribute
//! scheduled           an attribute, with the feature `scheduled`
//! key_part            the derive
//! arguments           name = value, ..: what the parameters of all attributes have in common
//! key                 key templates, and the arguments that their placeholders refer to
//! function            the annotated item, and the future that its body becomes
//! vocabulary          the names and nouns in which the attributes differ
//! report              many errors, one report
//! stacking            two attributes on one function
//! runtime             the path of the runtime, and its warnings
//! ```

mod arguments;
mod distributed_lock;
mod function;
mod idempotent;
mod key;
mod key_part;
mod report;
mod runtime;
#[cfg(feature = "scheduled")]
mod scheduled;
mod stacking;
mod vocabulary;

use proc_macro::TokenStream;

// Of two definitions of a link, the first one counts; the one at the end of a text leads to a file.
#[doc = "[idempotent]: macro@crate::idempotent\n\n"]
#[doc = include_str!("docs/distributed_lock.md")]
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    distributed_lock::expand(args.into(), item.into()).into()
}

#[doc = "[distributed_lock]: macro@crate::distributed_lock\n\n"]
#[doc = include_str!("docs/idempotent.md")]
#[proc_macro_attribute]
pub fn idempotent(args: TokenStream, item: TokenStream) -> TokenStream {
    idempotent::expand(args.into(), item.into()).into()
}

#[cfg(feature = "scheduled")]
#[doc = include_str!("docs/scheduled.md")]
#[proc_macro_attribute]
pub fn scheduled(args: TokenStream, item: TokenStream) -> TokenStream {
    scheduled::expand(args.into(), item.into()).into()
}

#[doc = include_str!("docs/key_part.md")]
#[proc_macro_derive(KeyPart, attributes(key_part))]
pub fn key_part(item: TokenStream) -> TokenStream {
    key_part::derive(item.into()).into()
}
