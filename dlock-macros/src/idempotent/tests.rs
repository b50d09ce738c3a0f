//! Whole expansions, as `cargo expand` shows them.

use quote::quote;

use super::expand as idempotent;
use crate::report::tests::{assert_messages, dense, messages};

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
    for owned in [
        "a: impl Fn(&u8) + Send + 'static",
        "a: fn(&u8)",
        "a: Box<dyn FnMut(&'_ u8) + Send>",
        "a: impl Fn(&Order) -> &str + Send + 'static",
        "a: Option<fn(&u8) -> Cow<'_, [&u8]>>",
        "a: fn(&u8) -> fn(&u8) -> &u8",
        "a: for<'a> fn(&'a u8)",
        "a: Box<dyn for<'a> Fn(&'a u8, &'a u8) -> (&'a u8, u8)>",
        "a: Vec<Box<dyn for<'a> Visit<'a, &'a u8>>>",
    ] {
        assert!(!is_refused(r#"key = "k", fingerprint = none"#, owned), "{owned}");
    }
    for borrowed in [
        "a: &dyn Fn(u8)",
        "a: impl Fn(&u8) + 'a",
        "a: fn(&'a u8)",
        "a: (&u8,)",
        "a: fn(u8) -> &'a u8",
        "a: impl Fn(&u8) -> Vec<&u8> + 'a",
        "a: HashMap<fn(&u8) -> Vec<u8>, &u8>",
        "a: Map<Option<fn(&u8) -> &u8>, &u8>",
        "a: for<'b> fn(&'b u8, &'a u8)",
    ] {
        assert!(is_refused(r#"key = "k", fingerprint = none"#, borrowed), "{borrowed}");
    }
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

/// Expands the attribute above a function with these arguments.
fn expand_above(attribute: &str, arguments: &str, output: &str) -> proc_macro2::TokenStream {
    let item = format!("async fn f({arguments}) -> {output} {{ Ok(7) }}");
    idempotent(attribute.parse().expect("tokens"), item.parse().expect("tokens"))
}

#[test]
fn a_wrong_value_gets_the_message_of_its_parameter() {
    let on_duplicate =
        "`on_duplicate` is `error`, `wait(duration)` or `skip`: write `on_duplicate = wait(\"10s\")`";
    let one_wait = "`wait` takes the longest time to wait for the stored result";
    for (parameters, start) in [
        ("ttl = \"59999ms\"", "`ttl` is at least 1 min"),
        (
            "ttl = \"31536000001ms\"",
            "`31536000001ms` is longer than 365 days: the longest is `ttl = \"8760h\"`",
        ),
        ("lease = \"99ms\"", "`lease` is at least 100 ms"),
        ("lease = \"8761h\"", "`8761h` is longer than 365 days"),
        (
            "ttl = \"60s\", lease = \"60001ms\"",
            "the record ends after its `ttl`, before this `lease`: write `ttl = \"60001ms\"`",
        ),
        ("fingerprint = 3", "`fingerprint` is a value that equal requests have in common"),
        ("on_duplicate = wait", "`wait` needs the longest time"),
        ("on_duplicate = wait()", one_wait),
        ("on_duplicate = wait(\"1s\", \"2s\")", one_wait),
        ("on_duplicate = wait(10)", "`10` has no unit: write `on_duplicate = wait(\"10s\")`"),
        ("on_duplicate = wait(\"0s\")", "`wait` cannot be zero: write `on_duplicate = wait(\"10s\")`"),
        ("on_duplicate = retry(\"1s\")", on_duplicate),
        ("on_duplicate = stop", on_duplicate),
        ("on_duplicate = 3", on_duplicate),
        ("on_crash = resume", "`on_crash = resume` replays the completed steps of a crashed call"),
        ("on_error = stop", "`on_error` is `forget`"),
        ("on_error = forget()", "`on_error` is `forget`"),
        ("on_error = remember_if", "`remember_if` takes the path"),
        ("on_error = remember_if()", "`remember_if` takes the path"),
        ("on_error = remember_if(a, b)", "`remember_if` takes the path"),
        ("on_error = remember_if(|e| true)", "`remember_if` takes the path"),
        ("on_unavailable = skip", "`on_unavailable` is `error` or `run`"),
        ("on_missing = skip", "`on_missing` is `error` or `run`"),
        ("record = a::b", "`record` is the name by which the body uses its record"),
        (
            "record = id",
            "`record = id` would hide the argument `id`: choose another name, such as `record = attempt`",
        ),
        ("detached = 1", "`detached` is true or false"),
        ("version = 2u64", "`version` is a number that you increase"),
        ("version = 4294967296", "`version` is a number that you increase"),
        ("version = VERSION", "`version` is a number that you increase"),
        (
            "result_type = \"\"",
            "`result_type` is empty: it names the type of stored results; write `result_type = \"receipt\"`",
        ),
        ("result_type = \" \"", "`result_type` is empty"),
        (
            "result_type = 3",
            "`result_type` is a string in quotes: it names the type of stored results; write `result_type = \"receipt\"`",
        ),
        (
            "result_type = my :: Receipt",
            "`result_type` is a string in quotes: it names the type of stored results; write `result_type = \"my::Receipt\"`",
        ),
        (
            "result_type = \"Result<A, E>\"",
            "`result_type` cannot have white space, since a return type is stored without it: it names the type of stored results; write `result_type = \"Result<A,E>\"`",
        ),
        ("type_name = \"receipt\"", "there is no parameter `type_name`: dlock calls it `result_type`"),
        ("manager = \"a\"", "`manager` is an expression for a `LockManager`"),
        ("namespace = 3", "`namespace` is a string"),
        ("name = 3", "`name` is a string"),
        ("crate = a", "`crate` is an absolute path"),
        ("wait = \"1s\"", "there is no parameter `wait`: write `on_duplicate = wait(\"10s\")`"),
        ("retries = 3", "there is no parameter `retries`"),
        ("timeout = \"1s\"", "`timeout` is ambiguous: `on_duplicate = wait(\"10s\")` is how long"),
    ] {
        let attribute = format!("key = \"a:<user>:<id>\", {parameters}");

        let found = messages(expand_above(&attribute, "user: u8, id: u8", "Result<u8, E>"));

        assert_messages(parameters, &found, &[start]);
    }
}

#[test]
fn a_policy_of_another_library_gets_ours() {
    for (words, meant) in [
        ("retry again run_again repeat restart run", "did you mean `on_crash = rerun`"),
        ("continue_ recover replay Resume resum", "did you mean `on_crash = resume`"),
        ("error abort never none skip fai", "did you mean `on_crash = fail`"),
        ("operator stop", "write `on_crash = fail`, or leave it out"),
        ("fail() 3 a::b", "write `on_crash = fail`, or leave it out"),
    ] {
        for word in words.split(' ') {
            let found = errors(&format!("key = \"a\", on_crash = {word}"));

            let [error] = &*found else { panic!("{word}: {found:?}") };
            assert!(error.starts_with("`on_crash` is `fail`") && error.ends_with(meant), "{word}: {error}");
        }
    }
}

#[test]
fn a_valid_value_reaches_its_call() {
    let private = "::dlock_runtime::__private::idempotent::";
    let site = |setter: &str| format!("\"Result<u8,E>\"){setter}}});");
    let time = |seconds: u64| format!("::core::time::Duration::new({seconds}u64,0u32)");
    for (parameters, part) in [
        ("ttl = \"60s\"", site(&format!(".ttl({})", time(60)))),
        ("ttl = \"8760h\"", site(&format!(".ttl({})", time(31_536_000)))),
        ("ttl = TTL", site(".ttl(TTL)")),
        ("ttl = \"60s\", lease = \"60s\"", site(&format!(".ttl({}).lease({})", time(60), time(60)))),
        ("lease = \"8760h\"", site(&format!(".lease({})", time(31_536_000)))),
        ("on_duplicate = wait(\"10s\")", site(&format!(".wait({})", time(10)))),
        ("on_duplicate = error", site("")),
        (
            "on_duplicate = skip",
            format!("{private}skipping::<Result<u8,E>>({private}forgetting::<Result<u8,E>>());"),
        ),
        ("on_crash = rerun", site(&format!(".on_crash({private}OnCrash::Rerun)"))),
        ("on_crash = fail", site("")),
        ("record = record, on_crash = resume", site(&format!(".on_crash({private}OnCrash::Resume)"))),
        ("on_error = forget", format!("__dlock_results={private}forgetting::<Result<u8,E>>();")),
        ("on_error = remember", format!("__dlock_results={private}remembering::<Result<u8,E>>(|_|true);")),
        (
            "on_error = remember_if(E::is_final)",
            format!("__dlock_results={private}remembering::<Result<u8,E>>(E::is_final);"),
        ),
        ("on_unavailable = run", site(".runs_while_unavailable()")),
        ("on_unavailable = error", site("")),
        ("on_missing = run", site(".runs_without_key()")),
        ("on_missing = error", site("")),
        ("version = 4294967295", site(".version(4294967295)")),
        ("version = 2u32", site(".version(2u32)")),
        ("result_type = \"receipt\"", "\"receipt\")});".to_owned()),
        ("result_type = \"Result<a::B,E>\", version = 2", "\"Result<a::B,E>\").version(2)});".to_owned()),
        ("namespace = \"shop\"", site(".namespace(\"shop\")")),
        ("name = \"charge\"", format!("{private}IdempotentSite::new(\"charge\",")),
        ("manager = m", format!("{private}IdempotentCall::under(&m,")),
        ("crate = ::locks", "::locks::__private::idempotent::run_detached(".to_owned()),
        (
            "detached = true",
            format!("{private}run_detached(__dlock_call,__dlock_results,move|_:{private}IdempotentRecord|"),
        ),
        ("detached = false", format!("{private}run_attached(__dlock_call,__dlock_results,move|_:")),
        ("record = record", format!("move|__dlock_record:{private}IdempotentRecord|")),
        ("record = record", "letrecord=__dlock_record;".to_owned()),
        ("fingerprint = none", "__dlock_call.key(__dlock_key)};".to_owned()),
        ("fingerprint = id", "__dlock_call.key(__dlock_key).fingerprint(&id)};".to_owned()),
        ("fingerprint = (id)", ".fingerprint(&(id))};".to_owned()),
        ("fingerprint = (id, user.a, f(id), &id)", ".fingerprint(&(&id,&user.a,f(id),&id,))};".to_owned()),
        ("scope = everyone", ".part(\"id\",&id);".to_owned()),
        ("scope = user", ".part(\"id\",&id).text(\":\").part(\"user\",&user);".to_owned()),
        (
            "scope = user.tenant.id()",
            ".text(\":\").part(\"user.tenant.id()\",&(&user).tenant.id());".to_owned(),
        ),
    ] {
        let attribute = format!("key = \"a:<user>:<id>\", {parameters}");

        let expanded = dense(&expand_above(&attribute, "user: User, id: u8", "Result<u8, E>"));

        assert!(expanded.contains(&part), "`{parameters}` gives {expanded} without {part}");
    }
}

#[test]
fn a_scope_is_an_argument_or_a_part_of_it() {
    let wrong = "`scope` is the argument that says who may see the result";
    for (attribute, starts) in [
        ("key = \"a:<id>\", scope = user.a.b().c", &[][..]),
        ("key = \"a:<user>:<id>\", scope = a::b", &[wrong]),
        ("key = \"a:<user>:<id>\", scope = user.a(1)", &[wrong]),
        ("key = \"a:<user>:<id>\", scope = user.a::<T>()", &[wrong]),
        ("key = \"a:<user>:<id>\", scope = f().a", &[wrong]),
        ("key = \"a:<user>:<id>\", scope = <T>::a.b", &[wrong]),
        ("key = \"a:<user>:<id>\", scope = (user)", &[wrong]),
        ("key = \"a:<id>\", scope = f().a", &[wrong]),
        ("key = \"a:<id>\", scope = nobody", &["`<nobody>` names no argument of this function"]),
        ("key = id, scope = user", &["`scope` is a part of a template, and this `key` is an expression"]),
        ("key = id, scope = everyone", &[]),
        ("key = id", &["`id` alone makes the key: if a client chooses it"]),
        ("key = &(user.id)", &["`&(user.id)` alone makes the key"]),
        ("key = user.id()", &["`user.id()` alone makes the key"]),
        ("key = KEY.id", &[]),
        ("key = f(id)", &[]),
        ("key = \"a:<id>\"", &["`<id>` alone makes the key"]),
        ("key = \"a:<user.id|hash>\"", &["`<user.id>` alone makes the key"]),
        ("key = \"a:<id>:<user.id>\"", &[]),
        ("key = \"a:<K>\"", &[]),
    ] {
        assert_messages(attribute, &messages(expand_above(attribute, "user: User, id: u8", "R")), starts);
    }
}

#[test]
fn a_scope_in_an_invisible_group_is_an_argument() {
    let inside = quote!(user.id);
    let group = proc_macro2::Group::new(proc_macro2::Delimiter::None, inside);
    let field = quote!(#group.a);
    let expanded = idempotent(
        quote!(key = "a:<id>", scope = #field),
        quote!(
            async fn f(id: u8, user: User) -> R {}
        ),
    );

    assert!(dense(&expanded).contains(".part(\"user.id.a\",&user.id.a);"), "{expanded}");
}

#[test]
fn an_item_that_the_attribute_does_not_fit_is_reported() {
    let own = |what: &str| {
        format!(
            "the body runs to its end on its own task even if the call is dropped, so it cannot use {what}"
        )
    };
    for (attribute, arguments, output, start) in [
        ("key = \"a\"", "", "!", "`!` has no value to store".to_owned()),
        ("key = \"a\"", "", "Result<Option<()>, E>", "`Some(())` is stored as `null`".to_owned()),
        ("key = \"a\"", "", "impl Send", "`impl Trait` cannot be stored and replayed".to_owned()),
        ("key = \"a\"", "a: &str", "R", own("the argument `a`, which borrows: take it by value")),
        ("key = \"a\"", "a: (u8, [&'static str; 2], Vec<&str>)", "R", own("the argument `a`")),
        ("key = \"a\"", "a: fn(&'b str)", "R", own("the argument `a`")),
        ("key = \"a\"", "&self", "R", own("a borrowed `self`: take `self: Arc<Self>`")),
        ("key = \"a\"", "self: Pin<&mut Self>", "R", own("a borrowed `self`: take `self: Arc<Self>`")),
    ] {
        assert_messages(arguments, &messages(expand_above(attribute, arguments, output)), &[&start]);
    }
    for output in ["Result<(), E>", "Result<Option<bool>, E>", "Result<u8, Option<()>>"] {
        assert_messages(output, &messages(expand_above("key = \"a\"", "", output)), &[]);
    }
    for arguments in ["a: (&'static str, u8)", "a: Box<dyn Send + 'static>", "self: Box<Self>", "mut self"] {
        assert_messages(arguments, &messages(expand_above("key = \"a\"", arguments, "R")), &[]);
    }
    let main = || {
        quote!(
            async fn main() -> R {}
        )
    };
    let found = messages(idempotent(quote!(key = "a"), main()));
    assert_messages("main", &found, &["`main` installs the lock manager, so it cannot be idempotent itself"]);
    assert_messages("main", &messages(idempotent(quote!(key = "a", manager = m), main())), &[]);
}

#[test]
fn a_lock_of_the_same_key_is_refused() {
    for (other, is_refused) in [
        ("#[distributed_lock(key = \"a\")]", true),
        ("#[dlock_runtime::distributed_lock(lease = \"1s\", key = \"a\")]", true),
        ("#[distributed_lock(key = \"b\")]", false),
        ("#[other(key = \"a\")]", false),
    ] {
        let item = format!("{other} async fn f() -> R {{}}");
        let found = messages(idempotent(quote!(key = "a"), item.parse().expect("tokens")));

        assert_messages(other, &found, &["`#[idempotent]` contains the lock"][usize::from(!is_refused)..]);
    }
}

#[test]
fn only_arguments_that_a_call_compares_are_unquestioned() {
    let questions = |attribute: &str| {
        let expanded = expand_above(attribute, "self, a: u8, b: B, _c: u8", "R").to_string();
        expanded.matches("warning_argument_neither_in_key_nor_fingerprint").count()
    };

    for (attribute, count) in [
        ("key = \"a\"", 2),
        ("key = a, scope = everyone", 1),
        ("key = &a, scope = everyone", 1),
        ("key = (b), scope = everyone", 1),
        ("key = a.id(), scope = everyone", 2),
        ("key = f(a, b)", 2),
        ("key = \"k:<a>\", scope = b", 0),
        ("key = \"k:<a>\", scope = b.id", 1),
        ("key = \"k\", manager = a", 1),
        ("key = \"k\", manager = b.pool", 1),
        ("key = \"k\", manager = self.pool", 2),
        ("key = \"k\", fingerprint = a", 0),
        ("key = \"k\", fingerprint = none", 0),
    ] {
        assert_eq!(questions(attribute), count, "{attribute}");
    }
}

#[test]
fn a_pattern_is_bound_for_a_key_or_fingerprint_that_uses_it() {
    for (attribute, binding) in [
        ("key = \"k:<a>:<c>\", fingerprint = none", "let(a,_)=&__dlock_arg0;let__dlock_call"),
        ("key = \"k:<c>\", scope = everyone, fingerprint = none", "{let__dlock_call="),
        (
            "key = \"k:<c>\", scope = everyone, fingerprint = a",
            "let(a,b)=&__dlock_arg0;let_=&a;let_=&b;let__dlock_call",
        ),
        (
            "key = \"k:<c>\", scope = everyone, manager = a",
            "let(a,b)=&__dlock_arg0;let_=&a;let_=&b;let__dlock_call",
        ),
    ] {
        let expanded = dense(&expand_above(attribute, "(a, b): (u8, u8), c: u8", "R"));
        // The manager is in neither the key nor the fingerprint of the other arguments.
        let expanded = expanded
            .replace("::dlock_runtime::__private::warning_argument_neither_in_key_nor_fingerprint();", "");

        assert!(expanded.contains(binding), "{attribute}: {expanded}");
    }
}
