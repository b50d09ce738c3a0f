//! From the pieces of a template to a chain of builder calls: what each name refers to, and where in the source it stands.
//!
//! ```text
//! "order:<user_id>"  ->  .text("order:").part("user_id", &user_id)
//! ```
//!
//! Not here: the grammar (`template`), and how values are written (the runtime's `key`).

use std::ops::Range;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Error, Index, LitStr, Member};

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

        let mut key = Self { chain: TokenStream::new(), used: Vec::new() };
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
            let problem = key
                .literal_name(&pieces, function)
                .or_else(|| braces(&pieces))
                .or_else(|| fixed_part(&template, &pieces, function));
            if let Some(message) = problem {
                report.push(Error::new(literal.span(), message));
            }
            for (at, message) in ambiguous(&pieces, function) {
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
            None if is_constant(&hole.root) => respanned(&hole.root, inside)?,
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

    /// Finds `{user_id}` typed by habit: literal text that names an argument which no hole uses.
    fn literal_name(&self, pieces: &[Piece], function: &Function) -> Option<String> {
        for piece in pieces {
            let Piece::Text(text) = piece else { continue };
            for inside in
                text.split('{').skip(1).filter_map(|after| after.split_once('}').map(|(inside, _)| inside))
            {
                let root = inside.split(['.', ':']).next().unwrap_or_default();
                let Some(name) = function.name(root) else {
                    if inside.is_empty() || inside.starts_with(':') {
                        return Some(format!(
                            "`{{{inside}}}` is literal text, so all callers would share ONE lock: write `<name>` with the name of an argument; {}",
                            function.arguments()
                        ));
                    }
                    continue;
                };
                if !self.used.contains(&name) {
                    return Some(format!(
                        "`{{{inside}}}` is literal text, so all callers would share ONE lock: write `<{inside}>` for the argument, or `{{<{inside}>}}` to have it as a hash tag as well"
                    ));
                }
            }
        }
        None
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
    let names: Vec<String> = function.names().map(|name| name.unraw().to_string()).collect();
    let near = names::nearest(root, names.iter().map(String::as_str)).map_or_else(String::new, |near| {
        let rest = hole.place.strip_prefix(root.as_str()).unwrap_or_default();
        format!(": did you mean `<{near}{rest}>`")
    });
    format!("`<{}>` names no argument of this function{near}; {}", hole.place, function.arguments())
}

/// Text that pairs no braces, pairs them around nothing, or pairs them twice cannot say which slot of a cluster it is for.
fn braces(pieces: &[Piece]) -> Option<String> {
    let shape: String = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Hole(_) => "_",
        })
        .collect();
    let mut tags = 0;
    let mut open = None;
    for (at, letter) in shape.char_indices() {
        match (letter, open) {
            ('{', None) => open = Some(at),
            ('{', Some(_)) => {
                return Some("a `{` inside of `{..}` makes no hash tag: write one `{..}`".to_owned());
            }
            ('}', Some(start)) if at == start + 1 => {
                return Some(
                    "`{}` is an empty hash tag, which a cluster ignores: write `{<name>}` or leave it out"
                        .to_owned(),
                );
            }
            ('}', Some(_)) => (open, tags) = (None, tags + 1),
            ('}', None) => {
                return Some("`}` closes no hash tag: write `{` before it, or leave it out".to_owned());
            }
            _ => {}
        }
    }
    if open.is_some() {
        return Some(
            "`{` opens a hash tag that is never closed: write `}` behind it, or leave it out".to_owned(),
        );
    }
    (tags > 1).then(|| {
        "a key has one hash tag, and a cluster ignores all but the first: keep one `{..}`, around what several keys share"
            .to_owned()
    })
}

fn fixed_part(template: &str, pieces: &[Piece], function: &Function) -> Option<String> {
    if template.is_empty() {
        return Some(
            "the key is empty: write what is locked, such as `key = \"order:<user_id>\"`".to_owned(),
        );
    }
    let fixed = pieces.iter().any(|piece| match piece {
        Piece::Text(text) => text.contains(|c| c != '{' && c != '}'),
        Piece::Hole(hole) => function.name(&hole.root).is_none(),
    });
    let place = pieces.iter().find_map(|piece| match piece {
        Piece::Hole(hole) => Some(hole.place.as_str()),
        Piece::Text(_) => None,
    });
    match place {
        Some(place) if !fixed => Some(format!(
            "the key has no fixed part, so that other locks could have the same: start with what is locked, as in `key = \"order:<{place}>\"`, or write `key = {place}` where it is a ready-made key"
        )),
        _ => None,
    }
}

/// Finds two holes between which nothing stands that a value cannot contain: two pairs of values would give one key.
fn ambiguous(pieces: &[Piece], function: &Function) -> Vec<(Range<usize>, String)> {
    let mut found = Vec::new();
    let mut left: Option<&Hole> = None;
    for piece in pieces {
        match piece {
            Piece::Text(text) if text.contains([':', '{', '}', '<', '>', '#']) => left = None,
            Piece::Text(_) => {}
            Piece::Hole(hole) => {
                // A constant is the same in every call, and a hash always has 32 letters.
                let fixed = function.name(&hole.root).is_none();
                if let (Some(left), false) = (left, fixed) {
                    let (a, b) = (&left.place, &hole.place);
                    let message = format!(
                        "`<{a}>` and `<{b}>` are not told apart, so that different values could give one key: write `:` between them, as in `<{a}>:<{b}>`"
                    );
                    found.push((left.at.start..hole.at.end, message));
                }
                if !fixed {
                    left = (hole.modifier != Modifier::Hash).then_some(hole);
                }
            }
        }
    }
    found
}

/// Whether a root that is no argument can be a constant: it is a path, or starts with an upper-case letter.
fn is_constant(root: &str) -> bool {
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
