//! The fault profile of a seed: how tasks use the lock, which faults occur, and how strong they
//! are.
//!
//! Each seed has some faults, often strong ones, and none of the others. If every fault occurred a
//! little in every schedule, the simulation would find few bugs.

use crate::protocol::simulation::choices::mix;

pub(super) const TASKS: u32 = 9;
pub(super) const PROCESSES: u32 = 3;

/// Times are in milliseconds, and probabilities in percent. A value of 0 switches a fault off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FaultProfile {
    /// The tasks that take part, one bit each.
    pub(super) tasks: u32,
    /// The latest time at which a task starts.
    pub(super) arrivals: u64,
    pub(super) lease: u64,
    /// How much longer the lease of every second task is. A hand-off within a process needs equal
    /// terms.
    pub(super) lease_difference: u64,
    pub(super) handoff_budget: u64,
    pub(super) grant_lease: u64,
    /// The longest time for which a body works.
    pub(super) work: u64,
    pub(super) renew: bool,
    /// 0 if there is no limit.
    pub(super) max_hold: u64,
    pub(super) min_hold: u64,
    /// The longest delay between tries.
    pub(super) max_backoff: u64,
    /// The number of processes that yield to foreign clients.
    pub(super) yielding_processes: u64,
    /// The percentage of bodies that request a fencing token.
    pub(super) fencing: u64,
    /// Whether the server sends invalidations.
    pub(super) tracking: bool,
    pub(super) replica_acks: u8,

    /// The longest random delay of a message.
    pub(super) delay: u64,
    pub(super) lost_requests: u64,
    pub(super) lost_replies: u64,
    pub(super) lost_grants: u64,
    /// The percentage of messages that arrive twice.
    pub(super) duplicated: u64,
    /// The number of planned freezes. Each planned fault occurs with a probability of 70 %.
    pub(super) freezes: u64,
    /// The number of planned kills.
    pub(super) kills: u64,
    /// The percentage of tasks that are cancelled.
    pub(super) cancelled: u64,
    /// The percentage of grants that the task releases at once.
    pub(super) immediate_releases: u64,
    /// The number of planned invalidations, true or not.
    pub(super) invalidations: u64,
    /// The number of planned forged grants.
    pub(super) forged_grants: u64,
    /// The percentage of grants whose receiver the server skips, although it receives the message.
    pub(super) uncounted_grants: u64,
    /// The largest difference between the rate of a process's clock and the server's, in
    /// thousandths.
    pub(super) drift: u64,
    /// The number of planned server restarts that keep all data.
    pub(super) restarts: u64,
    /// A fault that the guarantees exclude.
    pub(super) out_of_model: OutOfModelFault,
    /// The shortest delay of a message. `delay` adds to it.
    pub(super) min_delay: u64,
}

/// A fault that the guarantees exclude.
///
/// With such a fault, two tasks may hold the lock at the same time, and in some seeds they must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutOfModelFault {
    None,
    /// The server restarts without its data.
    DataLoss,
    /// A replica takes over whose data is this many milliseconds old.
    Promotion(u64),
    /// Clock rates differ by more than the margin.
    ExcessiveDrift,
}

