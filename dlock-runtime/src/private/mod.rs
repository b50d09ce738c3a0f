//! The functions that expansions of the attribute call. They are unstable: they belong to the macro
//! crate of exactly this version.
//!
//! [`Call`] manages the lock; `outcome` converts its result to the function's return value.

mod call;
#[cfg(feature = "idempotent")]
pub mod idempotent;
mod return_types;
#[cfg(feature = "scheduled")]
pub mod scheduled;

use std::time::Duration;

pub use call::{Call, Callsite, Run};
pub use return_types::{
    Carrier, CarrierOfNone, CarriesLockError, Completed, CompletedAlone, DidNotRun, ReportsLockError,
    ReportsLoss, Skips, finish, finish_or_skip, finish_started, skip_unavailable,
};

pub use crate::body::Body;
use crate::key::{AsLockKey, IntoLockKey, InvalidKey, LockKey};
pub use crate::options::{MinHoldOn, OnLost, Options, ReleaseMode};

/// A whole key that is the same in every call. Text in it that looks like a placeholder is an
/// error.
#[derive(Debug)]
pub struct ConstantKey<'a, K: ?Sized>(pub &'a K);

impl<K: AsLockKey + ?Sized> IntoLockKey for ConstantKey<'_, K> {
    fn into_lock_key(self, namespace: &str) -> Result<LockKey, InvalidKey> {
        let key = self.0.as_lock_key(namespace)?;
        let placeholder = key.as_str().split_once('<').and_then(|(_, after)| after.split_once('>'));
        match placeholder {
            Some((inside, _)) if !inside.is_empty() => Err(InvalidKey::new(
                key.as_str(),
                format!(
                    "`<{inside}>` is literal text in a constant, and all callers would share one lock: write the template in the attribute itself"
                ),
            )),
            _ => Ok(key),
        }
    }
}

/// Gives the body its return type before the first `return` or `?`. Never called.
#[must_use]
pub fn never<R>() -> R {
    unreachable!("the expansion calls this under `if false` only")
}

/// Warns about a lease of more than one hour.
#[deprecated(
    note = "a lease of over an hour. After a crash, the lock stays held for that long. The watchdog renews a short lease while the body runs: write `lease = \"30s\"`. If it is intended, pass a `const Duration`"
)]
#[must_use]
pub const fn warning_long_lease(lease: Duration) -> Duration {
    lease
}

/// Warns about an argument that is in neither the key nor the fingerprint.
#[cfg(feature = "idempotent")]
#[deprecated(
    note = "this argument is in neither the key nor the fingerprint, or the key uses only a part of it: a request with the same key and another value of it gets the stored result. Write `fingerprint = (amount, &currency)` with what equal requests have in common, or `fingerprint = none`"
)]
pub const fn warning_argument_neither_in_key_nor_fingerprint() {}

/// Warns about a key that contains the name of an unused argument.
#[deprecated(
    note = "a word of this key is the name of an argument, but is literal text, so all callers share ONE lock: write `<` and `>` around it, as in `key = \"order:<user_id>\"`. If it is intended, use a constant: `key = KEY`"
)]
pub const fn warning_literal_argument() {}

/// Warns about a lease that is neither set nor renewed.
#[deprecated(
    note = "`renew = false` without `lease`: the lock ends after the manager's lease, 30 s by default, even if the body still runs. Write the longest time of the body, as in `lease = \"2m\", renew = false`, or leave `renew` out"
)]
#[must_use]
pub const fn warning_fixed_lease(renew: bool) -> bool {
    renew
}

/// Warns about a call that did not run and returns what a call that ran returns.
#[deprecated(
    note = "a call that did not run returns `Ok(())`, like one that did. Return `Result<Option<T>, E>` to distinguish them. If it is intended, write `on_contended = return(Ok(()))`"
)]
pub const fn warning_skip_like_success() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_refused_in_a_constant() {
        let key = |text: &str| ConstantKey(text).into_lock_key("shop");

        for text in ["order:<id>", "<id>", "a<b>c<d>"] {
            let refused = key(text).expect_err("it is a template").to_string();
            assert!(refused.contains("is literal text in a constant"), "{refused}");
        }
        for text in ["order:7", "a<>b", "a<b", "a>b", "b>a<"] {
            assert_eq!(key(text).expect("it has no placeholder").full_name(), format!("shop:{text}"));
        }
    }

    #[test]
    #[expect(deprecated, reason = "the deprecation is the warning")]
    fn a_warning_does_not_change_the_value() {
        let lease = Duration::from_secs(7_200);

        assert_eq!(warning_long_lease(lease), lease);
        assert!(warning_fixed_lease(true) && !warning_fixed_lease(false));
    }
}
