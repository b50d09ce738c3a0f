//! From the pieces of a template to a chain of builder calls: what each name refers to, and where in the source it stands.
//!
//! ```text
//! "order:<user_id>"  ->  .text("order:").part("user_id", &user_id)
//! ```
//!
//! Not here: the grammar (`template`), what a template may not say (`checks`), and how values are written (the runtime's `key`).

use std::ops::Range;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Error, Index, LitStr, Member};

use crate::checks;
use crate::function::Function;
use crate::names;
use crate::report::Report;
use crate::template::{self, Hole, Modifier, Piece, Step};

/// A template that fits its function.
pub(crate) struct Key {
    /// `.text(..).part(..)`, to be put behind a builder.
    pub(crate) chain: TokenStream,
    /// The names of arguments that the holes use.
    pub(crate) used: Vec<Ident>,
    /// Where a word stands that may have been meant as a hole.
    pub(crate) questionable: Option<Span>,
}

impl Key {
    /// Reads `literal` for `function`. Every mistake goes to `report`.
    pub(crate) fn parse(literal: &LitStr, function: &Function, report: &mut Report) -> Self {
        let source = Source(literal);
        let template = literal.value();
        let (pieces, problems) = template::parse(&template);
        let parsed = problems.is_empty();
        for problem in problems {
            report.push(Error::new(source.span(problem.at), problem.message));
        }

        let mut key = Self { chain: TokenStream::new(), used: Vec::new(), questionable: None };
        for piece in &pieces {
            match piece {
                Piece::Text(text) => key.chain.extend(quote!(.text(#text))),
                Piece::Hole(hole) => {
                    if let Some(call) = report.check(key.hole(hole, &source, function)) {
                        key.chain.extend(call);
                    }
                }
            }
        }
        // Of a template that cannot be read nothing more is said: it would be about what was not meant.
        if parsed {
            let problem = checks::whole(&template, &pieces, &key.used, function);
            if let Some(message) = problem {
                report.push(Error::new(literal.span(), message));
            }
            let questionable = checks::is_questionable(&pieces, &key.used, function);
            key.questionable = questionable.then(|| literal.span());
            let mut found = checks::ambiguous(&pieces, function);
            if found.is_empty() {
                found = checks::run_on(&pieces, function);
            }
            for (at, message) in found {
                report.push(Error::new(source.span(at), message));
            }
        }
        key
    }

    fn hole(&mut self, hole: &Hole, source: &Source<'_>, function: &Function) -> syn::Result<TokenStream> {
        let inside = Span::call_site().located_at(source.span(hole.at.clone()));
        let argument = function.name(&hole.root);
        // A bare name is blamed where it is declared, whatever is longer where it is written.
        let span = match (&argument, hole.steps.is_empty()) {
            (Some(name), true) => Span::mixed_site().located_at(name.span()),
            _ => inside,
        };
        let root = match argument {
            Some(name) => {
                let mut written = name.clone();
                if !hole.steps.is_empty() {
                    written.set_span(name.span().located_at(inside));
                }
                self.used.push(name);
                quote!(#written)
            }
            None if is_constant(&hole.root) && misspelt(hole, function).is_none() => {
                respanned(&hole.root, inside)?
            }
            None => return Err(Error::new(source.span(hole.at.clone()), no_such_argument(hole, function))),
        };

        let mut place = root;
        // Behind a borrow a getter that consumes its owner is refused here, and not in the body that uses it next.
        if hole.steps.iter().any(|step| matches!(step, Step::Getter(_))) {
            place = quote_spanned!(span=> (&#place));
        }
        for step in &hole.steps {
            place = match step {
                Step::Field(name) => {
                    let name = identifier(name, span)?;
                    quote_spanned!(span=> #place.#name)
                }
                Step::Index(index) => {
                    let index = Member::Unnamed(Index { index: *index, span });
                    quote_spanned!(span=> #place.#index)
                }
                Step::Getter(name) => {
                    let name = identifier(name, span)?;
                    quote_spanned!(span=> #place.#name())
                }
            };
        }
        let method = match hole.modifier {
            Modifier::Plain => "part",
            Modifier::Hash => "hashed",
            Modifier::Opt => "optional",
            Modifier::Raw => "raw",
        };
        let method = Ident::new(method, span);
        let name = &hole.place;
        Ok(quote_spanned!(span=> .#method(#name, &#place)))
    }
}

/// The literal in the source, to find the place of a letter in it.
struct Source<'a>(&'a LitStr);

impl Source<'_> {
    /// Returns where the letters `at` stand: exact on nightly, the whole literal on stable and where it has escapes.
    fn span(&self, at: Range<usize>) -> Span {
        let token = self.0.token();
        let plain = token.to_string() == format!("\"{}\"", self.0.value());
        let exact = if plain { token.subspan(at.start + 1..=at.end) } else { None };
        exact.unwrap_or_else(|| self.0.span())
    }
}

fn no_such_argument(hole: &Hole, function: &Function) -> String {
    let root = &hole.root;
    if root == "self" {
        return format!(
            "`<{}>` needs a method, and this function has no `self`; {}",
            hole.place,
            function.arguments()
        );
    }
    if let Some(meant) = misspelt(hole, function) {
        return format!(
            "`<{}>` names no argument of this function: did you mean `<{meant}>`; {}",
            hole.place,
            function.arguments()
        );
    }
    let names: Vec<String> = function.names().map(|name| name.unraw().to_string()).collect();
    let near = names::nearest(root, names.iter().map(String::as_str)).map_or_else(String::new, |near| {
        let rest = hole.place.strip_prefix(root.as_str()).unwrap_or_default();
        format!(": did you mean `<{near}{rest}>`")
    });
    format!("`<{}>` names no argument of this function{near}; {}", hole.place, function.arguments())
}

/// Returns what a hole was meant to be that looks like a constant: `<Id>` and `<order::id>` for the arguments `id` and `order`.
fn misspelt(hole: &Hole, function: &Function) -> Option<String> {
    let (first, path) = hole.root.split_once("::").unwrap_or((&hole.root, ""));
    let is_shouted = |name: &str| !name.contains(char::is_lowercase);
    if !path.is_empty() {
        let is_argument = function.name(first).is_some() && !path.split("::").last().is_some_and(is_shouted);
        return is_argument.then(|| hole.place.replace("::", "."));
    }
    let names = function.names().map(|name| name.unraw().to_string());
    let same = names.into_iter().find(|name| name.eq_ignore_ascii_case(first))?;
    // In capitals it is a constant of that name.
    (!is_shouted(first)).then(|| hole.place.replacen(first, &same, 1))
}

/// Whether a root that is no argument can be a constant: it is a path, or starts with an upper-case letter.
pub(crate) fn is_constant(root: &str) -> bool {
    root != "Self" && (root.contains("::") || root.trim_start_matches('_').starts_with(char::is_uppercase))
}

fn identifier(name: &str, span: Span) -> syn::Result<Ident> {
    let ident = syn::parse_str::<Ident>(name).or_else(|_| syn::parse_str(&format!("r#{name}")));
    let mut ident = ident.map_err(|_| {
        Error::new(span, format!("`{name}` is not a name: write the name of a field or getter"))
    })?;
    ident.set_span(span);
    Ok(ident)
}

/// Reads a path and locates its tokens at `span`.
fn respanned(path: &str, span: Span) -> syn::Result<TokenStream> {
    let tokens: TokenStream = path
        .parse()
        .map_err(|_| Error::new(span, format!("`{path}` is not a path: write the path of a constant")))?;
    Ok(tokens
        .into_iter()
        .map(|mut token: TokenTree| {
            token.set_span(span);
            token
        })
        .collect())
}

/// The name that an argument gets which is a pattern.
pub(crate) fn argument(index: usize) -> Ident {
    format_ident!("__dlock_arg{}", index, span = Span::mixed_site())
}
