//! Refers to the runtime: its path, and its warnings.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::Path;

/// Returns the path of the runtime's module for expansions.
pub(crate) fn private(runtime: Option<&Path>) -> TokenStream {
    let span = Span::mixed_site();
    let installed = || quote_spanned!(span=> ::dlock_runtime::__private);
    runtime.map_or_else(installed, |runtime| quote_spanned!(span=> #runtime::__private))
}

/// Returns a warning at `span`, which on stable Rust only a use of a deprecated item can emit.
pub(crate) fn question(private: &TokenStream, name: &str, span: Span) -> TokenStream {
    let question = Ident::new(name, Span::call_site().located_at(span));
    quote_spanned!(Span::mixed_site()=> #private::#question)
}
