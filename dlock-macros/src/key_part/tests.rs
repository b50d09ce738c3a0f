//! Whole expansions, as `cargo expand` shows them.

use quote::quote;

use super::derive;

#[test]
fn a_struct_of_several_values_expands_to_this() {
    let expanded = derive(quote! {
        struct LineId<T> where T: Clone {
            order: T,
            r#type: u32,
            of: PhantomData<fn()>,
        }
    });

    let expected = quote! {
        #[automatically_derived]
        impl<T> ::dlock_runtime::KeyPart for LineId<T> where T: Clone, T: ::dlock_runtime::KeyPart {
            fn write_part(&self, __dlock_out: ::dlock_runtime::PartWriter<'_>) -> ::dlock_runtime::Written {
                let ::core::marker::PhantomData = &self.of;
                __dlock_out.fields().field("order", &self.order).field("type", &self.r#type).end()
            }
        }
    };
    assert_eq!(expanded.to_string(), expected.to_string());
}

#[test]
fn a_newtype_expands_to_its_field() {
    let expanded = derive(quote!(
        #[key_part(crate = ::locks)]
        struct UserId(u64);
    ))
    .to_string();

    assert!(
        expanded.contains("{ :: locks :: KeyPart :: write_part (& self . 0 , __dlock_out) }"),
        "{expanded}"
    );
}

#[test]
fn refused_items_still_implement_the_trait() {
    let expanded = derive(quote!(
        enum Kind<T> {
            A(T),
        }
    ))
    .to_string();

    assert_eq!(expanded.matches("compile_error").count(), 1);
    assert!(expanded.contains("impl < T > :: dlock_runtime :: KeyPart for Kind < T >"), "{expanded}");
}
