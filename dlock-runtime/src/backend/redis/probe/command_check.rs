//! Tries the commands that locks need, as this user, on a separate key.
//!
//! The key is deleted afterwards, and expires after 5 s in any case.

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::codec;
use crate::backend::redis::encoding::plain::PlainEncoding;
use crate::backend::redis::encoding::{self, LockEncoding, ScriptParameters, ScriptTimes};
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::node::replica_acks;
use crate::backend::redis::probe::session::{self, ProbeSession};
use crate::backend::redis::transport::error_kind;
use crate::config::Settings;
use crate::doctor::facts::{Deployment, Need, Probe, Read, RecordNeed, Refusal};
use crate::key::{MARKER, Name};
use crate::layout::{Layout, Publish};
use crate::protocol::command::{Command, EnqueueMode};
use crate::token::TokenSource;

/// How a manager would use the server.
pub(super) struct CommandCheck {
    pub(super) topology: Deployment,
    pub(super) encoding: &'static dyn LockEncoding,
    /// Whether locks are strings.
    has_strings: bool,
    /// How long writes wait for replicas; `None` if no replica must acknowledge them.
    waits: Option<Duration>,
    /// Whether the manager uses client tracking.
    pub(super) tracks: bool,
    /// A name in the namespace that no lock has.
    pub(super) key: String,
    us: TokenSource,
    pub(super) namespaces: Namespaces,
}

impl CommandCheck {
    pub(super) fn new(topology: Deployment, settings: &Settings) -> Self {
        let encoding = match topology {
            Deployment::Quorum => &PlainEncoding,
            _ => encoding::of_settings(settings, topology == Deployment::Cluster),
        };
        let (us, namespace) = (TokenSource::new(), &settings.namespace);
        let separator = if namespace.is_empty() { "" } else { ":" };
        let key = format!("{namespace}{separator}{MARKER}doctor:{}", us.process().shown());
        let rules = &settings.rules;
        let namespaces = Namespaces::new(namespace);
        Self {
            topology,
            encoding,
            has_strings: topology == Deployment::Quorum || settings.layout == Layout::Native,
            waits: (rules.replica_acks > 0).then(|| replica_acks::ack_limit(rules.response_timeout)),
            tracks: rules.tracking,
            key,
            us,
            namespaces,
        }
    }

    /// Returns the same check for another key.
    pub(super) fn on(self, key: String) -> Self {
        Self { key, ..self }
    }

    /// Adds a request of a lock to a pipeline, with its script as text.
    fn encode(&self, request: &Request, questions: &mut Pipeline) {
        let parameters = ScriptParameters {
            namespaces: &self.namespaces,
            times: ScriptTimes { grant_lease: SHORT, fence_ttl: SHORT },
            loaded: None,
            extra: None,
        };
        self.encoding.encode(request, &parameters, questions);
    }

    /// Returns how long the check of acknowledgments may take.
    pub(super) fn ack_limit(&self) -> Duration {
        self.waits.unwrap_or_default()
    }

    /// Returns the channel that notifies waiters.
    pub(super) fn channel(&self) -> String {
        let channel = self.encoding.release_channel(&self.namespaces, &self.key);
        channel.unwrap_or_else(|| self.namespaces.own().grant_channel(self.us.process()))
    }
}

