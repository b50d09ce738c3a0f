//! The commands that locks need, tried as this user on a key of its own, which is deleted again and would end by itself.
//!
//! Not here: what it means where one is refused (`doctor`).

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::encoding::codec;
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::probe::session::ProbeSession;
use crate::config::Settings;
use crate::doctor::facts::{Need, Probe, Read, Refusal, Topology};
use crate::key::{MARKER, Name};
use crate::layout::Publish;
use crate::protocol::command::{Command, EnqueueMode};
use crate::token::TokenSource;

/// How the server is going to be used, and by whom.
pub(super) struct CommandCheck {
    topology: Topology,
    pub(super) layout: LockEncoding,
    /// Whether replicas are waited for.
    waits: bool,
    /// Whether we are told of what is done to keys.
    tracks: bool,
    /// A name in the namespace that no lock has.
    pub(super) key: String,
    us: TokenSource,
    pub(super) namespaces: Namespaces,
}

impl CommandCheck {
    pub(super) fn new(topology: Topology, settings: &Settings) -> Self {
        let layout = match (topology, settings.layout) {
            (Topology::Quorum, _) => LockEncoding::Plain,
            (_, crate::Layout::Native) => LockEncoding::Native,
            (Topology::Cluster, crate::Layout::Redisson) => LockEncoding::Redisson(settings.publish),
            (_, crate::Layout::Redisson) => LockEncoding::Redisson(Publish::Publish),
        };
        let (us, namespace) = (TokenSource::new(), &settings.namespace);
        let separator = if namespace.is_empty() { "" } else { ":" };
        let key = format!("{namespace}{separator}{MARKER}doctor:{}", us.process().shown());
        let rules = &settings.rules;
        let namespaces = Namespaces::new(namespace);
        Self { topology, layout, waits: rules.replica_acks > 0, tracks: rules.tracking, key, us, namespaces }
    }

    /// Returns the same use on another key.
    pub(super) fn on(self, key: String) -> Self {
        Self { key, ..self }
    }

    /// Returns the channel that tells who waits.
    pub(super) fn channel(&self) -> String {
        let bell = self.layout.bell(&self.namespaces, &self.key);
        bell.unwrap_or_else(|| self.namespaces.own().grant_channel(self.us.process()))
    }
}

/// Attempts each of them: by itself, so that it is named where it is refused, and then as locks do.
pub(super) async fn all(asker: &mut ProbeSession<'_>, usage: &CommandCheck) -> Vec<Probe> {
    let mut probes = match usage.layout {
        LockEncoding::Native | LockEncoding::Plain => of_strings(asker, usage).await,
        LockEncoding::Redisson(_) => Vec::new(),
    };
    let others = tries(asker, |to| {
        for (command, rule, not_with) in
            [("PUBLISH", "+publish", Publish::Spublish), ("SPUBLISH", "+spublish", Publish::Publish)]
        {
            if usage.layout.publish() != not_with {
                to.command(command, rule, Need::Telling, &[command, &usage.channel(), ""]);
            }
        }
        if usage.topology.fails_over() {
            to.command("ROLE", "+role", Need::Locks, &["ROLE"]);
        }
        if usage.topology == Topology::Cluster {
            to.command("ASKING", "+asking", Need::Locks, &["ASKING"]);
        }
        if usage.tracks {
            to.command("CLIENT TRACKING", "+client|tracking", Need::Tracking, &["CLIENT", "TRACKING", "OFF"]);
        }
        if usage.waits {
            to.command("WAIT", "+wait", Need::Locks, &["WAIT", "0", "1"]);
        }
    });
    let mut others = others.await;
    if usage.layout.publish() == Publish::Auto {
        // One of the two does: a server without shards has no SPUBLISH, and one with it is told by nothing else.
        let has_none = |probe: &Probe| {
            probe.command == "SPUBLISH" && probe.answer.as_ref().is_err_and(Refusal::is_unknown)
        };
        let unused = if others.iter().any(has_none) { "SPUBLISH" } else { "PUBLISH" };
        others.retain(|probe| probe.command != unused);
    }
    probes.extend(others);
    if probes.iter().all(|probe| probe.answer.is_ok() || probe.need != Need::Locks) {
        probes.extend(tries(asker, |to| to.live_through(usage)).await);
    }
    probes
}

