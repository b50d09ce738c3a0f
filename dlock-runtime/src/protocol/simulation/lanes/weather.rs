//! What the world of one seed is like: how the lock is used, which faults there are, and how strong each is.
//!
//! Each seed has some faults and not others, and strong ones beside none: where everything always happens a little, little is found.

use crate::protocol::simulation::chance::mix;

pub(super) const TASKS: u32 = 9;
pub(super) const PROCESSES: u32 = 3;

/// Times are in milliseconds, chances in a hundred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weather {
    /// Which tasks come: a bit for each.
    pub(super) tasks: u32,
    /// By when.
    pub(super) arrivals: u64,
    pub(super) lease: u64,
    /// How much longer every second lease is: only what is alike is handed on in memory.
    pub(super) uneven: u64,
    pub(super) handoff_budget: u64,
    pub(super) grant_lease: u64,
    pub(super) work: u64,
    pub(super) renew: bool,
    /// None where 0.
    pub(super) max_hold: u64,
    pub(super) min_hold: u64,
    /// The longest delay between tries.
    pub(super) back_off: u64,
    /// How many processes leave turns to others.
    pub(super) sharing: u64,
    /// How many bodies ask for a fencing token.
    pub(super) fenced: u64,
    /// Whether the server tells of changes.
    pub(super) tracking: bool,
    pub(super) acks: u8,

    pub(super) delay: u64,
    pub(super) lost_requests: u64,
    pub(super) lost_replies: u64,
    pub(super) lost_grants: u64,
    pub(super) doubled: u64,
    /// How many processes freeze, are killed, and so on: each of that many a little less often than not.
    pub(super) freezes: u64,
    pub(super) kills: u64,
    pub(super) gives_up: u64,
    pub(super) declines: u64,
    pub(super) hints: u64,
    pub(super) forged: u64,
    /// Out of a hundred who are told of a grant, how many are told of one that they were passed over for.
    pub(super) unseen: u64,
    /// How much faster or slower a process's clock may be than the server's, in a thousand.
    pub(super) drift: u64,
    /// How often the server is started again, with all that it had.
    pub(super) restarts: u64,
    /// What is beyond what can be promised.
    pub(super) beyond: Beyond,
    pub(super) confirm_grants_first: bool,
    /// How long each message takes at least, whatever `delay` adds to it.
    pub(super) distance: u64,
}

/// What no rule can make up for. Here two may believe in the lock, and in some seed they must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beyond {
    Nothing,
    /// The server is started again with nothing.
    Empty,
    /// Another server takes its place, which had heard all until so long before.
    Promotion(u64),
    /// Clocks differ by more than the margin.
    Drift,
}

