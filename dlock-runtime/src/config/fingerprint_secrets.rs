//! [`FingerprintSecrets`], the secrets for the fingerprints of idempotent calls.

use std::fmt;
use std::sync::Arc;

/// The secrets of a manager for fingerprints.
#[derive(Clone, Default)]
pub(crate) struct FingerprintSecrets {
    pub(crate) current: Option<Arc<[u8]>>,
    pub(crate) previous: Option<Arc<[u8]>>,
}

impl fmt::Debug for FingerprintSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FingerprintSecrets").finish_non_exhaustive()
    }
}
