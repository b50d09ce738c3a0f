//! Which responses are stored, and in which form.
//!
//! ```text
//! response := 1  status:u16  count:u16  { name-length:u16 name value-length:u32 value }  body
//! ```
//!
//! Numbers are big-endian. Records of all versions contain it, so a change needs another first
//! byte. No JSON text starts with it: a record that an operator has resolved contains JSON, which
//! is a response with status 200.

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, DATE, ETAG,
    LAST_MODIFIED, LINK, LOCATION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::IDEMPOTENT_REPLAYED;

/// Returns `true` for a status that is stored by default: that of a final response.
pub(super) fn is_final(status: StatusCode) -> bool {
    match status.as_u16() {
        // A later request with the same key can succeed.
        401 | 403 | 408 | 409 | 421 | 425 | 429 => false,
        // 101 is an upgrade.
        101 | 200..=499 => true,
        _ => false,
    }
}

/// Returns `true` for a response that cannot be read to its end: events, or an upgrade.
pub(super) fn is_endless(parts: &Parts) -> bool {
    let content_type = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    parts.status == StatusCode::SWITCHING_PROTOCOLS
        || content_type.get(..17).is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
}

/// The headers that are stored.
const STORED: [HeaderName; 8] =
    [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, LOCATION, CONTENT_LOCATION, ETAG, LAST_MODIFIED, LINK];

/// The headers that are never stored: they belong to one caller, one connection, or one moment.
const NEVER_STORED: [HeaderName; 10] = [
    SET_COOKIE,
    DATE,
    WWW_AUTHENTICATE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Returns `true` if a header is stored. `more` are the user's.
fn is_stored(name: &HeaderName, more: &[HeaderName]) -> bool {
    let never = NEVER_STORED.contains(name) || *name == IDEMPOTENT_REPLAYED || name == "keep-alive";
    !never && (STORED.contains(name) || more.contains(name))
}

/// Returns the bytes to store. `more` are the user's headers.
///
/// Returns `None` if a length does not fit, which no server accepts either.
pub(super) fn encoded(parts: &Parts, body: &[u8], more: &[HeaderName]) -> Option<Vec<u8>> {
    let headers: Vec<_> = parts.headers.iter().filter(|(name, _)| is_stored(name, more)).collect();
    let mut bytes = vec![VERSION];
    bytes.extend(parts.status.as_u16().to_be_bytes());
    bytes.extend(u16::try_from(headers.len()).ok()?.to_be_bytes());
    for (name, value) in headers {
        bytes.extend(u16::try_from(name.as_str().len()).ok()?.to_be_bytes());
        bytes.extend(name.as_str().as_bytes());
        bytes.extend(u32::try_from(value.len()).ok()?.to_be_bytes());
        bytes.extend(value.as_bytes());
    }
    bytes.extend(body);
    Some(bytes)
}

/// Returns the stored response, marked as replayed, or `None` if the bytes are not one.
pub(super) fn replayed(bytes: Vec<u8>) -> Option<Response<Bytes>> {
    let bytes = Bytes::from(bytes);
    let mut rest = Reader(&bytes);
    if rest.take(1)? != [VERSION] {
        return resolved(&bytes);
    }
    let status = StatusCode::from_u16(u16::from_be_bytes(rest.take(2)?.try_into().ok()?)).ok()?;
    let count = u16::from_be_bytes(rest.take(2)?.try_into().ok()?);
    let mut headers = HeaderMap::new();
    for _ in 0..count {
        let length = u16::from_be_bytes(rest.take(2)?.try_into().ok()?);
        let name = HeaderName::from_bytes(rest.take(length.into())?).ok()?;
        let length = u32::from_be_bytes(rest.take(4)?.try_into().ok()?);
        let value = HeaderValue::from_bytes(rest.take(usize::try_from(length).ok()?)?).ok()?;
        headers.try_append(name, value).ok()?;
    }
    headers.try_insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true")).ok()?;
    let mut response = Response::new(bytes.slice_ref(rest.0));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Some(response)
}

/// Checks that any bytes are a response or refused, and that a response can be stored again.
///
/// # Panics
///
/// Panics if a response that is stored again differs in its status, its body, or its headers.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_stored_response(bytes: &[u8]) {
    let Some(first) = replayed(bytes.to_vec()) else { return };
    let (parts, body) = first.into_parts();
    let names: Vec<_> = parts.headers.keys().cloned().collect();
    let Some(again) = encoded(&parts, &body, &names) else { return };
    let (read, read_body) = replayed(again).expect("it was stored by this version").into_parts();
    assert_eq!((read.status, read_body), (parts.status, body));
    for name in names.iter().filter(|name| is_stored(name, &names)) {
        let values = |headers: &HeaderMap| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(values(&read.headers), values(&parts.headers), "{name}");
    }
}

