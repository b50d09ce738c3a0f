//! Whole expansions, as `cargo expand` shows them.

use quote::quote;

use super::expand as distributed_lock;
use crate::report::tests::{assert_messages, dense, messages};

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

/// Expands the attribute above a function with two arguments.
fn expand_above(attribute: &str, item: &str) -> proc_macro2::TokenStream {
    distributed_lock(attribute.parse().expect("tokens"), item.parse().expect("tokens"))
}

const ITEM: &str = "async fn f(&self, id: u64, req: Req) -> Result<u8, E> { Ok(7) }";

#[test]
fn a_wrong_time_or_number_gets_its_message() {
    let cases = [
        ("lease = \"99ms\"", "`lease` is at least 100 ms"),
        (
            "lease = \"31536000001ms\"",
            "`31536000001ms` is longer than 365 days: the longest is `lease = \"8760h\"`",
        ),
        ("max_hold = \"99ms\"", "`max_hold` is at least 100 ms"),
        ("max_hold = \"8761h\"", "`8761h` is longer than 365 days: the longest is `max_hold = \"8760h\"`"),
        (
            "min_hold = \"31536000001ms\"",
            "`31536000001ms` is longer than 365 days: the longest is `min_hold = \"8760h\"`",
        ),
        ("wait = \"3153600000001ms\"", "`3153600000001ms` is longer than 100 years"),
        ("wait = \"99999999999999999999s\"", "`99999999999999999999s` is longer than 100 years"),
        ("wait = \"0s\"", "`wait` cannot be zero: write `wait = \"5s\"`, or leave it out"),
        ("wait = 0", "`wait` cannot be zero and needs a unit"),
        ("wait = \"00\"", "`wait` cannot be zero and needs a unit"),
        ("wait = 10", "`10` has no unit: write `wait = \"10s\"`;"),
        ("wait = 30sec", "a duration needs quotes: write `wait = \"30sec\"`"),
        ("wait = 99999999999999999999", "`99999999999999999999` has no unit: write `wait = \"5s\"`"),
        ("wait = 1.5", "`wait` takes a duration in quotes, with its unit"),
        ("wait = \"0.0001s\"", "`0.0001s` has an unknown unit of time"),
        ("wait = \"3w\"", "`3w` has an unknown unit of time"),
        ("wait = 2 * 3", "`wait` takes a duration in quotes, with its unit"),
        ("retry = 3, backoff = \"2s..1999ms\"", "`backoff` goes from the first delay"),
        ("retry = 3, backoff = \"1s..x\"", "`x` is not a duration"),
        ("retry = 3, backoff = 5", "`5` has no unit"),
        ("backoff = \"1s\"", "`backoff` is the time between the tries of `retry`"),
        ("retry = 3u64", "`retry` is the number of retries"),
        ("retry = 4294967296", "`retry` is the number of retries"),
        ("retry = 3.0", "`retry` is the number of retries"),
        ("retry = -1", "`retry` is the number of retries"),
        ("retry = (1 + 2)", "`retry` is the number of retries"),
        ("retry = infinite", "`retry` is the number of retries"),
        ("retry = infinity", "`retry` is the number of retries"),
        ("retry = forever", "`retry` is the number of retries"),
        ("retry = unlimited", "`retry` is the number of retries"),
        (
            "lease = \"10001ms\", max_hold = \"10s\"",
            "`max_hold` ends the hold before this `lease` does: write `lease = \"10s\"`",
        ),
        (
            "renew = false, lease = \"10s\", min_hold = \"10001ms\"",
            "with `renew = false` the `lease` ends before this `min_hold`: write `lease = \"10001ms\"`",
        ),
    ];
    for (parameters, start) in cases {
        let found = messages(expand_above(&format!("key = \"a:<id>\", {parameters}"), ITEM));

        assert_messages(parameters, &found, &[start]);
    }
}

