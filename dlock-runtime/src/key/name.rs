//! The final name: a namespace before a key, and the form of one that is too long.
//!
//! ```text
//! namespace:key                                     up to 512 bytes
//! namespace:the first part of a l##<32 hex digits>  beyond
//! namespace:the first part{of}##<32 hex digits>     beyond, with a hash tag `{of}` further behind
//! ```
//!
//! Not here: how keys come about (`builder`, `into_key`).

use std::ops::Range;

use crate::bounds::LONGEST_NAME;
use crate::key::LockKey;
use crate::key::hash::{DIGITS, Hasher};

/// The full name of a key, shared. Every lock that is held has one, so it is one pointer and not two words.
pub(crate) type Name = arcstr::ArcStr;

/// What every name that is derived from a key contains, and no key: that of its fencing counter, a long name that is cut, and the key that
/// `doctor` tries commands on. Values are escaped, so `#` comes from text alone, and [`KeyBuilder`](crate::KeyBuilder) refuses two in a row.
pub(crate) const MARKER: &str = "##";

/// Returns `true` if a key contains the [`MARKER`]. Every call builds a key, and the search of the standard library costs ten times as
/// much for one.
pub(crate) fn has_marker(key: &str) -> bool {
    let mut before = 0;
    key.bytes().any(|byte| std::mem::replace(&mut before, byte) == b'#' && byte == b'#')
}

/// Puts a key into `namespace`, unless it is in one already, and cuts a name that is too long.
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

/// Gives the cut form of a name that is too long. Nothing before `start`, the namespace, is cut off.
pub(crate) fn cut(name: &str, start: usize) -> Option<String> {
    if name.len() <= LONGEST_NAME {
        return None;
    }
    let limit = LONGEST_NAME - DIGITS - MARKER.len();
    // A hash tag that the head does not reach is put behind it: the slot stays.
    let far =
        hash_tag(name).filter(|tag| tag.start >= start && tag.end > limit && start + tag.len() <= limit);
    let (limit, tag) = match far {
        Some(tag) => (tag.start.min(limit - tag.len()), name.get(tag).unwrap_or_default()),
        None => (limit, ""),
    };
    let end = (start..=limit).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(start);
    let head = name.get(..end).unwrap_or_default();
    // A cluster refuses an unpaired brace, and half a hash tag would name another slot.
    let head = match (head.rfind('{'), head.rfind('}')) {
        (Some(open), close) if open >= start && close.is_none_or(|close| close < open) => name.get(..open),
        _ => Some(head),
    };
    let mut hasher = Hasher::new(format!("{}{tag}{MARKER}", head.unwrap_or_default()));
    hasher.update(name.as_bytes());
    Some(hasher.finish())
}

/// Returns whether a key has the form of one that is cut.
pub(crate) fn is_cut(key: &str) -> bool {
    key.rsplit_once(MARKER).is_some_and(|(head, hash)| {
        let is_hash = hash.len() == DIGITS && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_hash && !has_marker(head)
    })
}

/// Finds the part of a name that a cluster computes the slot from, with its braces.
///
/// See "Hash tags" in the Redis Cluster specification.
fn hash_tag(name: &str) -> Option<Range<usize>> {
    let open = name.find('{')?;
    let length = name.get(open..)?.find('}')?;
    (length > 1).then_some(open..open + length + 1)
}