/// Acquires and releases a lock, and returns how many replicas acknowledge that in time, or why
/// that is unknown. `None` if no replica must, or if `of_locks` shows that one of the commands
/// fails.
pub(super) async fn acks(
    session: &mut ProbeSession<'_>,
    usage: &CommandCheck,
    of_locks: &[Probe],
) -> Option<Read<u64>> {
    let may_wait = of_locks.iter().any(|probe| probe.command == "WAIT" && probe.reply.is_ok());
    // `WAIT` would count the replicas that have an earlier write if one of these failed.
    let steps = || of_locks.iter().filter(|probe| probe.rule.is_none() && probe.need == Need::Locks);
    if !may_wait || steps().next().is_none() || !steps().all(|step| step.reply.is_ok()) {
        return None;
    }
    let (key, token, mut questions) = (Name::from(&*usage.key), usage.us.next(), redis::pipe());
    for command in [Command::Acquire { lease: SHORT }, Command::RELEASE] {
        usage.encode(&Request::new(Name::clone(&key), token, command), &mut questions);
    }
    questions.add_command(replica_acks::wait_command(session.route));
    let mut last = Value::Nil;
    for reply in session.ask_all(&questions).await {
        match reply {
            Ok(refusal @ Value::ServerError(_)) => return Some(Err(session.refusal(refusal))),
            Ok(reply) => last = reply,
            Err(refusal) => return Some(Err(refusal.said)),
        }
    }
    match last {
        Value::Int(count) if count >= 0 => Some(Ok(count.unsigned_abs())),
        other => Some(Err(session.refusal(other))),
    }
}

/// Tries each command separately, so that a rejected one can be named, and then as locks use them.
pub(super) async fn all(session: &mut ProbeSession<'_>, usage: &CommandCheck) -> Vec<Probe> {
    let mut probes = if usage.has_strings { of_strings(session, usage).await } else { Vec::new() };
    let others = tries(session, |to| {
        for (command, rule, not_with) in
            [("PUBLISH", "+publish", Publish::Spublish), ("SPUBLISH", "+spublish", Publish::Publish)]
        {
            if usage.encoding.publish() != not_with {
                to.command(command, rule, Need::Telling, &[command, &usage.channel(), ""]);
            }
        }
        if usage.topology.fails_over() {
            to.command("ROLE", "+role", Need::Locks, &["ROLE"]);
        }
        if usage.topology == Deployment::Cluster {
            to.command("ASKING", "+asking", Need::Locks, &["ASKING"]);
        }
        to.command("CLIENT SETNAME", "+client|setname", Need::Owner, &["CLIENT", "SETNAME", "dlock-doctor"]);
        if usage.waits.is_some() {
            to.command("WAIT", "+wait", Need::Locks, &["WAIT", "0", "1"]);
        }
    });
    let mut others = others.await;
    if usage.encoding.publish() == Publish::Auto {
        // One of the two is enough: without sharded channels there is no SPUBLISH; with them, only
        // SPUBLISH reaches the subscribers.
        let has_none = |probe: &Probe| {
            probe.command == "SPUBLISH" && probe.reply.as_ref().is_err_and(Refusal::is_unknown)
        };
        let unused = if others.iter().any(has_none) { "SPUBLISH" } else { "PUBLISH" };
        others.retain(|probe| probe.command != unused);
    }
    probes.extend(others);
    if probes.iter().all(|probe| probe.reply.is_ok() || probe.need != Need::Locks) {
        probes.extend(tries(session, |to| to.live_through(usage)).await);
    }
    probes
}

/// Tries the commands that the scripts of an encoding with strings call.
async fn of_strings(session: &mut ProbeSession<'_>, usage: &CommandCheck) -> Vec<Probe> {
    let (key, token, counter) = (&*usage.key, usage.us.next().to_string(), codec::counter(&usage.key));
    let mut probes = tries(session, |to| {
        to.command("PING", "+ping", Need::Locks, &["PING"]);
        to.command("SET", "+set", Need::Locks, &["SET", key, &token, "NX", "PX", LIFE]);
        to.command("PEXPIRE", "+pexpire", Need::Locks, &["PEXPIRE", key, LIFE]);
    })
    .await;
    let may_append = probes.iter().all(|probe| probe.reply.is_ok());
    probes.extend(
        tries(session, |to| {
            to.command("GETRANGE", "+getrange", Need::Locks, &["GETRANGE", key, "0", "0"]);
            to.command("PTTL", "+pttl", Need::Locks, &["PTTL", key]);
            // Without the key, APPEND would create a key that never expires.
            if may_append {
                to.creating("APPEND", "+append", Need::Locks, &["APPEND", key, &token]);
            }
            to.command("SCRIPT LOAD", "+script|load", Need::ScriptNames, &["SCRIPT", "LOAD", SCRIPT]);
            to.command("EVAL", "+eval", Need::Locks, &["EVAL", SCRIPT, "1", key]);
            to.command("EVALSHA", "+evalsha", Need::ScriptNames, &["EVALSHA", NO_SCRIPT, "1", key]);
            to.command("TIME", "+time", Need::Fencing, &["TIME"]);
            to.command("SET", "+set", Need::Fencing, &["SET", &counter, "0", "PX", "1"]);
            to.command("DEL", "+del", Need::Locks, &["DEL", key]);
        })
        .await,
    );
    if probes.iter().any(|probe| probe.command == "SCRIPT LOAD" && probe.reply.is_err()) {
        probes.retain(|probe| probe.command != "EVALSHA"); // then locks do not use it
    }
    probes
}

