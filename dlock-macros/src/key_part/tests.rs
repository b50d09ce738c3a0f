//! Whole expansions, as `cargo expand` shows them.

use quote::quote;

use super::derive;
use crate::report::tests::{assert_messages, dense, messages};

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

fn derive_for(item: &str) -> proc_macro2::TokenStream {
    derive(item.parse().expect("tokens"))
}

#[test]
fn an_item_without_a_derived_impl_gets_its_message() {
    let option = |name: &str| format!("{name} is not an option of `#[key_part(..)]`");
    let skipped = "a field cannot be skipped: two values that differ only in it would share ONE lock";
    let no_field =
        |name: &str| format!("`{name}` has no field to write, so its part of a key would be empty");
    for (item, starts) in [
        ("fn f() {}", vec!["`#[derive(KeyPart)]` is written above a struct".to_owned()]),
        ("union U { a: u8 }", vec!["`#[derive(KeyPart)]` is for structs, and this is a union".to_owned()]),
        ("struct S;", vec![no_field("S")]),
        ("struct r#Type {}", vec![no_field("r#Type")]),
        ("struct S<T>(PhantomData<T>);", vec![no_field("S")]),
        ("#[key_part(rename = 1)] struct S(u8);", vec![option("`rename`")]),
        ("#[key_part(r#type)] struct S(u8);", vec![option("`type`")]),
        ("#[key_part(a::b)] struct S(u8);", vec![option("this")]),
        ("#[key_part(crate = a)] struct S(u8);", vec!["`crate` is an absolute path".to_owned()]),
        ("#[key_part(crate = ::a, crate = ::b)] struct S(u8);", vec!["`crate` is given twice".to_owned()]),
        (
            "#[key_part(crate = ::a)] #[key_part(crate = ::b)] struct S(u8);",
            vec!["`crate` is given twice".to_owned()],
        ),
        ("struct S(#[key_part(skip)] u8, u8);", vec![skipped.to_owned()]),
        (
            "struct S { #[key_part(hash)] a: u8 }",
            vec!["`#[key_part(..)]` has no options for a field".to_owned()],
        ),
        (
            "struct S(#[key_part(skip)] u8, #[key_part()] u8);",
            vec![skipped.to_owned(), "`#[key_part(..)]` has no options for a field".to_owned()],
        ),
        ("#[key_part(a)] struct S;", vec![option("`a`"), no_field("S")]),
        ("#[serde(rename = 1)] struct S(#[serde(skip)] u8);", vec![]),
    ] {
        let found = messages(derive_for(item));

        assert_messages(item, &found, &starts.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn an_enum_gets_an_example_of_its_first_variant() {
    for (variants, example) in [
        ("", "with a fixed text for each variant: see"),
        ("Retail, Trade(u8)", "variant, such as `Self::Retail => out.str(\"retail\")`: see"),
        ("Trade(u8)", "variant, such as `Self::Trade(..) => out.fields().field(\"kind\", \"trade\")..`: see"),
        (
            "Web { a: u8 }",
            "variant, such as `Self::Web { .. } => out.fields().field(\"kind\", \"web\")..`: see",
        ),
    ] {
        let found = messages(derive_for(&format!("enum E {{ {variants} }}")));

        assert!(found.len() == 1 && found[0].contains(example), "{variants}: {found:?}");
    }
}

#[test]
fn each_field_is_written_and_bounded_if_it_is_generic() {
    for (item, bounds, write) in [
        ("struct S(u8, u8);", "forS", "__dlock_out.fields().field(\"0\",&self.0).field(\"1\",&self.1).end()"),
        ("struct S { r#type: u8 }", "forS", "::dlock_runtime::KeyPart::write_part(&self.r#type,__dlock_out)"),
        (
            "struct S<T>(T);",
            "forS<T>whereT:::dlock_runtime::KeyPart",
            "::dlock_runtime::KeyPart::write_part(&self.0,__dlock_out)",
        ),
        (
            "struct S<T>(Vec<[T; 2]>);",
            "forS<T>whereVec<[T;2]>:::dlock_runtime::KeyPart",
            "::dlock_runtime::KeyPart::write_part(&self.0,__dlock_out)",
        ),
        (
            "struct S<T>(u8, (u8, T));",
            "forS<T>where(u8,T):::dlock_runtime::KeyPart",
            "__dlock_out.fields().field(\"0\",&self.0).field(\"1\",&self.1).end()",
        ),
        (
            "struct S<T>(u8, PhantomData<T>);",
            "forS<T>",
            "let::core::marker::PhantomData=&self.1;::dlock_runtime::KeyPart::write_part(&self.0,__dlock_out)",
        ),
        (
            "struct S<const N: usize>([u8; N]);",
            "forS<N>",
            "::dlock_runtime::KeyPart::write_part(&self.0,__dlock_out)",
        ),
        (
            "#[key_part(crate = crate::locks)] struct S(u8);",
            "implcrate::locks::KeyPartforS",
            "crate::locks::KeyPart::write_part(&self.0,__dlock_out)",
        ),
    ] {
        let expanded = dense(&derive_for(item));

        assert!(expanded.contains(&format!("{bounds}{{fnwrite_part(&self,")), "{item}: {expanded}");
        assert!(expanded.contains(&format!("Written{{{write}}}}}")), "{item}: {expanded}");
    }
}
