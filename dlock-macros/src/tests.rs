//! The whole expansion, as the person who debugs it sees it.

use quote::quote;

use crate::expand::distributed_lock;

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
                let __dlock_call = ::dlock_runtime::__private::Call::new(::core::option::Option::None, const {
                    &::dlock_runtime::__private::Site::new(
                        ::core::concat!(::core::module_path!(), "::place_order"),
                        ::dlock_runtime::__private::Options::new()
                            .lease(::core::time::Duration::new(30u64, 0u32))
                            .retry(3)
                    )
                });
                let __dlock_key = ::dlock_runtime::__private::Call::template(&__dlock_call).text("order:").part("user_id", &user_id);
                __dlock_call.key(__dlock_key)
            };
            let __dlock_body = ::core::pin::pin!(::dlock_runtime::__private::Body::Future(async move {
                let _ = &cart;
                let _ = &user_id;
                if false {
                    return ::dlock_runtime::__private::never::<Result<Receipt, OrderError> >();
                }
                '__dlock_body: {
                    body(cart).await
                }
            }));
            let __dlock_result = ::dlock_runtime::__private::Call::run(&__dlock_call, __dlock_body).await;
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