/// Tries the commands of records, on a key that expires. `of_locks` are the commands of locks.
pub(super) async fn of_records(
    session: &mut ProbeSession<'_>,
    usage: &CommandCheck,
    of_locks: &[Probe],
) -> Vec<Probe<RecordNeed>> {
    let keeps_records = cfg!(any(feature = "idempotent", feature = "scheduled"));
    let can_expire = of_locks.iter().any(|probe| probe.command == "PEXPIRE" && probe.reply.is_ok());
    if !keeps_records || !can_expire || usage.topology == Deployment::Quorum {
        return Vec::new();
    }
    let key = &*format!("{}:record", codec::counter(&usage.key));
    let mut probes = tries(session, |to| {
        use RecordNeed::{Calls, CallsAndJobs};
        to.creating("HSET", "+hset", CallsAndJobs, &["HSET", key, "a", "1"]);
        to.command("HGET", "+hget", Calls, &["HGET", key, "a"]);
        to.command("HLEN", "+hlen", CallsAndJobs, &["HLEN", key]);
        to.command("MEMORY USAGE", "+memory|usage", CallsAndJobs, &["MEMORY", "USAGE", key]);
        to.command("HMGET", "+hmget", CallsAndJobs, &["HMGET", key, "a"]);
        to.command("HGETALL", "+hgetall", CallsAndJobs, &["HGETALL", key]);
        to.command("EXISTS", "+exists", Calls, &["EXISTS", key]);
        to.command("HDEL", "+hdel", CallsAndJobs, &["HDEL", key, "a"]);
        to.command("DEL", "+del", CallsAndJobs, &["DEL", key]);
    })
    .await;
    probes.retain(|probe| probe.command != "DEL"); // locks need it too
    probes
}

/// Sends the commands that `name` adds in one pipeline, and returns their outcomes.
async fn tries<N>(session: &mut ProbeSession<'_>, name: impl FnOnce(&mut Attempts<N>)) -> Vec<Probe<N>> {
    let mut tries = Attempts { named: Vec::new(), queries: Vec::new() };
    name(&mut tries);
    let replies = session.ask_each(&tries.queries).await;
    let probe =
        |((command, rule, need), reply)| Probe { command, rule, need, reply: outcome(session, reply) };
    tries.named.into_iter().zip(replies).map(probe).collect()
}

struct Attempts<N> {
    named: Vec<(&'static str, Option<&'static str>, N)>,
    /// Each command, with what must follow it.
    queries: Vec<Pipeline>,
}

impl<N> Attempts<N> {
    fn command(&mut self, command: &'static str, rule: &'static str, need: N, words: &[&str]) {
        self.named.push((command, Some(rule), need));
        let mut query = redis::pipe();
        query.cmd(words[0]).arg(&words[1..]);
        self.queries.push(query);
    }

    /// Adds a command that may create the key `words[1]`, which never expires without the
    /// `PEXPIRE` that follows.
    fn creating(&mut self, command: &'static str, rule: &'static str, need: N, words: &[&str]) {
        self.command(command, rule, need, words);
        if let Some(query) = self.queries.last_mut() {
            query.cmd("PEXPIRE").arg(words[1]).arg(LIFE);
        }
    }
}