impl FaultProfile {
    /// Returns the fault profile of `seed`.
    pub(super) fn from_seed(seed: u64) -> Self {
        let mut count = 0;
        let mut pick = |from: &[u64]| {
            count += 1;
            let draw = mix(seed ^ mix(count)) >> 32;
            from[usize::try_from(draw).unwrap_or_default() % from.len()]
        };
        let all = (1 << TASKS) - 1;
        let profile = Self {
            tasks: u32::try_from(pick(&[all, all, all, 0b11, 0b1_1001, 0b111_0111])).unwrap_or_default(),
            arrivals: pick(&[100, 600, 600, 12_000]),
            lease: pick(&[200, 600, 1_500, 5_000]),
            lease_difference: pick(&[0, 0, 50]),
            handoff_budget: pick(&[0, 20, 400]),
            grant_lease: pick(&[100, 300, 1_000]),
            work: pick(&[1, 50, 400, 3_000]),
            renew: pick(&[0, 1, 1]) == 1,
            max_hold: pick(&[0, 0, 0, 150, 900]),
            min_hold: pick(&[0, 0, 0, 100, 1_200]),
            max_backoff: pick(&[2, 50, 400]),
            yielding_processes: pick(&[0, 0, 1, u64::from(PROCESSES)]),
            fencing: pick(&[0, 50, 100]),
            tracking: pick(&[0, 0, 1]) == 1,
            replica_acks: u8::try_from(pick(&[0, 0, 1])).unwrap_or_default(),
            delay: pick(&[1, 5, 40, 250, 700]),
            min_delay: pick(&[0, 0, 0, 0, 50, 120, 245]),
            lost_requests: pick(&[0, 0, 3, 15]),
            lost_replies: pick(&[0, 0, 3, 15]),
            lost_grants: pick(&[0, 0, 10, 100]),
            duplicated: pick(&[0, 0, 5, 30]),
            freezes: pick(&[0, 0, 2, 6]),
            kills: pick(&[0, 0, 0, 1, 2]),
            cancelled: pick(&[0, 0, 30]),
            immediate_releases: pick(&[0, 0, 0, 20]),
            invalidations: pick(&[0, 0, 5, 50]),
            forged_grants: pick(&[0, 0, 10]),
            uncounted_grants: pick(&[0, 0, 20]),
            drift: pick(&[0, 0, 4]),
            restarts: pick(&[0, 0, 0, 1, 3]),
            out_of_model: match pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]) {
                1 => OutOfModelFault::DataLoss,
                2 => OutOfModelFault::Promotion(pick(&[1, 300, 3_000])),
                3 => OutOfModelFault::ExcessiveDrift,
                _ => OutOfModelFault::None,
            },
        };
        // If a lease could expire before its reply arrives, no task would ever acquire the lock.
        let profile = Self { min_delay: profile.min_delay.min(profile.lease / 5), ..profile };
        if profile.min_delay > 0 && pick(&[0, 1]) == 1 { profile.without_faults() } else { profile }
    }

    /// Returns this profile without faults. A small `delay` remains as jitter.
    fn without_faults(self) -> Self {
        Self {
            delay: self.delay.min(5),
            lost_requests: 0,
            lost_replies: 0,
            lost_grants: 0,
            duplicated: 0,
            freezes: 0,
            kills: 0,
            forged_grants: 0,
            uncounted_grants: 0,
            drift: 0,
            restarts: 0,
            out_of_model: OutOfModelFault::None,
            ..self
        }
    }

    /// Returns `true` if a renewed hold of `acquisition` must not be lost.
    ///
    /// This requires that no fault occurs and that three round trips fit into the lease.
    pub(super) fn must_keep_hold(&self, acquisition: u32) -> bool {
        let round_trip = 2 * (self.min_delay + self.delay) + 1;
        let usable = self.lease_of(acquisition) - self.lease_of(acquisition) / 100 - 2;
        self.renew && *self == self.without_faults() && 3 * round_trip < usable
    }

    /// Returns simpler profiles, each with one reduction.
    pub(super) fn shrink_candidates(&self) -> Vec<Self> {
        let mut candidates = Vec::new();
        macro_rules! reduce {
            ($($field:ident: $simple:expr),* $(,)?) => {
                $(if self.$field != $simple { candidates.push(Self { $field: $simple, ..*self }); })*
            };
        }
        for acquisition in (0..TASKS).rev().filter(|acquisition| self.has_task(*acquisition)) {
            candidates.push(Self { tasks: self.tasks & !(1 << acquisition), ..*self });
        }
        reduce! {
            out_of_model: OutOfModelFault::None, restarts: 0, kills: 0, freezes: 0, duplicated: 0, lost_requests: 0,
            lost_replies: 0, lost_grants: 0,
            cancelled: 0, immediate_releases: 0, invalidations: 0, forged_grants: 0, uncounted_grants: 0, drift: 0,
            tracking: false, replica_acks: 0, yielding_processes: 0,
            min_delay: 0,
            max_hold: 0, min_hold: 0, lease_difference: 0, handoff_budget: 0, fencing: 0, renew: false, delay: 1,
            grant_lease: 1_000, lease: 600, arrivals: 100, work: 400, max_backoff: 400,
        }
        candidates
    }

    pub(super) fn has_task(&self, acquisition: u32) -> bool {
        self.tasks & (1 << acquisition) != 0
    }

    pub(super) fn lease_of(&self, acquisition: u32) -> u64 {
        self.lease + self.lease_difference * u64::from(acquisition % 2)
    }

    /// Returns the longest time without a grant while a task waits, once faults have ended.
    ///
    /// The lease of a dead process expires within this time, and every other wait is shorter.
    pub(super) fn max_grant_gap(&self) -> u64 {
        self.lease
            + self.lease_difference
            + self.min_hold
            + 3 * self.grant_lease
            + 20 * self.min_delay
            + 3_000
    }
}
