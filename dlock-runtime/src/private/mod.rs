//! What the attribute's expansion calls. No stability: it belongs to the macro crate of exactly this version.
//!
//! [`Call`] is the lock's side; `outcome` leads from its result to the function's return value.

mod call;
mod outcome;

use std::time::Duration;

pub use call::{Acquire, Call, Run, Site};
pub use outcome::{
    Carrier, CarrierOfNone, CarriesLockError, Completed, CompletedAlone, DidNotRun, ReportsLockError,
    ReportsLoss, Skips, finish, finish_or_skip, finish_started, skip_unavailable,
};

pub use crate::body::Body;
use crate::error::Error;
use crate::key::{AsLockKey, IntoLockKey, LockKey};
pub use crate::options::{OnLost, Options, ReleaseMode};

/// A whole key that is the same in every call. What looks like a hole in it is none.
#[derive(Debug)]
pub struct Constant<'a, K: ?Sized>(pub &'a K);

impl<K: AsLockKey + ?Sized> IntoLockKey for Constant<'_, K> {
    fn into_lock_key(self, namespace: &str) -> Result<LockKey, Error> {
        let key = self.0.as_lock_key(namespace)?;
        let hole = key.as_str().split_once('<').and_then(|(_, after)| after.split_once('>'));
        match hole {
            Some((inside, _)) if !inside.is_empty() => Err(Error::InvalidKey {
                template: key.as_str().into(),
                problem: format!("`<{inside}>` is literal text in a constant, and all callers would share one lock: write the template in the attribute itself").into(),
            }),
            _ => Ok(key),
        }
    }
}

/// Gives a function's return type to the body before its first `return` or `?`. Never called.
#[must_use]
pub fn never<R>() -> R {
    unreachable!("the expansion calls this under `if false` only")
}

/// Questions a lease of over an hour.
#[deprecated(
    note = "a lease of over an hour: after a crash nobody gets the lock for as long. The watchdog renews a short lease while the body runs: write `lease = \"30s\"`. If it is meant, give it as a `const Duration`"
)]
#[must_use]
pub const fn long_lease(lease: Duration) -> Duration {
    lease
}

/// Questions a key in which an argument is named and not used.
#[deprecated(
    note = "a word of this key is the name of an argument, but stands there as literal text, so that all callers share ONE lock: write `<` and `>` around it, as in `key = \"order:<user_id>\"`. If it is meant, give the key as a constant: `key = KEY`"
)]
pub const fn literal_argument() {}
