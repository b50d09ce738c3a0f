//! [`JobOperation`], a request about a job's record, as a script for Redis and as the rule in
//! memory.
//!
//! ```text
//! {time, run, slot, attempt, counted, fence, ..} | {time, wait, lease left, ..} BeginReply
//!   | {time, skip, reason, detail, ..} | {time, missed, since, ..} | {time, other, ..}
//!   and at the end: {.., schedule of the last request, last slot that started or was skipped,
//!                        time of the request to run now}
//! {time, owner | cancelled | not_owner}                                        OwnerReply
//! {time, no_fence}                                                             NoFence
//! {time, {field, value, ..}}                                                   JobRecord
//! {time, {field, value, ..}, schedule of the last request}                     Registered
//! ```

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use crate::backend::store_call::{StoreOperation, StoreScript, StoreSlot, shown, text};
use crate::engine::call::unusable_reply;
use crate::error::LossCause;
use crate::protocol::command::{Failure, FailureKind, ScriptReply};
use crate::protocol::job::begin::{
    BeginKind, BeginReply, BeginRequest, CrashedRun, Overlap, RunGrant, SkipReason,
};
use crate::protocol::job::job_record::{FinishRequest, JobRecord, OwnerReply, RunResult};
use crate::protocol::owner_lease::LeaseReply;
use crate::scheduled::record_fields;
use crate::token::Token;

/// A request about the record of a job.
#[derive(Clone, Debug)]
pub(super) struct JobOperation {
    pub(super) request: JobRequest,
    /// How long the record lives after this request, at least, in milliseconds.
    pub(super) ttl: u64,
}

#[derive(Clone, Debug)]
pub(super) enum JobRequest {
    Begin(BeginRequest),
    Renew {
        owner: Token,
        lease: u64,
    },
    Finish(FinishRequest),
    SetPaused(bool),
    RequestRun,
    Reset,
    Read,
    /// Reads the record, after creating it for a job with this schedule.
    Register {
        spec: String,
    },
}

/// The reply to a request, and the server's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobReply {
    pub(super) now: u64,
    pub(super) answer: JobAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobAnswer {
    Begin {
        reply: BeginReply,
        before: RecordBefore,
    },
    Owner(OwnerReply),
    Record(Option<Box<JobRecord>>),
    /// The record after a registration, and the schedule of the request before; empty if there was
    /// none.
    Registered {
        record: Box<JobRecord>,
        spec_before: String,
    },
    /// The number of the last fencing token has no next one, or is not a number.
    NoFence,
}

/// The record before a request to begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordBefore {
    /// The schedule of the last request; empty if there was none.
    pub(super) spec: String,
    /// The last slot that started or was skipped. Older ones do not start.
    pub(super) decided: u64,
    /// Whether an operator requested a run, after this request.
    pub(super) is_requested: bool,
}

static JOB: StoreScript = StoreScript::new(include_str!("job.lua"));

