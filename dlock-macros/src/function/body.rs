//! Generates the body, as a future that owns every argument, and the item around it.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Lifetime;

use super::{Destructured, Function, Parameter, pattern};

/// Puts `statements` in the place of the body.
pub(crate) fn item(function: &Function, statements: &TokenStream) -> TokenStream {
    let Function { attributes, visibility, default, signature, inner_attributes, boxed, .. } = function;
    let mut block = quote_spanned!(Span::mixed_site()=> #(#inner_attributes)* #statements);
    // The body of the box is the body of the function: it runs when the future is polled.
    if let Some(boxed) = boxed {
        block = quote_spanned!(Span::mixed_site()=> #boxed(async move { #block }));
    }
    quote!(#(#attributes)* #visibility #default #signature { #block })
}

/// Binds the names of patterns by reference, for code that precedes the body: those in `used`, or
/// all of them if an expression may use any.
pub(crate) fn bindings(function: &Function, used: Option<&[Ident]>) -> TokenStream {
    let free = used.is_none();
    let bindings = function.parameters.iter().filter_map(|parameter| {
        let given = parameter.pattern.as_ref()?;
        let wanted = |name: &Ident| used.is_none_or(|used| used.contains(name));
        if !pattern::names(given).iter().any(wanted) {
            return None;
        }
        let (pattern, name) = (pattern::borrowed(given, wanted), &parameter.name);
        let conditions = &parameter.conditions;
        // An expression may use any of the names, so all of them count as used.
        let named = pattern::names(&pattern).into_iter().filter(|name| free && !is_unused(name));
        let used: TokenStream =
            named.map(|name| quote_spanned!(Span::mixed_site()=> #(#conditions)* let _ = &#name;)).collect();
        // The function itself matches the argument, and lints for references see only this match.
        let allow = quote!(#[allow(clippy::pattern_type_mismatch, clippy::unneeded_field_pattern)]);
        Some(quote_spanned!(Span::mixed_site()=> #(#conditions)* #allow let #pattern = &#name; #used))
    });
    bindings.collect()
}

/// Returns the body, as a future that owns every argument. `prologue` precedes the user's code.
pub(crate) fn future(
    function: &Function,
    private: &TokenStream,
    prologue: Option<&TokenStream>,
) -> TokenStream {
    let span = Span::mixed_site();
    // Captured arguments are dropped in the order of their first use: the last one first, as in a
    // function.
    let arguments = function.parameters.iter().rev().flat_map(|parameter| {
        let mut names = match &parameter.pattern {
            Some(pattern) if parameter.taken_apart == Destructured::BeforeBody => pattern::names(pattern),
            _ => vec![parameter.name.clone()],
        };
        names.reverse();
        names.into_iter().map(|name| {
            let conditions = &parameter.conditions;
            let allow = is_unused(&name).then(|| quote!(#[allow(clippy::used_underscore_binding)]));
            quote_spanned!(span=> #(#conditions)* #allow let _ = &#name;)
        })
    });
    let receiver = function.receiver.iter().map(|receiver| quote_spanned!(span=> let _ = &#receiver;));
    let capture: TokenStream = arguments.chain(receiver).collect();
    // Sets the type before the first `return` or `?`, so that values coerce as in a plain function.
    let output = &function.output;
    let returns =
        (!output.opaque).then(|| quote_spanned!(span=> if false { return #private::never::<#output>(); }));
    let bindings = function.parameters.iter().map(rebinding);
    // The braces are the user's, and so is their edition, which decides when temporaries of the
    // last expression are dropped. Without the label, which starts the block and needs the same
    // edition, `unused_braces` would warn.
    let body = &function.body;
    let label = Lifetime::new("'__dlock_body", body.span());
    quote_spanned! {span=>
        async move {
            #capture
            #returns
            #(#bindings)*
            #prologue
            #label: #body
        }
    }
}

/// Returns the statements at the start of the body that bind one parameter as the function does.
fn rebinding(parameter: &Parameter) -> TokenStream {
    let Parameter { name, conditions, .. } = parameter;
    let span = Span::mixed_site();
    let again = parameter.again.as_ref().map(|again| {
        let allow = quote!(#[allow(clippy::shadow_same, clippy::used_underscore_binding)]);
        quote_spanned! {span=>
            #(#conditions)* #allow let #again = #name;
            #(#conditions)* #allow let _ = &#name;
        }
    });
    let apart = take_apart(parameter, Destructured::InBody);
    quote_spanned!(span=> #again #apart)
}

/// Returns the statements that take arguments apart before the body.
pub(crate) fn taken_apart_before(function: &Function) -> impl Iterator<Item = TokenStream> {
    function.parameters.iter().filter_map(|parameter| take_apart(parameter, Destructured::BeforeBody))
}

/// Returns the statement that takes an argument apart, if that happens at `there`.
fn take_apart(parameter: &Parameter, there: Destructured) -> Option<TokenStream> {
    let Parameter { name, conditions, taken_apart, .. } = parameter;
    let pattern = parameter.pattern.as_ref().filter(|_| *taken_apart == there)?;
    let argument = match there {
        // The braces move the argument as a whole: if its parts were moved out one by one, it would
        // keep its space in the future.
        Destructured::BeforeBody => quote_spanned!(Span::mixed_site()=> { #name }),
        Destructured::InBody | Destructured::Already => name.to_token_stream(),
    };
    Some(quote_spanned!(Span::mixed_site()=> #(#conditions)* let #pattern = #argument;))
}

/// Returns `true` if an unused variable of this name causes no warning.
fn is_unused(name: &Ident) -> bool {
    let name = name.to_string();
    name.starts_with('_') && !name.starts_with("__dlock_arg")
}
