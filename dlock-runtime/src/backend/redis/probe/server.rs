//! The queries to one server.
//!
//! See also `command_check` and `other_connections`, which try the commands that locks need.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::backend::redis::probe::command_check::{self, CommandCheck};
use crate::backend::redis::probe::other_connections;
use crate::backend::redis::probe::session::{ProbeSession, ProbeTimeout};
use crate::backend::redis::topology::quorum::membership::ServerUptime;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::doctor::facts::{Deployment, Info, Offset, Part, Read, Refusal, Server, ServerReplies, Unreached};
use crate::printable::shortened;

/// Sends all queries to one server.
pub(super) async fn ask(
    route: &ConnectTarget,
    part: Part,
    usage: &CommandCheck,
    timeout: ProbeTimeout,
) -> Server {
    let replies = replies(route, part, usage, timeout).await;
    Server { address: route.shown.to_string(), part, replies }
}

async fn replies(
    route: &ConnectTarget,
    part: Part,
    usage: &CommandCheck,
    timeout: ProbeTimeout,
) -> Result<ServerReplies, Unreached> {
    let mut session = ProbeSession::connect(route, timeout).await?;
    let since = Instant::now();
    if let Value::ServerError(error) =
        session.ask(&redis::cmd("PING")).await.map_err(|refusal| Unreached::passing(refusal.said))?
        && error.code() == "NOAUTH"
    {
        return Err(route.failure(error.into()).into()); // it rejects all other commands too
    }
    let timeout = timeout.with_distance(since.elapsed(), usage.ack_limit());
    session.timeout = timeout;
    let queries = async {
        let mut replies = ServerReplies {
            info: info(&mut session, usage).await,
            settings: settings(&mut session).await,
            clock: clock(&mut session).await,
            pings: Vec::new(),
            acks: None,
            probes: Vec::new(),
            record_probes: Vec::new(),
        };
        if part == Part::Master {
            replies.probes = command_check::all(&mut session, usage).await;
            replies.record_probes = command_check::of_records(&mut session, usage, &replies.probes).await;
            replies.pings = pings(&mut session).await;
            // Last, as it may use up the time.
            replies.acks = command_check::acks(&mut session, usage, &replies.probes).await;
        }
        replies
    };
    let others = async {
        match part {
            Part::Master => other_connections::all(route, usage, timeout).await,
            Part::Replica => Vec::new(),
        }
    };
    let (mut replies, mut others) = tokio::join!(queries, others);
    other_connections::remove_unused(&mut others, usage, &replies.probes);
    replies.probes.extend(others);
    Ok(replies)
}

/// Reads `INFO`. In a quorum, a server must report by it what gives it a vote.
async fn info(session: &mut ProbeSession<'_>, usage: &CommandCheck) -> Result<Info, Refusal> {
    let text = session.ask_text(&redis::cmd("INFO")).await?;
    if usage.topology == Deployment::Quorum && ServerUptime::read(&text).is_none() {
        return Err(Refusal::other("it does not report `run_id` and `uptime_in_seconds`"));
    }
    Ok(Info(text))
}

