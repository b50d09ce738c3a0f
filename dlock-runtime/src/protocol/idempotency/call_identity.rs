//! [`CallIdentity`]: what tells one call from another under the same key.

/// The values that distinguish calls under the same key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CallIdentity {
    /// The fingerprint of the payload; empty if there is none.
    pub(crate) fingerprint: String,
    /// The name of the function.
    pub(crate) function: String,
    /// The version and the type of the result.
    pub(crate) version: String,
}

/// Returns `true` if the function and the payload of a record are those of `call`.
pub(crate) fn is_same_call(identity: &CallIdentity, call: &CallIdentity, previous: &str) -> bool {
    let is_previous = !previous.is_empty() && identity.fingerprint == previous;
    identity.function == call.function && (identity.fingerprint == call.fingerprint || is_previous)
}
