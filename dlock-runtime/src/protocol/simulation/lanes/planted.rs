//! ProtocolConfig that are broken on purpose, one at a time: a judge that cannot fail proves nothing.

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    None,
    /// A deadline is counted from the answer.
    DeadlineFromTheReply,
    /// Nobody undoes what was asked without an answer.
    NothingIsUndone,
    /// The server lets anybody release the lock.
    AnybodyReleases,
    /// Who is told of a grant believes it where those who were passed over are told, too.
    EveryGrantIsBelieved,
    /// The server makes a key anew that a renewal does not find.
    RenewedIntoBeing,
    /// The counter of fencing tokens starts at one when it is lost.
    CounterStartsAgain,
    /// The clock stands still while a process is frozen.
    ClockStopsInSleep,
    /// Who waits in the server's queue relies on being told.
    NobodyAsksAgain,
    /// The server does not keep a lock whose body is gone for as long as it says.
    NothingIsKept,
    /// A call that is tried again by its caller waits twice.
    JoinsTwice,
    /// A task that has given up is left in the queue.
    StaysThoughGone,
    /// Who was not told in time goes on with its body.
    NobodyWatches,
    /// A renewal is sent and never arrives.
    NobodyRenews,
}
