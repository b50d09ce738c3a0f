//! Refers to the runtime: its path, and its warnings.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Expr, Path};

use crate::function::Function;

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

/// Returns an expression that begins a call of type `call` with `site`: of `manager`, or of the
/// installed one.
pub(crate) fn begun(call: &TokenStream, manager: Option<&Expr>, site: &TokenStream) -> TokenStream {
    let span = Span::mixed_site();
    match manager {
        None => quote_spanned!(span=> #call::new(#site)),
        Some(manager) => quote_spanned!(span.located_at(manager.span())=> #call::under(&#manager, #site)),
    }
}

/// Returns the name of a function in spans: the parameter `name`, or its path.
pub(crate) fn name_of(function: &Function, given: Option<&Expr>) -> TokenStream {
    let path = format!("::{}", function.signature.ident.unraw());
    given.map_or_else(
        || quote_spanned!(Span::mixed_site()=> ::core::concat!(::core::module_path!(), #path)),
        ToTokens::to_token_stream,
    )
}

/// Returns the call of a builder's method, if there is a value for it.
pub(crate) fn setter(name: &str, value: Option<impl ToTokens>) -> Option<TokenStream> {
    let name = Ident::new(name, Span::mixed_site());
    value.map(|value| quote_spanned!(Span::mixed_site()=> .#name(#value)))
}
