//! Which turn it is: tokens that rise from holder to holder, for the resource to compare.
//!
//! A token is issued on demand, inside the hold, by one atomic step on the server, so tokens rise in the order of holding.
//!
//! A counter that holds [`LAST_FENCE`], or text that is not a number from 0 to [`LAST_FENCE`], issues no token: the next one would be an equal one,
//! or not exact in a `f64`, as Lua and JavaScript count.
//!
//! Not here: the script that does it (`backend/redis/layout/scripts/fence.lua`), the counter's name (`LockKey`).

use crate::bounds::LAST_FENCE;

/// Returns the token after `last` at server time `micros`, in microseconds since the epoch: above every one before it, and above
/// all that were ever given when the counter was lost, unless the server's clock went back as well. Returns `None` if it would be
/// above [`LAST_FENCE`].
pub(crate) fn next(last: Option<u64>, micros: u64) -> Option<u64> {
    let next = last.map_or(micros, |last| micros.max(last.saturating_add(1)));
    (next <= LAST_FENCE).then_some(next)
}

#[cfg(test)]
mod tests;
