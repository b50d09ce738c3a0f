//! What a world is like: each seed has a mixture of its own, since schedules that are all alike find little.
//!
//! Not here: what comes of it (`world`, `network`, `calls`).

/// Numbers that a seed alone decides (xorshift; Marsaglia, 2003).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn of_seed(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next(); // neighbouring seeds part here
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

/// How rough a world is: how many things happen, to how many in a hundred, and how slow things are in milliseconds.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn by itself")]
pub(super) struct Weather {
    pub(super) processes: usize,
    pub(super) keys: u64,
    /// How many tasks each process has, and how many calls each task makes.
    pub(super) tasks: u64,
    pub(super) rounds: u64,
    /// How long the weather lasts.
    pub(super) lasts: u64,

    pub(super) lease: u64,
    /// How much longer every second lease is: only what is alike is handed on in memory.
    pub(super) uneven: u64,
    pub(super) grant_lease: u64,
    pub(super) handoff_budget: u64,
    pub(super) wakeup_jitter: u64,
    pub(super) replica_acks: u8,
    pub(super) tracking: bool,
    pub(super) shares: bool,
    pub(super) work: u64,
    pub(super) wait: u64,
    pub(super) unrenewed: u64,
    /// None where 0.
    pub(super) max_hold: u64,
    pub(super) min_hold: u64,
    /// How many renewals a process sends at once, beside other requests and alone.
    pub(super) at_once: (usize, usize),
    pub(super) background: u64,
    pub(super) finish: u64,
    pub(super) nested: u64,

    pub(super) delay: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) grants_lost: u64,
    pub(super) grants_doubled: u64,
    /// Out of a hundred who are told of a grant, how many were passed over.
    pub(super) unseen: u64,
    pub(super) hints: u64,
    /// How far the server's clock goes faster than ours, in millionths.
    pub(super) drift: i64,
    pub(super) cuts: u64,
    pub(super) restarts: u64,
    /// What the promises of one server do not cover: the lock may be lost, and is to be told as lost.
    pub(super) wipes: u64,
    pub(super) promotions: u64,
    pub(super) forced: u64,

    pub(super) freezes: u64,
    pub(super) jumps: u64,
    pub(super) driver_late: u64,
    pub(super) gathers: u64,
    /// In microseconds.
    pub(super) poll_cost: u64,
    pub(super) spurious: u64,
    pub(super) in_order: bool,

    pub(super) cancelled: u64,
    pub(super) gives_up: u64,
    pub(super) panics: u64,
    pub(super) forgets: u64,
    pub(super) shutdowns: u64,
    /// How many of the processes have a grant confirmed in the moment in which they believe it.
    pub(super) confirming: usize,
    /// How long each message takes at least, whatever `delay` adds to it.
    pub(super) distance: u64,
    /// Whether no renewed hold may be lost: nothing goes wrong, and every lease has room for three round trips.
    pub(super) keeps_holds: bool,
    /// How many processes are forked: what is left of such a one is the child, which has no driver.
    pub(super) forks: u64,
}

