//! Bugs that are seeded into the protocol, one at a time, to prove that the invariants can fail.

/// A seeded bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    None,
    /// The lease is counted from the arrival of the reply.
    DeadlineFromReply,
    /// A command without a reply is not cleaned up.
    NoCleanup,
    /// The server accepts a release from any process.
    ReleaseByNonOwner,
    /// A grant counts as proof, although the server may have skipped its receiver.
    TrustsEveryGrant,
    /// A renewal of a missing key creates the key.
    RenewalCreatesKey,
    /// The fencing counter starts at one after it is lost.
    FencingCounterResets,
    /// The clock stops while the process is frozen.
    ClockStopsWhileFrozen,
    /// A waiter in the server's queue relies on grant messages and never rechecks its position.
    NoQueueRecheck,
    /// The server does not keep a lock for the requested time after its body ended.
    SetTtlIgnored,
    /// A task joins the queue of its process twice.
    JoinsTwice,
    /// A cancelled task remains in the queue of its process.
    CancelledTaskStaysQueued,
    /// A hold does not end at its deadline.
    NoHoldTimeout,
    /// A renewal is never sent.
    RenewalsNotSent,
}
