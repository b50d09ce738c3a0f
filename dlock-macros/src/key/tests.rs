//! Which keys are accepted, and what they expand to.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::quote;

use crate::distributed_lock::expand as distributed_lock;
use crate::report::tests::{assert_messages, dense, messages};

fn expand_with(key: &str, arguments: &str) -> TokenStream {
    let item = format!("async fn f({arguments}) -> Result<u8, E> {{ Ok(7) }}");
    distributed_lock(format!("key = {key}").parse().expect("tokens"), item.parse().expect("tokens"))
}

const ARGUMENTS: &str = "id: u64, user_id: u64, order: Order";

#[test]
fn a_template_that_misleads_gets_its_message() {
    let apart = |left: &str, right: &str| format!("nothing separates `<{left}>` from `<{right}>`");
    let unset = |text: &str| {
        format!("`None` in `<id|opt>` is written `~`, and `Some(None)` `~1`, so `{text}` after it")
    };
    let literal = |text: &str, place: &str| {
        format!(
            "`{text}` is literal text, so all callers would share ONE lock: write `<{place}>` for the argument"
        )
    };
    let positional =
        |text: &str| format!("`{text}` is literal text, so all callers would share ONE lock: write `<name>`");
    let cases = [
        ("", "the key is empty: write what is locked, such as `key = \"order:<user_id>\"`".to_owned()),
        ("<id>", "the key has no fixed text, so other locks could have the same key".to_owned()),
        ("{<id>}", "the key has no fixed text, so other locks could have the same key".to_owned()),
        ("a:{id}", literal("{id}", "id")),
        ("a:{order.id}", literal("{order.id}", "order.id")),
        ("a:{order:x}", literal("{order:x}", "order:x")),
        ("a:{id}:<user_id>", literal("{id}", "id")),
        ("a:{}", positional("{}")),
        ("a:{}:<id>", positional("{}")),
        ("a:{0}", positional("{0}")),
        ("a:{12}", positional("{12}")),
        ("a:$id", literal("$id", "id")),
        ("a:x#id", literal("#id", "id")),
        ("@user_id:a", literal("@user_id", "user_id")),
        ("a:%id-b", literal("%id", "id")),
        ("a{b", "`{` opens a hash tag that is never closed".to_owned()),
        ("a}b", "`}` closes no hash tag".to_owned()),
        ("{a}}", "`}` closes no hash tag".to_owned()),
        ("a{b{c}}", "a `{` inside of `{..}` makes no hash tag".to_owned()),
        ("{a}:{b}", "a key has one hash tag".to_owned()),
        ("{a}:{b}:{c}", "a key has one hash tag".to_owned()),
        ("a:<id><user_id>", apart("id", "user_id")),
        ("a:<id>-<user_id>", apart("id", "user_id")),
        ("a:<id><user_id|hash>", apart("id", "user_id")),
        ("a:<id|raw><user_id>", apart("id", "user_id")),
        ("a:<id><K><user_id>", apart("id", "user_id")),
        ("a:<id|hash>:<user_id>x<order.id>", apart("user_id", "order.id")),
        ("a:<id|opt>1", unset("1")),
        ("a:<id|opt>~", unset("~")),
        ("a:<id|opt><K>", unset("K")),
        ("a:<id|opt><k::ID>", unset("k::ID")),
        ("a:<id|opt><nobody>", "`<nobody>` names no argument".to_owned()),
        ("a:<order.self>", "`self` is not a name: write the name of a field or getter".to_owned()),
        ("a:<order.crate()>", "`crate` is not a name: write the name of a field or getter".to_owned()),
    ];
    for (template, start) in cases {
        assert_messages(template, &messages(expand_with(&format!("{template:?}"), ARGUMENTS)), &[&start]);
    }
    let found = messages(expand_with("\"a:<id><user_id><order.id>\"", ARGUMENTS));
    assert_messages("three", &found, &[&apart("id", "user_id"), &apart("user_id", "order.id")]);
}

