//! The parameter `scope`: who may see a result.
//!
//! A key with a single placeholder may be a value that a client chooses, and then one client can
//! read the result of another. The attribute cannot see who chooses a value, so the rule is by
//! form: such a key needs a scope.

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Error, Expr, LitStr};

use super::VOCABULARY;
use crate::function::Function;
use crate::key::{Key, Template};
use crate::report::Report;

/// The callers that may see a result.
pub(crate) enum ScopeSource {
    /// Every caller that knows the key.
    Everyone,
    /// The callers that have this value in common: the text of a placeholder.
    Of(LitStr),
}

impl ScopeSource {
    /// Parses the value of `scope`.
    pub(super) fn parse(value: &Expr) -> syn::Result<Self> {
        match value {
            Expr::Path(path) if path.path.is_ident("everyone") => Ok(Self::Everyone),
            place if is_place(place) => {
                let text: String = place.to_token_stream().to_string().split_whitespace().collect();
                Ok(Self::Of(LitStr::new(&format!(":<{text}>"), place.span())))
            }
            other => Err(Error::new(
                other.span(),
                "`scope` is the argument that says who may see the result, a field or a getter of it, or `everyone`: write `scope = tenant`, `scope = user.id` or `scope = everyone`",
            )),
        }
    }
}

/// Adds the scope to the key, and reports a key that needs one. Every error goes to `report`.
pub(super) fn apply(
    scope: Option<&ScopeSource>,
    source: &Expr,
    key: &mut Key,
    function: &Function,
    report: &mut Report,
) {
    match (scope, &mut *key) {
        (Some(ScopeSource::Of(place)), Key::Template(template)) => {
            template.append(Template::parse(&VOCABULARY, place, function, report));
        }
        (Some(ScopeSource::Of(place)), Key::Expression { .. }) => report.push(Error::new(
            place.span(),
            "`scope` is a part of a template, and this `key` is an expression: put the value into the expression and write `scope = everyone`, or write a template, as in `key = \"charge:<request_id>\"`",
        )),
        (Some(ScopeSource::Everyone), _) => {}
        (None, key) => {
            if let Some(place) = key.single_value(function) {
                report.push(Error::new(
                    source.span(),
                    format!(
                        "`{place}` alone makes the key: if a client chooses it, one client can read the result of another. Write `scope = user` with the argument that says who the client is, or `scope = everyone` if every caller may see the result"
                    ),
                ));
            }
        }
    }
}

/// Returns `true` for an argument, its fields, and its getters.
fn is_place(value: &Expr) -> bool {
    match value {
        Expr::Path(path) => path.qself.is_none() && path.path.get_ident().is_some(),
        Expr::Field(field) => is_place(&field.base),
        Expr::MethodCall(call) => {
            call.args.is_empty() && call.turbofish.is_none() && is_place(&call.receiver)
        }
        Expr::Group(group) => is_place(&group.expr),
        _ => false,
    }
}
