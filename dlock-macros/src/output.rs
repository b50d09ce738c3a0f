//! The return type, in a form that can be named inside the function.
//!
//! The runtime's traits decide which errors it can carry, never its name.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Error, ReturnType, Token, Type, TypeInfer, TypeTuple};

use crate::args::{OnContended, OnLost, OnUnavailable, Options};

/// The return type of the body.
pub(crate) struct Output {
    /// The type, with `_` for each `impl Trait`, which has no name.
    named: Type,
    /// Whether the whole type is an `impl Trait`.
    pub(crate) opaque: bool,
    /// The span of errors about it.
    pub(crate) span: Span,
}

impl Output {
    /// Parses the part after the arguments. For a function without one, errors are shown at `name`.
    pub(crate) fn of(output: &ReturnType, name: Span) -> Self {
        match output {
            ReturnType::Type(_, output) => Self::new((**output).clone()),
            ReturnType::Default => {
                let unit = TypeTuple {
                    attrs: Vec::new(),
                    paren_token: syn::token::Paren(name),
                    elems: syn::punctuated::Punctuated::new(),
                };
                Self { named: Type::Tuple(unit), opaque: false, span: name }
            }
        }
    }

    /// Parses a return type.
    pub(crate) fn new(mut named: Type) -> Self {
        let span = named.span();
        Unnamed.visit_type_mut(&mut named);
        Self { opaque: is_infer(&named), named, span }
    }

    /// Refuses the return types that no trait can check.
    pub(crate) fn check(&self, options: &Options) -> syn::Result<()> {
        let Options { on_contended, on_lost, on_unavailable, .. } = options;
        let refuse = |problem: &str| Err(Error::new(self.span, problem));
        if matches!(self.named, Type::Never(_)) {
            return refuse(
                "`!` cannot report that the lock was not acquired: return `Result<Infallible, E>`",
            );
        }
        if !self.opaque {
            return Ok(());
        }
        if *on_unavailable == OnUnavailable::Skip {
            return refuse(
                "`impl Trait` has no value that says that the body did not run, which `on_unavailable = skip` needs: leave it out, or return `Result<T, E>`",
            );
        }
        match on_contended {
            OnContended::Error | OnContended::Skip => refuse(
                "`impl Trait` cannot report that the lock was not acquired: return `Result<T, E>`, or write `on_contended = return(value)` or `on_contended = fallback(path)`",
            ),
            OnContended::Fallback(_) if *on_lost == OnLost::Abort => refuse(
                "`impl Trait` cannot report that the lock was lost while the body ran, when the arguments of `fallback` are gone: write `on_lost = finish`, or return `Result<T, E>`",
            ),
            OnContended::Fallback(_) | OnContended::Return(_) => Ok(()),
        }
    }
}

impl ToTokens for Output {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.named.to_tokens(tokens);
    }
}

fn is_infer(output: &Type) -> bool {
    match output {
        Type::Infer(_) => true,
        Type::Group(group) => is_infer(&group.elem),
        Type::Paren(paren) => is_infer(&paren.elem),
        _ => false,
    }
}

struct Unnamed;

impl VisitMut for Unnamed {
    fn visit_type_mut(&mut self, part: &mut Type) {
        if let Type::ImplTrait(unnamed) = part {
            *part = Type::Infer(TypeInfer { attrs: Vec::new(), underscore_token: Token![_](unnamed.span()) });
        } else {
            visit_mut::visit_type_mut(self, part);
        }
    }
}
