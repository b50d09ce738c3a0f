//! Which turn it is: tokens that rise from holder to holder, for the resource to compare.
//!
//! A token is issued on demand, inside the hold, by one atomic step on the server, so tokens rise in the order of holding.
//!
//! Not here: the script that does it (`backend/redis/layout/scripts/fence.lua`), the counter's name (`LockKey`).

/// Returns the token after `last` at server time `micros`, in microseconds since the epoch: above every one before it, and above
/// all that were ever given when the counter was lost, unless the server's clock went back as well.
pub(crate) fn next(last: Option<u64>, micros: u64) -> u64 {
    last.map_or(micros, |last| micros.max(last.saturating_add(1)))
}

#[cfg(test)]
mod tests;
