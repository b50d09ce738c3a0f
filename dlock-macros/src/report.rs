//! Collects errors, so that one compilation reports every mistake in an attribute.

use proc_macro2::TokenStream;
use quote::ToTokens;

/// The errors of one attribute.
#[derive(Debug, Default)]
pub(crate) struct Report(Option<syn::Error>);

impl Report {
    /// Adds an error.
    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Keeps the error of `result`, or returns its value.
    pub(crate) fn check<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Returns `value` if it exists and no error was reported.
    ///
    /// # Errors
    ///
    /// Returns all errors as one. A missing value must have been reported.
    pub(crate) fn finish<T>(self, value: Option<T>) -> syn::Result<T> {
        match (self.0, value) {
            (None, Some(value)) => Ok(value),
            (Some(errors), _) => Err(errors),
            (None, None) => Err(syn::Error::new(
                proc_macro2::Span::call_site(),
                "internal error of the attribute: a part is missing and nothing was reported",
            )),
        }
    }
}

/// Returns the errors **and the unchanged item**, so that its callers still resolve and editors
/// keep working.
pub(crate) fn with_original_item(errors: &syn::Error, item: TokenStream) -> TokenStream {
    let mut tokens = errors.to_compile_error();
    tokens.extend(item);
    tokens
}

/// Formats code for a message as a person writes it: tokens have white space between any two.
pub(crate) fn written(code: &impl ToTokens) -> String {
    let narrow =
        [(" :: ", "::"), (" < ", "<"), (" >", ">"), (" ,", ","), (" (", "("), ("& ", "&"), (" !", "!")];
    let text = code.to_token_stream().to_string();
    narrow.iter().fold(text, |text, (wide, narrow)| text.replace(wide, narrow))
}

/// Joins names for a message: `` `a`, `b` ``.
pub(crate) fn list<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{}`", name.as_ref())).collect();
    quoted.join(", ")
}
