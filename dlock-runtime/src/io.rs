//! Where the connections are driven, as users choose it.
//!
//! Not here: what drives them (`backend/redis`).

/// Where the connections of a manager are driven. Set by [`Builder::io`](crate::Builder::io), or by the URL's `io`. The
/// [guide on operating](crate::docs::operating#connections-and-threads) says when to use which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Io {
    /// `io=thread`: on a thread of their own. Leases are renewed while tasks block the application's threads. The default.
    #[default]
    Thread,
    /// `io=runtime`: by tasks on the tokio runtime that connects, which needs its timers and its i/o (`enable_all`). A call that is alone
    /// pays for no change of threads. Leases are renewed while that runtime runs and one of its threads is free; else a hold ends
    /// at its deadline, its body is not polled again, and calls from other runtimes wait, beyond their own limits too. Once the runtime
    /// has ended they go on on a thread of their own.
    Runtime,
}

impl Io {
    pub(crate) const ALL: [(&str, Self); 2] = [("thread", Self::Thread), ("runtime", Self::Runtime)];
}
