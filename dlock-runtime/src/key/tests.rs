//! What keys promise: values cannot forge anything, and different values never meet.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn order(parts: (&str, Option<&[u8]>, u64)) -> String {
    let key = KeyBuilder::new("shop")
        .text("order:{")
        .part("a", &format!("x{}", parts.0))
        .text("}:")
        .optional("b", &parts.1)
        .text(":y-")
        .part("c", &parts.2)
        .build();
    key.expect("a key").full_name().to_owned()
}

/// The part of a name that a cluster computes the slot from: see "Hash tags" in the Redis Cluster specification.
fn hash_tag(name: &str) -> Option<&str> {
    let (_, after) = name.split_once('{')?;
    after.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

proptest! {
    #[test]
    fn different_values_never_give_one_key(
        left in (".{0,6}", proptest::option::of(vec(any::<u8>(), 0..4)), 0..3_u64),
        right in (".{0,6}", proptest::option::of(vec(any::<u8>(), 0..4)), 0..3_u64),
    ) {
        let same = left == right;
        let (left, right) = (order((&left.0, left.1.as_deref(), left.2)), order((&right.0, right.1.as_deref(), right.2)));

        prop_assert_eq!(left == right, same);
    }

    #[test]
    fn reserved_letters_never_make_different_values_meet(
        left in ("[:%{}<>~#a-]{0,4}", proptest::option::of("[:~1]{0,2}")),
        right in ("[:%{}<>~#a-]{0,4}", proptest::option::of("[:~1]{0,2}")),
    ) {
        let key = |(a, b): &(String, Option<String>)| {
            KeyBuilder::new("").text("k:").optional("a", a).text(":").optional("b", b).build().expect("a key")
        };

        prop_assert_eq!(key(&left) == key(&right), left == right);
    }

    #[test]
    fn a_value_never_adds_or_moves_a_hash_tag(value in "[{}a:]{1,300}") {
        let untagged = KeyBuilder::new("shop").text("order:").part("v", &value).text(":x").build().expect("a key");
        let tagged = KeyBuilder::new("shop").text("{order}:").part("v", &value).build().expect("a key");

        prop_assert_eq!(hash_tag(untagged.full_name()), None);
        prop_assert_eq!(hash_tag(tagged.full_name()), Some("order"));
    }

    #[test]
    fn a_long_name_is_cut_whole(value in "[aé日:]{0,400}", before in 0..500_usize) {
        let text = "x".repeat(before);
        let key = KeyBuilder::new("shop").text(&text).text("{").part("v", &format!("v{value}")).text("}").build();
        let name = key.expect("a key").full_name().to_owned();

        prop_assert!(name.len() <= name::LONGEST);
        prop_assert_eq!(name.matches('{').count(), name.matches('}').count());
        prop_assert!(name.starts_with("shop:"));
    }

    #[test]
    fn a_namespace_is_applied_once(key in "[a-z{}é]{1,600}") {
        let direct = key.as_str().into_lock_key("shop").expect("a key");
        let made = LockKey::new(&key).expect("a key").into_lock_key("shop").expect("a key");
        let again = (&direct).into_lock_key("shop").expect("a key").into_lock_key("other").expect("a key");
        let built = KeyBuilder::new("shop").text(&key).into_lock_key("shop").expect("a key");

        prop_assert_eq!(&direct, &made);
        prop_assert_eq!(&direct, &again);
        prop_assert_eq!(&direct, &built);
    }
}

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
fn a_missing_value_is_refused_by_the_name_of_its_hole() {
    let none =
        KeyBuilder::new("shop").text("a:").part("id", &None::<u8>).text(":").hashed("x", "secret").build();
    let empty = KeyBuilder::new("shop").text("a:").hashed("id", "").build();

    assert_eq!(
        none.expect_err("no value").to_string(),
        "invalid lock key `a:<id>:<x>`: `<id>` has no value: write `|opt` in the hole where that is meant"
    );
    assert_eq!(
        empty.expect_err("no value").to_string(),
        "invalid lock key `a:<id>`: `<id>` is empty: write `|opt` in the hole where that is meant"
    );
}

#[test]
fn nothing_nothing_inside_and_empty_are_three_keys() {
    let key = |value: Option<Option<&str>>| {
        KeyBuilder::new("").optional("v", &value).build().expect("a key").as_str().to_owned()
    };

    assert_eq!([key(None), key(Some(None)), key(Some(Some("")))], ["~", "~1", "~~"]);
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

    let hash = KeyBuilder::new("").hashed("v", &format!("shop:{long}")).build().expect("a key");
    assert_eq!(key.full_name(), format!("shop:{}#{hash}", "x".repeat(479 - 5)));
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