#[test]
fn a_wrong_value_gets_the_message_of_its_parameter() {
    let outcomes = "`on_contended` is one of `error`, `skip`, `return(value)` and `fallback(path)`: write `on_contended = ";
    let outcome = |instead: &str| format!("{outcomes}{instead}");
    let kind = |word: &str, problem: &str| format!("there is no `kind = {word}`: {problem}");
    let readers = "readers exclude each other like writers";
    let cases = [
        ("renew = 1", "`renew` is true or false".to_owned()),
        ("reentrant = yes", "`reentrant` is true or false".to_owned()),
        ("min_hold = \"1s\", min_hold_on = never", "`min_hold_on` is `always`".to_owned()),
        ("min_hold_on = ok", "`min_hold_on` says when `min_hold` applies".to_owned()),
        ("on_lost = stop", "`on_lost` is `abort`".to_owned()),
        ("on_unavailable = wait", "`on_unavailable` is `error`".to_owned()),
        ("release = now", "`release` is `awaited`".to_owned()),
        ("on_contended = return", "`return` needs the value to return".to_owned()),
        ("on_contended = fallback", outcome("skip`")),
        ("on_contended = 3", outcome("skip`")),
        ("on_contended = fallback()", "`fallback` takes the path of an `async fn`".to_owned()),
        ("on_contended = fallback(a, b)", "`fallback` takes the path of an `async fn`".to_owned()),
        ("on_contended = fallback(self.other)", "`fallback` takes the path of an `async fn`".to_owned()),
        ("on_contended = wait(1)", "a call waits before it is contended".to_owned()),
        ("on_contended = retry(3)", "a call tries again before it is contended".to_owned()),
        ("on_contended = Ok(None)", outcome("return(Ok(None))`")),
        ("on_contended = Err(e)", outcome("return(Err(e))`")),
        ("on_contended = Some(1)", outcome("return(Some(1))`")),
        ("on_contended = value()", outcome("return(value())` for its value")),
        ("on_contended = (self.value)()", outcome("return((self.value)())` for its value")),
        ("kind = read", kind("read", readers)),
        ("kind = shared", kind("shared", readers)),
        ("kind = write", kind("write", readers)),
        ("kind = rw", kind("rw", readers)),
        ("kind = RwLock", kind("RwLock", readers)),
        ("kind = \"rwlock\"", kind("rwlock", readers)),
        ("kind = fair", kind("fair", "waiting calls of a process")),
        ("kind = fifo", kind("fifo", "waiting calls of a process")),
        ("kind = semaphore", kind("semaphore", "a lock has one holder")),
        ("kind = permits", kind("permits", "a lock has one holder")),
        ("kind = counting", kind("counting", "a lock has one holder")),
        ("kind = Mutex", "`kind` is `mutex`".to_owned()),
        ("kind = 5", "`kind` is `mutex`".to_owned()),
        ("name = \"\"", "`name` is empty".to_owned()),
        ("name = 5", "`name` is a string, or the path".to_owned()),
        ("namespace = \"a<b\"", "`namespace` cannot have placeholders".to_owned()),
        ("namespace = \"a>b\"", "`namespace` cannot have placeholders".to_owned()),
        ("namespace = \"a b\"", "`namespace` cannot have white space".to_owned()),
        ("namespace = \"a\\u{1}b\"", "`namespace` cannot have white space".to_owned()),
        ("namespace = \"a{b\"", "`namespace` cannot have white space".to_owned()),
        ("namespace = \"a}b\"", "`namespace` cannot have white space".to_owned()),
        ("namespace = \"shop:\"", "`namespace` has no `:` at its end".to_owned()),
        ("namespace = 5", "`namespace` is a string, or the path".to_owned()),
        ("guard = self", "`guard` is the name by which".to_owned()),
        ("guard = Self", "`guard` is the name by which".to_owned()),
        ("guard = crate", "`guard` is the name by which".to_owned()),
        ("guard = super", "`guard` is the name by which".to_owned()),
        ("guard = a::b", "`guard` is the name by which".to_owned()),
        ("guard = 3", "`guard` is the name by which".to_owned()),
        ("guard = id", "`guard = id` would hide the argument `id`".to_owned()),
        ("manager = \"redis://a\"", "`manager` is an expression for a `LockManager`".to_owned()),
        ("manager = LockManager::connect(url)", "`manager` is evaluated at each call".to_owned()),
        ("manager = wrap(LockManager::connect(url))", "`manager` is evaluated at each call".to_owned()),
        ("crate = dlock_runtime", "`crate` is an absolute path".to_owned()),
        ("crate = <::a::B>::c", "`crate` is an absolute path".to_owned()),
        ("crate = 5", "`crate` is an absolute path".to_owned()),
        ("keys = [a]", "this version of dlock locks one key per attribute".to_owned()),
    ];
    for (parameters, start) in cases {
        let found = messages(expand_above(&format!("key = \"a:<id>\", {parameters}"), ITEM));

        assert_messages(parameters, &found, &[&start]);
    }
}