impl Attempts<Need> {
    /// Acquires, renews, and releases a lock with the real scripts. Without a fencing token, whose
    /// counter would remain.
    fn live_through(&mut self, usage: &CommandCheck) {
        let (key, token) = (Name::from(&*usage.key), usage.us.next());
        for (name, command) in [
            ("acquiring a lock", Command::Acquire { lease: SHORT }),
            ("renewing it", Command::Renew { lease: SHORT }),
            ("waiting for it", Command::Enqueue { lease: SHORT, mode: EnqueueMode::TryOnly }),
            ("inspecting it", Command::Inspect),
            ("releasing it", Command::RELEASE),
        ] {
            // An inspection reads the fencing counter.
            let need = if command == Command::Inspect { Need::Fencing } else { Need::Locks };
            self.named.push((name, None, need));
            let mut query = redis::pipe();
            usage.encode(&Request::new(Name::clone(&key), token, command), &mut query);
            self.queries.push(query);
        }
    }
}

fn outcome(session: &ProbeSession<'_>, reply: Result<Value, Refusal>) -> Result<(), Refusal> {
    match reply? {
        // The script does not exist, but EVALSHA is allowed.
        reply if error_kind::is_unknown_script(&reply) => Ok(()),
        Value::ServerError(error) => Err(session::refusal(session.route, &error)),
        _ => Ok(()),
    }
}

