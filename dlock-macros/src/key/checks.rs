//! Finds mistakes in templates and whole keys whose parts are each valid.
//!
//! See `template` for the grammar, and the parent module for names that refer to nothing.

use std::ops::Range;

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Error, Expr, LitStr};

use super::template::{Modifier, Piece, Placeholder};
use crate::function::Function;
use crate::vocabulary::{Nouns, Vocabulary};

/// Returns the first mistake in the template as a whole.
pub(crate) fn whole(
    words: &Vocabulary,
    template: &str,
    pieces: &[Piece],
    used: &[Ident],
    function: &Function,
) -> Option<String> {
    literal_name(words, pieces, used, function)
        .or_else(|| braces(pieces))
        .or_else(|| fixed_part(words, template, pieces, function))
}

/// Finds `{user_id}`, `{0}`, and `$user_id`: literal text that names an argument which no
/// placeholder uses.
fn literal_name(words: &Vocabulary, pieces: &[Piece], used: &[Ident], function: &Function) -> Option<String> {
    let entry = words.nouns.entry;
    for text in texts(pieces) {
        for inside in braced(text) {
            let root = inside.split(['.', ':']).next().unwrap_or_default();
            let unused = function.name(root).filter(|name| !used.contains(name));
            let positional = used.is_empty()
                && root.chars().all(|c| c.is_ascii_digit())
                && function.names().next().is_some();
            if unused.is_some() {
                return Some(format!(
                    "`{{{inside}}}` is literal text, so all callers would share ONE {entry}: write `<{inside}>` for the argument, or `{{<{inside}>}}` to make it a hash tag as well"
                ));
            }
            if inside.is_empty() || positional {
                return Some(format!(
                    "`{{{inside}}}` is literal text, so all callers would share ONE {entry}: write `<name>` with the name of an argument; {}",
                    function.arguments()
                ));
            }
        }
        // If the key has a placeholder, it is an ordinary word: `invoice#line:<id>`.
        for (mark, name) in marked(text).filter(|_| used.is_empty()) {
            if function.name(name).is_some() {
                return Some(format!(
                    "`{mark}{name}` is literal text, so all callers would share ONE {entry}: write `<{name}>` for the argument"
                ));
            }
        }
    }
    None
}

/// Returns `true` if a word of the text is an argument's name and the key uses no argument.
///
/// The brackets may be missing, or it may be intended, so this is a warning and not an error.
pub(crate) fn is_questionable(pieces: &[Piece], used: &[Ident], function: &Function) -> bool {
    let mut words = texts(pieces).flat_map(|text| text.split(|c: char| !is_name_letter(c)));
    used.is_empty() && words.any(|word| function.name(word).is_some())
}

/// Finds a template inside an expression for a whole key, where it is literal text.
pub(crate) fn whole_key(words: &Vocabulary, key: &Expr, function: &Function) -> syn::Result<()> {
    let (entry, example) = (words.nouns.entry, words.nouns.example);
    for literal in literals(key.to_token_stream()) {
        let text = literal.value();
        let mut roots = text.split('<').skip(1).filter_map(|after| {
            let (inside, _) = after.split_once('>')?;
            let root = inside.split(|c| !is_name_letter(c)).next()?;
            function.name(root).map(|_| inside)
        });
        if let Some(inside) = roots.next() {
            return Err(Error::new(
                literal.span(),
                format!(
                    "`<{inside}>` is literal text inside an expression, so all callers would share ONE {entry}: write the template as it is, as in `key = \"{example}:<{inside}>\"`, or `{{{inside}}}` in a `format!`"
                ),
            ));
        }
    }
    Ok(())
}

/// Finds the strings in an expression, including those in the arguments of macros.
fn literals(tokens: TokenStream) -> Vec<LitStr> {
    let found = tokens.into_iter().flat_map(|token| match token {
        TokenTree::Group(group) => literals(group.stream()),
        TokenTree::Literal(_) => syn::parse2(token.into()).into_iter().collect(),
        _ => Vec::new(),
    });
    found.collect()
}

fn texts(pieces: &[Piece]) -> impl Iterator<Item = &str> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text.as_str()),
        Piece::Placeholder(_) => None,
    })
}

/// Returns the text inside each `{..}`.
fn braced(text: &str) -> impl Iterator<Item = &str> {
    text.split('{').skip(1).filter_map(|after| after.split_once('}').map(|(inside, _)| inside))
}

/// Returns the names after the marks that other languages put before them.
fn marked(text: &str) -> impl Iterator<Item = (char, &str)> {
    text.match_indices(['$', '#', '@', '%']).filter_map(|(at, mark)| {
        let name = text.get(at + 1..)?.split(|c| !is_name_letter(c)).next()?;
        Some((mark.chars().next()?, name))
    })
}

