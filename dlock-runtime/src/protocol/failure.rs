//! [`Failure`]: why a request has no usable reply.

use std::sync::Arc;

/// The reason why there is no usable reply.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    /// The cause, as text without secrets.
    pub(crate) reason: Arc<str>,
    /// Whether the connection was lost after the command may have been written. Another attempt may
    /// succeed, under a new token.
    pub(crate) connection_lost: bool,
}

impl Failure {
    /// Creates a failure with a reason of this library.
    pub(crate) fn new(kind: FailureKind, reason: impl Into<Arc<str>>) -> Self {
        Self { kind, reason: reason.into(), connection_lost: false }
    }

    /// Marks that the connection was lost after the command may have been written.
    pub(crate) fn with_connection_lost(self) -> Self {
        Self { connection_lost: true, ..self }
    }
}

/// The kind of a failure, which determines its remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// Temporary: the server is down, loading, read-only, or out of memory.
    Passing,
    /// Permanent: no permission, or an unknown command.
    Lasting,
    /// Permanent: one end rejects the other's certificate, or does not speak TLS.
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "used by the feature"))]
    Untrusted,
    /// The key holds something that is not a lock of this kind.
    WrongKind,
    /// A lock of this kind cannot have the name.
    InvalidKey,
    /// The counter of fencing tokens has no next number.
    FencingCounter,
}

#[cfg(test)]
mod tests;
