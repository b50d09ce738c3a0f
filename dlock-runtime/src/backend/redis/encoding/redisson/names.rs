//! The names of the keys and channels that belong to a lock, as Redisson derives them.
//!
//! Redisson's rule differs from the rule for cluster slots: the channels of `a{b` and `a{}b` are in
//! another slot than the lock.

/// Returns the channel that notifies the waiters of `lock` of a release.
pub(crate) fn channel(lock: &str) -> String {
    of_lock("redisson_lock__channel", lock)
}

/// Returns the fencing counter of `lock`, which is shared with `RFencedLock`.
pub(crate) fn counter(lock: &str) -> String {
    of_lock("redisson_lock_token", lock)
}

/// Prefixes a name like `RedissonObject.prefixName`.
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