#[test]
fn a_valid_value_reaches_its_setter() {
    let time = |seconds: u64, nanos: u32| format!("(::core::time::Duration::new({seconds}u64,{nanos}u32))");
    let cases = [
        ("lease = \"100ms\"", format!(".lease{}", time(0, 100_000_000))),
        ("lease = \"8760h\"", format!("warning_long_lease{})", time(31_536_000, 0))),
        ("lease = \"3600001ms\"", format!("warning_long_lease{})", time(3600, 1_000_000))),
        ("lease = \"1h\"", format!(".lease{}", time(3600, 0))),
        ("lease = \"10s\", max_hold = \"10s\"", format!(".max_hold{}", time(10, 0))),
        ("renew = false, lease = \"9s\", min_hold = \"9s\"", format!(".renew(false).min_hold{}", time(9, 0))),
        ("renew = true, lease = \"9s\", min_hold = \"10s\"", format!(".renew(true).min_hold{}", time(10, 0))),
        ("lease = \"9s\", min_hold = \"10s\"", format!(".min_hold{}", time(10, 0))),
        ("renew = false", "warning_fixed_lease(false)".to_owned()),
        ("renew = true", ".renew(true)".to_owned()),
        ("min_hold = \"8760h\"", format!(".min_hold{}", time(31_536_000, 0))),
        ("max_hold = \"8760h\"", format!(".max_hold{}", time(31_536_000, 0))),
        ("wait = \"876000h\"", format!(".wait{}", time(3_153_600_000, 0))),
        ("wait = WAIT", ".wait(WAIT))});".to_owned()),
        ("wait = Duration::from_secs(3)", ".wait(Duration::from_secs(3))".to_owned()),
        ("retry = 0u32", ".retry(0u32)".to_owned()),
        ("retry = 4294967295", ".retry(4294967295)".to_owned()),
        ("retry = 3, backoff = \"2s..2s\"", ".backoff(::core::time::Duration::new(2u64,0u32),".to_owned()),
        ("retry = 3, backoff = \"2s\"", ".backoff(::core::time::Duration::new(2u64,0u32),".to_owned()),
        ("retry = 3, backoff = DELAY", ".backoff(DELAY,DELAY)".to_owned()),
        (
            "min_hold = \"1s\", min_hold_on = ok",
            ".min_hold_on(::dlock_runtime::__private::MinHoldOn::Ok)".to_owned(),
        ),
        ("reentrant = true", ".reentrant(true)".to_owned()),
        ("on_lost = finish", ".on_lost(::dlock_runtime::__private::OnLost::Finish)".to_owned()),
        (
            "release = background",
            ".release_mode(::dlock_runtime::__private::ReleaseMode::Background)".to_owned(),
        ),
        ("on_contended = skip", ".try_only()".to_owned()),
        ("on_contended = return(Ok(0))", ".try_only()".to_owned()),
        ("on_contended = return(Ok(0))", "swallow(&__dlock_call,&__dlock_error);Ok(0)}".to_owned()),
        ("on_contended = return Ok(0)", "swallow(&__dlock_call,&__dlock_error);Ok(0)}".to_owned()),
        ("on_contended = fallback(Self::other)", "Self::other(self,id,req).await".to_owned()),
        ("on_unavailable = run", ".runs_unlocked()".to_owned()),
        ("on_unavailable = skip", "skip_unavailable::<Result<u8,E>>(".to_owned()),
        ("guard = lock", "letlock=::dlock_runtime::__private::Call::guard(__dlock_held);".to_owned()),
        ("manager = pool.connect()", "Call::under(&pool.connect(),".to_owned()),
        ("manager = LockManager::shared()", "Call::under(&LockManager::shared(),".to_owned()),
        ("namespace = \"shop\"", ".namespace(\"shop\")".to_owned()),
        ("namespace = SHOP", ".namespace(SHOP)".to_owned()),
        ("name = \"place\"", "Callsite::new(\"place\",".to_owned()),
        ("name = NAME", "Callsite::new(NAME,".to_owned()),
        ("kind = mutex", "Options::new())}".to_owned()),
        ("crate = ::locks", "::locks::__private::Call::run(".to_owned()),
        ("crate = crate::locks", "crate::locks::__private::Call::run(".to_owned()),
    ];
    for (parameters, part) in cases {
        let expanded = dense(&expand_above(&format!("key = \"a:<id>\", {parameters}"), ITEM));

        assert!(expanded.contains(&part), "`{parameters}` gives {expanded} without {part}");
    }
}

