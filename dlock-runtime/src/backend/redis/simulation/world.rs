//! One run: a server and its clients on a network of its own, from one seed.
//!
//! Not here: what the clients do (`clients`), what goes wrong (`faults`), how it is judged (`judges`).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use tokio::runtime;
use turmoil::Sim;

use crate::backend::redis::simulation::clients::client;
use crate::backend::redis::simulation::draws::Draws;
use crate::backend::redis::simulation::faults::{Counts, Fault};
use crate::backend::redis::simulation::judges::{self, Hold};
use crate::backend::redis::simulation::machine::{Machine, PORT};
use crate::backend::redis::simulation::panics;
use crate::manager::LockManager;
use crate::protocol::deadline::BootInstant;
use crate::simulated;

pub(super) const SERVER: &str = "server";

/// Returns the name of a client's machine.
pub(super) fn name(client: usize) -> &'static str {
    ["a", "b", "c"][client]
}

/// How rough a run is, and what its clients want.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) url: String,
    pub(super) clients: usize,
    pub(super) tasks: usize,
    pub(super) keys: u64,
    pub(super) lease: Duration,
    /// For how long a lock is held at most.
    pub(super) work: Duration,
    /// How many in a hundred hold on until the lock is lost.
    pub(super) stays: u64,
    /// How many in a hundred holds are renewed.
    pub(super) renewed: u64,
    pub(super) wait: Duration,
    pub(super) pause: Duration,
    pub(super) response_timeout: Duration,
    pub(super) connect_timeout: Duration,
    /// By how many millionths the clocks of the clients go wrong.
    drift: [i32; 3],
    latency: (Duration, Duration),
    /// The kinds of faults that there are, a bit for each.
    faults: u64,
    /// How long it is between two of them, and how long they last, at most.
    between: u64,
    lasting: u64,
}

impl Profile {
    fn of(seed: u64) -> Self {
        let mut draws = Draws::new(seed, 0);
        let response_timeout = draws.millis(80, 250);
        let connect_timeout = draws.millis(100, 300);
        // A server far away: most of a response timeout goes into the round trip, and a connection takes several.
        let is_far = Draws::new(seed, FAR).chance(20);
        let connect_timeout = if is_far { connect_timeout + Duration::from_secs(1) } else { connect_timeout };
        let one_way = if is_far { response_timeout.mul_f64(0.35) } else { TICK };
        // Where leases are long and nobody crashes, what is left of a command without an answer is undone, or nobody has a turn in time.
        let is_long = draws.chance(40);
        let lease = if is_long { Duration::from_secs(20) } else { draws.millis(200, 900) };
        let mut url = format!("redis://{SERVER}:{PORT}/?io=runtime");
        let mut option = |name: &str, time: Duration| {
            let _ = write!(url, "&{name}={}ms", time.as_millis());
        };
        option("response_timeout", response_timeout);
        option("connect_timeout", connect_timeout);
        option("grant_lease", draws.millis(100, 400));
        option("handoff_budget", Duration::from_millis(20 * draws.below(3)));
        option("poll_interval", draws.millis(20, 100));
        url.push_str(draws.one_of(&["", "", "&tracking=off", "&yield_to_foreign=on"]));
        let most = draws.one_of(&[0, 10, 40]);
        let drift = draws.one_of(&[0, 4_000]);
        Self {
            url,
            clients: 2 + draws.index(2),
            tasks: 1 + draws.index(2),
            keys: draws.one_of(&[1, 1, 2]),
            lease,
            work: lease.min(Duration::from_millis(400)).mul_f64(draws.one_of(&[0.1, 0.4, 1.5])),
            stays: if is_long { 0 } else { 20 },
            renewed: draws.one_of(&[0, 50, 100]),
            wait: draws.millis(50, 800),
            pause: draws.millis(1, 60),
            response_timeout,
            connect_timeout,
            drift: [drift, -drift, 0],
            latency: (one_way, one_way + Duration::from_millis(if is_far { most / 4 } else { most })),
            faults: match draws.below(20) {
                0 => 0,
                _ if is_long => (draws.next() | draws.next()) & !Fault::CLIENT_CRASHES,
                _ => draws.next() | draws.next(),
            },
            between: draws.one_of(&[60, 150, 400]),
            lasting: draws.one_of(&[30, 200, 600]),
        }
    }
}

