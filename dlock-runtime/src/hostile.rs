//! Checks for arbitrary input: each function accepts any input, and panics if an invariant is
//! violated.
//!
//! Tests call them with generated input, and the fuzzers in `fuzz/` with mutated input. They are
//! not part of a release build.

use redis::Value;

use crate::backend::redis::fuzz_invariants as backend;
use crate::config::duration;
use crate::config::endpoint::Endpoint;
use crate::config::url;
use crate::key::KeyBuilder;

/// A duration is parsed or refused. A parsed one equals digits times unit, and survives formatting
/// in ms.
///
/// # Panics
///
/// Panics if a check fails.
pub fn read_duration(text: &str) {
    let Ok(read) = duration::parse(text) else { return };
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let factor =
        ["ms", "s", "m", "h"].iter().position(|one| *one == unit).map(|at| [1, 1_000, 60_000, 3_600_000][at]);
    let number: u128 = text[..text.len() - unit.len()].parse().expect("a parsed duration starts with digits");
    assert_eq!(Some(read.as_millis()), factor.map(|factor: u128| number * factor), "{text}");
    assert_eq!(duration::parse(&format!("{}ms", read.as_millis())), Ok(read), "{text}");
}

/// A URL is parsed or refused. A parsed address is parsed again from its display.
///
/// # Panics
///
/// Panics if a check fails.
pub fn read_url(text: &str) {
    let Ok(target) = url::parse(text) else { return };
    let _ = target.settings.clone().checked();
    if let Endpoint::Redis(server) = target.place
        && server.socket.is_none()
    {
        let shown = server.to_string();
        let again = url::parse(&format!("redis://{shown}")).map(|target| target.place);
        let Ok(Endpoint::Redis(again)) = again else { panic!("{shown} is not read again: {again:?}") };
        assert_eq!((again.host, again.port), (server.host, server.port));
    }
}

/// The password of a URL is never displayed: neither in an error nor by the parsed URL.
///
/// # Panics
///
/// Panics if a check fails.
pub fn read_url_with_a_password(scheme: &str, user: &str, before: &str, after: &str, rest: &str) {
    const SECRET: &str = "Sesame7f3a";
    let text = format!("{scheme}://{user}:{before}{SECRET}{after}@{rest}");
    let shown = match url::parse(&text) {
        Ok(target) => format!("{target:?} {}", target.place),
        Err(error) => format!("{error} {error:?}"),
    };
    // The host of a URL is displayed in lower case.
    let shown = shown.to_lowercase();
    assert!(!shown.contains(&SECRET.to_lowercase()), "{shown} shows the password of {text}");
}

/// Two different lists of values never build the same key. A key is text within its limit.
///
/// # Panics
///
/// Panics if a check fails.
pub fn tell_keys_apart(left: &[&str], right: &[&str]) {
    let key = |values: &[&str]| {
        let key = values
            .iter()
            .fold(KeyBuilder::new("shop").text("order"), |key, value| key.text(":").part("value", *value));
        key.build().map(|key| key.full_name().to_owned())
    };
    if let (Ok(of_left), Ok(of_right)) = (key(left), key(right)) {
        assert_eq!(
            of_left == of_right,
            left == right,
            "{left:?} and {right:?} give {of_left} and {of_right}"
        );
        assert!(of_left.starts_with("shop:order") && !of_left.contains(char::is_control), "{of_left:?}");
    }
}

/// Any reply is parsed to one typed reply for each command and layout. An invalid reply is never a
/// hold.
///
/// # Panics
///
/// Panics if a check fails.
pub fn read_reply(bytes: &[u8]) {
    if let Ok(value) = redis::parse_redis_value(bytes) {
        read_value(&value);
    }
}

/// As [`read_reply`], for a parsed value.
///
/// # Panics
///
/// Panics if a check fails.
pub fn read_value(value: &Value) {
    backend::read_value(value);
}

/// Any stored bytes are a response or refused. A response survives being stored again, except for
/// headers that are never stored.
///
/// # Panics
///
/// Panics if a check fails.
#[cfg(all(feature = "tower", feature = "idempotent"))]
pub fn read_stored_response(bytes: &[u8]) {
    crate::tower::check_stored_response(bytes);
}