fn is_name_letter(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Finds unpaired, nested, and repeated braces, which do not determine the slot in a cluster.
fn braces(pieces: &[Piece]) -> Option<String> {
    let shape: String = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Placeholder(_) => "_",
        })
        .collect();
    let mut tags = 0;
    let mut is_open = false;
    for letter in shape.chars() {
        match (letter, is_open) {
            ('{', false) => is_open = true,
            ('{', true) => {
                return Some("a `{` inside of `{..}` makes no hash tag: write one `{..}`".to_owned());
            }
            ('}', true) => (is_open, tags) = (false, tags + 1),
            ('}', false) => {
                return Some("`}` closes no hash tag: write `{` before it, or leave it out".to_owned());
            }
            _ => {}
        }
    }
    if is_open {
        return Some(
            "`{` opens a hash tag that is never closed: write `}` after it, or leave it out".to_owned(),
        );
    }
    (tags > 1).then(|| {
        "a key has one hash tag, and a cluster ignores all but the first: keep one `{..}`, around what several keys share"
            .to_owned()
    })
}

fn fixed_part(words: &Vocabulary, template: &str, pieces: &[Piece], function: &Function) -> Option<String> {
    let Nouns { entry, subject, example, example_key, .. } = &words.nouns;
    if template.is_empty() {
        return Some(format!("the key is empty: write {subject}, such as `key = \"{example_key}\"`"));
    }
    let fixed = pieces.iter().any(|piece| match piece {
        Piece::Text(text) => text.contains(|c| c != '{' && c != '}'),
        Piece::Placeholder(placeholder) => function.name(&placeholder.root).is_none(),
    });
    let place = pieces.iter().find_map(|piece| match piece {
        Piece::Placeholder(placeholder) => Some(placeholder.place.as_str()),
        Piece::Text(_) => None,
    });
    match place {
        Some(place) if !fixed => Some(format!(
            "the key has no fixed text, so other {entry}s could have the same key: start with {subject}, as in `key = \"{example}:<{place}>\"`, or write `key = {place}` if it is a complete key"
        )),
        _ => None,
    }
}

/// Finds two placeholders without a separator that values cannot contain between them: two pairs of
/// values could build the same key.
pub(crate) fn ambiguous(pieces: &[Piece], function: &Function) -> Vec<(Range<usize>, String)> {
    let mut found = Vec::new();
    let mut left: Option<&Placeholder> = None;
    for piece in pieces {
        match piece {
            Piece::Text(text) if text.contains([':', '{', '}', '<', '>', '#']) => left = None,
            Piece::Text(_) => {}
            Piece::Placeholder(placeholder) => {
                // A constant is the same in every call, and a hash always has 32 characters.
                let fixed = function.name(&placeholder.root).is_none();
                if let (Some(left), false) = (left, fixed) {
                    let (a, b) = (&left.place, &placeholder.place);
                    let message = format!(
                        "nothing separates `<{a}>` from `<{b}>`, so different values could build the same key: write `:` between them, as in `<{a}>:<{b}>`"
                    );
                    found.push((left.at.start..placeholder.at.end, message));
                }
                if !fixed {
                    left = (placeholder.modifier != Modifier::Hash).then_some(placeholder);
                }
            }
        }
    }
    found
}

/// Finds text that extends the mark of a missing value: `~` followed by `1` is the mark of
/// `Some(None)`, which fields can follow.
///
/// `<a|opt>1:~<b|opt>` is `~1:~11:~~` for `None` and `Some(("11", ""))`, and for
/// `Some((None, None))` and `None`.
pub(crate) fn run_on(pieces: &[Piece], function: &Function) -> Vec<(Range<usize>, String)> {
    let pairs = pieces.iter().zip(pieces.iter().skip(1));
    let found = pairs.filter_map(|(placeholder, next)| {
        let Piece::Placeholder(placeholder) = placeholder else { return None };
        let what = match next {
            Piece::Text(text) if text.starts_with(|c: char| c.is_ascii_digit() || c == '~') => text.as_str(),
            Piece::Placeholder(next) if super::is_constant(&next.root) => next.place.as_str(),
            _ => return None,
        };
        let optional = placeholder.modifier == Modifier::Opt && function.name(&placeholder.root).is_some();
        optional.then(|| {
            let place = &placeholder.place;
            let message = format!(
                "`None` in `<{place}|opt>` is written `~`, and `Some(None)` `~1`, so `{what}` after it could turn one into the other: write `:` between them"
            );
            (placeholder.at.clone(), message)
        })
    });
    found.collect()
}
