//! What goes wrong in a run, and when; how often each thing did.
//!
//! Not here: what follows on the server's side (`machine`).

use std::collections::BTreeMap;
use std::time::Duration;

use turmoil::Sim;

use crate::backend::redis::simulation::draws::Draws;
use crate::backend::redis::simulation::machine::{Cut, Machine};
use crate::backend::redis::simulation::world::{SERVER, TICK, name};
use crate::clock::boot_time;

/// Something that goes wrong, for a while or at once.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// What a client and the server send each other is lost.
    Partition {
        client: usize,
    },
    /// What one of them sends is.
    OneWay {
        client: usize,
        from_server: bool,
    },
    /// It arrives only when it is over.
    Hold {
        client: usize,
    },
    /// Connections end at the server, and their clients are not told.
    HalfOpen {
        client: usize,
    },
    /// What is sent takes longer than an answer may.
    PendingRepairs {
        client: usize,
        latency: Duration,
    },
    ClientCrash {
        client: usize,
    },
    ServerCrash {
        keeps: bool,
    },
    /// The server does nothing.
    Stall,
    /// Its answers come, one after the other, after so long.
    Slow {
        by: Duration,
    },
    /// They come in small pieces.
    Split,
    /// It takes no connections; those that there are stay.
    Refuse,
    /// It takes none, and those that there are are cut.
    RefuseAll,
    /// It does nothing that is asked of locks, and says so.
    Err {
        with: &'static str,
    },
    CutAll,
    /// The connections over which grants are told are cut.
    CutEars,
    /// The connection that brings the next command is cut before it is done, or after.
    CutAt {
        at: Cut,
    },
    ForgetScripts,
}

/// How often something happened, by its name.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(pub(super) BTreeMap<&'static str, u64>);

impl Counts {
    pub(super) fn add(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }
}

impl Fault {
    pub(super) const LOST_KEYS: &str = "the server crashed and lost its keys";
    pub(super) const CUT_BEFORE: &str = "cut off before a command was done";
    pub(super) const CUT_AFTER: &str = "cut off before a command was answered";
    pub(super) const ERR: &str = "refused by an error";
    pub(super) const NO_SCRIPT: &str = "asked for a script that was forgotten";

    /// All names under which faults are counted.
    pub(super) const NAMES: [&str; 20] = [
        "partition",
        "one way to the server",
        "one way from the server",
        "held back",
        "half-open",
        "later than an answer may be",
        "a client crashed",
        "the server crashed and kept its keys",
        Self::LOST_KEYS,
        "the server stalled",
        "slow answers",
        "answers in pieces",
        "no new connections",
        "no connections",
        "all connections cut",
        "ears cut",
        Self::CUT_BEFORE,
        Self::CUT_AFTER,
        Self::ERR,
        Self::NO_SCRIPT,
    ];

    /// The bit of the kind that leaves locks behind that nobody can undo.
    pub(super) const CLIENT_CRASHES: u64 = 1 << 5;

    /// How many kinds there are to draw from.
    const KINDS: u64 = 17;

    /// Draws one of those kinds that a seed has chosen.
    pub(super) fn draw(draws: &mut Draws, chosen: u64, clients: usize) -> Option<Self> {
        let kind = draws.below(Self::KINDS);
        if chosen & (1 << kind) == 0 {
            return None;
        }
        let client = draws.index(clients);
        Some(match kind {
            0 => Self::Partition { client },
            1 => Self::OneWay { client, from_server: draws.chance(50) },
            2 => Self::Hold { client },
            3 => Self::HalfOpen { client },
            4 => Self::PendingRepairs { client, latency: draws.millis(60, 300) },
            5 => Self::ClientCrash { client },
            6 => Self::ServerCrash { keeps: draws.chance(80) },
            7 => Self::Stall,
            8 => Self::Slow { by: draws.millis(10, 150) },
            9 => Self::Split,
            10 => Self::Refuse,
            11 => Self::RefuseAll,
            12 => Self::Err {
                with: draws.one_of(&[
                    "LOADING Redis is loading the dataset in memory",
                    "READONLY You can't write against a read only replica.",
                    "OOM command not allowed when used memory > 'maxmemory'.",
                    "BUSY Redis is busy running a script.",
                    "MISCONF Redis is configured to save RDB snapshots",
                    "ERR something in between has no idea",
                ]),
            },
            13 => Self::CutAll,
            14 => Self::CutEars,
            15 => Self::CutAt { at: if draws.chance(50) { Cut::Before } else { Cut::After } },
            _ => Self::ForgetScripts,
        })
    }

