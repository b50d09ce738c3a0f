//! `#[derive(KeyPart)]`: a struct as a part of a key.
//!
//! ```text
//! struct UserId(u64);                        ->  write_part(&self.0, out)
//! struct LineId { order: u64, line: u32 }    ->  out.fields().field("order", &self.order).field("line", &self.line).end()
//! ```
//!
//! See `checks` for errors, and `key` of the runtime for how values are written.

mod checks;
#[cfg(test)]
mod tests;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Fields, Generics, Item, Member, Type, TypeParam, WherePredicate, parse_quote};

use crate::arguments::values::mentions;
use crate::report::{self, Report};

/// Expands the derive.
pub(crate) fn derive(item: TokenStream) -> TokenStream {
    Part::parse(item).map_or_else(|error| error.to_compile_error(), Part::expand)
}

/// The item under the derive.
struct Part {
    attributes: Vec<Attribute>,
    name: Ident,
    generics: Generics,
    /// The fields of a struct, or the error for another item.
    fields: syn::Result<Fields>,
}

impl Part {
    fn parse(item: TokenStream) -> syn::Result<Self> {
        let (attributes, name, generics, fields) = match syn::parse2(item)? {
            Item::Struct(item) => (item.attrs, item.ident, item.generics, Ok(item.fields)),
            Item::Enum(item) => {
                let error = checks::an_enum(&item);
                (item.attrs, item.ident, item.generics, Err(error))
            }
            Item::Union(item) => {
                let error = checks::a_union(&item);
                (item.attrs, item.ident, item.generics, Err(error))
            }
            other => return Err(Error::new_spanned(other, "`#[derive(KeyPart)]` is written above a struct")),
        };
        Ok(Self { attributes, name, generics, fields })
    }

    fn expand(self) -> TokenStream {
        let Self { attributes, name, generics, fields } = self;
        let mut report = Report::default();
        let runtime = checks::runtime(&attributes, &mut report).map_or_else(
            || quote_spanned!(Span::mixed_site()=> ::dlock_runtime),
            |runtime| runtime.to_token_stream(),
        );
        let body = report.check(fields).and_then(|fields| {
            checks::options_of_fields(&fields, &mut report);
            report.check(Body::new(&name, &fields, &generics, &runtime))
        });
        match report.finish(body) {
            Ok(body) => body.of(name, generics, &runtime),
            // It implements the trait anyway, so that placeholders that use it cause no further
            // errors.
            Err(errors) => report::with_original_item(&errors, Body::none().of(name, generics, &runtime)),
        }
    }
}

/// The body of `write_part`, and its bounds on type parameters.
struct Body {
    write: TokenStream,
    bounds: Vec<WherePredicate>,
}

impl Body {
    fn new(name: &Ident, fields: &Fields, generics: &Generics, runtime: &TokenStream) -> syn::Result<Self> {
        let places = fields.members().zip(fields).map(|(member, field)| Place { member, ty: &field.ty });
        let (phantoms, values): (Vec<_>, Vec<_>) = places.partition(Place::is_phantom);
        let write = match values.as_slice() {
            [] => return Err(checks::nothing_to_write(name)),
            // A single value is written without a field.
            [value] => {
                let (runtime, borrowed) = (value.located(runtime), value.borrowed());
                quote_spanned!(value.span()=> #runtime::KeyPart::write_part(#borrowed, __dlock_out))
            }
            several => {
                let fields = several.iter().map(|value| {
                    let (name, borrowed) = (value.name(), value.borrowed());
                    quote_spanned!(value.span()=> .field(#name, #borrowed))
                });
                quote_spanned!(Span::mixed_site()=> __dlock_out.fields() #(#fields)* .end())
            }
        };
        // Another type may have the same name, and its values must be written: only the real one
        // matches this pattern.
        let phantoms = phantoms.iter().map(|phantom| {
            let borrowed = phantom.borrowed();
            quote_spanned!(phantom.span()=> let ::core::marker::PhantomData = #borrowed;)
        });
        let uses = |value: &Place<'_>, parameter: &TypeParam| {
            mentions(&value.ty.to_token_stream(), &parameter.ident.to_string())
        };
        let generic =
            values.iter().filter(|value| generics.type_params().any(|parameter| uses(value, parameter)));
        Ok(Self {
            bounds: generic.map(|value| value.bound(runtime)).collect(),
            write: phantoms.chain([write]).collect(),
        })
    }

    fn none() -> Self {
        Self { write: quote_spanned!(Span::mixed_site()=> __dlock_out.none()), bounds: Vec::new() }
    }

    /// Puts the body into the `impl` of a type.
    fn of(self, mut name: Ident, mut generics: Generics, runtime: &TokenStream) -> TokenStream {
        let Self { write, bounds } = self;
        if !bounds.is_empty() {
            generics.make_where_clause().predicates.extend(bounds);
        }
        let (impl_generics, type_generics, bounds) = generics.split_for_impl();
        // The name has the macro's span: a deprecated type must cause no warning here.
        name.set_span(Span::mixed_site().located_at(name.span()));
        quote_spanned! {Span::mixed_site()=>
            #[automatically_derived]
            impl #impl_generics #runtime::KeyPart for #name #type_generics #bounds {
                fn write_part(&self, __dlock_out: #runtime::PartWriter<'_>) -> #runtime::Written {
                    #write
                }
            }
        }
    }
}

/// One field.
struct Place<'a> {
    member: Member,
    ty: &'a Type,
}

impl Place<'_> {
    /// Returns the name for error messages.
    fn name(&self) -> String {
        match &self.member {
            Member::Named(name) => name.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        }
    }

    /// Borrows the value with the span of its type, where a missing impl is reported.
    fn borrowed(&self) -> TokenStream {
        let span = self.span();
        let mut member = self.member.clone();
        match &mut member {
            Member::Named(name) => name.set_span(span),
            Member::Unnamed(index) => index.span = span,
        }
        quote_spanned!(span=> &self.#member)
    }

    /// Moves a path to the span of the type.
    fn located(&self, path: &TokenStream) -> TokenStream {
        let here = self.span();
        let located = path.clone().into_iter().map(|mut token| {
            token.set_span(token.span().located_at(here));
            token
        });
        located.collect()
    }

    fn bound(&self, runtime: &TokenStream) -> WherePredicate {
        let ty = self.ty;
        parse_quote!(#ty: #runtime::KeyPart)
    }

    fn span(&self) -> Span {
        Span::mixed_site().located_at(self.ty.span())
    }

    /// Returns `true` if the type is named `PhantomData`, which has no value to write.
    fn is_phantom(&self) -> bool {
        match self.ty {
            Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == "PhantomData"),
            _ => false,
        }
    }
}
