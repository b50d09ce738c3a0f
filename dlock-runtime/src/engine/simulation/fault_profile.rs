//! The faults of a simulation. Each seed has its own mixture, since similar schedules find little.

/// Numbers that a seed alone decides (xorshift; Marsaglia, 2003).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn of_seed(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next(); // neighboring seeds diverge here
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    pub(super) fn up_to(&mut self, bound: u64) -> u64 {
        self.next() % (bound + 1)
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.up_to(99) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.next()).unwrap_or_default() % len
    }

    pub(super) fn millis(&mut self, most: u64) -> u64 {
        self.up_to(most * 1_000) * 1_000
    }
}

/// The faults of a simulation: counts, percentages, and durations in milliseconds.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn independently")]
pub(super) struct FaultProfile {
    pub(super) processes: usize,
    pub(super) keys: u64,
    /// The number of tasks of each process, and the number of calls of each task (`rounds`).
    pub(super) tasks: u64,
    pub(super) rounds: u64,
    /// How long faults happen.
    pub(super) fault_millis: u64,

    pub(super) lease: u64,
    /// How much longer every second lease is. Only holds with equal terms are handed off in memory.
    pub(super) uneven: u64,
    pub(super) grant_lease: u64,
    pub(super) handoff_budget: u64,
    pub(super) wakeup_jitter: u64,
    pub(super) replica_acks: u8,
    pub(super) tracking: bool,
    pub(super) yields_to_foreign: bool,
    pub(super) work: u64,
    pub(super) wait: u64,
    pub(super) unrenewed: u64,
    /// No bound if 0.
    pub(super) max_hold: u64,
    pub(super) min_hold: u64,
    /// How many renewals and verifications of a process may be in flight.
    pub(super) renewal_limit: usize,
    pub(super) background: u64,
    pub(super) finish: u64,
    pub(super) nested: u64,

    pub(super) delay: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) grants_lost: u64,
    pub(super) grants_doubled: u64,
    /// The percentage of subscribers that the server does not see, although they receive the grant.
    pub(super) missed_subscribers: u64,
    pub(super) invalidations: u64,
    /// How much faster the server's clock runs, in parts per million.
    pub(super) drift: i64,
    pub(super) disconnects: u64,
    pub(super) restarts: u64,
    /// Faults that the guarantees of one server do not cover: the lock may be lost, and must be
    /// reported as lost.
    pub(super) wipes: u64,
    pub(super) promotions: u64,
    pub(super) forced: u64,

    pub(super) freezes: u64,
    pub(super) jumps: u64,
    pub(super) driver_late: u64,
    pub(super) batches: u64,
    /// The duration of a poll, in microseconds.
    pub(super) poll_cost: u64,
    pub(super) spurious: u64,
    pub(super) in_order: bool,

    pub(super) cancelled: u64,
    pub(super) gives_up: u64,
    pub(super) panics: u64,
    pub(super) guard_leaks: u64,
    pub(super) shutdowns: u64,
    /// The minimum delay of each message. `delay` adds to it.
    pub(super) distance: u64,
    /// Whether no renewed hold may be lost: there are no faults, and every lease is longer than
    /// three round trips.
    pub(super) loses_no_hold: bool,
    /// The number of processes that are forked. Only the child remains, which has no driver.
    pub(super) forks: u64,
}

impl FaultProfile {
    pub(super) fn of(random: &mut Random) -> Self {
        let r = random;
        let renewing = r.pick(&[true, true, false]);
        let profile = Self {
            processes: r.pick(&[1, 2, 2, 3]),
            keys: r.pick(&[1, 1, 2, 3]),
            tasks: r.pick(&[1, 2, 3]),
            rounds: r.pick(&[1, 2, 3]),
            fault_millis: r.pick(&[500, 2_000, 4_000]),
            lease: r.pick(&[150, 400, 1_500, 5_000]),
            uneven: r.pick(&[0, 0, 50]),
            grant_lease: r.pick(&[100, 300, 1_000]),
            handoff_budget: r.pick(&[0, 20, 400]),
            wakeup_jitter: r.pick(&[0, 0, 30]),
            replica_acks: r.pick(&[0, 0, 0, 1]),
            tracking: r.chance(40),
            yields_to_foreign: r.chance(20),
            work: r.pick(&[1, 30, 300, 2_000]),
            wait: r.pick(&[200, 2_000, UNBOUNDED, UNBOUNDED]),
            unrenewed: if renewing { 0 } else { r.pick(&[30, 100]) },
            max_hold: r.pick(&[0, 0, 0, 160, 900]),
            min_hold: r.pick(&[0, 0, 0, 100, 700]),
            renewal_limit: r.pick(&[usize::MAX, 3, 1, 1]),
            background: r.pick(&[0, 50, 100]),
            finish: r.pick(&[0, 0, 30]),
            nested: r.pick(&[0, 30, 90]),
            delay: r.pick(&[1, 5, 40, 250, 600]),
            lost: r.pick(&[0, 0, 0, 3, 15]),
            doubled: r.pick(&[0, 0, 0, 10]),
            grants_lost: r.pick(&[0, 0, 20]),
            grants_doubled: r.pick(&[0, 0, 20]),
            missed_subscribers: r.pick(&[0, 0, 0, 20]),
            invalidations: r.pick(&[0, 0, 5, 30]),
            drift: r.pick(&[0, 0, 9_000, -9_000]),
            disconnects: r.pick(&[0, 0, 1, 4]),
            restarts: r.pick(&[0, 0, 0, 2]),
            wipes: r.pick(&[0, 0, 0, 0, 0, 2]),
            promotions: r.pick(&[0, 0, 0, 0, 0, 2]),
            forced: r.pick(&[0, 0, 0, 0, 0, 2]),
            freezes: r.pick(&[0, 0, 1, 3]),
            jumps: r.pick(&[0, 0, 0, 3]),
            driver_late: r.pick(&[0, 0, 1, 10]),
            batches: r.pick(&[0, 50, 100]),
            poll_cost: r.pick(&[0, 0, 50, 2_000]),
            spurious: r.pick(&[0, 0, 10]),
            in_order: r.chance(50),
            cancelled: r.pick(&[0, 0, 20, 60]),
            gives_up: r.pick(&[0, 0, 20]),
            panics: r.pick(&[0, 0, 0, 20]),
            guard_leaks: r.pick(&[0, 0, 0, 0, 10]),
            shutdowns: r.pick(&[0, 0, 0, 1]),
            distance: r.pick(&[0, 0, 0, 0, 50, 120, 240]),
            loses_no_hold: false,
            forks: 0,
        };
        // A lease that expires before the reply arrives would never be acquired.
        let profile = Self { distance: profile.distance.min(profile.lease / 5), ..profile };
        if profile.distance > 0 && r.chance(50) { profile.healthy() } else { profile }
    }