#[test]
fn a_default_value_sets_nothing() {
    let plain = dense(&expand_above("key = \"a:<id>\"", ITEM));

    for parameters in [
        "on_lost = abort",
        "release = awaited",
        "on_contended = error",
        "on_unavailable = error",
        "kind = mutex",
    ] {
        let expanded = dense(&expand_above(&format!("key = \"a:<id>\", {parameters}"), ITEM));

        assert_eq!(expanded, plain, "{parameters}");
    }
    let held = |on| dense(&expand_above(&format!("key = \"a:<id>\", min_hold = \"1s\"{on}"), ITEM));
    assert_eq!(held(", min_hold_on = always"), held(""));
    assert!(held(", min_hold_on = ok").contains("with_success("));
    assert!(!held("").contains("with_success("));
}

#[test]
fn a_value_that_uses_an_argument_is_evaluated_at_each_call() {
    for (parameter, setter) in [
        ("lease = self.lease", ".lease(self.lease)"),
        ("lease = lease_of(id)", ".lease(lease_of(id))"),
        ("wait = req.waits[0]", ".wait(req.waits[0])"),
        ("wait = req.wait()", ".wait(req.wait())"),
        ("wait = WAIT * 2", ".wait(WAIT*2)"),
        ("wait = -WAIT", ".wait(-WAIT)"),
        ("wait = (WAIT)", ".wait((WAIT))"),
        ("wait = { WAIT }", ".wait(WAIT)"),
        ("wait = #[allow(unused)] { WAIT }", ".wait(#[allow(unused)]{WAIT})"),
        ("wait = 'a: { WAIT }", ".wait('a:{WAIT})"),
        ("wait = { let w = WAIT; w }", ".wait({letw=WAIT;w})"),
        ("wait = { req.touch(); }", ".wait({req.touch();})"),
        ("wait = if FAST { A } else { B }", ".wait(ifFAST{A}else{B})"),
        ("wait = match id { _ => A }", ".wait(matchid{_=>A})"),
        ("max_hold = holds(&[id])", ".max_hold(holds(&[id]))"),
        ("min_hold = id", ".min_hold(id)"),
        ("retry = req.retries", ".retry(req.retries)"),
        ("retry = tries(id)", ".retry(tries(id))"),
        ("retry = id", ".retry(id)"),
        ("retry = !(A)", ".retry(!(A))"),
    ] {
        let expanded = dense(&expand_above(&format!("key = \"a:<id>\", {parameter}"), ITEM));

        // The setter changes a copy of the options of the site, which is a constant.
        let call = format!(
            "Options::new())}});let__dlock_options=::dlock_runtime::__private::Call::options(&__dlock_call){setter};"
        );
        assert!(expanded.contains(&call), "`{parameter}`: {expanded}");
    }
    for constant in ["lease = LEASE", "lease = lease_of(3)", "retry = TRIES", "retry = tries(OTHER)"] {
        let expanded = dense(&expand_above(&format!("key = \"a:<id>\", {constant}"), ITEM));
        let (name, value) = constant.split_once(" = ").expect("a parameter and its value");

        assert!(
            expanded.contains(&format!("Options::new().{name}({value}))}});")),
            "`{constant}`: {expanded}"
        );
    }
}

