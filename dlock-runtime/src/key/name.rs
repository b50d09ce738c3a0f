//! The final name: a namespace before a key, and the form of one that is too long.
//!
//! ```text
//! namespace:key                                     up to 512 bytes
//! namespace:the first part of a lo#<32 hex digits>  beyond
//! ```
//!
//! Not here: how keys come about (`builder`, `into_key`).

use crate::key::LockKey;
use crate::key::hash::{DIGITS, Hasher};

/// The longest name. A longer one is cut, so that no client, proxy or log has to carry it at every step.
pub(crate) const LONGEST: usize = 512;

/// Puts a key into `namespace`, unless it is in one already, and cuts a name that is too long.
pub(crate) fn place(key: LockKey, namespace: &str) -> LockKey {
    let LockKey { name, start, hashed } = key;
    if start > 0 || namespace.is_empty() {
        return match cut(&name, start) {
            Some(name) => LockKey { name: name.into(), start, hashed },
            None => LockKey { name, start, hashed },
        };
    }
    let start = namespace.len() + 1;
    let name = format!("{namespace}:{name}");
    LockKey { name: cut(&name, start).unwrap_or(name).into(), start, hashed }
}

/// Gives the cut form of a name that is too long. Nothing before `start`, the namespace, is cut off.
pub(crate) fn cut(name: &str, start: usize) -> Option<String> {
    if name.len() <= LONGEST {
        return None;
    }
    let limit = LONGEST - DIGITS - 1;
    let end = (start..=limit).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(start);
    let head = name.get(..end).unwrap_or_default();
    // A cluster refuses an unpaired brace, and half a hash tag would name another slot.
    let head = match (head.rfind('{'), head.rfind('}')) {
        (Some(open), close) if open >= start && close.is_none_or(|close| close < open) => name.get(..open),
        _ => Some(head),
    };
    let mut hasher = Hasher::new(format!("{}#", head.unwrap_or_default()));
    hasher.update(name.as_bytes());
    Some(hasher.finish())
}
