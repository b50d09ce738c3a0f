//! Two attributes of dlock on one function.
//!
//! An idempotent call contains its lock. A `distributed_lock` of the same key around it would keep
//! duplicates from their stored result, and inside it would do nothing.

use quote::ToTokens;
use syn::{Attribute, Error, Expr, Meta};

use crate::arguments;
use crate::function::Function;
use crate::key::template_of;
use crate::vocabulary::Vocabulary;

/// Refuses `other` on the same function if its key is written as `key` is.
pub(crate) fn refuse_same_key(
    words: &Vocabulary,
    other: &str,
    key: &Expr,
    function: &Function,
) -> syn::Result<()> {
    for attribute in function.attributes.iter().filter(|attribute| is_named(attribute, other)) {
        let Meta::List(list) = &attribute.meta else { continue };
        let Some(theirs) = arguments::key_of(words, list.tokens.clone()) else {
            continue;
        };
        if is_same(key, &theirs) {
            return Err(Error::new_spanned(
                &attribute.meta,
                "`#[idempotent]` contains the lock of its key, so a `#[distributed_lock]` of the same key does nothing, or keeps duplicates from their result: leave it out, or write another key for what else must not overlap",
            ));
        }
    }
    Ok(())
}

fn is_named(attribute: &Attribute, name: &str) -> bool {
    attribute.path().segments.last().is_some_and(|last| last.ident == name)
}

fn is_same(left: &Expr, right: &Expr) -> bool {
    match (template_of(left), template_of(right)) {
        (Some(left), Some(right)) => left.value() == right.value(),
        (None, None) => left.to_token_stream().to_string() == right.to_token_stream().to_string(),
        _ => false,
    }
}