impl Weather {
    pub(super) fn of(random: &mut Random) -> Self {
        let r = random;
        let renewing = r.pick(&[true, true, false]);
        let weather = Self {
            processes: r.pick(&[1, 2, 2, 3]),
            keys: r.pick(&[1, 1, 2, 3]),
            tasks: r.pick(&[1, 2, 3]),
            rounds: r.pick(&[1, 2, 3]),
            lasts: r.pick(&[500, 2_000, 4_000]),
            lease: r.pick(&[150, 400, 1_500, 5_000]),
            uneven: r.pick(&[0, 0, 50]),
            grant_lease: r.pick(&[100, 300, 1_000]),
            handoff_budget: r.pick(&[0, 20, 400]),
            wakeup_jitter: r.pick(&[0, 0, 30]),
            replica_acks: r.pick(&[0, 0, 0, 1]),
            tracking: r.chance(40),
            shares: r.chance(20),
            work: r.pick(&[1, 30, 300, 2_000]),
            wait: r.pick(&[200, 2_000, PATIENT, PATIENT]),
            unrenewed: if renewing { 0 } else { r.pick(&[30, 100]) },
            max_hold: r.pick(&[0, 0, 0, 160, 900]),
            min_hold: r.pick(&[0, 0, 0, 100, 700]),
            at_once: r.pick(&[(usize::MAX, usize::MAX), (2, usize::MAX), (1, 1), (1, 3)]),
            background: r.pick(&[0, 50, 100]),
            finish: r.pick(&[0, 0, 30]),
            nested: r.pick(&[0, 30, 90]),
            delay: r.pick(&[1, 5, 40, 250, 600]),
            lost: r.pick(&[0, 0, 0, 3, 15]),
            doubled: r.pick(&[0, 0, 0, 10]),
            grants_lost: r.pick(&[0, 0, 20]),
            grants_doubled: r.pick(&[0, 0, 20]),
            unseen: r.pick(&[0, 0, 0, 20]),
            hints: r.pick(&[0, 0, 5, 30]),
            drift: r.pick(&[0, 0, 9_000, -9_000]),
            cuts: r.pick(&[0, 0, 1, 4]),
            restarts: r.pick(&[0, 0, 0, 2]),
            wipes: r.pick(&[0, 0, 0, 0, 0, 2]),
            promotions: r.pick(&[0, 0, 0, 0, 0, 2]),
            forced: r.pick(&[0, 0, 0, 0, 0, 2]),
            freezes: r.pick(&[0, 0, 1, 3]),
            jumps: r.pick(&[0, 0, 0, 3]),
            driver_late: r.pick(&[0, 0, 1, 10]),
            gathers: r.pick(&[0, 50, 100]),
            poll_cost: r.pick(&[0, 0, 50, 2_000]),
            spurious: r.pick(&[0, 0, 10]),
            in_order: r.chance(50),
            cancelled: r.pick(&[0, 0, 20, 60]),
            gives_up: r.pick(&[0, 0, 20]),
            panics: r.pick(&[0, 0, 0, 20]),
            forgets: r.pick(&[0, 0, 0, 0, 10]),
            shutdowns: r.pick(&[0, 0, 0, 1]),
            confirming: r.pick(&[0, 0, 1, 3]),
            distance: r.pick(&[0, 0, 0, 0, 50, 120, 240]),
            keeps_holds: false,
            forks: 0,
        };
        // Nobody has a lock whose lease is over when the answer arrives.
        let weather = Self { distance: weather.distance.min(weather.lease / 5), ..weather };
        if weather.distance > 0 && r.chance(50) { weather.healthy() } else { weather }
    }

    /// The same without a fault: what is left of `delay` is jitter.
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
            unseen: 0,
            drift: 0,
            cuts: 0,
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
            keeps_holds: 3 * round_trip < self.lease - self.lease / 100 - 2,
            ..self
        }
    }

    /// The same, where processes may be forked; drawn apart, so that all else is what it is without.
    pub(super) fn with_forks(self, r: &mut Random) -> Self {
        let forks = r.pick(&[0, 0, 0, 0, 0, 1]);
        Self { forks, keeps_holds: self.keeps_holds && forks == 0, ..self }
    }

    /// Nothing goes wrong, and all is quick.
    pub(super) fn calm() -> Self {
        Self {
            processes: 2,
            keys: 1,
            tasks: 0,
            rounds: 0,
            lasts: 0,
            lease: 2_000,
            uneven: 0,
            grant_lease: 1_000,
            handoff_budget: 20,
            wakeup_jitter: 0,
            replica_acks: 0,
            tracking: false,
            shares: false,
            work: 10,
            wait: PATIENT,
            unrenewed: 0,
            max_hold: 0,
            min_hold: 0,
            at_once: (usize::MAX, usize::MAX),
            background: 0,
            finish: 0,
            nested: 0,
            delay: 1,
            lost: 0,
            doubled: 0,
            grants_lost: 0,
            grants_doubled: 0,
            unseen: 0,
            hints: 0,
            drift: 0,
            cuts: 0,
            restarts: 0,
            wipes: 0,
            promotions: 0,
            forced: 0,
            freezes: 0,
            jumps: 0,
            driver_late: 0,
            gathers: 0,
            poll_cost: 0,
            spurious: 0,
            in_order: true,
            cancelled: 0,
            gives_up: 0,
            panics: 0,
            forgets: 0,
            shutdowns: 0,
            confirming: 0,
            distance: 0,
            keeps_holds: false,
            forks: 0,
        }
    }

    /// What still happens when the bad weather is over.
    pub(super) fn heal(&mut self) {
        let calm = Self::calm();
        (self.lost, self.doubled) = (0, 0);
        (self.grants_lost, self.grants_doubled, self.unseen) = (0, 0, 0);
        (self.delay, self.driver_late, self.poll_cost) = (self.delay.min(40), 1, calm.poll_cost);
        self.hints = 0;
    }
}

/// A wait that outlasts every world: who would wait as long has been forgotten.
pub(super) const PATIENT: u64 = 100_000_000;