/// Returns the response that an operator has given as JSON, or `None` if the bytes are not JSON.
fn resolved(bytes: &Bytes) -> Option<Response<Bytes>> {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).ok()?;
    let mut response = Response::new(Bytes::clone(bytes));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    Some(response)
}

/// The first byte of a stored response.
const VERSION: u8 = 1;

/// The bytes that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the next `count` bytes.
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Parts {
        let response = Response::builder()
            .status(201)
            .header(LOCATION, "/orders/7")
            .header(LINK, "</a>; rel=next")
            .header(LINK, "</b>; rel=prev")
            .header(SET_COOKIE, "session=1")
            .header(DATE, "today")
            .header("x-order", "7")
            .header("x-trace", "1");
        response.body(()).expect("a response").into_parts().0
    }

    #[test]
    fn a_replay_has_status_body_and_the_allowed_headers() {
        let more = [HeaderName::from_static("x-order"), SET_COOKIE, DATE];
        let bytes = encoded(&parts(), b"{}", &more).expect("it is encoded");

        let replayed = replayed(bytes).expect("it is decoded");

        assert_eq!((replayed.status().as_u16(), replayed.body().as_ref()), (201, &b"{}"[..]));
        let links: Vec<_> = replayed.headers().get_all(LINK).iter().collect();
        assert_eq!(links, ["</a>; rel=next", "</b>; rel=prev"]);
        assert_eq!(replayed.headers()[LOCATION], "/orders/7");
        assert_eq!(replayed.headers()["x-order"], "7");
        assert_eq!(replayed.headers()[IDEMPOTENT_REPLAYED], "true");
        for never in [SET_COOKIE, DATE, HeaderName::from_static("x-trace")] {
            assert!(!replayed.headers().contains_key(&never), "{never}");
        }
    }

    #[test]
    fn no_prefix_of_the_headers_is_a_response() {
        let whole = encoded(&parts(), b"", &[]).expect("it is encoded");

        assert!(replayed(whole.clone()).is_some());
        for length in 0..whole.len() {
            assert!(replayed(whole[..length].to_vec()).is_none(), "{length} bytes");
        }
        let mut other = whole;
        other[0] = 2;
        assert!(replayed(other).is_none(), "another version");
    }

    #[test]
    fn more_headers_than_a_map_holds_are_no_response() {
        let mut bytes = vec![VERSION, 0, 200];
        bytes.extend(u16::MAX.to_be_bytes());
        for number in 0..u16::MAX {
            let name = format!("x-{number}");
            bytes.extend([0, u8::try_from(name.len()).expect("it is short")]);
            bytes.extend(name.as_bytes());
            bytes.extend([0; 4]);
        }

        assert!(replayed(bytes).is_none());
    }

    #[test]
    fn the_json_of_an_operator_is_a_response() {
        let replayed = replayed(br#"{"order":7}"#.to_vec()).expect("it is JSON");

        assert_eq!((replayed.status().as_u16(), replayed.body().as_ref()), (200, &br#"{"order":7}"#[..]));
        assert_eq!(replayed.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(replayed.headers()[IDEMPOTENT_REPLAYED], "true");
    }

    #[test]
    fn final_statuses_are_stored() {
        let stored: Vec<u16> =
            (100..600).filter(|code| StatusCode::from_u16(*code).is_ok_and(is_final)).collect();

        assert_eq!(stored.len(), 1 + 300 - 7);
        for forgotten in [100, 401, 403, 408, 409, 421, 425, 429, 500, 503, 599] {
            assert!(!stored.contains(&forgotten), "{forgotten}");
        }
    }
}
