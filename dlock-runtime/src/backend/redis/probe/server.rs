//! The queries to one server.
//!
//! See also `command_check`, which tries the commands that locks need.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::backend::redis::probe::command_check::{self, CommandCheck};
use crate::backend::redis::probe::session::{ProbeSession, ProbeTimeout};
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::doctor::facts::{Info, Offset, Part, Read, Server, ServerReplies};

/// Sends all queries to one server.
pub(super) async fn ask(
    route: &ConnectTarget,
    part: Part,
    usage: &CommandCheck,
    timeout: ProbeTimeout,
) -> Server {
    let queries = async {
        let mut session = ProbeSession::connect(route, timeout).await?;
        let since = Instant::now();
        if let Value::ServerError(error) = session.ask(&redis::cmd("PING")).await?
            && error.code() == "NOAUTH"
        {
            return Err(route.failure(error.into()).reason); // it rejects all other commands too
        }
        session.timeout = timeout.with_distance(since.elapsed());
        let info = session.ask(&redis::cmd("INFO")).await;
        let info = session.text(info).map(Info);
        let settings = settings(&mut session).await;
        let clock = clock(&mut session).await;
        let (mut probes, mut record_probes, mut pings) = (Vec::new(), Vec::new(), Vec::new());
        if part == Part::Master {
            probes = command_check::all(&mut session, usage).await;
            record_probes = command_check::of_records(&mut session, usage, &probes).await;
            pings = self::pings(&mut session).await;
        }
        Ok(ServerReplies { info, settings, clock, pings, listening: Ok(()), probes, record_probes })
    };
    let listening = async {
        match part {
            Part::Master => timeout.wait(route.subscribe(&usage.channel())).await.map(drop),
            Part::Replica => Ok(()),
        }
    };
    let (replies, listening) = tokio::join!(queries, listening);
    let replies = replies.map(|replies| ServerReplies { listening, ..replies });
    Server { address: route.shown.to_string(), part, replies }
}

/// Reads settings one by one: Redis before 7.0 accepts only one name, and a pattern would return
/// passwords.
async fn settings(session: &mut ProbeSession<'_>) -> Vec<(&'static str, Read<String>)> {
    let mut questions = redis::pipe();
    for name in SETTINGS {
        questions.cmd("CONFIG").arg("GET").arg(name);
    }
    let replies = session.ask_all(&questions).await;
    let value = |reply: Read<Value>| match reply? {
        Value::Array(pair) if pair.len() == 2 => {
            session.text(Ok(pair.into_iter().nth(1).unwrap_or(Value::Nil)))
        }
        Value::Array(_) => Err(Arc::from("this server does not have it")),
        other => Err(session.refusal(other)),
    };
    SETTINGS.into_iter().zip(replies.into_iter().map(value)).collect()
}

/// Compares the server's clock with the local clock, using the shortest of three round trips.
async fn clock(session: &mut ProbeSession<'_>) -> Read<Offset> {
    let mut best: Option<Offset> = None;
    for _ in 0..CLOCK_SAMPLES {
        let (before, since) = (SystemTime::now(), Instant::now());
        let reply = session.ask(&redis::cmd("TIME")).await?;
        let took = since.elapsed();
        let Value::Array(time) = reply else { return Err(session.refusal(reply)) };
        let number = |at: usize| match time.get(at) {
            Some(Value::BulkString(text)) => std::str::from_utf8(text).ok()?.parse::<i64>().ok(),
            _ => None,
        };
        let Some((seconds, micros)) = number(0).zip(number(1)) else {
            return Err(session.refusal(Value::Nil));
        };
        // The server read its clock at an unknown point of the round trip: at the middle, plus or
        // minus half.
        let half = took / 2;
        let local = before.duration_since(UNIX_EPOCH).unwrap_or_default() + half;
        let remote = seconds.saturating_mul(1_000_000).saturating_add(micros);
        let offset = Offset { ahead: remote.saturating_sub(as_micros(local)), within: as_micros(half) };
        if best.is_none_or(|best| offset.within < best.within) {
            best = Some(offset);
        }
    }
    best.ok_or_else(|| "it was not asked".into())
}

/// Times up to 100 pings, one after another, for at most 1 s.
async fn pings(session: &mut ProbeSession<'_>) -> Vec<Duration> {
    let (begun, mut took) = (Instant::now(), Vec::with_capacity(PINGS));
    while took.len() < PINGS && begun.elapsed() < LONGEST_PINGING {
        let since = Instant::now();
        if session.ask(&redis::cmd("PING")).await.is_err() {
            took.push(since.elapsed()); // a lower bound
            break;
        }
        took.push(since.elapsed());
    }
    took
}

fn as_micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Settings that `INFO` does not contain.
const SETTINGS: [&str; 3] = ["appendfsync", "save", "min-replicas-to-write"];
const CLOCK_SAMPLES: usize = 3;
const PINGS: usize = 100;
const LONGEST_PINGING: Duration = Duration::from_secs(1);
