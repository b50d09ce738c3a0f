//! Finds each `name = value` of an attribute's text, before it is parsed.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::{Error, Expr};

use crate::vocabulary::Vocabulary;

/// The tokens of one `name = value`.
pub(crate) struct Entry(Vec<TokenTree>);

impl Entry {
    /// Parses the name and the value.
    pub(crate) fn read(&self, words: &Vocabulary) -> syn::Result<(Ident, Expr)> {
        let mut tokens = self.0.iter().cloned();
        let span = self.0.first().map_or_else(Span::call_site, TokenTree::span);
        let Some(TokenTree::Ident(name)) = tokens.next() else {
            let problem = if self.is_key() {
                "the key is given by name: write `key = ` before it"
            } else {
                "a parameter is written `name = value`"
            };
            return Err(Error::new(span, problem));
        };
        let name = name.unraw();
        match tokens.next() {
            Some(TokenTree::Punct(punct)) if punct.as_char() == '=' => {}
            other => return Err(Error::new(span, without_equals(words, &name, other))),
        }
        let value: TokenStream = tokens.collect();
        if value.is_empty() {
            return Err(Error::new(span, format!("`{name}` needs a value after the `=`")));
        }
        let value: Expr = syn::parse2(value.clone()).map_err(|_| {
            let problem =
                format!("the value of `{name}` cannot be parsed: a parameter is written `name = value`, and `,` separates parameters");
            Error::new_spanned(value, problem)
        })?;
        Ok((name, without_group(value)))
    }

    /// Returns `true` if this is the key, valid or not, so that no error says that it is missing.
    pub(crate) fn is_key(&self) -> bool {
        match self.0.first() {
            Some(TokenTree::Ident(name)) => name == "key",
            Some(TokenTree::Literal(_) | TokenTree::Group(_)) => true,
            _ => false,
        }
    }
}

/// Returns the error for a parameter that is not written `name = value`.
fn without_equals(words: &Vocabulary, name: &Ident, instead: Option<TokenTree>) -> String {
    let plain = name.to_string();
    match (instead, words.canonical_name(&plain)) {
        (Some(TokenTree::Group(value)), _) => {
            let value = value.stream();
            format!("a parameter is written with `=`: write `{name} = {value}` instead of `{name}({value})`")
        }
        (Some(TokenTree::Punct(colon)), _) if colon.as_char() == ':' => {
            format!("a parameter is written with `=`: write `{name} = ..` instead of `{name}: ..`")
        }
        // `skip` without a name, and similar
        (_, Some(ours)) => format!("`{name}` is not a parameter: write `{ours} = {name}`"),
        _ if words.has_parameter(&plain) => format!("`{name}` needs a value: write `{name} = ..`"),
        _ => words.unknown(&plain),
    }
}

/// Unwraps the invisible group that a `macro_rules!` variable leaves around its tokens.
pub(crate) fn without_group(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => without_group(*group.expr),
        value => value,
    }
}

/// Splits at each comma before the end or before another `name =`, so that one invalid value
/// affects no other parameter. A comma inside `key::<A, B>(..)` is followed by neither.
pub(crate) fn split(tokens: TokenStream) -> Vec<Entry> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut entries = Vec::new();
    let mut entry = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let starts = match (tokens.get(at + 1), tokens.get(at + 2)) {
            (None, _) | (Some(TokenTree::Ident(_)), None) => true,
            (Some(TokenTree::Ident(_)), Some(TokenTree::Punct(after))) => after.as_char() == '=',
            _ => false,
        };
        match token {
            TokenTree::Punct(comma) if comma.as_char() == ',' && starts => {
                entries.push(Entry(std::mem::take(&mut entry)));
            }
            token => entry.push(token.clone()),
        }
    }
    if !entry.is_empty() {
        entries.push(Entry(entry));
    }
    entries
}