impl Weather {
    /// The weather of `seed`.
    pub(super) fn of(seed: u64) -> Self {
        let mut count = 0;
        let mut pick = |from: &[u64]| {
            count += 1;
            let draw = mix(seed ^ mix(count)) >> 32;
            from[usize::try_from(draw).unwrap_or_default() % from.len()]
        };
        let few = (1 << TASKS) - 1;
        let weather = Self {
            tasks: u32::try_from(pick(&[few, few, few, 0b11, 0b1_1001, 0b111_0111])).unwrap_or_default(),
            arrivals: pick(&[100, 600, 600, 12_000]),
            lease: pick(&[200, 600, 1_500, 5_000]),
            uneven: pick(&[0, 0, 50]),
            handoff_budget: pick(&[0, 20, 400]),
            grant_lease: pick(&[100, 300, 1_000]),
            work: pick(&[1, 50, 400, 3_000]),
            renew: pick(&[0, 1, 1]) == 1,
            max_hold: pick(&[0, 0, 0, 150, 900]),
            min_hold: pick(&[0, 0, 0, 100, 1_200]),
            back_off: pick(&[2, 50, 400]),
            sharing: pick(&[0, 0, 1, u64::from(PROCESSES)]),
            fenced: pick(&[0, 50, 100]),
            tracking: pick(&[0, 0, 1]) == 1,
            acks: u8::try_from(pick(&[0, 0, 1])).unwrap_or_default(),
            delay: pick(&[1, 5, 40, 250, 700]),
            lost_requests: pick(&[0, 0, 3, 15]),
            lost_replies: pick(&[0, 0, 3, 15]),
            lost_grants: pick(&[0, 0, 10, 100]),
            doubled: pick(&[0, 0, 5, 30]),
            freezes: pick(&[0, 0, 2, 6]),
            kills: pick(&[0, 0, 0, 1, 2]),
            gives_up: pick(&[0, 0, 30]),
            declines: pick(&[0, 0, 0, 20]),
            hints: pick(&[0, 0, 5, 50]),
            forged: pick(&[0, 0, 10]),
            unseen: pick(&[0, 0, 20]),
            drift: pick(&[0, 0, 4]),
            restarts: pick(&[0, 0, 0, 1, 3]),
            beyond: match pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]) {
                1 => Beyond::Empty,
                2 => Beyond::Promotion(pick(&[1, 300, 3_000])),
                3 => Beyond::Drift,
                _ => Beyond::Nothing,
            },
            confirm_grants_first: pick(&[0, 0, 1]) == 1,
            distance: pick(&[0, 0, 0, 0, 50, 120, 245]),
        };
        // Nobody has a lock whose lease is over when the answer arrives.
        let weather = Self { distance: weather.distance.min(weather.lease / 5), ..weather };
        if weather.distance > 0 && pick(&[0, 1]) == 1 { weather.healthy() } else { weather }
    }

    /// The same without a fault: what is left of `delay` is jitter.
    fn healthy(self) -> Self {
        Self {
            delay: self.delay.min(5),
            lost_requests: 0,
            lost_replies: 0,
            lost_grants: 0,
            doubled: 0,
            freezes: 0,
            kills: 0,
            forged: 0,
            unseen: 0,
            drift: 0,
            restarts: 0,
            beyond: Beyond::Nothing,
            ..self
        }
    }

    /// Whether nothing takes the hold of `seat` away from a holder that is renewed: there is no fault, and its lease has room for three
    /// round trips.
    pub(super) fn keeps_holds_of(&self, acquisition: u32) -> bool {
        let round_trip = 2 * (self.distance + self.delay) + 1;
        let room = self.lease_of(acquisition) - self.lease_of(acquisition) / 100 - 2;
        self.renew && *self == self.healthy() && 3 * round_trip < room
    }

    /// Returns weathers with one thing less each.
    pub(super) fn milder(&self) -> Vec<Self> {
        let mut milder = Vec::new();
        macro_rules! mild {
            ($($field:ident: $mild:expr),* $(,)?) => {
                $(if self.$field != $mild { milder.push(Self { $field: $mild, ..*self }); })*
            };
        }
        for acquisition in (0..TASKS).rev().filter(|acquisition| self.has(*acquisition)) {
            milder.push(Self { tasks: self.tasks & !(1 << acquisition), ..*self });
        }
        mild! {
            beyond: Beyond::Nothing, restarts: 0, kills: 0, freezes: 0, doubled: 0, lost_requests: 0, lost_replies: 0, lost_grants: 0,
            gives_up: 0, declines: 0, hints: 0, forged: 0, unseen: 0, drift: 0, tracking: false, acks: 0, sharing: 0,
            confirm_grants_first: false, distance: 0,
            max_hold: 0, min_hold: 0, uneven: 0, handoff_budget: 0, fenced: 0, renew: false, delay: 1,
            grant_lease: 1_000, lease: 600, arrivals: 100, work: 400, back_off: 400,
        }
        milder
    }

    pub(super) fn has(&self, acquisition: u32) -> bool {
        self.tasks & (1 << acquisition) != 0
    }

    pub(super) fn lease_of(&self, acquisition: u32) -> u64 {
        self.lease + self.uneven * u64::from(acquisition % 2)
    }

    /// The longest time for which nobody is let in, though somebody waits, once the weather is calm: what is left of the dead expires
    /// within a lease, and what a rule waits for itself is shorter.
    pub(super) fn longest_gap(&self) -> u64 {
        self.lease + self.uneven + self.min_hold + 3 * self.grant_lease + 20 * self.distance + 3_000
    }
}
