//! What is asked of one server.
//!
//! Not here: which commands it lets us run (`probe`).

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::probe::probe::{self, CommandCheck};
use crate::backend::redis::probe::session::{ProbeSession, ProbeTimeout};
use crate::doctor::facts::{Answers, Info, Offset, Part, Read, Server};

/// Asks one server everything.
pub(super) async fn ask(
    route: &ConnectTarget,
    part: Part,
    usage: &CommandCheck,
    retry_state: ProbeTimeout,
) -> Server {
    let contender = async {
        let mut asker = ProbeSession::connect(route, retry_state).await?;
        let since = Instant::now();
        if let Value::ServerError(error) = asker.ask(&redis::cmd("PING")).await?
            && error.code() == "NOAUTH"
        {
            return Err(route.failure(error.into()).reason); // it answers nothing else, either
        }
        asker.retry_state = retry_state.with_distance(since.elapsed());
        let info = asker.ask(&redis::cmd("INFO")).await;
        let info = asker.text(info).map(Info);
        let settings = settings(&mut asker).await;
        let clock = clock(&mut asker).await;
        let (probes, pings) = match part {
            Part::Master => (probe::all(&mut asker, usage).await, pings(&mut asker).await),
            Part::Replica => (Vec::new(), Vec::new()),
        };
        Ok(Answers { info, settings, clock, pings, listening: Ok(()), probes })
    };
    let listening = async {
        match part {
            Part::Master => retry_state.wait(route.subscribe(&usage.channel())).await.map(drop),
            Part::Replica => Ok(()),
        }
    };
    let (answers, listening) = tokio::join!(contender, listening);
    let answers = answers.map(|answers| Answers { listening, ..answers });
    Server { address: route.shown.to_string(), part, answers }
}

/// Reads settings one by one: those of Redis before 7.0 cannot be asked for together, and a pattern would show passwords.
async fn settings(asker: &mut ProbeSession<'_>) -> Vec<(&'static str, Read<String>)> {
    let mut questions = redis::pipe();
    for name in SETTINGS {
        questions.cmd("CONFIG").arg("GET").arg(name);
    }
    let answers = asker.ask_all(&questions).await;
    let value = |answer: Read<Value>| match answer? {
        Value::Array(pair) if pair.len() == 2 => {
            asker.text(Ok(pair.into_iter().nth(1).unwrap_or(Value::Nil)))
        }
        Value::Array(_) => Err(Arc::from("this server does not have it")),
        other => Err(asker.refusal(other)),
    };
    SETTINGS.into_iter().zip(answers.into_iter().map(value)).collect()
}

/// Compares its clock with ours, by the question that took the shortest of a few.
async fn clock(asker: &mut ProbeSession<'_>) -> Read<Offset> {
    let mut best: Option<Offset> = None;
    for _ in 0..LOOKS_AT_THE_CLOCK {
        let (before, since) = (SystemTime::now(), Instant::now());
        let answer = asker.ask(&redis::cmd("TIME")).await?;
        let took = since.elapsed();
        let Value::Array(time) = answer else { return Err(asker.refusal(answer)) };
        let number = |at: usize| match time.get(at) {
            Some(Value::BulkString(text)) => std::str::from_utf8(text).ok()?.parse::<i64>().ok(),
            _ => None,
        };
        let Some((seconds, micros)) = number(0).zip(number(1)) else { return Err(asker.refusal(Value::Nil)) };
        // Where within the question it looked at its clock is not known: in the middle, give or take a half.
        let half = took / 2;
        let ours = before.duration_since(UNIX_EPOCH).unwrap_or_default() + half;
        let theirs = seconds.saturating_mul(1_000_000).saturating_add(micros);
        let offset = Offset { ahead: theirs.saturating_sub(as_micros(ours)), within: as_micros(half) };
        if best.is_none_or(|best| offset.within < best.within) {
            best = Some(offset);
        }
    }
    best.ok_or_else(|| "it was not asked".into())
}

/// Times pings, one after the other, until there are enough or it has taken long enough.
async fn pings(asker: &mut ProbeSession<'_>) -> Vec<Duration> {
    let (begun, mut took) = (Instant::now(), Vec::with_capacity(PINGS));
    while took.len() < PINGS && begun.elapsed() < LONGEST_PINGING {
        let since = Instant::now();
        if asker.ask(&redis::cmd("PING")).await.is_err() {
            took.push(since.elapsed()); // it took at least as long
            break;
        }
        took.push(since.elapsed());
    }
    took
}

fn as_micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// What `INFO` does not say.
const SETTINGS: [&str; 3] = ["appendfsync", "save", "min-replicas-to-write"];
const LOOKS_AT_THE_CLOCK: usize = 3;
const PINGS: usize = 100;
const LONGEST_PINGING: Duration = Duration::from_secs(1);