/// The stream of draws for how far away the server is.
const FAR: u64 = 1_000;

/// What all that is in a run know.
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) profile: Profile,
    pub(super) machine: Rc<Machine>,
    pub(super) holds: RefCell<Vec<Hold>>,
    pub(super) violations: RefCell<Vec<String>>,
    /// How often each client was started.
    pub(super) starts: RefCell<[u64; 3]>,
    pub(super) done: Cell<usize>,
}

impl World {
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        Self {
            seed,
            profile: Profile::of(seed),
            machine: Rc::new(Machine::new(traced)),
            holds: RefCell::default(),
            violations: RefCell::default(),
            starts: RefCell::default(),
            done: Cell::new(0),
        }
    }

    /// Notes what happens, where it is to be shown.
    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        self.machine.note(what);
    }

    pub(super) fn violated(&self, what: String) {
        self.note(|| format!("VIOLATED {what}"));
        self.violations.borrow_mut().push(what);
    }

    /// Awaits a call, which must end within `limit`.
    pub(super) async fn within<F: Future>(&self, what: &str, limit: Duration, call: F) -> Option<F::Output> {
        let limit = limit.mul_f64(1.005) + SLACK; // its clock may go wrong
        let ended = tokio::time::timeout(limit, call).await.ok();
        if ended.is_none() {
            self.violated(format!("J8: {what} had not ended after {limit:?}"));
        }
        ended
    }
}

/// What came of a run.
pub(super) struct Outcome {
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
    pub(super) trace: Vec<String>,
    pub(super) holds: usize,
    pub(super) lasted: Duration,
}

thread_local! {
    /// When the present step has begun.
    static STEP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// By how many millionths the clocks of runtimes go wrong.
    static DRIFTS: RefCell<HashMap<runtime::Id, i32>> = RefCell::default();
}

/// Returns how long the run has lasted.
pub(super) fn sim_time() -> Duration {
    let step = STEP.get();
    // What is dropped in a crash has no clock of its own any more.
    turmoil::sim_elapsed().map_or(step, |time| time.clamp(step, step + TICK))
}

/// Has the boot clock of the present machine go wrong.
pub(super) fn drifts(world: &World, client: usize) {
    let here = runtime::Handle::current().id();
    DRIFTS.with_borrow_mut(|drifts| drifts.insert(here, world.profile.drift[client]));
}

/// Returns how much true time it takes the clock of the present machine to count `time`.
pub(super) fn in_true_time(time: Duration) -> Duration {
    time.mul_f64(1.0 / (1.0 + f64::from(drift()) / 1e6))
}

fn drift() -> i32 {
    let here = runtime::Handle::try_current().ok().map(|handle| handle.id());
    here.and_then(|here| DRIFTS.with_borrow(|drifts| drifts.get(&here).copied())).unwrap_or_default()
}

fn clock() -> BootInstant {
    let time = START + i64::try_from(sim_time().as_nanos()).unwrap_or(i64::MAX);
    BootInstant::from_nanos((time + time / 1_000_000 * i64::from(drift())).unsigned_abs())
}

/// Runs a seed.
pub(super) fn run(seed: u64, traced: bool) -> Outcome {
    STEP.set(Duration::ZERO);
    DRIFTS.take();
    let _simulated = simulated::begin(clock);
    let _watch = panics::watch();
    let world = Rc::new(World::new(seed, traced));
    world.note(|| format!("{:?}", world.profile));
    steps(&world);
    let holds = std::mem::take(&mut *world.holds.borrow_mut());
    let had_holds = holds.len();
    judges::judge(&world, &holds);
    let mut violations = world.violations.take();
    violations.extend(panics::seen().into_iter().map(|panic| format!("P5: panicked: {panic}")));
    let trace = world.machine.trace.as_ref().map(RefCell::take).unwrap_or_default();
    Outcome {
        violations,
        counts: world.machine.counts.borrow().clone(),
        trace,
        holds: had_holds,
        lasted: sim_time(),
    }
}

/// What a client that is mostly idle does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Idler {
    WantsNothing,
    /// It asks whether the server is ready, each time after so long.
    Asks(Duration),
    HoldsALock,
}