#[test]
fn a_template_with_separators_is_accepted() {
    for template in [
        "a",
        "order",
        "a:{x}",
        "a:{x:id}:<id>",
        "a:{0}:<id>",
        "a:{id}:<id>",
        "a#id:<id>",
        "a:$x",
        "a:$id_x",
        "<K>",
        "<K>:<id>",
        ":<id>",
        "{<id>}:a",
        "{<id>:<user_id>}",
        "a:<id>:<user_id>",
        "a:<id>{<user_id>}",
        "{<id>}<user_id>:a",
        "a:<id><<<user_id>",
        "a:<id>>><user_id>",
        "a:<id>#<user_id>",
        "a:<id>x:y<user_id>",
        "a:<id|hash><user_id>",
        "a:<id|hash>x<user_id>",
        "a:<id><K>",
        "a:<K><id>",
        "a:<id|opt>:1",
        "a:<id|opt>b",
        "a:<id|opt>",
        "a:<id>1",
        "a:<id|hash>1",
        "a:<id|hash><K>",
        "a:<K|opt>1",
        "a:1<id|opt>",
    ] {
        let found = messages(expand_with(&format!("{template:?}"), ARGUMENTS));

        assert_messages(template, &found, &[]);
    }
    assert_messages("a:{0}", &messages(expand_with("\"a:{0}\"", "")), &[]);
}

#[test]
fn a_word_that_is_an_argument_is_questioned() {
    for (template, is_questioned) in [
        ("a:id", true),
        ("id", true),
        ("a-id-b", true),
        ("a:user_id", true),
        ("a:user", false),
        ("a:ids", false),
        ("a:id_", false),
        ("a:id:<user_id>", false),
        ("id:<K>", true),
    ] {
        let expanded = dense(&expand_with(&format!("{template:?}"), ARGUMENTS));

        assert_eq!(expanded.contains("warning_literal_argument();"), is_questioned, "{template}: {expanded}");
    }
}

