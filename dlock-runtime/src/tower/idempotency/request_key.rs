//! The header `Idempotency-Key`, and the key in the store.

use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::{IDEMPOTENCY_KEY, RequestScope, original_uri};
use crate::key::{InvalidKey, KeyBuilder, LockKey};
use crate::tower::response_problem::ResponseProblem;

/// Returns the key that the client chose, or `None` if there is no header.
///
/// It consists of 1 to 255 visible characters, either quoted as in the draft of the IETF, or bare.
pub(super) fn client_key(headers: &HeaderMap) -> Result<Option<String>, ResponseProblem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid("the request has more than one Idempotency-Key"));
    }
    let text = value.as_bytes().trim_ascii();
    let key = match text {
        [b'"', inside @ .., b'"'] => unquoted(inside),
        [b'"', ..] => None,
        bare => Some(bare.to_vec()),
    };
    let key = key.ok_or_else(|| invalid("the Idempotency-Key is not a quoted string"))?;
    if key.is_empty() {
        return Err(invalid("the Idempotency-Key is empty"));
    }
    if key.len() > LONGEST {
        return Err(invalid("the Idempotency-Key has more than 255 characters"));
    }
    if !key.iter().all(u8::is_ascii_graphic) {
        return Err(invalid("the Idempotency-Key has a character that is not visible ASCII"));
    }
    Ok(String::from_utf8(key).ok())
}

/// The longest key.
const LONGEST: usize = 255;

/// Returns the content of a structured-field string (RFC 9651, section 3.3.3).
fn unquoted(inside: &[u8]) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(inside.len());
    let mut bytes = inside.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return None,
            b'\\' => key.push(bytes.next().filter(|escaped| matches!(escaped, b'"' | b'\\'))?),
            plain => key.push(plain),
        }
    }
    Some(key)
}

fn invalid(detail: &'static str) -> ResponseProblem {
    ResponseProblem::of_request(StatusCode::BAD_REQUEST, "invalid_idempotency_key", detail)
}

/// Returns the key in the store: `http:<method>:<route>:<scope>:<key>`.
///
/// Clients choose scope and key, and `{id}` in a route would be a hash tag, which puts all of the
/// route into one slot of a cluster. So each part is escaped as a value is.
pub(super) fn store_key(
    namespace: &str,
    parts: &Parts,
    scope: &RequestScope,
    client_key: &str,
) -> Result<LockKey, InvalidKey> {
    KeyBuilder::new(namespace)
        .text("http:")
        .part("method", parts.method.as_str())
        .text(":")
        .part("route", route(parts))
        .text(":")
        .text(scope.part()?)
        .text(":")
        .part("key", client_key)
        .build()
}

/// Returns the path that axum has matched, such as `/orders/{id}`, or the path itself.
fn route(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(matched) = parts.extensions.get::<axum::extract::MatchedPath>() {
        return matched.as_str();
    }
    original_uri(parts).path()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(values: &[&[u8]]) -> Result<Option<String>, ResponseProblem> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).expect("a header value"));
        }
        client_key(&headers)
    }

    #[test]
    fn quoted_and_bare_keys_are_the_same() {
        assert_eq!(read(&[]).expect("valid"), None);
        for same in [&b"a1-b2"[..], b"\"a1-b2\"", b"  a1-b2 ", b" \"a1-b2\" "] {
            assert_eq!(read(&[same]).expect("valid").as_deref(), Some("a1-b2"));
        }
        assert_eq!(read(&[br#""a\"b\\""#]).expect("valid").as_deref(), Some(r#"a"b\"#));
        assert_eq!(read(&[br#"a"b"#]).expect("valid").as_deref(), Some(r#"a"b"#));
        assert_eq!(read(&[&[b'k'; 255]]).expect("valid").map(|key| key.len()), Some(255));
    }

    #[test]
    fn invalid_keys_are_refused() {
        let long = [b'k'; 256];
        for bad in [
            &b""[..],
            b"   ",
            b"\"\"",
            b"\"",
            b"\"a",
            b"\"a\"b\"",
            b"\"a\"; p=1",
            br#""a\n""#,
            b"a b",
            b"a\tb",
            "é".as_bytes(),
            &long,
        ] {
            assert!(read(&[bad]).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
        assert!(read(&[b"a", b"a"]).is_err(), "two headers");
    }

    #[test]
    fn no_part_of_a_key_forges_another() {
        let key = |path: &str, scope: &str, key: &str| {
            let (parts, ()) = http::Request::post(path).body(()).expect("a request").into_parts();
            store_key("shop", &parts, &RequestScope::of(scope), key).expect("a key").full_name().to_owned()
        };

        assert_eq!(key("/orders/{id}", "7", "a:b"), "shop:http:POST:/orders/%7Bid%7D:7:a%3Ab");
        assert_ne!(key("/a", "7:x", "y"), key("/a", "7", "x:y"));
        let everyone = {
            let (parts, ()) = http::Request::post("/a").body(()).expect("a request").into_parts();
            store_key("shop", &parts, &RequestScope::everyone(), "y").expect("a key").full_name().to_owned()
        };
        assert_ne!(key("/a", "~", "y"), everyone, "everyone is no user");
    }

    #[test]
    fn a_missing_scope_is_an_error() {
        let (parts, ()) = http::Request::post("/a").body(()).expect("a request").into_parts();

        assert!(store_key("", &parts, &RequestScope::of(None::<u64>), "y").is_err());
        assert!(store_key("", &parts, &RequestScope::of(""), "y").is_err());
    }
}