#[test]
fn a_text_that_is_no_parameter_says_how_one_is_written() {
    let no_key = "no key is given: write `key = \"order:<user_id>\"`";
    for (attribute, starts) in [
        ("key", &["`key` needs a value: write `key = ..`"][..]),
        ("key; 3", &["`key` needs a value: write `key = ..`"]),
        ("key: 3", &["a parameter is written with `=`: write `key = ..` instead of `key: ..`"]),
        ("key(\"a\")", &["a parameter is written with `=`: write `key = \"a\"` instead of `key(\"a\")`"]),
        ("key =", &["`key` needs a value after the `=`"]),
        ("key = a b", &["the value of `key` cannot be parsed"]),
        ("\"a\"", &["the key is given by name: write `key = ` before it"]),
        ("(a)", &["the key is given by name: write `key = ` before it"]),
        ("= 5", &["a parameter is written `name = value`", no_key]),
        ("lease: 3", &["a parameter is written with `=`: write `lease = ..`", no_key]),
        ("skip", &["`skip` is not a parameter: write `on_contended = skip`", no_key]),
        ("colour", &["there is no parameter `colour`; the parameters are `key`, `lease`", no_key]),
        ("resource = 3", &["there is no parameter `resource`: dlock calls it `key`"]),
        ("keys = [a]", &["there is no parameter `keys`: stack one attribute per lock"]),
        ("lease = \"1s\"", &[no_key]),
        ("", &[no_key]),
        ("key = \"a\", key = \"b\"", &["`key` is given twice: keep one of the two"]),
        ("key = \"a\", timeout = 3", &["`timeout` is ambiguous: `wait` is how long"]),
        (
            "key = \"a\", retrys = 3",
            &["there is no parameter `retrys`: did you mean `retry`; the parameters are"],
        ),
        ("key = \"a\", lease = \"1s\",", &[]),
        ("key = f::<A, B>(1), lease = \"1s\"", &[]),
        ("r#key = \"a\"", &[]),
    ] {
        assert_messages(attribute, &messages(expand_above(attribute, "async fn f() -> R { 1 }")), starts);
    }
}

#[test]
fn a_return_type_that_cannot_report_an_error_is_refused() {
    let unnamed = "`impl Trait` cannot report that the lock was not acquired";
    for (parameters, output, starts) in [
        ("", "!", &["`!` cannot report that the lock was not acquired"][..]),
        ("", "impl Send", &[unnamed]),
        ("", "(impl Send)", &[unnamed]),
        (", on_contended = skip", "impl Send", &[unnamed]),
        (
            ", on_unavailable = skip, on_contended = return(1)",
            "impl Send",
            &["`impl Trait` has no value that says"],
        ),
        (", on_contended = fallback(g)", "impl Send", &["`impl Trait` cannot report that the lock was lost"]),
        (", on_contended = fallback(g), on_lost = finish", "impl Send", &[]),
        (", on_contended = return(1)", "impl Send", &[]),
        ("", "Result<impl Send, E>", &[]),
    ] {
        let expanded =
            expand_above(&format!("key = \"a\"{parameters}"), &format!("async fn f() -> {output} {{ 1 }}"));

        assert_messages(&format!("{parameters} -> {output}"), &messages(expanded), starts);
    }
}

