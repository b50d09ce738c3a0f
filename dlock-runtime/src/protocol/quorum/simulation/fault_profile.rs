//! The fault profile of a seed, the coverage points, and the seeded bugs of the quorum simulation.

use crate::protocol::simulation::choices::mix;
use crate::protocol::simulation::coverage::coverage_points;

/// Times are in milliseconds, and probabilities in percent. A value of 0 switches a fault off.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultProfile {
    pub(super) servers: usize,
    pub(super) clients: u64,
    /// How often each client tries to acquire the lock.
    pub(super) attempts: u64,
    pub(super) lease: u64,
    /// The longest delay of a message.
    pub(super) delay: u64,
    /// The percentage of requests, and of replies, that are lost, and of requests that cannot be
    /// sent.
    pub(super) lost: u64,
    /// The percentage of requests, and of replies, that arrive twice.
    pub(super) duplicated: u64,
    /// The percentage of wake-ups at which the client freezes.
    pub(super) frozen: u64,
    /// The percentage of attempts that are cancelled.
    pub(super) cancelled: u64,
    /// The number of planned server restarts. A restarted server has no data.
    pub(super) restarts: u64,
    /// The largest difference between the rate of a client's clock and the servers', in
    /// thousandths.
    pub(super) drift: u64,
    /// The percentage of holds that last for a lease without a renewal and at whose start a server
    /// restarts, and of attempts that wait until all servers count.
    pub(super) unrenewed: u64,
    pub(super) out_of_model: OutOfModelFault,
}

/// A fault that the guarantees exclude.
///
/// With such a fault, two clients may hold the lock at the same time, and in some seeds they must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutOfModelFault {
    None,
    /// Servers lose their data without a restart, for example through `FLUSHALL` or eviction.
    SilentDataLoss,
    /// Clock rates differ by more than the margin.
    ExcessiveDrift,
}

impl FaultProfile {
    /// Returns the fault profile of `seed`.
    pub(super) fn from_seed(seed: u64) -> Self {
        let mut count = 100;
        let mut pick = |from: &[u64]| {
            count += 1;
            let draw = mix(seed ^ mix(count)) >> 32;
            from[usize::try_from(draw).unwrap_or_default() % from.len()]
        };
        let mut profile = Self {
            servers: usize::try_from(pick(&[3, 3, 5])).unwrap_or_default(),
            clients: pick(&[2, 3]),
            attempts: pick(&[2, 4]),
            lease: pick(&[300, 1_000, 5_000, 60_000]),
            delay: pick(&[1, 10, 100, 300]),
            lost: pick(&[0, 3, 15]),
            duplicated: pick(&[0, 0, 10]),
            frozen: pick(&[0, 0, 20]),
            cancelled: pick(&[0, 0, 20]),
            restarts: pick(&[0, 2, 6]),
            drift: pick(&[0, 0, 9]),
            unrenewed: 0,
            out_of_model: OutOfModelFault::None,
        };
        match pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]) {
            1 => (profile.out_of_model, profile.restarts) = (OutOfModelFault::SilentDataLoss, 12),
            2 => {
                (profile.out_of_model, profile.drift) = (OutOfModelFault::ExcessiveDrift, 300);
                // Drift causes an overlap only if a renewal is late: short leases and many freezes.
                (profile.lease, profile.delay, profile.frozen) = (300, 10, 40);
            }
            3 => {
                // A restarted server counts for a fast client while a slow one may hold the lock.
                (profile.unrenewed, profile.drift, profile.lost) = (50, 9, 15);
                (profile.lease, profile.delay, profile.attempts) = (5_000, 1, 10);
                (profile.frozen, profile.restarts) = (0, 0);
            }
            _ => {}
        }
        profile
    }

    /// Returns simpler profiles, each with one reduction.
    pub(super) fn shrink_candidates(&self) -> Vec<Self> {
        let mut candidates = Vec::new();
        macro_rules! reduce {
            ($($field:ident: $simple:expr),* $(,)?) => {
                $(if self.$field != $simple { candidates.push(Self { $field: $simple, ..*self }); })*
            };
        }
        reduce! {
            out_of_model: OutOfModelFault::None, drift: 0, unrenewed: 0, restarts: 0, cancelled: 0, frozen: 0,
            duplicated: 0, lost: 0, delay: 1, clients: 2, servers: 3, lease: 1_000,
        }
        if self.attempts > 1 {
            candidates.push(Self { attempts: self.attempts - 1, ..*self });
        }
        if self.restarts > 1 {
            candidates.push(Self { restarts: self.restarts - 1, ..*self });
        }
        candidates
    }
}

/// A seeded bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    None,
    /// Half of the votes suffice to acquire the lock.
    HalfIsMajority,
    /// The lease is counted from the reply that decides the vote.
    DeadlineFromReply,
    /// A failed attempt is not cleaned up.
    NoCleanup,
    /// A server that restarted less than one lease ago may vote for an acquire.
    RestartedServersVote,
    /// A server may vote when it has been up for one lease on a clock that is fast.
    FastClocksAgeServers,
}

coverage_points! {
    Held "holds"
    LostRequest "lost requests"
    LostReply "lost replies"
    RefusedRequest "requests that were not sent"
    LateRequest "requests executed late"
    DuplicatedRequest "duplicated requests"
    DuplicatedReply "duplicated replies"
    Froze "frozen clients"
    CancelledAcquiring "cancelled while acquiring"
    CancelledHolding "cancelled while holding"
    Restart "restarts without data"
    Unrenewed "holds that are not renewed"
    Disconnected "requests cut off by a restart"
    Drift "drifting clocks"
    SilentDataLoss "out of model: silent data loss"
    ExcessiveDrift "out of model: excessive clock drift"
    OverlapAfterDataLoss "overlaps after silent data loss"
    OverlapByDrift "overlaps by clock drift"
}
