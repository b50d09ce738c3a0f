//! Patterns of parameters: the names that they bind, and how to bind those by reference.

use proc_macro2::Ident;
use syn::visit_mut::{self, VisitMut};
use syn::{FieldPat, Pat, PatWild, Path, Token};

/// Returns the names that a pattern binds, in order.
pub(crate) fn names(pattern: &Pat) -> Vec<Ident> {
    let mut names = Vec::new();
    let mut pattern = pattern.clone();
    Borrow(|name: &Ident| {
        names.push(name.clone());
        true
    })
    .visit_pat_mut(&mut pattern);
    names
}

/// Returns the pattern that binds the `wanted` names when it is matched against a *reference* to
/// the argument.
///
/// Such a match binds by reference. Edition 2024 refuses `ref`, `mut`, and `&` inside it, so they
/// are removed. Other names become `_`, so that there is no warning for an unused one.
pub(crate) fn borrowed(pattern: &Pat, wanted: impl FnMut(&Ident) -> bool) -> Pat {
    let mut pattern = pattern.clone();
    Borrow(wanted).visit_pat_mut(&mut pattern);
    pattern
}

/// Returns `true` if the pattern binds all parts by value, so that no part of the argument is left.
pub(crate) fn takes_all(pattern: &Pat) -> bool {
    match pattern {
        Pat::Ident(binding) => binding.by_ref.is_none() && binding.subpat.is_none(),
        Pat::Paren(inner) => takes_all(&inner.pat),
        Pat::Tuple(tuple) => tuple.elems.iter().all(takes_all),
        Pat::TupleStruct(tuple) => tuple.elems.iter().all(takes_all),
        Pat::Struct(fields) => {
            fields.rest.is_none() && fields.fields.iter().all(|field| takes_all(&field.pat))
        }
        _ => false,
    }
}

/// Returns the first struct whose fields the pattern names.
pub(crate) fn struct_of_fields(pattern: &Pat) -> Option<&Path> {
    match pattern {
        Pat::Struct(fields) => Some(&fields.path),
        Pat::Ident(binding) => binding.subpat.as_ref().and_then(|(_, inner)| struct_of_fields(inner)),
        Pat::Paren(inner) => struct_of_fields(&inner.pat),
        Pat::Reference(inner) => struct_of_fields(&inner.pat),
        Pat::Tuple(tuple) => tuple.elems.iter().find_map(struct_of_fields),
        Pat::TupleStruct(tuple) => tuple.elems.iter().find_map(struct_of_fields),
        _ => None,
    }
}

struct Borrow<W>(W);

impl<W: FnMut(&Ident) -> bool> VisitMut for Borrow<W> {
    fn visit_pat_mut(&mut self, pattern: &mut Pat) {
        match pattern {
            Pat::Reference(reference) => {
                *pattern = (*reference.pat).clone();
                self.visit_pat_mut(pattern);
            }
            Pat::Ident(binding) => {
                binding.by_ref = None;
                binding.mutability = None;
                if (self.0)(&binding.ident) {
                    visit_mut::visit_pat_mut(self, pattern);
                } else if let Some((_, inner)) = binding.subpat.take() {
                    *pattern = *inner;
                    self.visit_pat_mut(pattern);
                } else {
                    let underscore_token = Token![_](binding.ident.span());
                    *pattern = Pat::Wild(PatWild { attrs: Vec::new(), underscore_token });
                }
            }
            other => visit_mut::visit_pat_mut(self, other),
        }
    }

    fn visit_field_pat_mut(&mut self, field: &mut FieldPat) {
        self.visit_pat_mut(&mut field.pat);
        if field.colon_token.is_none() && matches!(*field.pat, Pat::Wild(_)) {
            field.colon_token = Some(Token![:](proc_macro2::Span::mixed_site()));
        }
    }
}

#[cfg(test)]
mod tests {
    use quote::{ToTokens, quote};
    use syn::parse::Parser;

    use super::*;

    fn pattern(tokens: proc_macro2::TokenStream) -> Pat {
        Pat::parse_single.parse2(tokens).expect("a pattern")
    }

    #[test]
    fn only_the_wanted_names_are_bound_and_by_reference() {
        let given =
            pattern(quote!(Both { left, a, right: Path((mut id, ref other)), all: all @ &(a, _), .. }));

        let borrowed = borrowed(&given, |name| name == "id" || name == "a");

        let wanted = pattern(quote!(Both { left: _, a, right: Path((id, _)), all: (a, _), .. }));
        assert_eq!(
            borrowed.to_token_stream().to_string().replace(' ', ""),
            wanted.to_token_stream().to_string().replace(' ', "")
        );
    }

    #[test]
    fn takes_all_is_false_if_a_part_is_left() {
        for all in [
            quote!(Path(mut id)),
            quote!(Json(Order { id, lines: (a, b) })),
            quote!((a, b)),
            quote!((Path((a)))),
        ] {
            assert!(takes_all(&pattern(all.clone())), "{all}");
        }
        for some in [
            quote!((a, _)),
            quote!(Order { id, .. }),
            quote!(Order { id: _ }),
            quote!(Order { id, line: _ }),
            quote!(&a),
            quote!(Path(ref a)),
            quote!(a @ (_, b)),
            quote!((Path((_)))),
        ] {
            assert!(!takes_all(&pattern(some.clone())), "{some}");
        }
    }

    #[test]
    fn every_bound_name_is_known() {
        let names: Vec<String> = names(&pattern(quote!((a, Path(b), C { d, e: f }, g @ [h, ..]))))
            .iter()
            .map(ToString::to_string)
            .collect();

        assert_eq!(names, ["a", "b", "d", "f", "g", "h"]);
    }
}