    /// Returns the profile without faults. The rest of `delay` is jitter.
    fn healthy(self) -> Self {
        let (delay, driver_late, poll_cost) =
            (self.delay.min(5), self.driver_late.min(1), self.poll_cost.min(50));
        let round_trip = 2 * (self.distance + delay) + 10;
        Self {
            unrenewed: 0,
            max_hold: 0,
            delay,
            lost: 0,
            doubled: 0,
            grants_lost: 0,
            grants_doubled: 0,
            missed_subscribers: 0,
            drift: 0,
            disconnects: 0,
            restarts: 0,
            wipes: 0,
            promotions: 0,
            forced: 0,
            freezes: 0,
            jumps: 0,
            driver_late,
            poll_cost,
            shutdowns: 0,
            forks: 0,
            loses_no_hold: 3 * round_trip < self.lease - self.lease / 100 - 2,
            ..self
        }
    }

    /// Adds forks. They are drawn separately, so that all other choices of a seed stay the same.
    pub(super) fn with_forks(self, r: &mut Random) -> Self {
        let forks = r.pick(&[0, 0, 0, 0, 0, 1]);
        Self { forks, loses_no_hold: self.loses_no_hold && forks == 0, ..self }
    }

    /// Returns a profile without faults and with short delays.
    pub(super) fn faultless() -> Self {
        Self {
            processes: 2,
            keys: 1,
            tasks: 0,
            rounds: 0,
            fault_millis: 0,
            lease: 2_000,
            uneven: 0,
            grant_lease: 1_000,
            handoff_budget: 20,
            wakeup_jitter: 0,
            replica_acks: 0,
            tracking: false,
            yields_to_foreign: false,
            work: 10,
            wait: UNBOUNDED,
            unrenewed: 0,
            max_hold: 0,
            min_hold: 0,
            renewal_limit: usize::MAX,
            background: 0,
            finish: 0,
            nested: 0,
            delay: 1,
            lost: 0,
            doubled: 0,
            grants_lost: 0,
            grants_doubled: 0,
            missed_subscribers: 0,
            invalidations: 0,
            drift: 0,
            disconnects: 0,
            restarts: 0,
            wipes: 0,
            promotions: 0,
            forced: 0,
            freezes: 0,
            jumps: 0,
            driver_late: 0,
            batches: 0,
            poll_cost: 0,
            spurious: 0,
            in_order: true,
            cancelled: 0,
            gives_up: 0,
            panics: 0,
            guard_leaks: 0,
            shutdowns: 0,
            distance: 0,
            loses_no_hold: false,
            forks: 0,
        }
    }

    /// Removes the faults that must not happen after the fault period.
    pub(super) fn end_faults(&mut self) {
        let faultless = Self::faultless();
        (self.lost, self.doubled) = (0, 0);
        (self.grants_lost, self.grants_doubled, self.missed_subscribers) = (0, 0, 0);
        // A round trip longer than the response timeout would be a fault.
        let jitter = if self.distance > 0 { 5 } else { 40 };
        (self.delay, self.driver_late, self.poll_cost) = (self.delay.min(jitter), 1, faultless.poll_cost);
        self.invalidations = 0;
    }
}

/// A wait that is longer than every simulation, in milliseconds. A call that waits so long is
/// stuck.
pub(super) const UNBOUNDED: u64 = 100_000_000;
