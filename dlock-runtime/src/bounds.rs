//! The limits on sizes and counts. The guide on operating lists them under "Bounds".
//!
//! A length is limited both when it is written and when it is read: other clients can write values
//! of any length.

use crate::token::Token;

/// The maximum number of tokens in the queue of one value. A client that finds it full polls.
pub(crate) const MAX_WAITERS: usize = 128;

/// The maximum length of a lock's value, in bytes: the holder and a full queue. A longer value is
/// foreign.
pub(crate) const LONGEST_VALUE: usize = (MAX_WAITERS + 1) * Token::WIDTH;

/// The maximum length of a name, in bytes. Longer names are cut, as clients, proxies, and logs
/// carry them.
pub(crate) const LONGEST_NAME: usize = 512;

/// The maximum fencing token, 2^53 - 1: Lua and JavaScript count with `f64`, which is exact up to
/// there. The clock reaches it in the year 2255.
pub(crate) const LAST_FENCE: u64 = (1 << 53) - 1;

/// The maximum fencing token with `layout=redisson`, 2^63 - 1: there, Java counts with `INCR`.
pub(crate) const LAST_FENCE_OF_REDISSON: u64 = i64::MAX.unsigned_abs();
