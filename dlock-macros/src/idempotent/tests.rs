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

/// Returns `true` if the attribute refuses a function with these arguments.
fn is_refused(attribute: &str, arguments: &str) -> bool {
    let item = format!("async fn f({arguments}) -> Result<u8, E> {{ Ok(7) }}");
    let tokens = |text: &str| text.parse().expect("tokens");
    idempotent(tokens(attribute), tokens(&item)).to_string().contains("compile_error")
}

/// Returns the errors of an attribute's text.
fn errors(attribute: &str) -> Vec<String> {
    let mut report = crate::report::Report::default();
    let args = super::args::IdempotentArgs::parse(attribute.parse().expect("tokens"), &mut report);
    report.finish(args).err().into_iter().flatten().map(|error| error.to_string()).collect()
}

#[test]
fn a_quoted_word_is_written_without_quotes() {
    for value in [
        "scope = everyone",
        "scope = user.id",
        "fingerprint = none",
        "on_duplicate = skip",
        "on_crash = resume",
        "on_crash = rerun",
        "on_crash = fail",
        "on_error = remember",
        "on_error = remember_if(is_final)",
        "on_unavailable = run",
        "on_missing = run",
        "record = record",
        "detached = false",
        "version = 2",
    ] {
        crate::arguments::tests::assert_unquoted(value, |quoted| {
            errors(&format!("key = \"a\", record = r, {quoted}").replace("record = r, record", "record"))
        });
    }
    let meant = errors(r#"key = "a", on_crash = "Resume""#);
    assert!(meant[0].ends_with("did you mean `on_crash = resume`"), "{meant:?}");
}

#[test]
fn a_ttl_without_a_unit_gets_those_within_the_bounds() {
    for (number, meant) in [
        ("86400", "write `ttl = \"86400s\"`;"),
        ("60", "write `ttl = \"60s\"`;"),
        ("24", "write `ttl = \"24m\"` or `ttl = \"24h\"`;"),
        ("86400000", "write `ttl = \"86400000ms\"`;"),
        ("999999999999", "write `ttl = \"24h\"`;"),
    ] {
        for given in [number.to_owned(), format!("\"{number}\"")] {
            let told = errors(&format!("key = \"a\", ttl = {given}"));
            assert!(told.len() == 1 && told[0].contains(meant), "{given}: {told:?}");
        }
    }
}

#[test]
fn a_key_of_one_value_needs_a_scope() {
    assert!(is_refused(r#"key = "a:<id>""#, "id: u8"));
    assert!(is_refused(r#"key = "a:<REGION>:<id>""#, "id: u8"));
    assert!(is_refused("key = id", "id: u8"));
    assert!(is_refused("key = req.id.to_string()", "req: Req"));
    for given in
        [r#"key = "a:<id>", scope = user"#, r#"key = "a:<id>", scope = everyone"#, r#"key = "a:<user>:<id>""#]
    {
        assert!(!is_refused(given, "id: u8, user: u8"), "{given}");
    }
    assert!(!is_refused(r#"key = "nightly""#, ""), "a constant is not chosen by a client");
}

#[test]
fn a_detached_body_owns_its_arguments() {
    for borrowed in ["a: &str", "a: Cow<'_, str>", "a: Vec<&'a u8>", "&self", "&mut self", "self: &Arc<Self>"]
    {
        assert!(is_refused(r#"key = "k""#, borrowed), "{borrowed}");
        assert!(!is_refused(r#"key = "k", detached = false"#, borrowed), "{borrowed}");
    }
    for owned in ["a: String", "a: &'static str", "self", "self: Arc<Self>", "a: Cow<'static, str>"] {
        assert!(!is_refused(r#"key = "k""#, owned), "{owned}");
    }
}

#[test]
fn an_argument_that_nothing_compares_is_questioned() {
    let questions = |attribute: &str| {
        let item = quote!(
            async fn f(user: u8, req: Req, _unused: u8) -> Result<u8, E> {
                Ok(7)
            }
        );
        let expanded = idempotent(attribute.parse().expect("tokens"), item).to_string();
        expanded.matches("warning_argument_neither_in_key_nor_fingerprint").count()
    };

    assert_eq!(questions(r#"key = "a:<user>:<req>""#), 0);
    assert_eq!(questions(r#"key = "a:<user>:<req.id>""#), 1, "the key uses a part of `req`");
    assert_eq!(questions(r#"key = "a:<req.id>", scope = user"#), 1, "the scope is a part of the key");
    assert_eq!(questions(r#"key = "a:<user>:<req.id>", fingerprint = req.amount"#), 0);
    assert_eq!(questions(r#"key = "a:<user>:<req.id>", fingerprint = none"#), 0);
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