#[test]
fn a_template_inside_an_expression_is_refused() {
    for (key, place) in [
        ("format!(\"a:<id>\")", Some("id")),
        ("&format!(\"a:{}:<order.id>\", 1)", Some("order.id")),
        ("concat(\"a:\", \"<user_id|hash>\")", Some("user_id|hash")),
        ("join([\"a\", (\"b:<x>:<id>\")])", Some("id")),
        ("format!(\"a:<other>\")", None),
        ("format!(\"a:<id\")", None),
        ("format!(\"a:id>\")", None),
        ("format!(\"a:{id}\")", None),
        ("key(1, 'a', b\"<id>\")", None),
    ] {
        let found = messages(expand_with(key, ARGUMENTS));

        let start = place.map(|place| format!("`<{place}>` is literal text inside an expression"));
        assert_messages(key, &found, &start.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn a_name_that_is_no_argument_gets_the_one_that_was_meant() {
    let three = "its arguments are `id`, `user_id`, `order`";
    for (place, end) in [
        ("Id", format!(": did you mean `<id>`; {three}")),
        ("Order.id", format!(": did you mean `<order.id>`; {three}")),
        ("order::id", format!(": did you mean `<order.id>`; {three}")),
        ("order::line::id", format!(": did you mean `<order.line.id>`; {three}")),
        ("usr_id", format!(": did you mean `<user_id>`; {three}")),
        ("userid.x", format!(": did you mean `<user_id.x>`; {three}")),
        ("search.user_id", format!(": did you mean `<user_id>`; {three}")),
        ("search.user_id.x", format!(": did you mean `<user_id.x>`; {three}")),
        ("search.user_id()", format!("; {three}")),
        ("Self", format!("; {three}")),
        ("search.other", format!("; {three}")),
        ("search.0", format!("; {three}")),
        ("search", format!("; {three}; for a field of `order: Order`, write `<order.search>`")),
    ] {
        let found = messages(expand_with(&format!("\"a:<{place}>\""), ARGUMENTS));

        assert_eq!(found, [format!("`<{place}>` names no argument of this function{end}")]);
    }
    let found = messages(expand_with("\"a:<self.id>\"", ARGUMENTS));
    assert_eq!(found, [format!("`<self.id>` needs a method, and this function has no `self`; {three}")]);
    let found = messages(expand_with("\"a:<usr_id>\"", "&self, user_id: u8"));
    assert!(
        found[0].ends_with(": did you mean `<user_id>`; its arguments are `self`, `user_id`"),
        "{found:?}"
    );
    let found = messages(expand_with("\"a:<x.y>\"", "&self, user_id: u8"));
    assert!(found[0].ends_with("; for a field of `self`, write `<self.x.y>`"), "{found:?}");
}

#[test]
fn all_headers_are_no_key() {
    for (place, of, is_refused) in [
        ("headers", "HeaderMap", true),
        ("headers", "&http::HeaderMap", true),
        ("headers.id", "HeaderMap", false),
        ("headers", "Headers", false),
        ("headers", "[u8; 4]", false),
    ] {
        let found = messages(expand_with(&format!("\"a:<{place}>\""), &format!("headers: {of}")));

        let starts = &["`<headers>` is all headers, and a key needs one"][usize::from(!is_refused)..];
        assert_messages(&format!("{place}: {of}"), &found, starts);
    }
}

#[test]
fn a_placeholder_borrows_its_place() {
    for (place, call) in [
        ("id", ".part(\"id\",&id)"),
        ("id|hash", ".hashed(\"id\",&id)"),
        ("id|opt", ".optional(\"id\",&id)"),
        ("id|raw", ".raw(\"id\",&id)"),
        ("r#type", ".part(\"r#type\",&r#type)"),
        ("type", ".part(\"type\",&r#type)"),
        ("self.id", ".part(\"self.id\",&self.id)"),
        ("order.id", ".part(\"order.id\",&order.id)"),
        ("order.0.type", ".part(\"order.0.type\",&order.0.r#type)"),
        ("order.id()", ".part(\"order.id()\",&(&order).id())"),
        ("order.a.b().c", ".part(\"order.a.b().c\",&(&order).a.b().c)"),
        ("ID", ".part(\"ID\",&ID)"),
        ("_K", ".part(\"_K\",&_K)"),
        ("keys::Kind", ".part(\"keys::Kind\",&keys::Kind)"),
        ("keys::id", ".part(\"keys::id\",&keys::id)"),
        ("order::ID", ".part(\"order::ID\",&order::ID)"),
        ("Self::ID", ".part(\"Self::ID\",&Self::ID)"),
        ("Kind.a", ".part(\"Kind.a\",&Kind.a)"),
    ] {
        let expanded =
            dense(&expand_with(&format!("\"a:<{place}>\""), &format!("&self, r#type: u8, {ARGUMENTS}")));

        assert!(expanded.contains(&format!(".text(\"a:\"){call};")), "{place}: {expanded}");
    }
}

#[test]
fn a_key_expression_is_borrowed_if_it_is_a_place() {
    for (key, value) in [
        ("id", "&id"),
        ("order.id", "&order.id"),
        ("(order.id)", "&(order.id)"),
        ("order.lines[0]", "order.lines[0]"),
        ("key(id)", "key(id)"),
        ("order.key()", "order.key()"),
        ("order.key().id", "order.key().id"),
        ("KEY", "::dlock_runtime::__private::ConstantKey(&KEY)"),
        ("keys::ORDER", "::dlock_runtime::__private::ConstantKey(&keys::ORDER)"),
        ("<Order as Keyed>::KEY", "&<OrderasKeyed>::KEY"),
    ] {
        let expanded = dense(&expand_with(key, ARGUMENTS));

        assert!(expanded.contains(&format!("let__dlock_key={value};__dlock_call.key")), "{key}: {expanded}");
    }
    let place = TokenTree::Group(Group::new(Delimiter::None, quote!(order.id)));
    let expanded = distributed_lock(
        quote!(key = (#place)),
        quote!(
            async fn f(order: Order) {}
        ),
    );
    assert!(dense(&expanded).contains("let__dlock_key=&(order.id);"), "{expanded}");
}