impl StoreOperation for JobOperation {
    fn script(&self) -> &'static StoreScript {
        &JOB
    }

    fn arguments(&self) -> Vec<Cow<'_, [u8]>> {
        let name = match &self.request {
            JobRequest::Begin(_) => "begin",
            JobRequest::Renew { .. } => "renew",
            JobRequest::Finish(_) => "finish",
            JobRequest::SetPaused(true) => "pause",
            JobRequest::SetPaused(false) => "resume",
            JobRequest::RequestRun => "request",
            JobRequest::Reset => "reset",
            JobRequest::Read => "read",
            JobRequest::Register { .. } => "register",
        };
        let mut arguments = vec![text(name), shown(&self.ttl)];
        match &self.request {
            JobRequest::Begin(begin) => arguments.extend(begin_arguments(begin)),
            JobRequest::Renew { owner, lease } => arguments.extend([shown(owner), shown(lease)]),
            JobRequest::Finish(end) => arguments.extend(finish_arguments(end)),
            JobRequest::Register { spec } => arguments.push(text(spec)),
            JobRequest::SetPaused(_) | JobRequest::RequestRun | JobRequest::Reset | JobRequest::Read => {}
        }
        arguments
    }

    fn needs_acks(&self) -> bool {
        !matches!(self.request, JobRequest::Read)
    }

    fn is_repeatable(&self) -> bool {
        !matches!(self.request, JobRequest::SetPaused(_) | JobRequest::RequestRun | JobRequest::Reset)
    }

    fn is_cleanup(&self) -> bool {
        matches!(&self.request, JobRequest::Finish(end) if end.result == RunResult::Unstarted)
    }

    fn has_large_reply(&self) -> bool {
        true
    }

    fn apply(&self, slot: &mut StoreSlot, now: u64) -> ScriptReply {
        let stored = slot.value.take().filter(|_| now < slot.expires);
        let stored = stored.and_then(|value| value.downcast::<JobRecord>().ok());
        let existed = stored.is_some();
        let mut record = stored.map(|record| *record).unwrap_or_default();
        let before = record.clone();
        let answer = run(&mut record, now, &self.request, existed);
        if existed || record != before {
            if record != before || extends(&self.request, &answer) {
                let lives_until = if existed { slot.expires } else { 0 };
                slot.expires = lives_until.max(now.saturating_add(self.ttl));
            }
            slot.value = Some(Box::new(record) as Box<dyn Any + Send>);
        }
        encode(&JobReply { now, answer })
    }
}

/// Runs the rule.
fn run(record: &mut JobRecord, now: u64, request: &JobRequest, exists: bool) -> JobAnswer {
    match request {
        JobRequest::Begin(begin) => {
            let (spec, decided) = (record.spec.clone(), record.decided());
            let reply = record.begin(now, begin);
            let before = RecordBefore { spec, decided, is_requested: record.request.is_some() };
            return JobAnswer::Begin { reply, before };
        }
        JobRequest::Renew { owner, lease } => return JobAnswer::Owner(record.renew(now, *owner, *lease)),
        JobRequest::Finish(end) => return JobAnswer::Owner(record.finish(now, end.clone())),
        JobRequest::Read => return JobAnswer::Record(exists.then(|| Box::new(record.clone()))),
        JobRequest::SetPaused(is_paused) => record.set_paused(now, *is_paused),
        JobRequest::Register { spec } => {
            let spec_before = record.spec.clone();
            record.register(now, spec);
            return JobAnswer::Registered { record: Box::new(record.clone()), spec_before };
        }
        JobRequest::RequestRun => {
            let is_known = record.request_run(now);
            return JobAnswer::Owner(if is_known { OwnerReply::Owner } else { OwnerReply::NotOwner });
        }
        JobRequest::Reset => record.reset(now),
    }
    JobAnswer::Owner(OwnerReply::Owner)
}

/// Returns `true` if a request extends the life of a record that it does not change.
fn extends(request: &JobRequest, answer: &JobAnswer) -> bool {
    matches!(request, JobRequest::Register { .. })
        || matches!(
            answer,
            JobAnswer::Owner(OwnerReply::Owner | OwnerReply::Cancelled)
                | JobAnswer::Begin { reply: BeginReply::Run(_), .. }
        )
}

fn begin_arguments(begin: &BeginRequest) -> [Cow<'_, [u8]>; 13] {
    let (kind, slot, (from, until), previous) = match begin.kind {
        BeginKind::Tick { slot, window, previous } => ("tick", slot, window, previous),
        BeginKind::Slot { slot } => ("slot", slot, (0, 0), None),
        BeginKind::Missed { slot } => ("missed", slot, (0, 0), None),
        BeginKind::Requested => ("requested", 0, (0, 0), None),
    };
    let overlap = match begin.overlap {
        Overlap::Skip => "skip",
        Overlap::QueueOne => "queue_one",
        Overlap::CancelPrevious => "cancel_previous",
    };
    let crashed = match begin.crashed {
        CrashedRun::Rerun => "rerun",
        CrashedRun::Skip => "skip",
    };
    [
        text(kind),
        shown(&slot),
        shown(&from),
        shown(&until),
        previous.map_or(text(""), |previous| shown(&previous)),
        shown(&begin.owner),
        text(&begin.node),
        text(&begin.spec),
        shown(&begin.lease),
        text(overlap),
        text(crashed),
        shown(&begin.retries),
        shown(&begin.min_hold),
    ]
}

