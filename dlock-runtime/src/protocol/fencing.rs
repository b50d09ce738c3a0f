//! Fencing tokens: numbers that rise from holder to holder, for the resource to compare.
//!
//! A token is issued on demand, during the hold, by one atomic step on the server. So tokens rise
//! in the order of the holds.
//!
//! A counter that holds [`LAST_FENCE`], or text that is not a number from 0 to [`LAST_FENCE`],
//! issues no token: the next one would be equal to an earlier one, or not exact as an `f64`, which
//! Lua and JavaScript use.

use crate::bounds::LAST_FENCE;

/// Returns the token after `last` at server time `micros`, in microseconds since the epoch. It is
/// above every earlier token. If the counter was lost, it is above all tokens issued before, unless
/// the server's clock went back as well. Returns `None` if it would be above [`LAST_FENCE`].
pub(crate) fn next(last: Option<u64>, micros: u64) -> Option<u64> {
    let next = last.map_or(micros, |last| micros.max(last.saturating_add(1)));
    (next <= LAST_FENCE).then_some(next)
}

#[cfg(test)]
mod tests;
