//! Parses the parameters of an attribute, each by itself.
//!
//! ```text
//! args  := { name "=" value "," }       ── entry
//! value := an expression                ── values, duration: the forms that several attributes have
//! ```

pub(crate) mod duration;
mod entry;
pub(crate) mod names;
pub(crate) mod values;

use proc_macro2::{Ident, Span, TokenStream};
use syn::{Error, Expr, ExprLit, Lit};

use crate::report::Report;
use crate::vocabulary::Vocabulary;

pub(crate) use entry::without_group;

/// Parses the attribute's text, and calls `set` for each parameter. Every error goes to `report`.
///
/// `set` returns `false` for a name that is not a parameter, which is reported here.
pub(crate) fn parse(
    words: &Vocabulary,
    tokens: TokenStream,
    report: &mut Report,
    mut set: impl FnMut(&Ident, Expr) -> syn::Result<bool>,
) {
    let mut seen: Vec<Ident> = Vec::new();
    // A key that was refused must not be reported as missing as well.
    let mut key_refused = false;
    for entry in entry::split(tokens) {
        let Some((name, value)) = report.check(entry.read(words)) else {
            key_refused |= entry.is_key();
            continue;
        };
        if seen.contains(&name) {
            report.push(Error::new(name.span(), format!("`{name}` is given twice: keep one of the two")));
            continue;
        }
        if report.check(set_unquoted(words, &name, value, &mut set)) == Some(false) {
            let other = name.to_string();
            key_refused |= other == "keys" || words.canonical_name(&other) == Some("key");
            report.push(Error::new(name.span(), words.unknown(&other)));
        }
        seen.push(name);
    }
    if words.has_key && !key_refused && !seen.iter().any(|name| name == "key") {
        let example = words.nouns.example_key;
        report.push(Error::new(
            Span::call_site(),
            format!("no key is given: write `key = \"{example}\"`, with an argument between `<` and `>`"),
        ));
    }
}

/// Calls `set` for one parameter. If the value is a word in quotes, the error shows it without.
///
/// A suggestion of another word would change what the attribute does.
fn set_unquoted(
    words: &Vocabulary,
    name: &Ident,
    value: Expr,
    set: &mut impl FnMut(&Ident, Expr) -> syn::Result<bool>,
) -> syn::Result<bool> {
    let text = match &value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if !words.has_quotes(&name.to_string()) => {
            text.clone()
        }
        _ => return set(name, value),
    };
    let Ok(unquoted) = text.parse() else { return set(name, value) };
    if !set(name, unquoted)? {
        return Ok(false);
    }
    let problem = format!("this value is written without quotes: `{name} = {}`", text.value().trim());
    Err(Error::new(text.span(), problem))
}

/// Returns the value of `key` in another attribute's text.
pub(crate) fn key_of(words: &Vocabulary, tokens: TokenStream) -> Option<Expr> {
    let entries = entry::split(tokens).into_iter();
    entries.filter_map(|entry| entry.read(words).ok()).find(|(name, _)| name == "key").map(|(_, value)| value)
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::vocabulary::tests::ALL;

    /// Asserts that `value`, such as `on_lost = finish`, is the suggestion for its quoted form.
    #[track_caller]
    pub(crate) fn assert_unquoted(value: &str, errors: impl Fn(&str) -> Vec<String>) {
        let (name, word) = value.split_once(" = ").expect("a parameter and its value");

        let told = errors(&format!("{name} = {word:?}"));

        // A check of several parameters may add an error.
        assert_eq!(told.first(), Some(&format!("this value is written without quotes: `{value}`")));
    }

    #[test]
    fn every_parameter_with_quotes_exists() {
        for words in ALL {
            for name in words.quoted.split(' ') {
                assert!(words.has_parameter(name), "`{name}` of `{}`", words.attribute);
            }
        }
    }
}
