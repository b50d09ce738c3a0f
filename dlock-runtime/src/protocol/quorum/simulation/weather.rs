//! What the worlds of several servers are like, what can happen in them, and which rules are broken on purpose.

use crate::protocol::simulation::chance::mix;
use crate::protocol::simulation::tally::seen;

/// Times are in milliseconds, chances in a hundred.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) servers: usize,
    pub(super) clients: u64,
    /// How often each client wants the lock.
    pub(super) turns: u64,
    pub(super) lease: u64,
    pub(super) delay: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) frozen: u64,
    pub(super) gives_up: u64,
    /// How often a server is started again, empty.
    pub(super) restarts: u64,
    /// How much faster or slower a client's clock may be than the servers', in a thousand.
    pub(super) drift: u64,
    pub(super) beyond: Beyond,
}

/// What no rule can make up for. Here two may believe in the lock, and in some seed they must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beyond {
    Nothing,
    /// Servers forget all and do not say so: somebody flushes them, or they evict keys.
    Forgets,
    /// Clocks differ by more than the margin.
    Drift,
}

impl Weather {
    /// The weather of `seed`.
    pub(super) fn of(seed: u64) -> Self {
        let mut count = 100;
        let mut pick = |from: &[u64]| {
            count += 1;
            let draw = mix(seed ^ mix(count)) >> 32;
            from[usize::try_from(draw).unwrap_or_default() % from.len()]
        };
        let mut weather = Self {
            servers: usize::try_from(pick(&[3, 3, 5])).unwrap_or_default(),
            clients: pick(&[2, 3]),
            turns: pick(&[2, 4]),
            lease: pick(&[300, 1_000, 5_000, 60_000]),
            delay: pick(&[1, 10, 100, 300]),
            lost: pick(&[0, 3, 15]),
            doubled: pick(&[0, 0, 10]),
            frozen: pick(&[0, 0, 20]),
            gives_up: pick(&[0, 0, 20]),
            restarts: pick(&[0, 2, 6]),
            drift: pick(&[0, 0, 4]),
            beyond: Beyond::Nothing,
        };
        match pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]) {
            1 => (weather.beyond, weather.restarts) = (Beyond::Forgets, 12),
            2 => {
                (weather.beyond, weather.drift) = (Beyond::Drift, 300);
                // Only who is not asked in time is a lease behind.
                (weather.lease, weather.delay, weather.frozen) = (300, 10, 40);
            }
            _ => {}
        }
        weather
    }

    /// Returns weathers with one thing less each.
    pub(super) fn milder(&self) -> Vec<Self> {
        let mut milder = Vec::new();
        macro_rules! mild {
            ($($field:ident: $mild:expr),* $(,)?) => {
                $(if self.$field != $mild { milder.push(Self { $field: $mild, ..*self }); })*
            };
        }
        mild! {
            beyond: Beyond::Nothing, drift: 0, restarts: 0, gives_up: 0, frozen: 0, doubled: 0, lost: 0, delay: 1, clients: 2,
            servers: 3, lease: 1_000,
        }
        if self.turns > 1 {
            milder.push(Self { turns: self.turns - 1, ..*self });
        }
        if self.restarts > 1 {
            milder.push(Self { restarts: self.restarts - 1, ..*self });
        }
        milder
    }
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    None,
    HalfIsEnough,
    DeadlineFromTheReply,
    NothingIsUndone,
    WhoForgotIsAsked,
}

seen! {
    Held "holds"
    LostRequest "lost requests"
    LostReply "lost replies"
    LateRequest "requests executed late"
    DoubledRequest "doubled requests"
    DoubledReply "doubled replies"
    Froze "frozen clients"
    LeftAsking "gave up while asking"
    LeftHolding "gave up while holding"
    Restart "empty restarts"
    Broken "requests cut off by a restart"
    Drift "drifting clocks"
    BeyondForgets "beyond: servers that forget"
    BeyondDrift "beyond: clocks that drift too far"
    OverlapForgotten "overlaps after a server forgot"
    OverlapDrift "overlaps by drift"
}
