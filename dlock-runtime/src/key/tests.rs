//! The text of each value, and the values that are refused. See `properties` for all values.

use super::*;

#[test]
fn a_value_is_escaped_and_text_is_not() {
    let key = KeyBuilder::new("").text("{a}:").part("v", "a:b%{c}<d>~#é \n").build().expect("a key");

    assert_eq!(key.as_str(), "{a}:a%3Ab%25%7Bc%7D%3Cd%3E%7E%23%C3%A9 %0A");
}

#[test]
fn each_type_has_its_text() {
    let uuid = uuid::Uuid::from_u128(0x1234);
    let key = KeyBuilder::new("")
        .part("a", &-7_i64)
        .part("b", &true)
        .part("c", &'x')
        .part("d", &Some(Box::new("s")))
        .part("e", &std::borrow::Cow::Borrowed("t"))
        .part("f", &std::sync::Arc::<str>::from("u"))
        .part("g", &vec![0_u8, 65])
        .part("h", b"bytes")
        .part("i", &uuid)
        .build();

    assert_eq!(key.expect("a key").as_str(), "-7truexstu%00Abytes00000000-0000-0000-0000-000000001234");
}

#[test]
fn a_hash_is_the_start_of_sha_256() {
    let key = KeyBuilder::new("").text("k:").hashed("v", "abc").build().expect("a key");

    assert_eq!(key.as_str(), "k:ba7816bf8f01cfea414140de5dae2223");
}

#[test]
fn a_key_with_a_hash_in_it_says_so_wherever_it_goes() {
    let key = KeyBuilder::new("").text("k:").hashed("v", "abc").build().expect("a key");
    let plain = LockKey::new(key.as_str()).expect("a key");

    assert!(key.is_hashed() && (&key).into_lock_key("shop").expect("a key").is_hashed());
    assert!(!plain.is_hashed());
    assert_eq!(key, plain);
}

#[test]
fn missing_value_is_refused_with_its_placeholder() {
    let none =
        KeyBuilder::new("shop").text("a:").part("id", &None::<u8>).text(":").hashed("x", "secret").build();
    let empty = KeyBuilder::new("shop").text("a:").hashed("id", "").build();

    assert_eq!(
        none.expect_err("no value").to_string(),
        "invalid lock key `a:<id>:<x>`: `<id>` has no value: write `|opt` in the placeholder if calls without it may share one key"
    );
    assert_eq!(
        empty.expect_err("no value").to_string(),
        "invalid lock key `a:<id>`: `<id>` is empty: write `|opt` in the placeholder if calls without it may share one key"
    );
}

#[test]
fn nothing_nothing_inside_and_empty_are_three_keys() {
    let key = |value: Option<Option<&str>>| {
        KeyBuilder::new("").optional("v", &value).build().expect("a key").as_str().to_owned()
    };

    assert_eq!([key(None), key(Some(None)), key(Some(Some("")))], ["~", "~1", "~~"]);
}

/// Such as `struct LineId { order: u64, article: &str }`.
struct Fields<'a>(&'a [(&'a str, &'a dyn KeyPart)]);

impl KeyPart for Fields<'_> {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        self.0.iter().fold(out.fields(), |out, (name, value)| out.field(name, *value)).end()
    }
}

#[derive(crate::KeyPart)]
#[key_part(crate = crate)]
struct UserId(u64);

#[derive(crate::KeyPart)]
#[key_part(crate = crate)]
struct LineId<'a> {
    order: UserId,
    r#type: Option<&'a str>,
    _of: std::marker::PhantomData<u8>,
}