/// Has one client be connected for so long, in a world where all is well.
pub(super) fn idle(machine: &Rc<Machine>, time: Duration, idler: Idler) {
    STEP.set(Duration::ZERO);
    DRIFTS.take();
    let _simulated = simulated::begin(clock);
    let mut builder = turmoil::Builder::new();
    builder.epoch(SystemTime::UNIX_EPOCH).tick_duration(TICK).simulation_duration(time * 2);
    let mut sim = builder.build();
    let server = Rc::clone(machine);
    sim.host(SERVER, move || Rc::clone(&server).serve());
    sim.client(name(0), async move {
        let locks = LockManager::connect(&format!("redis://{SERVER}:{PORT}/?io=runtime")).await?;
        let _guard = match idler {
            Idler::HoldsALock => Some(locks.lock("k").acquire().await?),
            _ => None,
        };
        let asks = async {
            let Idler::Asks(every) = idler else { return std::future::pending().await };
            loop {
                tokio::time::sleep(every).await;
                let _ = locks.ready().await; // one that comes just after an end is told of it
            }
        };
        let _: Result<(), _> = tokio::time::timeout(time, asks).await;
        Ok(())
    });
    while !sim.step().expect("no machine fails") {
        STEP.set(sim.elapsed());
    }
}

/// Runs the world to its end.
fn steps(world: &Rc<World>) {
    let mut sim = network(world);
    let (mut faults, mut begun) = (schedule(world), Vec::<(Duration, Fault)>::new());
    let mut is_calm = false;
    while world.done.get() < world.profile.clients {
        let now = sim.elapsed();
        STEP.set(now);
        begun.retain(|(end, fault)| {
            let lasts = now < *end;
            if !lasts {
                world.note(|| format!("over: {fault:?}"));
                fault.end(&mut sim);
            }
            lasts
        });
        while let Some((_, length, fault)) = faults.pop_if(|(at, ..)| *at <= now) {
            world.note(|| format!("for {length:?}: {fault:?}"));
            fault.begin(&mut sim, &world.machine, length);
            begun.push((now + length, fault));
        }
        if now >= CALM && !is_calm {
            is_calm = true;
            world.note(|| "all is well".to_owned());
            world.machine.moods.end();
            for client in 0..world.profile.clients {
                sim.release(name(client), SERVER);
            }
        }
        if now > LIMIT {
            return world.violated("J5: the clients do not come to their end".to_owned());
        }
        if let Err(error) = sim.step() {
            return world.violated(format!("P5: a machine failed: {error}"));
        }
    }
    STEP.set(sim.elapsed());
}

fn network<'a>(world: &Rc<World>) -> Sim<'a> {
    let Profile { latency: (least, most), clients, .. } = world.profile;
    let mut builder = turmoil::Builder::new();
    builder.rng_seed(world.seed).epoch(SystemTime::UNIX_EPOCH).tick_duration(TICK);
    builder.min_message_latency(least).max_message_latency(most).tcp_capacity(1 << 12);
    builder.simulation_duration(LIMIT * 2).enable_random_order();
    let mut sim = builder.build();
    let machine = Rc::clone(&world.machine);
    sim.host(SERVER, move || Rc::clone(&machine).serve());
    for number in 0..clients {
        let world = Rc::clone(world);
        sim.host(name(number), move || client(Rc::clone(&world), number));
    }
    sim
}

/// Returns what goes wrong: when, for how long, and what; the first comes last.
fn schedule(world: &World) -> Vec<(Duration, Duration, Fault)> {
    let Profile { clients, faults: chosen, between, lasting, .. } = world.profile;
    let mut draws = Draws::new(world.seed, 1);
    let (mut schedule, mut at) = (Vec::new(), draws.millis(20, 150));
    while at < CALM {
        let length = draws.millis(10, lasting).min(CALM.saturating_sub(at));
        schedule.extend(Fault::draw(&mut draws, chosen, clients).map(|fault| (at, length, fault)));
        at += draws.millis(1, between);
    }
    schedule.reverse();
    schedule
}

/// How long the machines work before they hear of each other again: nothing arrives sooner, or it would before it was sent.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// When nothing goes wrong any more.
pub(super) const CALM: Duration = Duration::from_millis(1_500);

/// When a run that has not come to its end never will.
const LIMIT: Duration = Duration::from_secs(30);

/// How much longer than its limit a call may take.
const SLACK: Duration = Duration::from_millis(100);

/// What the boot clocks show when a run begins, in nanoseconds.
const START: i64 = 1_000_000_000;
