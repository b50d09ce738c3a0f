//! [`Io`], where the connections of a manager are driven.

/// Where the connections of a manager are driven.
///
/// Set with [`Builder::io`](crate::Builder::io) or the URL parameter `io`. See [the guide on
/// operating](crate::docs::operating#connections-and-threads) for when to use which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Io {
    /// `io=thread`: a separate thread drives them. The default.
    ///
    /// Leases are renewed while tasks block the application's threads.
    #[default]
    Thread,
    /// `io=runtime`: tasks on the tokio runtime that connects drive them.
    ///
    /// The runtime needs timers and I/O (`enable_all`). A call without concurrent calls needs no
    /// thread switch. Leases are renewed only while that runtime runs and one of its threads is
    /// free. Otherwise a hold ends at its deadline and its body is not polled again, and calls from
    /// other runtimes wait, even beyond their own limits. When the runtime has ended, a separate
    /// thread drives the connections.
    Runtime,
}

impl Io {
    pub(crate) const ALL: [(&str, Self); 2] = [("thread", Self::Thread), ("runtime", Self::Runtime)];
}