#[test]
fn a_fallback_is_called_with_the_arguments_before_they_move() {
    let private = "::dlock_runtime::__private::";
    let called = "Self::other(self,__dlock_arg0,#[cfg(x)]id).await";
    let skipped = format!(
        "Err(__dlock_error)=>{{let__dlock_result=::core::result::Result::Err(__dlock_error);let__dlock_result={private}skip_unavailable::<R>("
    );
    for (parameters, output, parts) in [
        ("", "R", vec![called, "finish_started::<R>(__dlock_result)", "carry_lock_error(__dlock_error)"]),
        (
            ", on_lost = finish",
            "R",
            vec![called, "Call::run_to_end(&__dlock_call,__dlock_body).await}", "carry_lock_error("],
        ),
        (", on_unavailable = skip", "R", vec![called, &skipped]),
        (
            ", on_lost = finish",
            "impl Send",
            vec![called, "Err(__dlock_error)=>{::dlock_runtime::__private::Call::swallow("],
        ),
    ] {
        let attribute = format!("key = \"a\", on_contended = fallback(Self::other){parameters}");
        let item = format!("async fn f(self, (a, _): (u8, u8), #[cfg(x)] id: u64) -> {output} {{ 7 }}");

        let expanded = dense(&expand_above(&attribute, &item));

        for part in parts {
            assert!(expanded.contains(part), "`{parameters} -> {output}` gives {expanded} without {part}");
        }
        assert_eq!(expanded.contains("skip_unavailable"), parameters.contains("skip"), "{parameters}");
        assert_eq!(expanded.contains("run_to_end"), parameters.contains("finish"), "{parameters}");
        assert_eq!(expanded.contains("carry_lock_error"), output == "R", "{output}");
    }
}

#[test]
fn an_unnamed_type_is_never_asked_for_its_outcome() {
    let item = |output: &str| format!("async fn f() -> {output} {{ 7 }}");
    let attribute = "key = \"a\", on_contended = return(7), min_hold = \"1s\", min_hold_on = ok";

    let named = dense(&expand_above(attribute, &item("Result<impl Send, E>")));
    let unnamed = dense(&expand_above(attribute, &item("impl Send")));

    for (part, in_named, in_unnamed) in [
        ("Completed::new(__dlock_value).is_error())", true, false),
        (",|_|false)", false, true),
        ("Completed::new(__dlock_value).stands_after_a_loss()).await", true, false),
        (",|_|true).await", false, true),
        ("never::<Result<_,E>>()", true, false),
        ("never::<", true, false),
    ] {
        assert_eq!(named.contains(part), in_named, "{part}: {named}");
        assert_eq!(unnamed.contains(part), in_unnamed, "{part}: {unnamed}");
    }
}

#[test]
fn a_skip_like_success_is_questioned() {
    for (output, is_questioned) in [
        ("-> Result<(), E>", true),
        ("-> std::io::Result<()>", true),
        ("-> Result<u8, E>", false),
        ("-> Result<(u8,), E>", false),
        ("-> Result", false),
        ("-> Option<()>", false),
        ("", false),
    ] {
        let expanded =
            expand_above("key = \"a\", on_contended = skip", &format!("async fn f() {output} {{}}"));

        assert_eq!(dense(&expanded).contains("warning_skip_like_success();"), is_questioned, "{output}");
    }
}

#[test]
fn an_idempotent_function_of_the_same_key_is_refused() {
    for (key, other, is_refused) in [
        ("\"a:<id>\"", "#[idempotent(key = \"a:<id>\")]", true),
        ("\"a:<id>\"", "#[dlock_runtime::idempotent(ttl = \"1h\", key = \"a:<id>\")]", true),
        ("\"a:<id>\"", "#[idempotent(key = \"b:<id>\")]", false),
        ("\"a:<id>\"", "#[idempotent(ttl = \"1h\")]", false),
        ("\"a:<id>\"", "#[idempotent]", false),
        ("\"a:<id>\"", "#[instrument(key = \"a:<id>\")]", false),
        ("\"a:<id>\"", "#[idempotent(key = key(id))]", false),
        ("key(id)", "#[idempotent(key = key(id))]", true),
        ("key(id)", "#[idempotent(key = other(id))]", false),
    ] {
        let found =
            messages(expand_above(&format!("key = {key}"), &format!("{other} async fn f(id: u8) {{}}")));

        let starts = &["`#[idempotent]` contains the lock of its key"][usize::from(!is_refused)..];
        assert_messages(&format!("{key} {other}"), &found, starts);
    }
}
