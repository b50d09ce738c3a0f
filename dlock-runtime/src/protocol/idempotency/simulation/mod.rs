//! Random schedules of the rules of a record: calls that crash, panic, freeze, and finish late, and
//! a network that delays, loses, and repeats requests and replies.
//!
//! A call follows the rules of `idempotent`: it renews its lease, stops at its deadline unless a
//! crash fails, checks before a step, and undoes a start whose reply is missing.
//!
//! `DLOCK_SIM_SEEDS` is the number of schedules, 5,000 by default.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::protocol::idempotency::event::{BeginCall, IdempotencyEvent, IdempotencyReply};
use crate::protocol::idempotency::{CallIdentity, IdempotencyRecord, OnCrash, StoredResult, apply};
use crate::protocol::simulation::choices::ChoiceSource;
use crate::token::{Token, TokenSource};

const LEASE: u64 = 300;
/// The body stops so long before its lease ends at the server.
const MARGIN: u64 = 5;
const TTL: u64 = 1_000_000;
const CALLS: usize = 6;
const STEPS: usize = 2;
/// The time after which a call treats a reply as missing.
const TIMEOUT: u64 = 60;
const END: u64 = 6_000;
/// The number of schedules in which everything of interest happens.
const FULL_SIZE: u64 = 10_000;

/// The subjects of random choices.
#[derive(Clone, Copy)]
enum Kind {
    Start,
    Delay,
    Loss,
    Repeat,
    Work,
    Crash,
    Freeze,
    Fails,
    Policy,
    Faults,
}

