//! Which items are accepted, and how a key refers to their arguments.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::quote;

use crate::distributed_lock::expand as distributed_lock;
use crate::report::tests::{assert_messages, dense, messages};

fn expand_above(attribute: &str, item: &str) -> TokenStream {
    distributed_lock(attribute.parse().expect("tokens"), item.parse().expect("tokens"))
}

#[test]
fn an_item_without_an_async_body_gets_its_message() {
    for (item, start) in [
        (
            "struct S;",
            "`#[distributed_lock]` locks a function, and this is a `struct`: write it above an `async fn`",
        ),
        ("pub enum E {}", "`#[distributed_lock]` locks a function, and this is an `enum`: write it above an"),
        (
            "impl S {}",
            "`#[distributed_lock]` locks a function, and this is an `impl`: write it above each method that is to run under a lock",
        ),
        (
            "unsafe impl Send for S {}",
            "`#[distributed_lock]` locks a function, and this is an `impl`: write it above each",
        ),
        (
            "trait T {}",
            "`#[distributed_lock]` locks a function, and this is a `trait`: write it above each method",
        ),
        (
            "unsafe trait T {}",
            "`#[distributed_lock]` locks a function, and this is a `trait`: write it above each",
        ),
        ("mod m {}", "`#[distributed_lock]` locks a function, and this is a `mod`: write it above an"),
        (
            "static S: u8 = 1;",
            "`#[distributed_lock]` locks a function, and this is a `static`: write it above an",
        ),
        ("type T = u8;", "`#[distributed_lock]` locks a function, and this is a `type`: write it above an"),
        ("use a::b;", "`#[distributed_lock]` locks a function, and this is a `use`: write it above an"),
        ("fn f() {}", "a lock needs an `async fn`: write `async fn f`; if an attribute above this one"),
        (
            "unsafe fn f() {}",
            "a lock needs an `async fn`: write `async fn f`; if an attribute above this one",
        ),
        ("fn r#type() {}", "a lock needs an `async fn`: write `async fn type`; if"),
        ("fn main() {}", "a lock needs an `async fn`: `main` installs the lock manager: lock an `async fn`"),
        (
            "fn f() -> impl Send + Future<Output = u8> { g() }",
            "a lock needs an `async fn`: write `async fn f(..) -> u8`",
        ),
        ("fn f() -> impl Iterator<Item = u8> { g() }", "a lock needs an `async fn`: write `async fn f`; if"),
        (
            "fn f() -> Pin<Box<dyn Future<Output = u8>>> { g() }",
            "a lock needs an `async fn`: write `async fn f`; if",
        ),
        ("fn f() -> u8 { Box::pin(async move { 1 }) }", "a lock needs an `async fn`: write `async fn f`; if"),
        ("async fn main() {}", "`main` installs the lock manager, so it cannot be locked itself"),
        (
            "async fn f() -> R;",
            "there is no body to run under a lock: put `#[distributed_lock(..)]` above the method",
        ),
        ("async fn f() -> R (1)", "there is no body to run under a lock"),
        ("async fn f() -> R [{ 1 }]", "there is no body to run under a lock"),
    ] {
        assert_messages(item, &messages(expand_above("key = \"a\"", item)), &[start]);
    }
    assert_messages("main", &messages(expand_above("key = \"a\", manager = m", "async fn main() {}")), &[]);
}

#[test]
fn a_function_keeps_what_precedes_and_starts_its_body() {
    for (item, start) in [
        ("default async fn f() {}", "default async fn f () { let __dlock_call"),
        ("pub default async fn f() {}", "pub default async fn f () { let __dlock_call"),
        (
            "#[must_use] pub async unsafe fn f() {}",
            "# [must_use] pub async unsafe fn f () { let __dlock_call",
        ),
        ("async fn f() { #![allow(x)] 1 }", "async fn f () { # ! [allow (x)] let __dlock_call"),
    ] {
        let expanded = expand_above("key = \"a\"", item).to_string();

        assert!(expanded.starts_with(start), "`{item}` gives {expanded}");
    }
}