fn finish_arguments(end: &FinishRequest) -> [Cow<'_, [u8]>; 5] {
    let (counted, missed) =
        end.missed.map_or((text(""), text("0")), |(counted, missed)| (shown(&counted), shown(&missed)));
    [shown(&end.owner), text(record_fields::result_code(end.result)), text(&end.error), counted, missed]
}

/// Writes the fields of a record, and their values.
fn fields_of(record: Option<&JobRecord>) -> ScriptReply {
    let fields = record.map(record_fields::of_record).unwrap_or_default();
    let fields = fields.iter().flat_map(|(field, value)| [field, value]);
    ScriptReply::Array(fields.map(|part| ScriptReply::text(part)).collect())
}

/// Writes a reply as the script does.
fn encode(reply: &JobReply) -> ScriptReply {
    let mut parts = vec![reply.now.to_string()];
    match &reply.answer {
        JobAnswer::Begin { reply, before } => {
            parts.extend(begin_parts(*reply));
            parts.resize(6, String::new());
            parts.extend([before.spec.clone(), before.decided.to_string()]);
            parts.push(if before.is_requested { "1" } else { "" }.to_owned());
        }
        JobAnswer::Owner(owner) => parts.push(
            match owner {
                OwnerReply::Owner => "owner",
                OwnerReply::Cancelled => "cancelled",
                OwnerReply::NotOwner => "not_owner",
            }
            .to_owned(),
        ),
        JobAnswer::NoFence => parts.push("no_fence".to_owned()),
        JobAnswer::Record(record) => {
            return ScriptReply::Array(vec![ScriptReply::text(&parts[0]), fields_of(record.as_deref())]);
        }
        JobAnswer::Registered { record, spec_before } => {
            let [now, spec_before] = [&parts[0], spec_before].map(|part| ScriptReply::text(part));
            return ScriptReply::Array(vec![now, fields_of(Some(record)), spec_before]);
        }
    }
    ScriptReply::Array(parts.iter().map(|part| ScriptReply::text(part)).collect())
}

fn begin_parts(reply: BeginReply) -> Vec<String> {
    let parts = |what: &str, details: &[u64]| {
        [what.to_owned()].into_iter().chain(details.iter().map(u64::to_string)).collect()
    };
    match reply {
        BeginReply::Run(RunGrant { slot, attempt, counted, fence }) => {
            parts("run", &[slot, u64::from(attempt), counted, fence])
        }
        BeginReply::Wait { lease_left } => parts("wait", &[lease_left]),
        BeginReply::Missed { since, is_running } => {
            let is_running = if is_running { "1" } else { "" };
            vec!["missed".to_owned(), since.to_string(), is_running.to_owned()]
        }
        BeginReply::OtherTick => parts("other", &[]),
        BeginReply::Skip(reason) => {
            let (reason, detail) = match reason {
                SkipReason::Paused => ("paused", None),
                SkipReason::Running { lease_left } => ("running", Some(lease_left)),
                SkipReason::Done => ("done", None),
                SkipReason::Late { slot } => ("late", Some(slot)),
                SkipReason::Overlap { lease_left } => ("overlap", Some(lease_left)),
                SkipReason::NotRequested => ("not_requested", None),
                SkipReason::Ahead => ("ahead", None),
            };
            ["skip".to_owned(), reason.to_owned()]
                .into_iter()
                .chain(detail.map(|detail| detail.to_string()))
                .collect()
        }
    }
}