/// Commands that scripts call are tried separately, so that a rejected one can be named.
const SCRIPT: &str = "return 1";
/// No script has this hash.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";
/// The time to live of the test key in milliseconds, in case it is not deleted.
const LIFE: &str = "5000";
const SHORT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::redis::probe::session::ProbeTimeout;
    use crate::backend::redis::tests::resp::OK;
    use crate::backend::redis::tests::scripted_server::{LIMIT, ScriptedServer, patient};
    use crate::backend::redis::transport::connect_target::ConnectTarget;

    const STRINGS: &str = "PING SET PEXPIRE GETRANGE PTTL APPEND SCRIPT-LOAD EVAL EVALSHA TIME SET DEL";
    const STEPS: &str = "acquiring-a-lock renewing-it waiting-for-it inspecting-it releasing-it";

    /// The outcome of a check of a server that gives `replies` to commands that start so, and `OK`
    /// to all others.
    async fn checked(
        topology: Deployment,
        settings: &Settings,
        replies: &'static [(&str, &str)],
    ) -> (Vec<Probe>, Vec<Probe<RecordNeed>>) {
        let server = ScriptedServer::start(|command| {
            let reply = replies.iter().find(|(start, _)| command.starts_with(start));
            reply.map_or(OK.to_owned(), |(_, reply)| format!("{reply}\r\n"))
        });
        let route = ConnectTarget::new(server.spec(), settings);
        let mut session = ProbeSession::connect(&route, ProbeTimeout::new(LIMIT)).await.expect("it accepts");
        let usage = CommandCheck::new(topology, settings);
        let probes = all(&mut session, &usage).await;
        let of_records = of_records(&mut session, &usage, &probes).await;
        assert!(server.was_asked("CLIENT SETNAME dlock-doctor"));
        (probes, of_records)
    }

    fn names<N>(probes: &[Probe<N>]) -> String {
        let names: Vec<_> = probes.iter().map(|probe| probe.command.replace(' ', "-")).collect();
        names.join(" ")
    }

    #[tokio::test]
    async fn the_commands_that_a_manager_needs_are_tried() {
        let (native, redisson) = (patient(), Settings { layout: Layout::Redisson, ..patient() });
        let publish = |publish| Settings { publish, ..redisson.clone() };
        let mut acknowledged = native.clone();
        acknowledged.rules.replica_acks = 1;
        let no_sharded: &[_] = &[("SPUBLISH", "-ERR unknown command 'SPUBLISH'")];
        let not_allowed: &[_] = &[("SPUBLISH", "-NOPERM no")];

        for (topology, settings, replies, expected) in [
            (Deployment::One, &native, &[][..], "STRINGS PUBLISH CLIENT-SETNAME STEPS"),
            (Deployment::One, &acknowledged, &[], "STRINGS PUBLISH CLIENT-SETNAME WAIT STEPS"),
            (Deployment::Sentinels, &native, &[], "STRINGS PUBLISH ROLE CLIENT-SETNAME STEPS"),
            (Deployment::Cluster, &native, &[], "STRINGS PUBLISH ROLE ASKING CLIENT-SETNAME STEPS"),
            (Deployment::Quorum, &redisson, &[], "STRINGS PUBLISH CLIENT-SETNAME STEPS"),
            (Deployment::One, &redisson, &[], "PUBLISH CLIENT-SETNAME STEPS"),
            (Deployment::One, &publish(Publish::Both), &[], "PUBLISH SPUBLISH CLIENT-SETNAME STEPS"),
            (Deployment::One, &publish(Publish::Spublish), &[], "SPUBLISH CLIENT-SETNAME STEPS"),
            (Deployment::Cluster, &redisson, &[], "SPUBLISH ROLE ASKING CLIENT-SETNAME STEPS"),
            (Deployment::Cluster, &redisson, no_sharded, "PUBLISH ROLE ASKING CLIENT-SETNAME STEPS"),
            (Deployment::Cluster, &redisson, not_allowed, "SPUBLISH ROLE ASKING CLIENT-SETNAME STEPS"),
        ] {
            let (probes, _) = checked(topology, settings, replies).await;

            let expected = expected.replace("STRINGS", STRINGS).replace("STEPS", STEPS);
            assert_eq!(names(&probes), expected, "{topology:?}, {:?}", settings.publish);
        }
    }

    #[tokio::test]
    async fn a_command_that_locks_need_is_named_before_they_are_used() {
        use crate::doctor::facts::RefusalCause::{NotPermitted, Other};
        let refused: &[_] = &[
            ("SET", "-NOPERM no"),
            ("PTTL", "-ERR busy"),
            ("EVALSHA", "-NOSCRIPT none"),
            ("PUBLISH", "-NOPERM no"),
        ];
        let (probes, _) = checked(Deployment::One, &patient(), refused).await;

        let failed: Vec<_> = probes
            .iter()
            .filter_map(|probe| {
                let refusal = probe.reply.as_ref().err()?;
                Some((probe.command, refusal.cause, &*refusal.said))
            })
            .collect();
        assert_eq!(
            failed,
            [
                ("SET", NotPermitted, "NOPERM no"),
                ("PTTL", Other, "ERR busy"),
                ("SET", NotPermitted, "NOPERM no"),
                ("PUBLISH", NotPermitted, "NOPERM no"),
            ]
        );
        let tried = names(&probes);
        assert!(!tried.contains("APPEND"), "without the key, it would create one: {tried}");
        assert!(!tried.contains("acquiring"), "{tried}");
    }

    #[tokio::test]
    async fn evalsha_is_not_needed_without_script_load() {
        let refused: &[_] = &[("SCRIPT LOAD", "-NOPERM no"), ("EVALSHA", "-NOPERM no")];

        let (probes, _) = checked(Deployment::One, &patient(), refused).await;

        let failed: Vec<_> = probes.iter().filter(|probe| probe.reply.is_err()).collect();
        assert!(failed.len() == 1 && failed[0].command == "SCRIPT LOAD", "{failed:?}");
    }

    #[tokio::test]
    async fn locks_are_used_if_only_another_purpose_is_refused() {
        let (probes, _) = checked(Deployment::One, &patient(), &[("PUBLISH", "-NOPERM no")]).await;

        let steps: Vec<_> = probes.iter().filter(|probe| probe.rule.is_none()).collect();
        let needs: Vec<_> = steps.iter().map(|step| step.need).collect();
        assert_eq!(needs, [Need::Locks, Need::Locks, Need::Locks, Need::Fencing, Need::Locks]);
    }

    #[tokio::test]
    async fn replicas_are_counted_if_they_must_acknowledge() {
        let mut settings = patient();
        settings.rules.replica_acks = 2;
        let limit = replica_acks::ack_limit(settings.rules.response_timeout).as_millis();
        let counts = format!("WAIT 2 {limit}");
        for (start, reply, expected) in [
            ("WAIT", ":1", Some(Ok(1))),
            ("WAIT", ":2", Some(Ok(2))),
            ("WAIT 2", "-ERR too late", Some(Err("ERR too late".into()))),
            ("WAIT 2", "+OK", Some(Err("it gave an unexpected reply".into()))),
            ("WAIT", "-NOPERM no", None),
            ("WAIT", "-ERR no", None),
            ("EVAL", "-ERR no", None),
        ] {
            let server = ScriptedServer::start(move |command| match command {
                // The script with which `EVAL` is tried alone is accepted.
                _ if command.starts_with(start) && !command.contains(SCRIPT) => format!("{reply}\r\n"),
                _ => OK.to_owned(),
            });
            let route = ConnectTarget::new(server.spec(), &settings);
            let mut session =
                ProbeSession::connect(&route, ProbeTimeout::new(LIMIT)).await.expect("it accepts");
            let usage = CommandCheck::new(Deployment::One, &settings);
            let probes = all(&mut session, &usage).await;

            let counted = acks(&mut session, &usage, &probes).await;

            assert_eq!(server.was_asked(&counts), expected.is_some(), "{start}: {reply}");
            assert_eq!(counted, expected, "{start}: {reply}");
        }
    }

    #[tokio::test]
    async fn records_are_tried_if_their_key_can_expire() {
        const OF_RECORDS: &str = "HSET HGET HLEN MEMORY-USAGE HMGET HGETALL EXISTS HDEL";
        let keeps_records = cfg!(any(feature = "idempotent", feature = "scheduled"));

        for (topology, replies, is_tried) in [
            (Deployment::One, &[][..], keeps_records),
            (Deployment::One, &[("PEXPIRE", "-NOPERM no")], false),
            (Deployment::Quorum, &[], false),
        ] {
            let (_, of_records) = checked(topology, &patient(), replies).await;

            assert_eq!(names(&of_records), if is_tried { OF_RECORDS } else { "" }, "{topology:?}");
        }
    }

    /// Otherwise the key would remain if the examination ended between the two.
    #[tokio::test]
    async fn a_command_that_creates_a_key_is_sent_with_its_expiry() {
        let expiries = AtomicUsize::new(0);
        let server = ScriptedServer::start(move |command| {
            let is_first = !command.starts_with("PEXPIRE") || expiries.fetch_add(1, Ordering::SeqCst) == 0;
            is_first.then(|| OK.to_owned()) // it closes the connection on each later `PEXPIRE`
        });
        let (route, usage) =
            (ConnectTarget::new(server.spec(), &patient()), CommandCheck::new(Deployment::One, &patient()));
        let mut session = ProbeSession::connect(&route, ProbeTimeout::new(LIMIT)).await.expect("it accepts");

        let mut probes = all(&mut session, &usage).await;
        let mut of_records = of_records(&mut session, &usage, &probes).await;

        probes.retain(|probe| probe.reply.is_err());
        of_records.retain(|probe| probe.reply.is_err());
        let keeps_records = cfg!(any(feature = "idempotent", feature = "scheduled"));
        let expected = ("APPEND".to_owned(), if keeps_records { "HSET" } else { "" }.to_owned());
        assert_eq!((names(&probes), names(&of_records)), expected);
    }

    #[test]
    fn a_check_uses_a_key_that_no_lock_has() {
        let redisson = Settings { layout: Layout::Redisson, namespace: String::new(), ..patient() };
        let (native, redisson) = (
            CommandCheck::new(Deployment::One, &patient()),
            CommandCheck::new(Deployment::Cluster, &redisson),
        );
        assert!(native.key.starts_with("dlock:##doctor:"), "{}", native.key);
        assert!(redisson.key.starts_with("##doctor:"), "{}", redisson.key);
        assert!(native.channel().starts_with("dlock:grant:"), "{}", native.channel());

        let other = redisson.on("{other}".to_owned());

        assert_eq!(other.key, "{other}");
        assert!(other.channel().contains("{other}"), "{}", other.channel());
    }
}
