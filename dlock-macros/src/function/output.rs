//! The return type, in a form that can be named inside the function.
//!
//! The runtime's traits decide which errors it can carry, never its name.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{GenericArgument, PathArguments, ReturnType, Token, Type, TypeInfer, TypeTuple};

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

    /// Returns `true` if the type is written as a `Result` of `()`.
    pub(crate) fn is_unit_result(&self) -> bool {
        parameter_of(&self.named, "Result").is_some_and(is_unit)
    }

    /// Returns the `Option<()>` of a type that is written as a `Result` of it.
    pub(crate) fn optional_unit(&self) -> Option<&Type> {
        let value = parameter_of(&self.named, "Result")?;
        parameter_of(value, "Option").is_some_and(is_unit).then_some(value)
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

/// Returns the first parameter of a type that is written as the type `name`.
fn parameter_of<'a>(ty: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first()? {
        GenericArgument::Type(parameter) => Some(parameter),
        _ => None,
    }
}

fn is_unit(ty: &Type) -> bool {
    matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty())
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
