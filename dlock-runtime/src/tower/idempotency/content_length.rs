//! The length of a body that the headers of its message announce.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

/// Returns the `Content-Length` of a request or a response with a body.
///
/// Returns `None` if it is missing or invalid, or if `Transfer-Encoding` overrides it (RFC 9112,
/// section 6.3).
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter().map(decimal);
    let length = lengths.next()??;
    lengths.all(|other| other == Some(length)).then_some(length)
}

/// Returns the `Content-Length` of a response to a request with `method`, or `None` if its body
/// does not have the length in the header: it has no body (RFC 9110, section 8.6).
pub(super) fn response_content_length(
    method: &Method,
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<u64> {
    let has_no_body = *method == Method::HEAD
        || status.is_informational()
        || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
    if has_no_body { None } else { content_length(headers) }
}

/// Reads digits. The parser of the standard library also accepts a sign.
fn decimal(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?;
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lengths: &[&'static str]) -> HeaderMap {
        lengths.iter().map(|length| (CONTENT_LENGTH, HeaderValue::from_static(length))).collect()
    }

    #[test]
    fn a_valid_header_is_the_length() {
        for (lengths, length) in [
            (&["10"][..], Some(10)),
            (&["0"], Some(0)),
            (&["10", "10"], Some(10)),
            (&["10", "11"], None),
            (&["+10"], None),
            (&["10, 10"], None),
            (&["99999999999999999999"], None),
            (&[""], None),
            (&[], None),
        ] {
            assert_eq!(content_length(&headers(lengths)), length, "{lengths:?}");
        }
        let mut chunked = headers(&["10"]);
        chunked.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        assert_eq!(content_length(&chunked), None);
    }

    #[test]
    fn a_response_without_a_body_has_no_length() {
        for (method, status, length) in [
            (Method::POST, 200, Some(10)),
            (Method::GET, 404, Some(10)),
            (Method::HEAD, 200, None),
            (Method::GET, 304, None),
            (Method::POST, 204, None),
            (Method::POST, 103, None),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let found = response_content_length(&method, status, &headers(&["10"]));
            assert_eq!(found, length, "{method} {status}");
        }
    }
}
