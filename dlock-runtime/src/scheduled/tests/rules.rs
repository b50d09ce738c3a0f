//! The script does what the rules do: random requests about records, in memory and over Redis.

use std::sync::Arc;
use std::time::SystemTime;

use crate::backend::store_call::StoreOperation;
use crate::backend::tests::real_server::assert_scripts_follow_rules;
use crate::manager::LockManager;
use crate::protocol::job::begin::{
    BeginKind, BeginReply, BeginRequest, CrashedRun, FURTHEST_AHEAD, Overlap, SkipReason,
};
use crate::protocol::job::job_record::{FinishRequest, JobRecord, OwnerReply, RunResult};
use crate::scheduled::operation::{JobAnswer, JobOperation, JobReply, JobRequest, RecordBefore, decode};
use crate::token::Token;

/// Enough that each request meets each state of a record.
const RECORDS: u64 = 100;
const REQUESTS: u64 = 60;

#[tokio::test]
async fn the_script_follows_the_rules() {
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
    let began = u64::try_from(began).expect("a time of this era");
    let record_in = |manager: &LockManager, record| JobRequests::new(manager, record, began);
    let test = "the script of a job, and its rules";
    assert_scripts_follow_rules(test, (RECORDS, REQUESTS), record_in, JobRequests::apply).await;
}

/// A record of a job whose requests a test chooses one by one.
///
/// The clocks of two stores differ by the time that a test takes. So no request is about a time
/// near now: slots are one hour away, leases are over at once or never, and a time near now in a
/// reply is shown as 0.
struct JobRequests {
    manager: LockManager,
    key: String,
    /// When the test began, in milliseconds since the epoch.
    began: u64,
    /// The first of most slots.
    first_slot: u64,
}

const HOUR: u64 = 3_600_000;

/// Longer than a test, and shorter than the distance of all slots from now.
const NEAR: u64 = HOUR / 2;

impl JobRequests {
    /// Returns the record with this number in the manager's store, for a test that began at
    /// `began`. The slots of half of the records have passed.
    fn new(manager: &LockManager, record: u64, began: u64) -> Self {
        let first_slot = if record.is_multiple_of(2) { began + HOUR } else { began - HOUR };
        Self { manager: manager.clone(), key: format!("dlock:job:r{record}##job"), began, first_slot }
    }

    /// Sends the request that `choice` selects. Returns it with its reply as text, and whether
    /// replicas must acknowledge it.
    async fn apply(&self, choice: u64) -> (String, bool) {
        let request = self.request_of(choice);
        let operation: Arc<dyn StoreOperation> =
            Arc::new(JobOperation { request: request.clone(), ttl: HOUR });
        let reply = self.manager.engine().call(&self.key.as_str().into(), &operation).await;
        let reply = reply.unwrap_or_else(|failure| panic!("{request:?}: {failure:?}"));
        let decoded = decode(&reply).unwrap_or_else(|| panic!("{request:?}: {reply:?}"));
        let is_done = matches!(
            decoded.answer,
            JobAnswer::Owner(OwnerReply::Owner) | JobAnswer::Begin { reply: BeginReply::Run(_), .. }
        );
        let is_write = operation.needs_acks() && is_done;
        (format!("{request:?} -> {:?}", self.without_times(decoded)), is_write)
    }

    /// Returns one of many requests, of four owners with different schedules and options.
    fn request_of(&self, choice: u64) -> JobRequest {
        let mut choices = Choices(choice);
        let kind = choices.draw(20);
        let owner = Token::of_numbers(7, choices.draw(4) + 1).expect("the number is small");
        let lease = choices.draw(3).min(1) * HOUR;
        match kind {
            0..=9 => JobRequest::Begin(self.begin_of(&mut choices, owner, lease)),
            10..=11 => JobRequest::Renew { owner, lease },
            12..=14 => JobRequest::Finish(FinishRequest {
                owner,
                result: [
                    RunResult::Succeeded,
                    RunResult::Failed,
                    RunResult::Failed,
                    RunResult::Cancelled,
                    RunResult::Lost,
                    RunResult::Unstarted,
                ][choices.index(6)],
                error: ["", "a|b"][choices.index(2)].to_owned(),
                missed: (choices.draw(2) == 0).then(|| (self.slot_of(&mut choices), choices.draw(9))),
            }),
            15 => JobRequest::SetPaused(choices.draw(2) == 0),
            16 => JobRequest::SetPaused(false),
            17 if choices.draw(3) == 0 => JobRequest::Register { spec: spec_of(&mut choices) },
            17 => JobRequest::RequestRun,
            18 if choices.draw(4) == 0 => JobRequest::Reset,
            _ => JobRequest::Read,
        }
    }

