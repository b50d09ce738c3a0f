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
    let narrow = [" ::", ":: ", " <", "< ", " >", " ,", " (", "& ", " !", " .", ". "];
    let text = code.to_token_stream().to_string();
    narrow.iter().fold(text, |text, wide| text.replace(wide, wide.trim()))
}

/// Joins names for a message: `` `a`, `b` ``.
pub(crate) fn list<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{}`", name.as_ref())).collect();
    quoted.join(", ")
}

#[cfg(test)]
pub(crate) mod tests {
    use proc_macro2::{TokenStream, TokenTree};
    use syn::LitStr;

    use super::*;

    /// Returns the messages of the errors in an expansion.
    pub(crate) fn messages(expanded: TokenStream) -> Vec<String> {
        let tokens: Vec<TokenTree> = expanded.into_iter().collect();
        let errors = tokens.windows(3).filter_map(|tokens| match tokens {
            [TokenTree::Ident(name), _, TokenTree::Group(text)] if name == "compile_error" => {
                Some(syn::parse2::<LitStr>(text.stream()).expect("a message").value())
            }
            _ => None,
        });
        errors.collect()
    }

    /// Asserts that `input` has one message for each of `starts`, which begins with it.
    #[track_caller]
    pub(crate) fn assert_messages(input: &str, found: &[String], starts: &[&str]) {
        let fits = found.len() == starts.len()
            && found.iter().zip(starts).all(|(found, start)| found.starts_with(start));
        assert!(fits, "`{input}` gives {found:?} instead of {starts:?}");
    }

    /// Returns an expansion without white space.
    pub(crate) fn dense(expanded: &TokenStream) -> String {
        expanded.to_string().split_whitespace().collect()
    }

    #[test]
    fn a_missing_value_without_an_error_is_reported() {
        let error = Report::default().finish(None::<u8>).expect_err("nothing was parsed");

        assert!(error.to_string().starts_with("internal error of the attribute"), "{error}");
    }

    #[test]
    fn an_error_beside_a_value_is_returned() {
        let mut report = Report::default();

        assert_eq!(report.check(Ok(7)), Some(7));
        assert_eq!(report.check(Err::<u8, _>(syn::Error::new(proc_macro2::Span::call_site(), "a"))), None);

        let error = report.finish(Some(7)).expect_err("an error was reported");
        assert_eq!(error.to_string(), "a");
    }

    #[test]
    fn code_in_a_message_is_written_without_spaces() {
        for text in ["Result<Vec<u8>, Error>", "f(&a, b)", "a::B", "println!(\"a\")"] {
            let code: TokenStream = text.parse().expect("tokens");

            assert_eq!(written(&code), text);
        }
    }
}