/// Reads a reply. Returns `None` if the script gives no such reply.
pub(super) fn decode(reply: &ScriptReply) -> Option<JobReply> {
    let parts = reply.as_array()?;
    let now = parts.first()?.as_text()?.parse().ok()?;
    if let [_, ScriptReply::Array(fields), rest @ ..] = parts {
        let pairs = fields.chunks(2).map(|pair| Some((pair.first()?.as_text()?, pair.get(1)?.as_text()?)));
        let record = match pairs.collect::<Option<Vec<_>>>()? {
            fields if fields.is_empty() => None,
            fields => Some(Box::new(record_fields::to_record(&fields)?)),
        };
        let answer = match rest {
            [] => JobAnswer::Record(record),
            [spec] => JobAnswer::Registered { record: record?, spec_before: spec.as_text()?.to_owned() },
            _ => return None,
        };
        return Some(JobReply { now, answer });
    }
    let parts: Vec<&str> = parts.iter().map(ScriptReply::as_text).collect::<Option<_>>()?;
    let answer = match parts[1..] {
        ["owner"] => JobAnswer::Owner(OwnerReply::Owner),
        ["cancelled"] => JobAnswer::Owner(OwnerReply::Cancelled),
        ["not_owner"] => JobAnswer::Owner(OwnerReply::NotOwner),
        ["no_fence"] => JobAnswer::NoFence,
        [what, a, b, c, d, spec, decided, requested] => JobAnswer::Begin {
            reply: decode_begin(what, [a, b, c, d])?,
            before: RecordBefore {
                spec: spec.to_owned(),
                decided: decided.parse().ok()?,
                is_requested: !requested.is_empty(),
            },
        },
        _ => return None,
    };
    Some(JobReply { now, answer })
}

/// Reads the reply to a renewal, or returns why it had no effect.
pub(super) fn lease_reply(reply: &ScriptReply) -> Result<LeaseReply, Failure> {
    Ok(match decode(reply).ok_or_else(unusable_reply)?.answer {
        JobAnswer::Owner(OwnerReply::Owner) => LeaseReply::Renewed,
        JobAnswer::Owner(OwnerReply::Cancelled) => LeaseReply::Lost(LossCause::Cancelled),
        JobAnswer::NoFence => {
            let problem = "another client has overwritten the field `fe` of the job's record";
            return Err(Failure::new(FailureKind::Passing, problem));
        }
        _ => LeaseReply::Lost(LossCause::NotOwner),
    })
}

fn decode_begin(what: &str, [a, b, c, d]: [&str; 4]) -> Option<BeginReply> {
    Some(match what {
        "run" => BeginReply::Run(RunGrant {
            slot: a.parse().ok()?,
            attempt: b.parse().ok()?,
            counted: c.parse().ok()?,
            fence: d.parse().ok()?,
        }),
        "wait" => BeginReply::Wait { lease_left: a.parse().ok()? },
        "missed" => BeginReply::Missed { since: a.parse().ok()?, is_running: !b.is_empty() },
        "other" => BeginReply::OtherTick,
        "skip" => BeginReply::Skip(match a {
            "paused" => SkipReason::Paused,
            "running" => SkipReason::Running { lease_left: b.parse().ok()? },
            "done" => SkipReason::Done,
            "late" => SkipReason::Late { slot: b.parse().ok()? },
            "overlap" => SkipReason::Overlap { lease_left: b.parse().ok()? },
            "not_requested" => SkipReason::NotRequested,
            "ahead" => SkipReason::Ahead,
            _ => return None,
        }),
        _ => return None,
    })
}

