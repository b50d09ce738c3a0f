//! A [`JobRecord`] as the fields of a hash, which `job.lua` describes.

use std::collections::HashMap;

use crate::protocol::job::job_record::{
    ActiveRun, HISTORY, JobCounters, JobRecord, PastRun, RunResult, SlotState, WaitingSlot,
};
use crate::token::Token;

/// Returns how a script writes the end of a run.
pub(super) fn result_code(result: RunResult) -> &'static str {
    match result {
        RunResult::Succeeded => "S",
        RunResult::Failed => "F",
        RunResult::Cancelled => "C",
        RunResult::Lost => "L",
        RunResult::Unstarted => "U",
    }
}

fn result_of(code: &str) -> Option<RunResult> {
    Some(match code {
        "S" => RunResult::Succeeded,
        "F" => RunResult::Failed,
        "C" => RunResult::Cancelled,
        "L" => RunResult::Lost,
        "U" => RunResult::Unstarted,
        _ => return None,
    })
}

fn state_code(state: SlotState) -> Option<&'static str> {
    Some(match state {
        SlotState::None => return None,
        SlotState::Running => "R",
        SlotState::Done => "D",
        SlotState::Failed => "F",
        SlotState::Lost => "L",
        SlotState::Unstarted => "U",
    })
}

fn state_of(code: &str) -> Option<SlotState> {
    Some(match code {
        "R" => SlotState::Running,
        "D" => SlotState::Done,
        "F" => SlotState::Failed,
        "L" => SlotState::Lost,
        "U" => SlotState::Unstarted,
        _ => return None,
    })
}

/// Returns the fields of a record.
pub(super) fn of_record(record: &JobRecord) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut put = |field: &str, value: Option<String>| {
        fields.extend(value.map(|value| (field.to_owned(), value)));
    };
    let flag = |set: bool| set.then(|| "1".to_owned());
    let number = |number: u64| (number > 0).then(|| number.to_string());
    let JobCounters { runs, failures, skips, missed } = record.counters;
    put("k", record.known.map(|known| known.to_string()));
    put("s", number(record.slot));
    put("a", number(record.attempt.into()));
    put("t", state_code(record.state).map(str::to_owned));
    put("b", record.began.map(|began| began.to_string()));
    put("sk", number(record.skipped));
    put("co", number(record.counted));
    put("fe", number(record.fence));
    put("en", record.ended.map(|owner| owner.to_string()));
    put("w", record.waiting.map(|waiting| waiting.slot.to_string()));
    put("wt", record.waiting.map(|waiting| waiting.asked.to_string()));
    put("rr", record.request.map(|time| time.to_string()));
    put("p", flag(record.is_paused));
    put("cr", number(runs));
    put("cf", number(failures));
    put("cs", number(skips));
    put("cm", number(missed));
    put("sp", (!record.spec.is_empty()).then(|| record.spec.clone()));
    put("ok", record.succeeded.map(|(time, _)| time.to_string()));
    put("os", record.succeeded.map(|(_, slot)| slot.to_string()));
    put("hn", number(record.history.len() as u64));
    if let Some(run) = &record.run {
        put("o", Some(run.owner.to_string()));
        put("rs", Some(run.slot.to_string()));
        put("rq", flag(run.is_requested));
        put("st", Some(run.started.to_string()));
        put("le", Some(run.lease_end.to_string()));
        put("x", flag(run.is_cancelled));
        put("nd", Some(run.node.clone()));
    }
    for (at, past) in record.history.iter().rev().enumerate() {
        put(&format!("h{at}"), Some(past_to_text(past)));
    }
    fields
}

/// Reads the fields of a record. Returns `None` if they are not those of a record.
pub(super) fn to_record(fields: &[(&str, &str)]) -> Option<JobRecord> {
    let fields: HashMap<&str, &str> = fields.iter().copied().collect();
    let number = |field: &str| fields.get(field).map_or(Some(0), |value| value.parse::<u64>().ok());
    let optional = |field: &str| {
        fields.get(field).map(|value| value.parse::<u64>().ok()).map_or(Some(None), |value| value.map(Some))
    };
    let owner = |field: &str| fields.get(field).and_then(|value| Token::parse(value));
    let run = match owner("o") {
        None => None,
        Some(owner) => Some(ActiveRun {
            owner,
            slot: number("rs")?,
            is_requested: fields.contains_key("rq"),
            started: number("st")?,
            lease_end: number("le")?,
            is_cancelled: fields.contains_key("x"),
            node: fields.get("nd").copied().unwrap_or_default().to_owned(),
        }),
    };
    // The newest entry of the ring is the one before the next number.
    let (count, size) = (number("hn")?, HISTORY as u64);
    let newest_first = (count.saturating_sub(size)..count).rev().map(|at| format!("h{}", at % size));
    let history = newest_first.filter_map(|field| past_of_text(fields.get(field.as_str())?)).collect();
    Some(JobRecord {
        known: optional("k")?,
        slot: number("s")?,
        attempt: u32::try_from(number("a")?).ok()?,
        state: fields.get("t").map_or(Some(SlotState::None), |code| state_of(code))?,
        began: optional("b")?,
        skipped: number("sk")?,
        counted: number("co")?,
        run,
        fence: number("fe")?,
        ended: owner("en"),
        waiting: optional("w")?.zip(optional("wt")?).map(|(slot, asked)| WaitingSlot { slot, asked }),
        request: optional("rr")?,
        is_paused: fields.contains_key("p"),
        counters: JobCounters {
            runs: number("cr")?,
            failures: number("cf")?,
            skips: number("cs")?,
            missed: number("cm")?,
        },
        spec: fields.get("sp").copied().unwrap_or_default().to_owned(),
        succeeded: optional("ok")?.zip(optional("os")?),
        history,
    })
}

fn past_to_text(past: &PastRun) -> String {
    let PastRun { slot, is_requested, started, finished, result, node, error } = past;
    format!("{slot}|{}|{started}|{finished}|{}|{node}|{error}", u8::from(*is_requested), result_code(*result))
}

fn past_of_text(text: &str) -> Option<PastRun> {
    let mut parts = text.splitn(7, '|');
    let mut next = || parts.next();
    Some(PastRun {
        slot: next()?.parse().ok()?,
        is_requested: next()? == "1",
        started: next()?.parse().ok()?,
        finished: next()?.parse().ok()?,
        result: result_of(next()?)?,
        node: next()?.to_owned(),
        error: next()?.to_owned(),
    })
}