/// Attempts the commands that the scripts of a layout of strings call.
async fn of_strings(asker: &mut ProbeSession<'_>, usage: &CommandCheck) -> Vec<Probe> {
    let (key, token, counter) = (&*usage.key, usage.us.next().to_string(), codec::counter(&usage.key));
    let mut probes = tries(asker, |to| {
        to.command("PING", "+ping", Need::Locks, &["PING"]);
        to.command("SET", "+set", Need::Locks, &["SET", key, &token, "NX", "PX", LIFE]);
    })
    .await;
    let has_key = probes.iter().all(|probe| probe.answer.is_ok());
    probes.extend(
        tries(asker, |to| {
            to.command("GETRANGE", "+getrange", Need::Locks, &["GETRANGE", key, "0", "0"]);
            to.command("PTTL", "+pttl", Need::Locks, &["PTTL", key]);
            // It would make a key that has no end.
            if has_key {
                to.command("APPEND", "+append", Need::Locks, &["APPEND", key, &token]);
            }
            to.command("PEXPIRE", "+pexpire", Need::Locks, &["PEXPIRE", key, LIFE]);
            to.command("SCRIPT LOAD", "+script|load", Need::ScriptNames, &["SCRIPT", "LOAD", SCRIPT]);
            to.command("EVAL", "+eval", Need::Locks, &["EVAL", SCRIPT, "1", key]);
            to.command("EVALSHA", "+evalsha", Need::ScriptNames, &["EVALSHA", NO_SCRIPT, "1", key]);
            to.command("TIME", "+time", Need::Fencing, &["TIME"]);
            to.command("SET", "+set", Need::Fencing, &["SET", &counter, "0", "PX", "1"]);
            to.command("DEL", "+del", Need::Locks, &["DEL", key]);
        })
        .await,
    );
    probes
}

/// Sends what `name` names, all at once, and reads what became of it.
async fn tries(asker: &mut ProbeSession<'_>, name: impl FnOnce(&mut Attempts)) -> Vec<Probe> {
    let mut tries = Attempts { named: Vec::new(), questions: redis::pipe() };
    name(&mut tries);
    let answers = asker.ask_all(&tries.questions).await;
    let probe =
        |((command, rule, need), answer)| Probe { command, rule, need, answer: outcome(asker, answer) };
    tries.named.into_iter().zip(answers).map(probe).collect()
}

struct Attempts {
    named: Vec<(&'static str, Option<&'static str>, Need)>,
    questions: Pipeline,
}

impl Attempts {
    fn command(&mut self, command: &'static str, rule: &'static str, need: Need, words: &[&str]) {
        self.named.push((command, Some(rule), need));
        let mut question = redis::Cmd::new();
        question.arg(words);
        self.questions.add_command(question);
    }

    /// The life of a lock, by the very scripts. It has no fencing token, whose counter would be left behind.
    fn live_through(&mut self, usage: &CommandCheck) {
        let (key, token) = (Name::from(&*usage.key), usage.us.next());
        for (name, command) in [
            ("taking a lock", Command::Acquire { lease: SHORT }),
            ("renewing it", Command::Renew { lease: SHORT }),
            ("waiting for it", Command::Enqueue { lease: SHORT, mode: EnqueueMode::TryOnly }),
            ("inspecting it", Command::Inspect),
            ("releasing it", Command::Release),
        ] {
            self.named.push((name, None, Need::Locks));
            let request = Request::new(Name::clone(&key), token, command);
            usage.layout.encode(&request, &usage.namespaces, SHORT, None, None, &mut self.questions);
        }
    }
}

fn outcome(asker: &ProbeSession<'_>, answer: Read<Value>) -> Result<(), Refusal> {
    match answer {
        // The script has no such name: it may be called by one.
        Ok(answer) if codec::is_unknown_script(&answer) => Ok(()),
        Ok(answer @ Value::ServerError(_)) => {
            let is_forbidden = codec::is_forbidden(&answer);
            Err(Refusal { is_forbidden, said: asker.refusal(answer) })
        }
        Ok(_) => Ok(()),
        Err(said) => Err(Refusal { is_forbidden: false, said }),
    }
}

/// What scripts call is tried by itself, and named so where it is refused.
const SCRIPT: &str = "return 1";
/// No script has this name.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";
/// Milliseconds after which a key of ours ends, should it not be deleted.
const LIFE: &str = "5000";
const SHORT: Duration = Duration::from_secs(5);
