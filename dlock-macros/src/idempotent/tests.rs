//! Whole expansions, as `cargo expand` shows them.

use quote::quote;

use super::expand as idempotent;

#[test]
fn a_call_with_most_parameters_expands_to_this() {
    let expanded = idempotent(
        quote!(
            key = "charge:<tenant>:<req.id>",
            ttl = "24h",
            fingerprint = (req.amount, &req.currency),
            on_duplicate = wait("10s"),
            on_crash = resume,
            on_error = remember_if(is_final),
            record = record
        ),
        quote! {
            async fn charge(tenant: u64, req: ChargeReq) -> Result<Receipt, ApiError> {
                body(req, record).await
            }
        },
    );

    let expected = quote! {
        async fn charge(tenant: u64, req: ChargeReq) -> Result<Receipt, ApiError> {
            let __dlock_call = {
                let __dlock_call = ::dlock_runtime::__private::idempotent::IdempotentCall::new(const {
                    &::dlock_runtime::__private::idempotent::IdempotentSite::new(
                        ::core::concat!(::core::module_path!(), "::charge"),
                        "Result<Receipt,ApiError>"
                    )
                    .ttl(::core::time::Duration::new(86400u64, 0u32))
                    .wait(::core::time::Duration::new(10u64, 0u32))
                    .on_crash(::dlock_runtime::__private::idempotent::OnCrash::Resume)
                });
                let __dlock_key = ::dlock_runtime::__private::idempotent::IdempotentCall::template(&__dlock_call)
                    .text("charge:").part("tenant", &tenant).text(":").part("req.id", &req.id);
                __dlock_call.key(__dlock_key)
                    .fingerprint(&(&req.amount, &req.currency,))
            };
            let __dlock_results =
                ::dlock_runtime::__private::idempotent::remembering::<Result<Receipt, ApiError> >(is_final);
            ::dlock_runtime::__private::idempotent::run_detached(
                __dlock_call,
                __dlock_results,
                move |__dlock_record: ::dlock_runtime::__private::idempotent::IdempotentRecord| {
                    async move {
                        let _ = &req;
                        let _ = &tenant;
                        if false {
                            return ::dlock_runtime::__private::never::<Result<Receipt, ApiError> >();
                        }
                        let record = __dlock_record;
                        '__dlock_body: {
                            body(req, record).await
                        }
                    }
                }
            ).await
        }
    };
    assert_eq!(expanded.to_string(), expected.to_string());
}

#[test]
fn a_refused_attribute_leaves_the_item_unchanged() {
    let item = quote!(
        async fn f(a: &str) -> u8 {
            7
        }
    );

    let expanded = idempotent(quote!(ttl = "5s"), item.clone()).to_string();

    assert!(expanded.ends_with(&item.to_string()));
    assert_eq!(expanded.matches("compile_error").count(), 2, "{expanded}");
}
