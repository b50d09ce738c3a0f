//! Properties of all templates and values: different values never build the same key, and no value
//! moves a key to another slot.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::backend::redis::counter;
use crate::bounds::LONGEST_NAME;

/// The type of a value. Only values of the same type are compared.
#[derive(Clone, Debug)]
enum Kind {
    Text,
    Bytes,
    Number,
    Optional(Box<Kind>),
    Fields(Vec<Kind>),
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Bytes(Vec<u8>),
    Number(i8),
    Optional(Option<Box<Value>>),
    Fields(Vec<Value>),
}

impl KeyPart for Value {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        match self {
            Self::Text(text) => text.write_part(out),
            Self::Bytes(bytes) => bytes.write_part(out),
            Self::Number(number) => number.write_part(out),
            Self::Optional(value) => value.write_part(out),
            Self::Fields(values) => {
                values.iter().fold(out.fields(), |out, value| out.field("field", value)).end()
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Modifier {
    Plain,
    Opt,
    Hash,
}

/// A placeholder, and the text before it.
#[derive(Clone, Debug)]
struct Hole {
    text: String,
    kind: Kind,
    modifier: Modifier,
}

fn add(key: KeyBuilder, placeholder: &Hole, value: &Value) -> KeyBuilder {
    let key = key.text(&placeholder.text);
    match placeholder.modifier {
        Modifier::Plain => key.part("placeholder", value),
        Modifier::Opt => key.optional("placeholder", value),
        Modifier::Hash => key.hashed("placeholder", value),
    }
}

/// Returns the name that a template builds from values, unless it refuses them.
fn name(before: &str, placeholders: &[Hole], values: &[Value], after: &str) -> Option<String> {
    let start = KeyBuilder::new("shop").text(before);
    let key = placeholders
        .iter()
        .zip(values)
        .fold(start, |key, (placeholder, value)| add(key, placeholder, value))
        .text(after);
    key.build().ok().map(|key| key.full_name().to_owned())
}

/// Returns the text from which a cluster computes the slot: see "Hash tags" in the Redis Cluster
/// specification.
fn hash_tag(name: &str) -> Option<&str> {
    let (_, after) = name.split_once('{')?;
    after.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

/// The pieces of values: all characters with a meaning in a key, and text that resembles escapes
/// and marks.
const LETTERS: &[&str] =
    &[":", "%", "%3A", "{", "}", "<", ">", "~", "~~", "#", "1", "a", "-", " ", "\n", "\0", "é", "日"];

fn kind() -> impl Strategy<Value = Kind> {
    let leaf = prop_oneof![6 => Just(Kind::Text), 1 => Just(Kind::Bytes), 1 => Just(Kind::Number)];
    leaf.prop_recursive(4, 8, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(optional),
            vec(inner.clone(), 2..=3).prop_map(Kind::Fields),
            // Missing as a whole or in a field: only the depth distinguishes the two.
            inner.prop_map(|kind| optional(Kind::Fields(vec![optional(kind); 2]))),
        ]
    })
}

fn optional(kind: Kind) -> Kind {
    Kind::Optional(Box::new(kind))
}

/// Returns values of few different characters, so that two of them collide as soon as a rule fails.
fn value(kind: &Kind, letters: &[&'static str]) -> BoxedStrategy<Value> {
    let letters = letters.to_vec();
    let some = |length| vec(select(letters.clone()), length).prop_map(|letters| letters.concat());
    let text = prop_oneof![1 => Just(String::new()), 4 => some(1), 3 => some(2)];
    match kind {
        Kind::Text => text.prop_map(Value::Text).boxed(),
        Kind::Bytes => text.prop_map(|text| Value::Bytes(text.into_bytes())).boxed(),
        Kind::Number => (-1..=1_i8).prop_map(Value::Number).boxed(),
        Kind::Optional(kind) => {
            proptest::option::of(value(kind, &letters).prop_map(Box::new)).prop_map(Value::Optional).boxed()
        }
        Kind::Fields(kinds) => {
            let values: Vec<_> = kinds.iter().map(|kind| value(kind, &letters)).collect();
            values.prop_map(Value::Fields).boxed()
        }
    }
}

/// Returns lists of values for the placeholders.
fn values(placeholders: &[Hole]) -> impl Strategy<Value = Vec<Vec<Value>>> + use<> {
    let kinds: Vec<Kind> = placeholders.iter().map(|placeholder| placeholder.kind.clone()).collect();
    (proptest::option::of(Just(":")), subsequence(LETTERS, 1..=2)).prop_flat_map(move |(colon, letters)| {
        let letters: Vec<_> = colon.into_iter().chain(letters).collect();
        let list: Vec<_> = kinds.iter().map(|kind| value(kind, &letters)).collect();
        vec(list, 2..60)
    })
}

/// Returns placeholders with text between them that follows the rules of the attribute: see its
/// `checks`.
fn placeholders(text: &'static str) -> impl Strategy<Value = Vec<Hole>> {
    let modifier = prop_oneof![
        1 => Just(Modifier::Plain),
        4 => Just(Modifier::Opt),
        2 => Just(Modifier::Hash),
    ];
    let text = prop_oneof![Just(":".to_owned()), text];
    // One type for all placeholders, or one for each: the text of one placeholder could then be
    // that of the next.
    let kinds = prop_oneof![kind().prop_map(|kind| vec![kind; 3]), vec(kind(), 3)];
    let placeholders = (kinds, vec((text, modifier), 1..=3)).prop_map(|(kinds, placeholders)| {
        let placeholders = kinds.into_iter().zip(placeholders);
        placeholders.map(|(kind, (text, modifier))| Hole { text, kind, modifier }).collect::<Vec<_>>()
    });
    placeholders
        .prop_filter("the placeholders are separated", |placeholders| placeholders.windows(2).all(apart))
}

fn apart(placeholders: &[Hole]) -> bool {
    let [left, Hole { text, .. }] = placeholders else { return true };
    match left.modifier {
        Modifier::Hash => true,
        Modifier::Plain => text.contains(SEPARATORS),
        Modifier::Opt => {
            text.contains(SEPARATORS) && !text.starts_with(|c: char| c.is_ascii_digit() || c == '~')
        }
    }
}

const SEPARATORS: [char; 6] = [':', '{', '}', '<', '>', '#'];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn different_values_never_give_one_key(
        filler in prop_oneof![3 => 0..1_usize, 1 => 480..510_usize],
        (placeholders, values) in placeholders("[:{}<>#~%1a-]{0,3}").prop_flat_map(|placeholders| (Just(placeholders.clone()), values(&placeholders))),
    ) {
        let text = "x".repeat(filler + 1);
        let mut seen = HashMap::new();
        for list in &values {
            let Some(name) = name(&text, &placeholders, list, "") else { continue };
            if let Some(other) = seen.insert(name.clone(), list) {
                prop_assert_eq!(other, list, "both are {}", name);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_name_is_in_the_slot_of_its_tag(
        (before, after) in (0..600_usize, 0..600_usize),
        tagged in 0..=3_usize,
        (placeholders, values) in placeholders("[:a1-]{0,3}").prop_flat_map(|placeholders| (Just(placeholders.clone()), values(&placeholders))),
    ) {
        let (before, mut after) = ("x".repeat(before + 1), "x".repeat(after));
        let mut braced = placeholders.clone();
        if let Some(placeholder) = braced.get_mut(tagged) {
            placeholder.text.insert(0, '{');
            braced.get_mut(tagged + 1).map_or(&mut after, |next| &mut next.text).insert(0, '}');
        } else {
            after.insert_str(0, "{order}");
        }
        for list in values.iter().take(5) {
            let Some(name) = name(&before, &braced, list, &after) else { continue };
            let tag = placeholders.get(tagged).zip(list.get(tagged)).map_or_else(
                || "order".to_owned(),
                |(placeholder, value)| add(KeyBuilder::new(""), placeholder, value).build().expect("a key").to_string(),
            );

            prop_assert!(name.len() <= LONGEST_NAME);
            prop_assert_eq!(hash_tag(&name), Some(tag.as_str()));
        }
    }

    #[test]
    fn without_a_tag_in_the_template_there_is_none(
        after in 0..600_usize,
        (placeholders, values) in placeholders("[:a1-]{0,3}").prop_flat_map(|placeholders| (Just(placeholders.clone()), values(&placeholders))),
    ) {
        for list in values.iter().take(5) {
            let name = name("order:", &placeholders, list, &"x".repeat(after)).unwrap_or_default();

            prop_assert!(!name.contains(['{', '}']), "{}", name);
        }
    }

    #[test]
    fn a_tag_that_is_too_long_is_left_out_whole(value in "[aé日:]{0,400}", before in 0..500_usize) {
        let text = "x".repeat(before);
        let key = KeyBuilder::new("shop").text(&text).text("{").part("v", &format!("v{value}")).text("}").build();
        let name = key.expect("a key").full_name().to_owned();

        prop_assert!(name.len() <= LONGEST_NAME);
        prop_assert_eq!(name.matches('{').count(), name.matches('}').count());
        prop_assert!(name.starts_with("shop:"));
    }

    #[test]
    fn no_key_is_another_keys_counter(
        namespace in select(vec!["", "dlock", "a#", "shop:eu"]),
        keys in vec(prop_oneof![
            vec(select(vec!["{", "}", "#", "a", ":", "token", "##token", "{a}", "0123456789abcdef0123456789abcdef"]), 1..6)
                .prop_map(|pieces| pieces.concat()),
            "[a{}#:]{500,520}",
        ], 2..20),
    ) {
        let names = keys.iter().filter_map(|key| key.as_str().into_lock_key(namespace).ok());
        let names: Vec<_> = names.map(|key| key.full_name().to_owned()).collect();
        let counters: Vec<_> = names.iter().map(|name| counter(name)).collect();

        for (name, of_name) in names.iter().zip(&counters) {
            // A user who has read the name of a counter may type it.
            prop_assert!(of_name.as_str().into_lock_key("").is_err(), "{}", of_name);
            prop_assert!(!names.contains(of_name), "{}", of_name);
            let mut sharing = names.iter().zip(&counters).filter(|(other, of_other)| *other != name && *of_other == of_name);
            let is_wrapped = |(other, _): (&String, _)| *other == format!("{{{name}}}") || *name == format!("{{{other}}}");
            prop_assert!(sharing.all(is_wrapped), "{} is shared", of_name);
        }
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