    fn begin_of(&self, choices: &mut Choices, owner: Token, lease: u64) -> BeginRequest {
        let slot = self.slot_of(choices);
        BeginRequest {
            kind: match choices.draw(8) {
                0 => BeginKind::Requested,
                1 => BeginKind::Missed { slot },
                2 => BeginKind::Tick { slot, window: (0, 1), previous: None },
                3 => {
                    let previous = Some(self.slot_of(choices));
                    BeginKind::Tick { slot, window: (0, i64::MAX.unsigned_abs()), previous }
                }
                4 => BeginKind::Slot { slot },
                _ => BeginKind::Tick { slot, window: (0, i64::MAX.unsigned_abs()), previous: None },
            },
            owner,
            node: "n".to_owned(),
            spec: spec_of(choices),
            lease,
            overlap: [Overlap::Skip, Overlap::QueueOne, Overlap::CancelPrevious][choices.index(3)],
            crashed: [CrashedRun::Rerun, CrashedRun::Skip][choices.index(2)],
            retries: [0, 0, 2][choices.index(3)],
            min_hold: [0, 0, HOUR][choices.index(3)],
        }
    }

    /// Returns a slot before the job was seen, after it, or too far ahead.
    fn slot_of(&self, choices: &mut Choices) -> u64 {
        let number = choices.draw(6) * 1_000;
        match choices.draw(12) {
            0 => self.began - HOUR + number,
            1 => self.began + FURTHEST_AHEAD + HOUR + number,
            _ => self.first_slot + number,
        }
    }

    /// Replaces the times of a reply that are near now by 0, and the rest of a lease by 0 or 1.
    fn without_times(&self, reply: JobReply) -> JobAnswer {
        let time = |at: u64| if at.abs_diff(self.began) < NEAR { 0 } else { at };
        match reply.answer {
            JobAnswer::Begin { reply: begun, before } => {
                let before = RecordBefore { decided: time(before.decided), ..before };
                JobAnswer::Begin { reply: begin_without_times(begun, time), before }
            }
            JobAnswer::Owner(owner) => JobAnswer::Owner(owner),
            JobAnswer::NoFence => JobAnswer::NoFence,
            JobAnswer::Registered { record, spec_before } => {
                let record = Box::new(record_without_times(*record, reply.now, time));
                JobAnswer::Registered { record, spec_before }
            }
            JobAnswer::Record(record) => JobAnswer::Record(
                record.map(|record| Box::new(record_without_times(*record, reply.now, time))),
            ),
        }
    }
}

fn begin_without_times(reply: BeginReply, time: impl Fn(u64) -> u64) -> BeginReply {
    match reply {
        BeginReply::Run(mut grant) => {
            (grant.slot, grant.counted, grant.fence) = (time(grant.slot), time(grant.counted), 0);
            BeginReply::Run(grant)
        }
        BeginReply::Wait { lease_left } => BeginReply::Wait { lease_left: lease_left.min(1) },
        BeginReply::Missed { since, is_running } => BeginReply::Missed { since: time(since), is_running },
        BeginReply::Skip(SkipReason::Running { lease_left }) => {
            BeginReply::Skip(SkipReason::Running { lease_left: lease_left.min(1) })
        }
        BeginReply::Skip(SkipReason::Overlap { lease_left }) => {
            BeginReply::Skip(SkipReason::Overlap { lease_left: lease_left.min(1) })
        }
        reply => reply,
    }
}

fn record_without_times(mut record: JobRecord, now: u64, time: impl Fn(u64) -> u64) -> JobRecord {
    record.known = record.known.map(&time);
    (record.skipped, record.counted) = (time(record.skipped), time(record.counted));
    record.request = record.request.map(&time);
    record.began = record.began.map(&time);
    record.fence = record.fence.min(1);
    if let Some(waiting) = &mut record.waiting {
        waiting.asked = time(waiting.asked);
    }
    record.succeeded = record.succeeded.map(|(at, slot)| (time(at), time(slot)));
    if let Some(run) = &mut record.run {
        run.lease_end = u64::from(run.lease_end > now);
        (run.slot, run.started) = (time(run.slot), time(run.started));
    }
    for past in &mut record.history {
        (past.slot, past.started, past.finished) = (time(past.slot), time(past.started), time(past.finished));
    }
    record
}

/// Returns one of two schedules, or that of callers that choose the slots.
fn spec_of(choices: &mut Choices) -> String {
    ["every 1 s", "every 2 s", ""][choices.index(3)].to_owned()
}

/// The decisions that one number makes.
struct Choices(u64);

impl Choices {
    /// Returns a number below `count`.
    fn draw(&mut self, count: u64) -> u64 {
        let drawn = self.0 % count;
        self.0 /= count;
        drawn
    }

    fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.draw(count as u64)).unwrap_or_default()
    }
}