/// Returns what gives back a run whose body has not started.
pub(super) fn undo_of_run(owner: Token, ttl: u64) -> Arc<dyn StoreOperation> {
    let end = FinishRequest { owner, result: RunResult::Unstarted, error: String::new(), missed: None };
    Arc::new(JobOperation { request: JobRequest::Finish(end), ttl })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::job::job_record::{ActiveRun, JobCounters, PastRun, SlotState, WaitingSlot};
    use crate::token::TokenSource;

    fn operation(request: JobRequest) -> JobOperation {
        JobOperation { request, ttl: 1_000 }
    }

    fn finish(result: RunResult) -> JobRequest {
        let owner = TokenSource::of_process(1).next();
        JobRequest::Finish(FinishRequest { owner, result, error: String::new(), missed: None })
    }

    /// Sends a request about a record in memory at `now`, and returns the answer.
    fn apply(slot: &mut StoreSlot, request: JobRequest, now: u64) -> JobAnswer {
        let reply = decode(&operation(request).apply(slot, now)).expect("a reply");
        assert_eq!(reply.now, now);
        reply.answer
    }

    /// Returns a record in which every field has a value.
    fn full_record() -> JobRecord {
        let tokens = TokenSource::of_process(1);
        let past = |slot, is_requested, result| PastRun {
            slot,
            is_requested,
            started: slot + 1,
            finished: slot + 2,
            result,
            node: "n".to_owned(),
            error: "a|b".to_owned(),
        };
        JobRecord {
            known: Some(1),
            slot: 5_000,
            attempt: 3,
            state: SlotState::Running,
            began: Some(5_001),
            skipped: 4_000,
            counted: 3_000,
            run: Some(ActiveRun {
                owner: tokens.next(),
                slot: 5_000,
                is_requested: true,
                started: 5_001,
                lease_end: 8_000,
                is_cancelled: true,
                node: "n".to_owned(),
            }),
            fence: 7,
            ended: Some(tokens.next()),
            waiting: Some(WaitingSlot { slot: 6_000, asked: 5_900 }),
            request: Some(5_500),
            is_paused: true,
            counters: JobCounters { runs: 1, failures: 2, skips: 3, missed: 4 },
            spec: "every 1000 ms".to_owned(),
            succeeded: Some((2_001, 2_000)),
            history: [
                past(4_000, true, RunResult::Lost),
                past(3_000, false, RunResult::Cancelled),
                past(2_000, false, RunResult::Succeeded),
                past(1_000, false, RunResult::Failed),
                past(500, false, RunResult::Unstarted),
            ]
            .into(),
        }
    }

    #[test]
    fn replies_are_read_as_they_were_written() {
        let (lease_left, slot) = (7, 8);
        let grant = RunGrant { slot, attempt: 2, counted: 5, fence: 6 };
        let begun = [
            BeginReply::Run(grant),
            BeginReply::Wait { lease_left },
            BeginReply::Missed { since: 9, is_running: false },
            BeginReply::Missed { since: 9, is_running: true },
            BeginReply::OtherTick,
            BeginReply::Skip(SkipReason::Paused),
            BeginReply::Skip(SkipReason::Running { lease_left }),
            BeginReply::Skip(SkipReason::Done),
            BeginReply::Skip(SkipReason::Late { slot }),
            BeginReply::Skip(SkipReason::Overlap { lease_left }),
            BeginReply::Skip(SkipReason::NotRequested),
            BeginReply::Skip(SkipReason::Ahead),
        ];
        let befores = [
            RecordBefore::default(),
            RecordBefore { spec: "every 1000 ms".to_owned(), decided: 3, is_requested: true },
        ];
        let begun = begun
            .into_iter()
            .flat_map(|reply| befores.clone().map(|before| JobAnswer::Begin { reply, before }));
        let owners = [OwnerReply::Owner, OwnerReply::Cancelled, OwnerReply::NotOwner];
        let states = [
            SlotState::None,
            SlotState::Running,
            SlotState::Done,
            SlotState::Failed,
            SlotState::Lost,
            SlotState::Unstarted,
        ];
        let records = states.map(|state| Some(Box::new(JobRecord { state, ..full_record() })));
        let answers = begun
            .chain(owners.map(JobAnswer::Owner))
            .chain(records.map(JobAnswer::Record))
            .chain(["", "every 1000 ms"].map(|spec| JobAnswer::Registered {
                record: Box::new(full_record()),
                spec_before: spec.to_owned(),
            }))
            .chain([JobAnswer::Record(None), JobAnswer::NoFence]);

        for answer in answers {
            let reply = JobReply { now: 42, answer };
            assert_eq!(decode(&encode(&reply)).as_ref(), Some(&reply));
        }
    }

    #[test]
    fn a_reply_that_no_script_gives_is_not_read() {
        let reply = |parts: &[&str]| {
            decode(&ScriptReply::Array(parts.iter().map(|part| ScriptReply::text(part)).collect()))
        };

        assert!(reply(&["42", "owner"]).is_some());
        for parts in [
            &[][..],
            &["x", "owner"],
            &["42"],
            &["42", "guest"],
            &["42", "skip", "late", "x", "", "", "", "0", ""],
            &["42", "skip", "other", "", "", "", "", "0", ""],
            &["42", "walk", "", "", "", "", "", "0", ""],
            &["42", "other", "", "", "", "", "", "x", ""],
        ] {
            assert_eq!(reply(parts), None, "{parts:?}");
        }
    }

    #[test]
    fn a_renewal_is_lost_unless_it_is_the_owners() {
        let reply = |owner| {
            lease_reply(&encode(&JobReply { now: 42, answer: JobAnswer::Owner(owner) })).expect("it is one")
        };

        assert_eq!(reply(OwnerReply::Owner), LeaseReply::Renewed);
        assert_eq!(reply(OwnerReply::Cancelled), LeaseReply::Lost(LossCause::Cancelled));
        assert_eq!(reply(OwnerReply::NotOwner), LeaseReply::Lost(LossCause::NotOwner));
        let no_fence = encode(&JobReply { now: 42, answer: JobAnswer::NoFence });
        for (reply, words) in [(ScriptReply::text("?"), "no usable reply"), (no_fence, "the field `fe`")] {
            let failure = lease_reply(&reply).expect_err("it renews nothing");
            assert!(failure.reason.contains(words), "{}", failure.reason);
        }
    }

    #[test]
    fn an_empty_record_has_no_fields() {
        assert_eq!(record_fields::of_record(&JobRecord::default()), []);
        let record = record_fields::of_record(&full_record());
        let fields: Vec<_> = record.iter().map(|(field, value)| (&**field, &**value)).collect();
        assert_eq!(record_fields::to_record(&fields), Some(full_record()));
    }

    /// Replicas that have not written a record cannot acknowledge it.
    #[test]
    fn all_requests_but_a_read_need_acknowledgments() {
        let writes = [
            finish(RunResult::Succeeded),
            JobRequest::SetPaused(true),
            JobRequest::RequestRun,
            JobRequest::Reset,
            JobRequest::Register { spec: String::new() },
        ];

        assert!(writes.into_iter().all(|request| operation(request).needs_acks()));
        assert!(!operation(JobRequest::Read).needs_acks());
    }

    #[test]
    fn only_the_end_of_a_run_that_did_not_start_is_a_cleanup() {
        assert!(undo_of_run(TokenSource::of_process(1).next(), 1_000).is_cleanup());
        for request in [finish(RunResult::Succeeded), finish(RunResult::Lost), JobRequest::Reset] {
            assert!(!operation(request).is_cleanup());
        }
        assert!(operation(JobRequest::Read).has_large_reply());
    }

    /// A record lives for its time to live after the last change, and reads do not extend it.
    #[test]
    fn a_record_in_memory_ends_after_its_time_to_live() {
        let mut slot = StoreSlot::default();
        let is_there = |slot: &mut StoreSlot, now| {
            matches!(apply(slot, JobRequest::Read, now), JobAnswer::Record(Some(_)))
        };
        assert!(!is_there(&mut slot, 5_000), "a read creates none");

        apply(&mut slot, JobRequest::SetPaused(true), 5_000);
        assert!(is_there(&mut slot, 5_999));
        assert!(!is_there(&mut slot, 6_000));

        apply(&mut slot, JobRequest::SetPaused(true), 7_000);
        apply(&mut slot, JobRequest::SetPaused(false), 7_400);
        apply(&mut slot, JobRequest::SetPaused(false), 7_500);
        assert!(is_there(&mut slot, 8_499) && !is_there(&mut slot, 8_500), "each write extends it");

        apply(&mut slot, JobRequest::SetPaused(true), 9_000);
        let short = JobOperation { request: JobRequest::SetPaused(false), ttl: 1 };
        short.apply(&mut slot, 9_500);
        assert!(is_there(&mut slot, 9_999) && !is_there(&mut slot, 10_000), "no change shortens it");
    }
}
