//! What can happen in these worlds, to be counted: a fault that stops happening turns a test red.

macro_rules! seen {
    ($($what:ident $name:literal)*) => {
        /// One thing that happens.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Seen { $($what),* }

        pub(super) const ALL: &[(Seen, &str)] = &[$((Seen::$what, $name)),*];
    };
}

seen! {
    Admitted "let in"
    Refused "refused"
    Lost "lost locks"
    Fenced "fencing tokens"
    DelayedRequest "delayed requests"
    DelayedReply "delayed replies"
    LostRequest "lost requests"
    LostReply "lost replies"
    LateRequest "requests executed late"
    DoubledRequest "doubled requests"
    DoubledReply "doubled replies"
    DelayedGrant "delayed grants"
    LostGrant "lost grants"
    DoubledGrant "doubled grants"
    ForgedGrant "forged grants"
    PassedOver "told though passed over"
    Drift "drifting clocks"
    Restart "restarts that keep data"
    Broken "requests cut off by a restart"
    Down "requests to a server that is down"
    Froze "frozen processes"
    FrozeHolding "frozen holders"
    Killed "killed processes"
    KilledHolding "killed holders"
    Hint "hints"
    Declined "declined turns"
    LeftTrying "gave up while trying"
    LeftEnqueuing "while enqueuing"
    LeftQueued "while queued"
    LeftConfirming "while confirming"
    LeftPaused "while paused"
    LeftYielding "while yielding"
    LeftBehind "behind another task"
    LeftHolding "while holding"
    EmptyRestart "beyond: empty restarts"
    Promotion "beyond: promotions"
    BeyondDrift "beyond: clocks that drift too far"
    OverlapForgotten "overlaps after an empty restart"
    OverlapPromoted "overlaps after a promotion"
    OverlapDrift "overlaps by drift"
}
