//! The commands that locks need, tried as this user on a key of its own, which is deleted again and would end by itself.
//!
//! Not here: what it means where one is refused (`doctor`).

use redis::{Pipeline, Value};

use crate::backend::redis::codec;
use crate::backend::redis::examine::asking::Asker;
use crate::doctor::facts::{Need, Probe, Read, Refusal};
use crate::token::TokenSource;

/// Tries each of them.
pub(super) async fn all(asker: &mut Asker<'_>, namespace: &str, us: &TokenSource) -> Vec<Probe> {
    let token = us.next().to_string();
    let separator = if namespace.is_empty() { "" } else { ":" };
    let key = format!("{namespace}{separator}doctor:{}", us.process().shown());
    let counter = codec::counter(&key);
    let channel = us.process().channel();

    let mut probes = tries(asker, |to| {
        to.command("PING", "+ping", Need::Locks, &["PING"]);
        to.command("SET", "+set", Need::Locks, &["SET", &key, &token, "NX", "PX", LIFE]);
    })
    .await;
    let has_key = probes.iter().all(|probe| probe.answer.is_ok());
    probes.extend(
        tries(asker, |to| {
            to.command("GET", "+get", Need::Locks, &["GET", &key]);
            to.command("PTTL", "+pttl", Need::Locks, &["PTTL", &key]);
            // It would make a key that has no end.
            if has_key {
                to.command("APPEND", "+append", Need::Locks, &["APPEND", &key, &token]);
            }
            to.command("PEXPIRE", "+pexpire", Need::Locks, &["PEXPIRE", &key, LIFE]);
            to.command("SCRIPT LOAD", "+script|load", Need::Locks, &["SCRIPT", "LOAD", SCRIPT]);
            to.command("EVAL", "+eval", Need::Locks, &["EVAL", SCRIPT, "1", &key]);
            to.command("EVALSHA", "+evalsha", Need::Locks, &["EVALSHA", NO_SCRIPT, "1", &key]);
            to.command("TIME", "+time", Need::Fencing, &["TIME"]);
            to.command("SET", "+set", Need::Fencing, &["SET", &counter, "0", "PX", "1"]);
            to.command("PUBLISH", "+publish", Need::Telling, &["PUBLISH", &channel, ""]);
            to.command("DEL", "+del", Need::Locks, &["DEL", &key]);
        })
        .await,
    );
    probes
}

/// Sends what `name` names, all at once, and reads what became of it.
async fn tries(asker: &mut Asker<'_>, name: impl FnOnce(&mut Tries)) -> Vec<Probe> {
    let mut tries = Tries { named: Vec::new(), questions: redis::pipe() };
    name(&mut tries);
    let answers = asker.ask_all(&tries.questions).await;
    let probe =
        |((command, rule, need), answer)| Probe { command, rule, need, answer: outcome(asker, answer) };
    tries.named.into_iter().zip(answers).map(probe).collect()
}

struct Tries {
    named: Vec<(&'static str, &'static str, Need)>,
    questions: Pipeline,
}

impl Tries {
    fn command(&mut self, command: &'static str, rule: &'static str, need: Need, words: &[&str]) {
        self.named.push((command, rule, need));
        let mut question = redis::Cmd::new();
        question.arg(words);
        self.questions.add_command(question);
    }
}

fn outcome(asker: &Asker<'_>, answer: Read<Value>) -> Result<(), Refusal> {
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