#[test]
fn a_body_in_an_invisible_group_is_found() {
    let group = |delimiter, inside| TokenTree::Group(Group::new(delimiter, inside));
    let braces = group(Delimiter::Brace, quote!(7));
    let once = group(Delimiter::None, braces.clone().into());
    let twice = group(Delimiter::None, once.clone().into());
    let other = group(Delimiter::None, group(Delimiter::Parenthesis, quote!(7)).into());
    for (body, is_found) in [(braces, true), (once, true), (twice, true), (other, false)] {
        let expanded = distributed_lock(quote!(key = "a"), quote!(async fn f() -> u8 #body));

        assert_eq!(messages(expanded).is_empty(), is_found, "{body}");
    }
}

#[test]
fn an_unknown_name_gets_the_arguments_and_a_place() {
    for (arguments, end) in [
        ("", "; it has no arguments"),
        ("_: u8", "; none of its arguments has a name"),
        ("a: u8", "; its one argument is `a`"),
        ("a: u8, r#type: u8", "; its arguments are `a`, `type`"),
        ("a: Req", "; its one argument is `a`; for a field of `a: Req`, write `<a.other>`"),
        (
            "a: u8, b: web::Req",
            "; its arguments are `a`, `b`; for a field of `b: web::Req`, write `<b.other>`",
        ),
        ("a: &Req", "; its one argument is `a`; for a field of `a: &Req`, write `<a.other>`"),
        ("a: [Req; 3]", "; its one argument is `a`"),
        ("a: (Req,), b: Req", "; its arguments are `a`, `b`; for a field of `b: Req`, write `<b.other>`"),
        ("a: Option<Req>", "; its one argument is `a`"),
        ("Json(a): Json<Req>", "; its one argument is `a`; for a field of `a: Json<Req>`, write `<a.other>`"),
        ("Pair(a, b): Pair", "; its arguments are `a`, `b`"),
        (
            "Req { a, .. }: Req",
            "; its one argument is `a`; for a field of `Req`, bind it in the pattern, as in `Req { other, .. }`, and write `<other>`",
        ),
        (
            "Json(Req { a, .. }): Json<Req>",
            "; its one argument is `a`; for a field of `Req`, bind it in the pattern, as in `Req { other, .. }`, and write `<other>`",
        ),
        (
            "all @ (_, &(Req { .. })): (u8, &Req), b: Req",
            "; its arguments are `all`, `b`; for a field of `b: Req`, write `<b.other>`",
        ),
        (
            "all @ Path((_, &(Req { .. }))): Path<(u8, &Req)>",
            "; its one argument is `all`; for a field of `Req`, bind it in the pattern, as in `Req { other, .. }`, and write `<other>`",
        ),
        ("&self", "; its one argument is `self`; for a field of `self`, write `<self.other>`"),
        ("&self, a: Req", "; its arguments are `self`, `a`; for a field of `a: Req`, write `<a.other>`"),
    ] {
        let found = messages(expand_above("key = \"k:<other>\"", &format!("async fn f({arguments}) {{}}")));

        assert_eq!(found, [format!("`<other>` names no argument of this function{end}")], "{arguments}");
    }
}

#[test]
fn a_type_in_an_invisible_group_has_fields() {
    let of = TokenTree::Group(Group::new(Delimiter::None, quote!(Req)));

    let found = messages(distributed_lock(quote!(key = "k:<other>"), quote!(async fn f(a: #of) {})));

    assert!(found[0].ends_with("write `<a.other>`"), "{found:?}");
}

#[test]
fn a_return_type_in_an_invisible_group_is_seen_through() {
    let group = |inside| TokenTree::Group(Group::new(Delimiter::None, inside));
    let unnamed = group(quote!(impl Send));
    let found = messages(distributed_lock(quote!(key = "a"), quote!(async fn f() -> #unnamed {})));
    assert_messages("impl Send", &found, &["`impl Trait` cannot report that the lock was not acquired"]);

    let boxed = group(quote!(Pin<Box<dyn Future<Output = u8>>>));
    let item = quote!(fn f() -> #boxed { Box::pin(async move { 1 }) });
    assert_messages("a box", &messages(distributed_lock(quote!(key = "a"), item)), &[]);
}

#[test]
fn a_pattern_keeps_the_order_in_which_parts_are_dropped() {
    let allow = "#[allow(clippy::shadow_same,clippy::used_underscore_binding)]";
    for (arguments, before, captured, inside) in [
        // All parts are taken, so the body owns only them.
        ("Path(a): Path<u8>, b: u8", "letPath(a)={__dlock_arg0};", "let_=&b;let_=&a;", String::new()),
        // A part is left, and later arguments are bound again, to be dropped before it.
        (
            "(a, _): (u8, u8), mut b: u8",
            "",
            "let_=&b;let_=&__dlock_arg0;",
            format!("let(a,_)=__dlock_arg0;{allow}letmutb=b;{allow}let_=&b;"),
        ),
        (
            "&a: &u8, Path(b): Path<u8>",
            "",
            "let_=&__dlock_arg1;let_=&__dlock_arg0;",
            format!(
                "let&a=__dlock_arg0;{allow}let__dlock_arg1=__dlock_arg1;{allow}let_=&__dlock_arg1;letPath(b)=__dlock_arg1;"
            ),
        ),
        // A pattern without names keeps nothing alive.
        ("_: u8, mut b: u8", "", "let_=&b;let_=&__dlock_arg0;", "let_=__dlock_arg0;".to_owned()),
        ("#[cfg(x)] a: u8", "", "#[cfg(x)]let_=&a;", String::new()),
    ] {
        let expanded = dense(&expand_above("key = \"k\"", &format!("async fn f({arguments}) {{ 7 }}")));

        let returns = "iffalse{return::dlock_runtime::__private::never::<()>();}";
        assert!(
            expanded.contains(&format!("asyncmove{{{captured}{returns}{inside}'__dlock_body")),
            "{arguments}: {expanded}"
        );
        assert!(
            expanded.contains(&format!("__dlock_call.key(__dlock_key)}};{before}let__dlock_body=")),
            "{arguments}: {expanded}"
        );
    }
}

#[test]
fn a_key_binds_only_the_names_that_it_uses() {
    let allow = "#[allow(clippy::pattern_type_mismatch,clippy::unneeded_field_pattern)]";
    for (key, bindings) in [
        ("\"k:<a>\"", format!("{{{allow}let(a,_)=&__dlock_arg0;let__dlock_call")),
        ("\"k:<b>\"", format!("{{{allow}let(_,b)=&__dlock_arg0;let__dlock_call")),
        ("\"k:<c>\"", "{let__dlock_call=::".to_owned()),
        ("key()", format!("{{{allow}let(a,b)=&__dlock_arg0;let_=&a;let_=&b;let__dlock_call")),
    ] {
        let expanded = expand_above(&format!("key = {key}"), "async fn f((a, b): (u8, u8), c: u8) {}");

        assert!(dense(&expanded).contains(&bindings), "{key}: {}", dense(&expanded));
    }
    for parameter in ["manager = m", "wait = c.wait"] {
        let expanded =
            expand_above(&format!("key = \"k:<c>\", {parameter}"), "async fn f((_a, b): (u8, u8), c: u8) {}");

        let bindings = format!("{{{allow}let(_a,b)=&__dlock_arg0;let_=&b;let__dlock_call");
        assert!(dense(&expanded).contains(&bindings), "{parameter}: {}", dense(&expanded));
    }
}

#[test]
fn a_boxed_future_runs_its_body_under_the_lock() {
    let boxed = "Box::pin(async move { let Path(id) = { let __arg0 = __arg0; __arg0 }; let b = b; id })";
    let arguments = "__arg0: Path<u64>, b: u8";
    for output in [
        "Pin<Box<dyn Future<Output = u64> + Send + 'a>>",
        "(Pin<Box<dyn Future<Output = u64>>>)",
        "Pin<Box<(dyn Send + Future<Output = u64>)>>",
    ] {
        let expanded = dense(&expand_above(
            "key = \"k:<id>\"",
            &format!("fn f<'a>({arguments}) -> {output} {{ {boxed} }}"),
        ));

        assert!(expanded.contains("{Box::pin(asyncmove{let__dlock_call="), "{output}: {expanded}");
        assert!(expanded.contains("letPath(id)=&__arg0;"), "{output}: {expanded}");
        assert!(expanded.contains("finish::<u64>(__dlock_result)"), "{output}: {expanded}");
        assert!(
            expanded.contains("{letPath(id)={let__arg0=__arg0;__arg0};letb=b;let_=&b;id}"),
            "{output}: {expanded}"
        );
    }
    let output = "Pin<Box<dyn Future<Output = u64>>>";
    for other in [
        "Box::pin(async { 1 })",
        "Box::pin(async move (1))",
        "Box::pin(move async { 1 })",
        "Box::pin(async move { 1 }, 2)",
        "Box::new(async move { 1 })",
        "Rc::pin(async move { 1 })",
        "Box::pin[async move { 1 }]",
        "Box::pin",
        "",
    ] {
        let found = messages(expand_above("key = \"k\"", &format!("fn f() -> {output} {{ {other} }}")));

        assert_messages(other, &found, &["a lock needs an `async fn`: write `async fn f`"]);
    }
}

#[test]
fn a_statement_of_a_boxed_body_binds_the_pattern_of_an_argument() {
    for (statement, is_bound) in [
        ("let Path(id) = { let __arg0 = __arg0; __arg0 };", true),
        ("let Path(id) = __arg0;", true),
        ("{ { let Path(id) = __arg0; } }", true),
        ("let Path(id) = __arg1;", false),
        ("let Path(id) = b;", false),
        ("let Path(id) == __arg0;", false),
        ("let Path(id) > __arg0;", false),
        ("let Path(id) = (__arg0);", false),
        ("let Path(id) = { set __arg0 = __arg0; __arg0 };", false),
        ("let Path(id) = { let __arg0 = __arg0; b };", false),
        ("let Path(id) = { __arg0 };", false),
        ("set Path(id) = __arg0;", false),
        ("let Path(id) = 1; __arg0;", false),
        ("let = __arg0;", false),
        ("let;", false),
    ] {
        let item = format!(
            "fn f(__arg0: Path<u64>, b: u8) -> Pin<Box<dyn Future<Output = u64>>> {{ Box::pin(async move {{ {statement} 1 }}) }}"
        );

        let found = messages(expand_above("key = \"k:<id>\"", &item));

        assert_eq!(found.is_empty(), is_bound, "{statement}: {found:?}");
    }
}
