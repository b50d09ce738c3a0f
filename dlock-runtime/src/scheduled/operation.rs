//! [`JobOperation`], a request about a job's record, as a script for Redis and as the rule in
//! memory.
//!
//! ```text
//! {time, run, slot, attempt, counted, fence, ..} | {time, wait, lease left, ..} BeginReply
//!   | {time, skip, reason, detail, ..} | {time, missed, since, ..} | {time, other, ..}
//!   and at the end: {.., schedule of the last run, last slot, time of the request to run now}
//! {time, owner | cancelled | not_owner}                                        OwnerReply
//! {time, {field, value, ..}}                                                   JobRecord
//! ```

use std::any::Any;
use std::borrow::Cow;

use crate::backend::store_call::{StoreOperation, StoreScript, StoreSlot, shown, text};
use crate::error::LossCause;
use crate::protocol::command::ScriptReply;
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
    Begin { reply: BeginReply, before: RecordBefore },
    Owner(OwnerReply),
    Record(Option<Box<JobRecord>>),
}

/// The record before a request to begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordBefore {
    /// The schedule of the last run; empty if there was none.
    pub(super) spec: String,
    pub(super) slot: u64,
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
            if record != before {
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
            let (spec, slot) = (record.spec.clone(), record.slot);
            let reply = record.begin(now, begin);
            let before = RecordBefore { spec, slot, is_requested: record.request.is_some() };
            return JobAnswer::Begin { reply, before };
        }
        JobRequest::Renew { owner, lease } => return JobAnswer::Owner(record.renew(now, *owner, *lease)),
        JobRequest::Finish(end) => return JobAnswer::Owner(record.finish(now, end.clone())),
        JobRequest::Read => return JobAnswer::Record(exists.then(|| Box::new(record.clone()))),
        JobRequest::SetPaused(is_paused) => record.set_paused(now, *is_paused),
        JobRequest::Register { spec } => {
            record.register(now, spec);
            return JobAnswer::Record(Some(Box::new(record.clone())));
        }
        JobRequest::RequestRun => {
            let is_known = record.request_run(now);
            return JobAnswer::Owner(if is_known { OwnerReply::Owner } else { OwnerReply::NotOwner });
        }
        JobRequest::Reset => record.reset(now),
    }
    JobAnswer::Owner(OwnerReply::Owner)
}

fn begin_arguments(begin: &BeginRequest) -> [Cow<'_, [u8]>; 13] {
    let (kind, slot, (from, until), previous) = match begin.kind {
        BeginKind::Tick { slot, window, previous } => ("tick", slot, window, previous),
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

/// Writes a reply as the script does.
fn encode(reply: &JobReply) -> ScriptReply {
    let mut parts = vec![reply.now.to_string()];
    match &reply.answer {
        JobAnswer::Begin { reply, before } => {
            parts.extend(begin_parts(*reply));
            parts.resize(6, String::new());
            parts.extend([before.spec.clone(), before.slot.to_string()]);
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
        JobAnswer::Record(record) => {
            let fields = record.as_ref().map(|record| record_fields::of_record(record)).unwrap_or_default();
            let fields = fields.iter().flat_map(|(field, value)| [field, value]);
            let fields = ScriptReply::Array(fields.map(|part| ScriptReply::text(part)).collect());
            return ScriptReply::Array(vec![ScriptReply::text(&parts[0]), fields]);
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
        BeginReply::Missed { since } => parts("missed", &[since]),
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
    if let [_, ScriptReply::Array(fields)] = parts {
        let pairs = fields.chunks(2).map(|pair| Some((pair.first()?.as_text()?, pair.get(1)?.as_text()?)));
        let record = match pairs.collect::<Option<Vec<_>>>()? {
            fields if fields.is_empty() => None,
            fields => Some(Box::new(record_fields::to_record(&fields)?)),
        };
        return Some(JobReply { now, answer: JobAnswer::Record(record) });
    }
    let parts: Vec<&str> = parts.iter().map(ScriptReply::as_text).collect::<Option<_>>()?;
    let answer = match parts[1..] {
        ["owner"] => JobAnswer::Owner(OwnerReply::Owner),
        ["cancelled"] => JobAnswer::Owner(OwnerReply::Cancelled),
        ["not_owner"] => JobAnswer::Owner(OwnerReply::NotOwner),
        [what, a, b, c, d, spec, slot, requested] => JobAnswer::Begin {
            reply: decode_begin(what, [a, b, c, d])?,
            before: RecordBefore {
                spec: spec.to_owned(),
                slot: slot.parse().ok()?,
                is_requested: !requested.is_empty(),
            },
        },
        _ => return None,
    };
    Some(JobReply { now, answer })
}

/// Reads the reply to a renewal. Returns `None` if the script gives no such reply.
pub(super) fn lease_reply(reply: &ScriptReply) -> Option<LeaseReply> {
    Some(match decode(reply)?.answer {
        JobAnswer::Owner(OwnerReply::Owner) => LeaseReply::Renewed,
        JobAnswer::Owner(OwnerReply::Cancelled) => LeaseReply::Lost(LossCause::Cancelled),
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
        "missed" => BeginReply::Missed { since: a.parse().ok()? },
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

/// The end of a run whose body did not start.
pub(super) fn unstarted(owner: Token) -> JobRequest {
    let end = FinishRequest { owner, result: RunResult::Unstarted, error: String::new(), missed: None };
    JobRequest::Finish(end)
}
