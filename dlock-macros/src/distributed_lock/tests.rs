//! Whole expansions, as `cargo expand` shows them.

use quote::quote;

use super::expand as distributed_lock;

#[test]
fn the_first_line_of_the_readme_expands_to_this() {
    let expanded = distributed_lock(
        quote!(key = "order:<user_id>", lease = "30s", retry = 3),
        quote! {
            async fn place_order(user_id: u64, cart: Cart) -> Result<Receipt, OrderError> {
                body(cart).await
            }
        },
    );

    let expected = quote! {
        async fn place_order(user_id: u64, cart: Cart) -> Result<Receipt, OrderError> {
            let __dlock_call = {
                let __dlock_call = ::dlock_runtime::__private::Call::new(const {
                    &::dlock_runtime::__private::Callsite::new(
                        ::core::concat!(::core::module_path!(), "::place_order"),
                        ::dlock_runtime::__private::Options::new()
                            .lease(::core::time::Duration::new(30u64, 0u32))
                            .retry(3)
                    )
                });
                let __dlock_key = ::dlock_runtime::__private::Call::template(&__dlock_call).text("order:").part("user_id", &user_id);
                __dlock_call.key(__dlock_key)
            };
            let __dlock_body = ::core::pin::pin!(::dlock_runtime::__private::Body::Future { future: async move {
                let _ = &cart;
                let _ = &user_id;
                if false {
                    return ::dlock_runtime::__private::never::<Result<Receipt, OrderError> >();
                }
                '__dlock_body: {
                    body(cart).await
                }
            } });
            let __dlock_result = ::dlock_runtime::__private::Call::run(
                &__dlock_call,
                __dlock_body,
                |__dlock_value| ::dlock_runtime::__private::Completed::new(__dlock_value).stands_after_a_loss()
            ).await;
            ::dlock_runtime::__private::finish::<Result<Receipt, OrderError> >(__dlock_result)
        }
    };
    assert_eq!(expanded.to_string(), expected.to_string());
}

#[test]
fn an_item_that_is_refused_is_still_there() {
    let item = quote!(
        async fn f() -> u8 {
            7
        }
    );

    let expanded = distributed_lock(quote!(lease = "30"), item.clone()).to_string();

    assert!(expanded.ends_with(&item.to_string()));
    assert_eq!(expanded.matches("compile_error").count(), 2);
}

#[test]
fn a_refused_attribute_leaves_the_item_unchanged() {
    let item = || {
        quote! {
            /// Documented.
            #[must_use]
            pub(crate) async fn f<T>(&self, Path(id): Path<u64>, _: T) -> R
            where
                T: Send,
            {
                self.
            }
        }
    };
    let attributes = [
        "",
        "k",
        "key",
        "key =",
        "key = ,",
        "key = \"\"",
        "key = \"a:<\"",
        "key = \"a:<id\"",
        "key = \"a:<id>",
        "key = \"a:<nobody>\"",
        "\"a:<id>\"",
        "key = \"a:<id>\" lease = \"30s\"",
        "key = \"a:<id>\", lease",
        "key = \"a:<id>\", lease =",
        "key = \"a:<id>\", lease = \"30",
        "key = \"a:<id>\", on_contended = fallback(",
        "key = \"a:<id>\", on_contended = return",
        "key = \"a:<id>\", guard = self",
        "key = \"a:<id>\",, retry = 3",
        "= \"a:<id>\"",
        ".. key",
        "#![key]",
    ];
    for attribute in attributes {
        // Text without tokens, such as an unclosed quote, never reaches an attribute.
        let Ok(parameters) = attribute.parse() else { continue };

        let expanded = distributed_lock(parameters, item()).to_string();

        assert!(expanded.contains("compile_error"), "`{attribute}` is accepted");
        assert!(expanded.ends_with(&item().to_string()), "`{attribute}` gives {expanded}");
    }
}

#[test]
fn refused_items_are_left_unchanged() {
    let items = [
        "",
        "async fn",
        "async fn f",
        "async fn f(",
        "async fn f()",
        "async fn f() -> ",
        "async fn f() -> R;",
        "async fn f(a) {}",
        "async fn f(a: ) -> R {}",
        "async fn f() -> R where {",
        "fn f() -> R { 1 }",
        "fn f() -> Pin<Box<dyn Future<Output = R>>> { Box::pin(async { 1 }) }",
        "pub",
        "pub struct S;",
        "unsafe impl Send for S {}",
        "macro_rules! m { () => {} }",
        "let x = 1;",
        "async { 1 }",
    ];
    for item in items {
        let Ok(tokens) = item.parse::<proc_macro2::TokenStream>() else { continue };

        let expanded = distributed_lock(quote!(key = "a"), tokens.clone()).to_string();

        assert!(expanded.contains("compile_error"), "`{item}` is accepted");
        assert!(expanded.ends_with(&tokens.to_string()), "`{item}` gives {expanded}");
    }
}

#[test]
fn bodies_are_passed_on_token_for_token() {
    for body in
        ["self.", "let", "if x {", "match x { A => , }", "x.await.", "a b c , ; = > 'x", "#![allow(x)] foo!["]
    {
        let Ok(inside) = body.parse::<proc_macro2::TokenStream>() else { continue };

        let expanded =
            distributed_lock(quote!(key = "a"), quote!(async fn f(&self) -> R { #inside })).to_string();

        let plain = quote!({ #inside }).to_string();
        let plain = plain.replace("# ! [allow (x)] ", "");
        assert!(!expanded.contains("compile_error"), "`{body}` is parsed: {expanded}");
        assert!(expanded.contains(&plain), "`{body}` gives {expanded}");
    }
}

/// `clippy::used_underscore_binding` would warn of code that the user did not write.
#[test]
fn a_name_with_an_underscore_is_captured_without_a_warning() {
    let expanded = |argument| {
        let item = quote!(
            async fn f(#argument) {}
        );
        distributed_lock(quote!(key = "a"), item).to_string()
    };
    let allowed = quote!(allow(clippy::used_underscore_binding)).to_string();

    assert!(expanded(quote!(_unused: u8)).contains(&allowed));
    assert!(!expanded(quote!(used: u8)).contains(&allowed));
}