fn line(r#type: Option<&str>) -> LineId<'_> {
    LineId { order: UserId(7), r#type, _of: std::marker::PhantomData }
}

#[test]
fn the_values_of_fields_stand_in_order() {
    let key = |key: KeyBuilder| key.build().expect("a key").to_string();

    assert_eq!(key(KeyBuilder::new("").part("v", &UserId(7))), "7");
    assert_eq!(key(KeyBuilder::new("").part("v", &line(Some("a:b")))), "7:a%3Ab");
    assert_eq!(key(KeyBuilder::new("").raw("v", &line(Some("a:b")))), "7:a:b");
    assert_eq!(key(KeyBuilder::new("").optional("v", &Some(line(None)))), "7:~1");
    assert_eq!(key(KeyBuilder::new("").optional("v", &None::<UserId>)), "~");
    assert_eq!(key(KeyBuilder::new("").part("v", &(1_u8, "b", line(Some("c"))))), "1:b:7:c");
    assert_eq!(key(KeyBuilder::new("").optional("v", &("", Some(""), None::<u8>))), "~~:~~:~");
}

/// Returns the hash of a text, without a key around it.
fn sha_256(text: &str) -> String {
    let mut hasher = hash::Hasher::new(String::new());
    hasher.update(text.as_bytes());
    hasher.finish()
}

#[test]
fn a_hash_of_fields_is_that_of_their_escaped_text() {
    let fields = KeyBuilder::new("").hashed("v", &line(Some("a:b"))).build().expect("a key");
    let single = KeyBuilder::new("").hashed("v", &UserId(7)).build().expect("a key");

    assert_eq!(fields.as_str(), sha_256("7:a%3Ab"));
    assert_eq!(single, KeyBuilder::new("").hashed("v", "7").build().expect("a key"));
}

/// A hand-written enum, whose variants write different plain texts.
enum Payer {
    Text(&'static str),
    Fields(&'static [&'static str]),
}

impl KeyPart for Payer {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        match self {
            Self::Text(text) => out.str(text),
            Self::Fields(texts) => texts.iter().fold(out.fields(), |out, text| out.field("f", *text)).end(),
        }
    }
}

#[test]
fn hashes_differ_if_plain_texts_differ() {
    let payers = [
        Payer::Text("customer:7"),
        Payer::Fields(&["customer", "7"]),
        Payer::Text("customer%3A7"),
        Payer::Fields(&["customer%3A7"]),
        Payer::Text("a:b:c"),
        Payer::Fields(&["a", "b", "c"]),
        Payer::Fields(&["a:b", "c"]),
        Payer::Fields(&["a", "b:c"]),
        Payer::Text("~"),
        Payer::Text("%7E"),
        Payer::Text("é"),
        Payer::Text("%C3%A9"),
    ];
    let names = |build: fn(KeyBuilder, &Payer) -> KeyBuilder| {
        let names = payers.iter().map(|payer| build(KeyBuilder::new(""), payer).build().expect("a key"));
        names.map(|key| key.as_str().to_owned()).collect::<std::collections::HashSet<_>>()
    };

    let plain = names(|key, payer| key.part("v", payer));
    let hashed = names(|key, payer| key.hashed("v", payer));

    // The only field of one variant has the same text as another variant, hashed or not.
    assert_eq!((plain.len(), hashed.len()), (payers.len() - 1, payers.len() - 1));
}

#[test]
fn a_field_without_a_value_is_named() {
    let problem = |value: &dyn KeyPart| {
        let key = KeyBuilder::new("").text("a:").part("line", value).text(":").part("x", &1_u8).build();
        key.expect_err("no value").to_string()
    };
    let missing = line(None);

    assert_eq!(
        problem(&missing),
        "invalid lock key `a:<line>:<x>`: `<line.type>` has no value: write `|opt` in the placeholder if calls without it may share one key"
    );
    assert_eq!(
        problem(&Some((1_u8, (2_u8, "")))),
        "invalid lock key `a:<line>:<x>`: `<line.1.1>` is empty: write `|opt` in the placeholder if calls without it may share one key"
    );
    assert!(
        problem(&Fields(&[("first", &1_u8), ("of", &Fields(&[("two", &""), ("three", &"")]))]))
            .contains("`<line.of.two>`")
    );
    assert!(problem(&Fields(&[])).contains("`<line>` is empty"));
}