/// Any published message is parsed as a grant or ignored. A grant survives formatting and parsing.
///
/// # Panics
///
/// Panics if a check fails.
pub fn read_message(message: &[u8]) {
    backend::read_message(message);
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::config::node_spec::NodeSpec;

    /// Text that has a meaning in URLs, and similar text.
    const PIECES: &str = "(redis|rediss|\\+sentinel|\\+cluster|\\+quorum|\\+unix|memory|://|:|/|\\?|#|@|,|&|=|%|%2|%40|%00|%ff|\\[|\\]|::1|h|7|0|6379|65536|lease=|1s|lease|namespace=|db=|user=|password=|io=thread| |\n|é|日|[[:print:]]){0,12}";

    fn value() -> impl Strategy<Value = Value> {
        let texts = prop_oneof![
            "[[:print:]\\r\\n]{0,20}",
            Just("OK".to_owned()),
            Just("dl1-0123456789abcdef000000000001".to_owned()),
            Just("master".to_owned()),
        ];
        let errors = (
            "(ERR|NOSCRIPT|MOVED|ASK|NOPERM|READONLY|WRONGTYPE|[A-Z]{1,8})",
            "(| 1 h:2| 99999 :0| Sesame7f3a| dl1-0123456789abcdef000000000001|\u{1b}[[:print:]]{0,20})",
        );
        let errors = errors.prop_map(|(code, said)| {
            redis::parse_redis_value(format!("-{code}{said}\r\n").as_bytes()).expect("it is an error")
        });
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            (-3..4_i64).prop_map(Value::Int),
            any::<i64>().prop_map(Value::Int),
            texts.clone().prop_map(|text| Value::BulkString(text.into_bytes())),
            texts.prop_map(Value::SimpleString),
            vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
            any::<bool>().prop_map(Value::Boolean),
            any::<f64>().prop_map(Value::Double),
            errors,
        ];
        let number = prop_oneof![-3..4_i64, any::<i64>()].prop_map(Value::Int);
        leaf.prop_recursive(3, 16, 5, move |inner| {
            prop_oneof![
                // Values of the shape of a script's reply, which free generation rarely finds.
                vec(number.clone(), 2).prop_map(Value::Array),
                (inner.clone(), number.clone(), number.clone())
                    .prop_map(|(first, second, third)| Value::Array(vec![first, second, third])),
                vec(inner.clone(), 0..5).prop_map(Value::Array),
                vec(inner.clone(), 0..5).prop_map(Value::Set),
                vec((inner.clone(), inner), 0..3).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_duration_is_read_or_refused(text in "([0-9]{1,21}|[[:print:]]{0,3})(ms|s|m|h|H|é|)") {
            read_duration(&text);
        }

        #[test]
        fn a_url_is_read_or_refused(text in PIECES) {
            read_url(&text);
        }

        #[test]
        fn the_password_of_a_url_is_shown_nowhere(
            scheme in "(redis|rediss|REDIS|redis\\+sentinel|redis\\+cluster|redis\\+quorum|redis\\+unix|memory|[a-z]{0,3})",
            (user, before, after) in (PIECES, PIECES, PIECES),
            rest in PIECES,
        ) {
            read_url_with_a_password(&scheme, &user, &before, &after, &rest);
            read_url_with_a_password(&scheme, "", "", "", &rest);
        }

        #[test]
        fn any_answer_is_one_typed_reply(value in value()) {
            read_value(&value);
        }

        #[test]
        fn any_bytes_are_answers_or_nothing(bytes in "[*$:+>%#,~-]?[0-9]{0,2}[\\r\\n[:print:]]{0,60}") {
            read_reply(bytes.as_bytes());
        }

        #[test]
        #[cfg(all(feature = "tower", feature = "idempotent"))]
        fn any_stored_bytes_are_a_response_or_refused(
            (version, status, count) in (0..3_u8, any::<u16>(), 0..3_u16),
            headers in vec(("[a-z-]{0,12}", "[[:print:]]{0,12}"), 0..3),
            rest in vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = vec![version];
            bytes.extend(status.to_be_bytes().into_iter().chain(count.to_be_bytes()));
            let length = |text: &str| u8::try_from(text.len()).expect("it is short");
            for (name, value) in headers {
                bytes.extend([0, length(&name)].into_iter().chain(name.bytes()));
                bytes.extend([0, 0, 0, length(&value)].into_iter().chain(value.bytes()));
            }
            bytes.extend(rest);
            read_stored_response(&bytes);
        }

        #[test]
        fn any_message_is_a_grant_or_nothing(
            token in "(dl1-[0-9a-f]{28}|[[:print:]]{0,32})",
            rest in "[0-9+|]{0,8}\\|?[[:print:]é]{0,8}",
        ) {
            read_message(format!("{token}{rest}").as_bytes());
        }

        /// A URL that follows the rules is parsed as it was written.
        #[test]
        fn a_url_is_read_as_it_was_written(
            (user, password) in ("[[:print:]éß]{0,8}", "[[:print:]é日]{1,12}"),
            (host, port, database) in ("[a-z][a-z0-9-]{0,8}[a-z]", 1..=u16::MAX, 0..99_i64),
            (namespace, lease) in ("[a-z0-9:._é%+&=/?@#-]{0,12}", 100..100_000_u64),
        ) {
            let mut text = format!(
                "redis://{}:{}@{host}:{port}/{database}?lease={lease}ms",
                encoded(&user), encoded(&password),
            );
            let _ = write!(text, "&namespace={}", encoded(&namespace));
            let target = url::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let Endpoint::Redis(NodeSpec { username, password: read, host: at, port: of, database: number, .. }) = target.place
            else { panic!("{text} is of one server") };
            prop_assert_eq!(username, Some(user).filter(|user| !user.is_empty()));
            prop_assert_eq!((read, at, of, number), (Some(password), host, port, database));
            prop_assert_eq!((target.settings.namespace, target.settings.lease.as_millis()), (namespace, u128::from(lease)));
        }
    }

    /// Percent-encodes all characters of a URL that could have a meaning.
    fn encoded(text: &str) -> String {
        let letter = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        };
        text.bytes().map(letter).collect()
    }
}