/// Reads settings one by one: Redis before 7.0 accepts only one name, and a pattern would return
/// passwords.
async fn settings(session: &mut ProbeSession<'_>) -> Vec<(&'static str, Read<String>)> {
    let mut questions = redis::pipe();
    for name in SETTINGS {
        questions.cmd("CONFIG").arg("GET").arg(name);
    }
    let replies = session.ask_all(&questions).await;
    let value = |reply: Result<Value, Refusal>| match reply? {
        Value::Array(pair) if pair.len() == 2 => {
            let value = session.text(Ok(pair.into_iter().nth(1).unwrap_or(Value::Nil)));
            value.map(|value| shortened(&value).into_owned())
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
    let (begun, mut pings) = (Instant::now(), Vec::with_capacity(PINGS));
    while pings.len() < PINGS && begun.elapsed() < LONGEST_PINGING {
        let since = Instant::now();
        let reply = session.ask(&redis::cmd("PING")).await;
        let took = since.elapsed();
        // The time of a late reply is a lower bound; a lost connection took no time.
        if reply.is_ok() || took >= session.route.response_timeout {
            pings.push(took);
        }
        if reply.is_err() {
            break;
        }
    }
    pings
}

fn as_micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Settings that `INFO` does not contain.
const SETTINGS: [&str; 6] = [
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "stop-writes-on-bgsave-error",
    "min-replicas-to-write",
    "min-replicas-max-lag",
];
const CLOCK_SAMPLES: usize = 3;
const PINGS: usize = 100;
const LONGEST_PINGING: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::redis::tests::resp::{OK, bulk, list, primary};
    use crate::backend::redis::tests::scripted_server::{LIMIT, ScriptedServer, patient};
    use crate::config::Settings;
    use crate::doctor::facts::Probe;
    use crate::layout::Layout;

    async fn asked(server: &ScriptedServer, part: Part) -> Result<ServerReplies, Unreached> {
        let route = ConnectTarget::new(server.spec(), &patient());
        let usage = CommandCheck::new(Deployment::One, &patient());
        let replied = ask(&route, part, &usage, ProbeTimeout::new(LIMIT)).await;
        assert_eq!((replied.address, replied.part), (server.address().to_string(), part));
        replied.replies
    }

    /// Replies to `TIME` with this time since 1970.
    fn time(since_epoch: Duration) -> String {
        list(&[&since_epoch.as_secs().to_string(), &since_epoch.subsec_micros().to_string()])
    }

    fn now() -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970")
    }

    async fn clock_of(server: &ScriptedServer) -> Read<Offset> {
        let route = ConnectTarget::new(server.spec(), &patient());
        let mut session = ProbeSession::connect(&route, ProbeTimeout::new(LIMIT)).await.expect("it accepts");
        clock(&mut session).await
    }

    async fn pings_of(server: &ScriptedServer, settings: &Settings) -> Vec<Duration> {
        let route = ConnectTarget::new(server.spec(), settings);
        let mut session = ProbeSession::connect(&route, ProbeTimeout::new(LIMIT)).await.expect("it accepts");
        pings(&mut session).await
    }

    #[tokio::test]
    async fn a_server_is_asked_for_all_that_doctor_reads() {
        let server = ScriptedServer::start(|command| match command {
            "INFO" => bulk("role:master\r\n"),
            "TIME" => time(now()),
            "CONFIG GET save" => list(&["save", "3600 1"]),
            "CONFIG GET appendfsync" => list(&[]),
            "CONFIG GET min-replicas-to-write" => "-NOPERM no\r\n".to_owned(),
            _ => primary(command),
        });

        let replies = asked(&server, Part::Master).await.expect("it replies");

        assert_eq!(replies.info.as_ref().map(|info| &*info.0).ok(), Some("role:master\r\n"));
        assert_eq!(replies.setting("save"), Ok("3600 1"));
        assert_eq!(replies.setting("appendfsync"), Err("this server does not have it".into()));
        assert_eq!(replies.setting("min-replicas-to-write"), Err("NOPERM no".into()));
        assert_eq!(replies.settings.len(), SETTINGS.len());
        assert!(replies.clock.is_ok() && !replies.pings.is_empty(), "{replies:?}");
        assert!(!replies.probes.is_empty(), "{replies:?}");
        assert!(server.was_asked("SUBSCRIBE dlock:grant:"));
    }

    #[tokio::test]
    async fn a_server_of_a_quorum_must_report_its_uptime() {
        for (text, topology, is_read) in [
            ("run_id:a\r\n", Deployment::One, true),
            ("run_id:a\r\n", Deployment::Quorum, false),
            ("run_id:a\r\nuptime_in_seconds:7\r\n", Deployment::Quorum, true),
        ] {
            let server = ScriptedServer::start(move |command| match command {
                "INFO" => bulk(text),
                _ => primary(command),
            });
            let route = ConnectTarget::new(server.spec(), &patient());
            let usage = CommandCheck::new(topology, &patient());

            let replies = ask(&route, Part::Master, &usage, ProbeTimeout::new(LIMIT)).await.replies;

            let info = replies.expect("it replies").info;
            assert_eq!(info.is_ok(), is_read, "{topology:?} {text}: {info:?}");
        }
    }

    #[tokio::test]
    async fn sharded_channels_are_examined_if_releases_are_published_on_them() {
        for has_sharded in [true, false] {
            let server = ScriptedServer::start(move |command| match command.split(' ').next() {
                Some("HELLO") => Some("-ERR unknown command 'HELLO'\r\n".to_owned()),
                Some("SPUBLISH") if !has_sharded => Some("-ERR unknown command 'SPUBLISH'\r\n".to_owned()),
                Some("UNSUBSCRIBE") => None,
                _ => Some(primary(command)),
            });
            let settings = Settings { layout: Layout::Redisson, ..patient() };
            let route = ConnectTarget::new(server.spec(), &settings);
            let usage = CommandCheck::new(Deployment::Cluster, &settings);

            let replies = ask(&route, Part::Master, &usage, ProbeTimeout::new(LIMIT)).await.replies;

            let probes = replies.expect("it replies").probes;
            let is_lacking = |probe: &Probe| probe.command == "SSUBSCRIBE" && probe.reply.is_err();
            assert_eq!(probes.iter().any(is_lacking), has_sharded, "{probes:?}");
        }
    }

    #[tokio::test]
    async fn a_replica_is_not_tried() {
        let server = ScriptedServer::start(primary);

        let replies = asked(&server, Part::Replica).await.expect("it replies");

        assert!(replies.pings.is_empty() && replies.probes.is_empty(), "{replies:?}");
        assert!(replies.record_probes.is_empty(), "{replies:?}");
        assert!(!server.was_asked("SUBSCRIBE") && !server.was_asked("SET"));
    }

    #[tokio::test]
    async fn a_server_without_the_password_is_not_asked_further() {
        for (reply, is_reached) in [("-NOAUTH Authentication required.", false), ("-ERR no", true)] {
            let server = ScriptedServer::start(move |command| match command {
                "PING" => format!("{reply}\r\n"),
                _ => primary(command),
            });

            let replies = asked(&server, Part::Replica).await;

            assert_eq!(replies.is_ok(), is_reached, "{replies:?}");
            assert_eq!(server.was_asked("INFO"), is_reached);
        }
    }

    #[tokio::test]
    async fn the_clock_of_a_slow_server_is_known_within_half_a_round_trip() {
        const DELAY: Duration = Duration::from_millis(100);
        let server = ScriptedServer::start(|command| match command {
            "TIME" => {
                std::thread::sleep(DELAY); // it reads its clock at the end of the round trip
                time(now())
            }
            _ => primary(command),
        });
        let begun = Instant::now();

        let Offset { ahead, within } = clock_of(&server).await.expect("it tells its time");

        let shortest = begun.elapsed() / u32::try_from(CLOCK_SAMPLES).expect("it is few");
        assert!(within >= as_micros(DELAY / 2) && within <= as_micros(shortest / 2), "{within}");
        assert!(ahead.abs() <= within + 1_000, "{ahead} is more than {within}");
    }

    #[tokio::test]
    async fn the_shortest_round_trip_tells_the_time() {
        const DELAYS: [u64; CLOCK_SAMPLES] = [2_000, 0, 2_000];
        let calls = AtomicUsize::new(0);
        let server = ScriptedServer::start(move |command| match command {
            "TIME" => {
                let call = calls.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(DELAYS[call]));
                time(now() + Duration::from_secs([1_000, 2_000, 3_000][call]))
            }
            _ => primary(command),
        });

        let Offset { ahead, .. } = clock_of(&server).await.expect("it tells its time");

        assert!((ahead - 2_000_000_000).abs() <= 1_000_000, "{ahead} is not 2,000 s");
    }

    #[tokio::test]
    async fn a_reply_that_is_no_time_is_refused() {
        for reply in [OK, "-NOPERM no\r\n", "*1\r\n$1\r\n7\r\n", "*2\r\n$1\r\nx\r\n$1\r\n7\r\n"] {
            let server = ScriptedServer::start(move |_| reply.to_owned());

            assert!(clock_of(&server).await.is_err(), "{reply}");
        }
    }

    #[tokio::test]
    async fn a_server_is_pinged_a_hundred_times_or_for_a_second() {
        let server = ScriptedServer::start(primary);
        let begun = Instant::now();

        let pings = pings_of(&server, &patient()).await;

        assert!(pings.len() == PINGS || begun.elapsed() >= LONGEST_PINGING, "{}", pings.len());
        assert!((1..=PINGS).contains(&pings.len()));
        assert!(
            pings.iter().all(|ping| !ping.is_zero()) && pings.iter().sum::<Duration>() <= begun.elapsed()
        );
    }

    #[tokio::test]
    async fn pings_end_with_the_first_that_is_not_answered() {
        const TIMEOUT: Duration = Duration::from_secs(3);
        for (is_closed, samples) in [(false, 2), (true, 1)] {
            let calls = AtomicUsize::new(0);
            let server = ScriptedServer::start(move |command| match command {
                "PING" if calls.fetch_add(1, Ordering::SeqCst) == 1 => (!is_closed).then(String::new),
                _ => Some(primary(command)),
            });
            let mut settings = patient();
            settings.rules.response_timeout = TIMEOUT;

            let pings = pings_of(&server, &settings).await;

            assert_eq!(pings.len(), samples, "{pings:?}");
            assert!(is_closed || pings[1] >= TIMEOUT, "{pings:?}");
        }
    }
}
