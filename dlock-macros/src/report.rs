//! Many errors, one report: every mistake of an attribute is found in one compilation.
//!
//! Not here: what the mistakes are; each is worded where it is found.

use proc_macro2::TokenStream;
use quote::ToTokens;

/// Collects the errors of one attribute.
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

    /// Keeps the error of `result`, or gives its value.
    pub(crate) fn check<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Gives `value`, unless anything was reported or there is none.
    ///
    /// # Errors
    ///
    /// All errors, as one. A missing value must have been reported.
    pub(crate) fn finish<T>(self, value: Option<T>) -> syn::Result<T> {
        match (self.0, value) {
            (None, Some(value)) => Ok(value),
            (Some(errors), _) => Err(errors),
            (None, None) => Err(syn::Error::new(
                proc_macro2::Span::call_site(),
                "internal error of `distributed_lock`: a part is missing and nothing was reported",
            )),
        }
    }
}

/// Gives the errors **and the item as it came**, so that its callers still resolve and editors keep working.
pub(crate) fn beside(errors: &syn::Error, item: TokenStream) -> TokenStream {
    let mut tokens = errors.to_compile_error();
    tokens.extend(item);
    tokens
}

/// Writes code for a message about as its author wrote it: tokens come with white space between any two.
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