    /// Returns under which name it is counted when it begins; some are when they show.
    fn name(&self) -> Option<&'static str> {
        Some(match self {
            Self::Partition { .. } => "partition",
            Self::OneWay { from_server: false, .. } => "one way to the server",
            Self::OneWay { .. } => "one way from the server",
            Self::Hold { .. } => "held back",
            Self::HalfOpen { .. } => "half-open",
            Self::PendingRepairs { .. } => "later than an answer may be",
            Self::ClientCrash { .. } => "a client crashed",
            Self::ServerCrash { keeps: true } => "the server crashed and kept its keys",
            Self::ServerCrash { keeps: false } => Self::LOST_KEYS,
            Self::Stall => "the server stalled",
            Self::Slow { .. } => "slow answers",
            Self::Split => "answers in pieces",
            Self::Refuse => "no new connections",
            Self::RefuseAll => "no connections",
            Self::CutAll => "all connections cut",
            Self::CutEars => "ears cut",
            Self::Err { .. } | Self::CutAt { .. } | Self::ForgetScripts => return None,
        })
    }

    /// Goes wrong from now on, for `length` where it lasts.
    pub(super) fn begin(&self, sim: &mut Sim<'_>, machine: &Machine, length: Duration) {
        let until = boot_time().plus(length);
        let mut happened = true;
        match self {
            Self::Partition { client } => sim.partition(name(*client), SERVER),
            Self::OneWay { client, from_server: true } => sim.partition_oneway(SERVER, name(*client)),
            Self::OneWay { client, .. } => sim.partition_oneway(name(*client), SERVER),
            Self::Hold { client } => sim.hold(name(*client), SERVER),
            Self::HalfOpen { client } => {
                sim.partition(name(*client), SERVER);
                machine.cut(|_| true); // whoever is not cut off is told
            }
            Self::PendingRepairs { client, latency } => sim.set_link_latency(name(*client), SERVER, *latency),
            Self::ClientCrash { client } => {
                happened = sim.is_host_running(name(*client));
                sim.crash(name(*client));
            }
            Self::ServerCrash { keeps } => {
                sim.crash(SERVER);
                machine.restarts(*keeps);
            }
            Self::Stall => machine.moods.stalls.set(until),
            Self::Slow { by } => machine.moods.is_slow.set((until, *by)),
            Self::Split => machine.moods.splits.set(until),
            Self::Refuse => machine.refuse_until(until),
            Self::RefuseAll => {
                machine.refuse_until(until);
                machine.cut(|_| true);
            }
            Self::Err { with } => machine.moods.errs.set((until, with)),
            Self::CutAll => happened = machine.cut(|_| true) > 0,
            Self::CutEars => happened = machine.cut_ears() > 0,
            Self::CutAt { at } => machine.moods.cuts.set(Some(*at)),
            Self::ForgetScripts => machine.redis.borrow_mut().forget_scripts(),
        }
        if let Some(name) = self.name().filter(|_| happened) {
            machine.counts.borrow_mut().add(name);
        }
    }

    /// Is over; what lasts on the machine ends by itself.
    pub(super) fn end(&self, sim: &mut Sim<'_>) {
        match self {
            Self::Partition { client } | Self::HalfOpen { client } => sim.repair(name(*client), SERVER),
            Self::OneWay { client, from_server: true } => sim.repair_oneway(SERVER, name(*client)),
            Self::OneWay { client, .. } => sim.repair_oneway(name(*client), SERVER),
            Self::Hold { client } => sim.release(name(*client), SERVER),
            Self::PendingRepairs { client, .. } => {
                sim.set_link_latency(name(*client), SERVER, TICK);
            }
            Self::ClientCrash { client } if !sim.is_host_running(name(*client)) => sim.bounce(name(*client)),
            Self::ServerCrash { .. } if !sim.is_host_running(SERVER) => sim.bounce(SERVER),
            _ => {}
        }
    }
}