#[test]
fn a_raw_value_is_taken_as_it_is() {
    let raw = KeyBuilder::new("").raw("v", "{a}:b").build();
    let bytes = KeyBuilder::new("").raw("v", &[0xff_u8]).build();

    assert_eq!(raw.expect("a key").as_str(), "{a}:b");
    assert!(bytes.is_err());
}

#[test]
fn a_long_name_keeps_its_head_and_ends_in_the_hash_of_all_of_it() {
    let long = "x".repeat(600);
    let key = long.as_str().into_lock_key("shop").expect("a key");

    let hash = sha_256(&format!("shop:{long}"));
    assert_eq!(key.full_name(), format!("shop:{}##{hash}", "x".repeat(478 - 5)));
}

#[test]
fn the_marker_of_derived_names_is_refused() {
    let cut = "x".repeat(600).as_str().into_lock_key("").expect("a key").to_string();
    let (tail, head) = ("#token", "order#");
    for key in [
        "{dlock:order:7}##token".into_lock_key("dlock"),
        "##".into_lock_key("dlock"),
        "{a}:b##token".into_lock_key(""),
        "a###".to_owned().into_lock_key(""),
        cut.as_str().into_lock_key(""),
        LockKey::new("a##b"),
        KeyBuilder::new("shop").text("order#").text("#token").build(),
        KeyBuilder::default().text(head).raw("v", tail).build(),
        KeyBuilder::default().raw("v", head).text(tail).build(),
        KeyBuilder::default().raw("v", &("a##b", 7_u8)).into_lock_key("shop"),
    ] {
        let refused = key.expect_err("`##` is reserved").to_string();
        assert!(refused.contains("`##` is reserved"), "{refused}");
    }
}

#[test]
fn single_number_signs_and_escaped_ones_are_accepted() {
    let key = |key: KeyBuilder| key.build().expect("a key").to_string();

    assert_eq!(key(KeyBuilder::new("").text("#a#b#").part("v", "##token").text("#")), "#a#b#%23%23token#");
    assert_eq!(key(KeyBuilder::new("").text("#").optional("v", "").text("#")), "#~~#");
    assert_eq!(key(KeyBuilder::new("").text("#").part("v", &line(Some("#"))).text("#")), "#7:%23#");
    assert_eq!("#".into_lock_key("a#").expect("a key").full_name(), "a#:#");
}

#[test]
fn a_cut_key_is_read_back_as_it_is_shown() {
    for long in [
        "x".repeat(600),
        format!("#{}", "é".repeat(300)),
        format!("{{{}}}{}", "t".repeat(40), "y#".repeat(290)),
    ] {
        let key = long.as_str().into_lock_key("shop").expect("a key");

        let shown = LockKey::from_shown(key.as_str()).expect("a key").into_lock_key("shop");

        assert_eq!(shown.expect("a key").full_name(), key.full_name());
    }
    for text in ["", "a##b", "a##b##0123456789abcdef0123456789abcdef", "a##0123456789ABCDEF0123456789abcdef"]
    {
        assert!(LockKey::from_shown(text).is_err(), "{text}");
    }
    assert_eq!(LockKey::from_shown("order:7").expect("a key").as_str(), "order:7");
}

#[test]
fn an_empty_key_is_refused() {
    assert!("".into_lock_key("shop").is_err());
    assert!(LockKey::new("").is_err());
}

#[test]
fn a_number_is_a_ready_made_key() {
    assert_eq!(7_u64.into_lock_key("shop").expect("a key").full_name(), "shop:7");
    assert_eq!((&&7_u64).into_lock_key("shop").expect("a key").full_name(), "shop:7");
}

#[test]
fn keys_are_compared_byte_by_byte() {
    for (one, other) in [("M\u{fc}ller", "Mu\u{308}ller"), ("order:a", "order:A"), ("\u{df}", "ss")] {
        let [one, other] = [one, other].map(|key| LockKey::new(key).expect("a key"));
        assert_ne!(one.full_name(), other.full_name());

        let of = |value| KeyBuilder::new("").text("user:").part("name", value).build().expect("a key");
        assert_ne!(of(one.as_str()).full_name(), of(other.as_str()).full_name());
    }
}
