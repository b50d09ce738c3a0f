//! Full names of keys: the namespace, the key, and the form of a name that is too long.
//!
//! ```text
//! namespace:key                                     up to 512 bytes
//! namespace:the first part of a l##<32 hex digits>  a longer name
//! namespace:the first part{of}##<32 hex digits>     a longer name with a hash tag `{of}` further behind
//! ```

use std::ops::Range;

use crate::bounds::LONGEST_NAME;
use crate::key::LockKey;
use crate::key::hash::{DIGITS, Hasher};

/// The full name of a key, shared.
///
/// It is one pointer: with `Arc<str>`, which is two, a held lock takes about 30 bytes more.
pub(crate) type Name = arcstr::ArcStr;

/// The marker of all names that are derived from a key, and of no key: the name of its fencing
/// counter, a long name that is cut, and the key with which `doctor` tries commands.
///
/// Values are escaped, so `#` can only come from text, and [`KeyBuilder`](crate::KeyBuilder)
/// refuses two in a row.
pub(crate) const MARKER: &str = "##";

/// Returns `true` if a key contains the [`MARKER`].
///
/// Every call builds a key, and for one the search of the standard library takes ten times as long.
pub(crate) fn has_marker(key: &str) -> bool {
    let mut before = 0;
    key.bytes().any(|byte| std::mem::replace(&mut before, byte) == b'#' && byte == b'#')
}

/// Puts a key into `namespace`, unless it already has one, and cuts a name that is too long.
pub(crate) fn place(key: LockKey, namespace: &str) -> LockKey {
    let start = key.start();
    let LockKey { name, hashed, .. } = key;
    if start > 0 || namespace.is_empty() {
        return match cut(&name, start) {
            Some(name) => LockKey::of_name(name.into(), start, hashed),
            None => LockKey::of_name(name, start, hashed),
        };
    }
    let start = namespace.len() + 1;
    let name = format!("{namespace}:{name}");
    LockKey::of_name(cut(&name, start).unwrap_or(name).into(), start, hashed)
}

/// Returns the cut form of a name that is too long. It never cuts the namespace, which ends at
/// `start`.
pub(crate) fn cut(name: &str, start: usize) -> Option<String> {
    if name.len() <= LONGEST_NAME {
        return None;
    }
    let limit = LONGEST_NAME - DIGITS - MARKER.len();
    // A hash tag outside the head is moved after it, so that the slot stays the same.
    let far =
        hash_tag(name).filter(|tag| tag.start >= start && tag.end > limit && start + tag.len() <= limit);
    let (limit, tag) = match far {
        Some(tag) => (tag.start.min(limit - tag.len()), name.get(tag).unwrap_or_default()),
        None => (limit, ""),
    };
    let end = (start..=limit).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(start);
    let head = name.get(..end).unwrap_or_default();
    // A cluster ignores an unpaired brace, and half a hash tag would name another slot.
    let head = match (head.rfind('{'), head.rfind('}')) {
        (Some(open), close) if open >= start && close.is_none_or(|close| close < open) => name.get(..open),
        _ => Some(head),
    };
    let mut hasher = Hasher::new(format!("{}{tag}{MARKER}", head.unwrap_or_default()));
    hasher.update(name.as_bytes());
    Some(hasher.finish())
}

/// Returns `true` if a key has the form of one that was cut.
pub(crate) fn is_cut(key: &str) -> bool {
    key.rsplit_once(MARKER).is_some_and(|(head, hash)| {
        let is_hash = hash.len() == DIGITS && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_hash && !has_marker(head)
    })
}

/// Returns the range of the hash tag, including its braces, from which a cluster computes the slot.
///
/// See "Hash tags" in the Redis Cluster specification.
fn hash_tag(name: &str) -> Option<Range<usize>> {
    let open = name.find('{')?;
    let length = name.get(open..)?.find('}')?;
    (length > 1).then_some(open..open + length + 1)
}
