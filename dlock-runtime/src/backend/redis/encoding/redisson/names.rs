//! What belongs to a lock, by the names that Redisson gives it.
//!
//! Its rule is about text, and is not the rule by which a cluster finds a name's slot: `a{b` and `a{}b` have their channel in another
//! slot than themselves.
//!
//! Not here: who publishes and who subscribes (`scripts/redisson`, `bells`).

/// Returns the channel on which those who wait for `lock` are told that it is free.
pub(in crate::backend::redis) fn channel(lock: &str) -> String {
    of_lock("redisson_lock__channel", lock)
}

/// Returns the counter of the fencing tokens of `lock`, which an `RFencedLock` counts on, too.
pub(crate) fn counter(lock: &str) -> String {
    of_lock("redisson_lock_token", lock)
}

/// Puts a prefix before a name, as `RedissonObject.prefixName` does.
fn of_lock(prefix: &str, lock: &str) -> String {
    if lock.contains('{') { format!("{prefix}:{lock}") } else { format!("{prefix}:{{{lock}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_redisson() {
        assert_eq!(channel("order:7"), "redisson_lock__channel:{order:7}");
        assert_eq!(channel("{order}:7"), "redisson_lock__channel:{order}:7");
        assert_eq!(channel("a{b"), "redisson_lock__channel:a{b");
        assert_eq!(counter("a}b"), "redisson_lock_token:{a}b}");
    }
}
