//! The bounds of what is read, written and counted, in one place; the guide on operating lists them under "Bounds".
//!
//! A length that is bounded where it is written is bounded where it is read as well: other clients of the server write what they like.

use crate::token::Token;

/// The most tokens that wait in one value; a client that finds it full polls.
pub(crate) const MAX_WAITERS: usize = 128;

/// The longest value of a lock, in bytes: the holder and a full queue. A longer one is a foreign client's.
pub(crate) const LONGEST_VALUE: usize = (MAX_WAITERS + 1) * Token::WIDTH;

/// The longest name, in bytes. A longer one is cut, so that no client, proxy or log has to carry it at every step.
pub(crate) const LONGEST_NAME: usize = 512;

/// The largest fencing token, 2^53 - 1: up to it a `f64` is exact, in which Lua and JavaScript count. The clock reaches it in the
/// year 2255.
pub(crate) const LAST_FENCE: u64 = (1 << 53) - 1;

/// The largest fencing token with `layout=redisson`, 2^63 - 1: there Java counts, by `INCR`.
pub(crate) const LAST_FENCE_OF_REDISSON: u64 = i64::MAX.unsigned_abs();