/// The state of one call.
#[derive(Debug, Default)]
struct Client {
    token: Option<Token>,
    /// The events that wait for a reply, by number.
    pending: BTreeMap<u64, u64>,
    phase: ClientPhase,
    deadline: u64,
    frozen_until: u64,
    /// The step that runs, if one does.
    step: usize,
    /// The steps that the record has, as of the start.
    replayed: BTreeSet<String>,
    attempt: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ClientPhase {
    #[default]
    Idle,
    Beginning,
    Running,
    Ending,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Act(usize),
    Renew(usize, u32),
    Request(usize, u64),
    Reply(usize, u64),
    Timeout(usize, u64),
}

struct Schedule {
    choices: ChoiceSource,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    sequence: u64,
    slot: Option<IdempotencyRecord>,
    clients: Vec<Client>,
    tokens: TokenSource,
    events: BTreeMap<u64, (IdempotencyEvent, Option<(IdempotencyReply, u64)>)>,
    sent: BTreeMap<u64, u64>,
    /// The crash policy of each call: the same for all, or different during a deployment.
    policies: Vec<OnCrash>,
    /// The policy of the last start.
    owner_policy: OnCrash,
    faults: u64,
    /// The bodies that run, and until when each of them may.
    bodies: BTreeSet<usize>,
    /// The starts since the record was last forgotten.
    starts: u32,
    /// The steps that were stored after that.
    stored_steps: BTreeSet<String>,
    /// The result that was stored.
    result: Option<StoredResult>,
    /// The owner of the record, if it has ended its lease.
    ended: Option<Token>,
    coverage: [u64; 7],
}

const COVERED: [&str; 7] = [
    "a body completed",
    "a crash was taken over",
    "a crash was reported",
    "a replay",
    "a late finisher",
    "a lost start",
    "a panic",
];

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut choices = ChoiceSource::new(seed);
        let is_mixed = choices.happens(Kind::Policy as usize, 0, 30);
        let mut policy = |client| match choices.up_to(Kind::Policy as usize, client, 2) {
            0 => OnCrash::Fail,
            1 => OnCrash::Rerun,
            _ => OnCrash::Resume,
        };
        let policies: Vec<_> =
            if is_mixed { (0..CALLS).map(policy).collect() } else { vec![policy(0); CALLS] };
        let faults = choices.up_to(Kind::Faults as usize, 0, 20);
        let mut schedule = Self {
            choices,
            now: 1,
            queue: BinaryHeap::new(),
            sequence: 0,
            slot: None,
            clients: (0..CALLS).map(|_| Client::default()).collect(),
            tokens: TokenSource::of_process(seed),
            events: BTreeMap::new(),
            sent: BTreeMap::new(),
            owner_policy: policies[0],
            policies,
            faults,
            bodies: BTreeSet::new(),
            starts: 0,
            stored_steps: BTreeSet::new(),
            result: None,
            ended: None,
            coverage: [0; 7],
        };
        for client in 0..CALLS {
            let at = schedule.up_to(Kind::Start, client, 1_200);
            schedule.later(at, Happening::Act(client));
        }
        schedule
    }

    fn up_to(&mut self, kind: Kind, client: usize, bound: u64) -> u64 {
        self.choices.up_to(kind as usize, client, bound)
    }

    fn happens(&mut self, kind: Kind, client: usize, percent: u64) -> bool {
        self.choices.happens(kind as usize, client, percent)
    }

    fn later(&mut self, delay: u64, what: Happening) {
        self.sequence += 1;
        self.queue.push(Reverse((self.now + delay, self.sequence, what)));
    }

    /// Sends an event, and lets the network do its worst.
    fn send(&mut self, client: usize, event: IdempotencyEvent) -> u64 {
        self.sequence += 1;
        let number = self.sequence;
        self.events.insert(number, (event, None));
        self.sent.insert(number, self.now);
        self.clients[client].pending.insert(number, self.now);
        self.later(TIMEOUT, Happening::Timeout(client, number));
        self.transmit(client, number);
        number
    }

    fn transmit(&mut self, client: usize, number: u64) {
        if self.happens(Kind::Loss, client, self.faults) {
            return;
        }
        let slow = if self.happens(Kind::Delay, client, self.faults / 2) { 400 } else { 4 };
        let delay = self.up_to(Kind::Delay, client, slow);
        self.later(delay, Happening::Request(client, number));
        if self.happens(Kind::Repeat, client, self.faults / 2) {
            let delay = self.up_to(Kind::Repeat, client, 2 * LEASE);
            self.later(delay, Happening::Request(client, number));
        }
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some(Reverse((at, _, what))) = self.queue.pop() {
            if at > END {
                break;
            }
            self.now = at;
            match what {
                Happening::Act(client) | Happening::Renew(client, _)
                    if self.clients[client].frozen_until > self.now =>
                {
                    let wait = self.clients[client].frozen_until - self.now;
                    self.later(wait, what);
                }
                Happening::Act(client) => self.act(client)?,
                Happening::Renew(client, attempt) => self.renew(client, attempt),
                Happening::Request(client, number) => self.on_request(client, number)?,
                Happening::Reply(client, number) => self.on_reply(client, number)?,
                Happening::Timeout(client, number) => self.on_timeout(client, number),
            }
        }
        Ok(())
    }

    /// The body of a call may run: it holds its lease, or no other attempt can start.
    fn may_run(&self, client: usize) -> bool {
        self.policies[client] == OnCrash::Fail || self.now < self.clients[client].deadline
    }

    /// A call does its next piece of work.
    fn act(&mut self, client: usize) -> Result<(), String> {
        match self.clients[client].phase {
            ClientPhase::Idle => {
                let token = self.tokens.next();
                self.clients[client].token = Some(token);
                self.clients[client].phase = ClientPhase::Beginning;
                let event = IdempotencyEvent::Begin(self.begin_call(client, token));
                self.send(client, event);
                Ok(())
            }
            ClientPhase::Running => self.work(client),
            _ => Ok(()),
        }
    }

    fn begin_call(&self, client: usize, token: Token) -> BeginCall {
        BeginCall {
            token,
            lease: LEASE,
            ttl: TTL,
            on_crash: self.policies[client],
            identity: CallIdentity::default(),
            previous_fingerprint: String::new(),
            waiter: None,
        }
    }

    fn work(&mut self, client: usize) -> Result<(), String> {
        if !self.may_run(client) {
            self.stop(client);
            self.clients[client].phase = ClientPhase::Ended;
            return Ok(());
        }
        self.check_alone(client)?;
        if self.happens(Kind::Crash, client, self.faults / 2) {
            self.stop(client);
            self.clients[client].phase = ClientPhase::Ended;
            // The process is gone, or its body has panicked.
            if let Some(token) = self.clients[client].token
                && self.up_to(Kind::Crash, client, 1) == 1
            {
                self.send(client, IdempotencyEvent::EndLease { token });
            }
            return Ok(());
        }
        if self.happens(Kind::Freeze, client, self.faults / 2) {
            self.clients[client].frozen_until = self.now + self.up_to(Kind::Freeze, client, 3 * LEASE);
            self.later(1, Happening::Act(client));
            return Ok(());
        }
        let Some(token) = self.clients[client].token else { return Ok(()) };
        let step = self.clients[client].step;
        if step < STEPS {
            let name = format!("s{step}");
            self.clients[client].step += 1;
            if self.clients[client].replayed.contains(&name) {
                self.later(1, Happening::Act(client));
            } else {
                if self.policies[client] != OnCrash::Rerun && self.stored_steps.contains(&name) {
                    return Err(format!("step {name} runs again although it is stored"));
                }
                let event =
                    IdempotencyEvent::StoreStep { token, name, result: Some(b"1".to_vec()), ttl: TTL };
                self.send(client, event);
            }
            return Ok(());
        }
        self.stop(client);
        self.clients[client].phase = ClientPhase::Ending;
        let event = if self.happens(Kind::Fails, client, 20) {
            IdempotencyEvent::Forget { token, has_run: true, ttl: TTL }
        } else {
            let bytes = token.to_string().into_bytes();
            let result = StoredResult::Bytes { bytes, is_error: false };
            IdempotencyEvent::Complete { token, result, ttl: TTL }
        };
        self.send(client, event);
        Ok(())
    }

    fn renew(&mut self, client: usize, attempt: u32) {
        let of = &self.clients[client];
        if of.phase != ClientPhase::Running || of.attempt != attempt || !self.may_run(client) {
            return;
        }
        if let Some(token) = self.clients[client].token {
            self.send(client, IdempotencyEvent::Renew { token, lease: LEASE, ttl: TTL });
        }
        self.later(LEASE / 3, Happening::Renew(client, attempt));
    }

    /// Checks that no other body runs, when `client` begins or continues its own.
    fn check_alone(&self, client: usize) -> Result<(), String> {
        let other = self.bodies.iter().find(|other| **other != client && self.may_run(**other));
        match other {
            Some(other) => Err(format!("the bodies of calls {client} and {other} run at one time")),
            None => Ok(()),
        }
    }

    fn stop(&mut self, client: usize) {
        self.bodies.remove(&client);
    }

    fn on_request(&mut self, client: usize, number: u64) -> Result<(), String> {
        let Some((event, _)) = self.events.get(&number).cloned() else { return Ok(()) };
        let before = self.slot.clone();
        let (reply, _) = apply(&mut self.slot, &event, self.now);
        self.observe(&event, &reply, before.as_ref())?;
        if let (Some(ended), Some(record)) = (self.ended, &self.slot)
            && record.owns(ended)
            && record.lease_left(self.now).is_some()
        {
            return Err(format!("{event:?} brings back an attempt that has ended its lease"));
        }
        if let Some((_, stored)) = self.events.get_mut(&number) {
            *stored = Some((reply, self.now));
        }
        if !self.happens(Kind::Loss, client, self.faults) {
            let delay = self.up_to(Kind::Delay, client, 8);
            self.later(delay, Happening::Reply(client, number));
        }
        Ok(())
    }

    /// Checks what the server does.
    fn observe(
        &mut self,
        event: &IdempotencyEvent,
        reply: &IdempotencyReply,
        before: Option<&IdempotencyRecord>,
    ) -> Result<(), String> {
        let has_changed = before != self.slot.as_ref();
        match (event, reply) {
            (IdempotencyEvent::Begin(call), IdempotencyReply::Started { .. }) => {
                if before.is_some_and(|record| record.owns(call.token)) {
                    return Ok(()); // the same start again
                }
                self.ended = None;
                self.starts += 1;
                if self.starts > 1 {
                    self.coverage[1] += 1;
                }
                let before = std::mem::replace(&mut self.owner_policy, call.on_crash);
                if self.starts > 1 && [before, call.on_crash].contains(&OnCrash::Fail) {
                    return Err("a second body starts although a crash fails".to_owned());
                }
                if call.on_crash == OnCrash::Rerun && self.starts > 1 {
                    self.stored_steps.clear();
                }
            }
            (IdempotencyEvent::Begin(_), IdempotencyReply::Crashed { .. }) => self.coverage[2] += 1,
            (IdempotencyEvent::Begin(_), IdempotencyReply::Completed { result, .. }) => {
                self.coverage[3] += 1;
                if self.result.as_ref() != Some(result) {
                    return Err(format!("{result:?} is replayed, and {:?} was stored", self.result));
                }
            }
            (IdempotencyEvent::StoreStep { name, .. }, IdempotencyReply::Done) => {
                self.stored_steps.insert(name.clone());
            }
            (IdempotencyEvent::Complete { result, .. }, IdempotencyReply::Done) if has_changed => {
                if let Some(stored) = &self.result {
                    return Err(format!("{stored:?} is overwritten by {result:?}"));
                }
                self.result = Some(result.clone());
                self.coverage[0] += 1;
            }
            (IdempotencyEvent::Complete { .. }, IdempotencyReply::NotOwner) => self.coverage[4] += 1,
            (IdempotencyEvent::EndLease { token }, IdempotencyReply::Done) => {
                self.ended = Some(*token);
                self.coverage[6] += 1;
            }
            (IdempotencyEvent::Forget { has_run, .. }, IdempotencyReply::Done) if has_changed => {
                self.ended = None;
                self.starts =
                    u32::from(!*has_run && self.slot.as_ref().is_some_and(IdempotencyRecord::is_running));
                if self.slot.is_none() {
                    self.stored_steps.clear();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn on_reply(&mut self, client: usize, number: u64) -> Result<(), String> {
        if self.clients[client].pending.remove(&number).is_none() {
            return Ok(()); // it is late
        }
        let Some((event, Some((reply, _)))) = self.events.get(&number).cloned() else { return Ok(()) };
        let sent = self.sent[&number];
        match (event, reply) {
            (IdempotencyEvent::Begin(_), IdempotencyReply::Started { attempt, steps }) => {
                let of = &mut self.clients[client];
                of.phase = ClientPhase::Running;
                of.deadline = sent + LEASE - MARGIN;
                of.attempt = attempt;
                of.replayed = steps.into_keys().collect();
                if !self.may_run(client) {
                    self.clients[client].phase = ClientPhase::Ended;
                    return Ok(());
                }
                self.check_alone(client)?;
                self.bodies.insert(client);
                self.later(LEASE / 3, Happening::Renew(client, attempt));
                let work = self.up_to(Kind::Work, client, 2 * LEASE);
                self.later(work, Happening::Act(client));
            }
            (IdempotencyEvent::Begin(_), _) => self.try_again(client),
            (IdempotencyEvent::Renew { .. }, IdempotencyReply::Done) => {
                let of = &mut self.clients[client];
                of.deadline = of.deadline.max(sent + LEASE - MARGIN);
            }
            (
                IdempotencyEvent::Renew { .. } | IdempotencyEvent::StoreStep { .. },
                IdempotencyReply::NotOwner,
            ) if self.policies[client] != OnCrash::Fail => {
                self.stop(client);
                self.clients[client].phase = ClientPhase::Ended;
            }
            (IdempotencyEvent::StoreStep { .. }, _) => {
                let work = self.up_to(Kind::Work, client, LEASE);
                self.later(work, Happening::Act(client));
            }
            (IdempotencyEvent::Complete { .. } | IdempotencyEvent::Forget { has_run: true, .. }, _) => {
                self.clients[client].phase = ClientPhase::Ended;
            }
            _ => {}
        }
        Ok(())
    }

    /// A call that does not own the record asks again later.
    fn try_again(&mut self, client: usize) {
        self.clients[client].phase = ClientPhase::Idle;
        let wait = 1 + self.up_to(Kind::Work, client, LEASE);
        self.later(wait, Happening::Act(client));
    }

    fn on_timeout(&mut self, client: usize, number: u64) {
        if self.clients[client].pending.remove(&number).is_none() {
            return;
        }
        let Some((event, _)) = self.events.get(&number).cloned() else { return };
        match event {
            IdempotencyEvent::Begin(call) => {
                self.coverage[5] += 1;
                // The start is undone now, and again when a late request may have arrived.
                let undo = IdempotencyEvent::Forget { token: call.token, has_run: false, ttl: TTL };
                self.send(client, undo);
                self.try_again(client);
            }
            IdempotencyEvent::Renew { .. } => {}
            IdempotencyEvent::StoreStep { .. } => {
                self.send(client, event); // in the background
                let work = self.up_to(Kind::Work, client, LEASE);
                self.later(work, Happening::Act(client));
            }
            event => _ = self.send(client, event),
        }
    }
}

/// Runs the schedules, and returns what was covered. The first violation ends it.
fn run_schedules(count: u64) -> [u64; COVERED.len()] {
    let mut coverage = [0; COVERED.len()];
    for seed in 0..count {
        let mut schedule = Schedule::new(seed);
        if let Err(problem) = schedule.run() {
            panic!("seed {seed}, {:?}, at {} ms: {problem}", schedule.policies, schedule.now);
        }
        for (all, of) in coverage.iter_mut().zip(schedule.coverage) {
            *all += of;
        }
    }
    coverage
}

#[test]
fn random_schedules_keep_the_invariants() {
    let seeds = std::env::var("DLOCK_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let seeds = seeds.unwrap_or(FULL_SIZE);
    let coverage = run_schedules(seeds);

    for (name, times) in COVERED.iter().zip(coverage) {
        println!("{name}: {times}");
        assert!(times >= 10 || seeds < FULL_SIZE, "{name}: {times} times");
    }
}
