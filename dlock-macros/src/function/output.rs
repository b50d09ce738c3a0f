//! The return type, in a form that can be named inside the function.
//!
//! The runtime's traits decide which errors it can carry, never its name.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{ReturnType, Token, Type, TypeInfer, TypeTuple};

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

    /// Returns `true` if the type is `!`, which carries no error.
    pub(crate) fn is_never(&self) -> bool {
        matches!(self.named, Type::Never(_))
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
