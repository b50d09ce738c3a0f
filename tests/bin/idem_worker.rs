//! A process that runs idempotent calls, driven like `lock-worker`.
//!
//! ```text
//!  arguments: URL FILE
//!  in:   call KEY POLICY LEASE_MS WAIT_MS    a body that runs until `finish KEY`: entered ATTEMPT,
//!                                            then ended VALUE ran|replayed | failed
//!        steps KEY LEASE_MS                  a body of three charges that resumes: stepped after the
//!                                            first, the others after `finish KEY`; then as `call`
//!        many KEY COUNT                      COUNT calls at once that wait, with a body of 300 ms:
//!                                            ended VALUES REPLAYED
//!        finish KEY                          lets the body continue
//! ```
//!
//! Every body and every charge appends a line to FILE, as a payment provider would. While a body of
//! `call` runs, it appends `beat KEY ATTEMPT NANOS` every 5 ms.

use std::collections::BTreeMap;
use std::io::Write;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::idempotent::{IdempotentRecord, OnCrash, Outcome};
use dlock_runtime::{Error, LockManager};
use dlock_tests::Moment;
use dlock_tests::worker::{fail, millis, obey_commands, say};
use tokio::sync::Notify;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("the first argument is the URL");
    let file = arguments.next().expect("the second argument is the file");
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let worker = Arc::new(Worker { manager, file, bodies: Mutex::default() });

    obey_commands(|line| {
        let worker = Arc::clone(&worker);
        async move { worker.obey(&line).await }
    })
    .await;
}

struct Worker {
    manager: LockManager,
    file: String,
    bodies: Mutex<BTreeMap<String, Arc<Notify>>>,
}

impl Worker {
    async fn obey(&self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["call", key, policy, lease, wait] => self.call(key, policy, millis(lease), millis(wait)).await,
            ["steps", key, lease] => self.steps(key, millis(lease)).await,
            ["many", key, count] => self.many(key, count.parse().expect("a count")).await,
            ["finish", key] => self.body(key).notify_one(),
            _ => say("failed", "-", &format!("no such command: {line}")),
        }
    }

    fn body(&self, key: &str) -> Arc<Notify> {
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(bodies.entry(key.to_owned()).or_default())
    }

    async fn call(&self, key: &str, policy: &str, lease: Duration, wait: Duration) {
        let on_crash = match policy {
            "fail" => OnCrash::Fail,
            "rerun" => OnCrash::Rerun,
            _ => OnCrash::Resume,
        };
        let call = self.manager.idempotent(key).on_crash(on_crash).lease(lease);
        let call = if wait.is_zero() { call } else { call.wait(wait) };
        let (end, key_of_body, file) = (self.body(key), key.to_owned(), self.file.clone());
        let ended = call
            .run(move |record: IdempotentRecord| async move {
                charge(&file, &format!("body {key_of_body}"));
                beat(&file, &key_of_body, record.attempt());
                let mut finished = pin!(end.notified());
                // The test may freeze this process from here on. A line written in this poll would
                // look like a late poll.
                say("entered", &key_of_body, &record.attempt().to_string());
                loop {
                    tokio::select! {
                        () = &mut finished => break,
                        () = tokio::time::sleep(BEAT) => beat(&file, &key_of_body, record.attempt()),
                    }
                }
                Ok::<_, Error>(format!("{}:{}", std::process::id(), record.attempt()))
            })
            .await;
        tell(key, ended);
    }

    async fn steps(&self, key: &str, lease: Duration) {
        let (end, key_of_body, file) = (self.body(key), key.to_owned(), self.file.clone());
        let body = move |record: IdempotentRecord| async move {
            for step in ["first", "second", "third"] {
                let charge = async || {
                    charge(&file, &record.child_key(step));
                    Ok::<_, Error>(step.len())
                };
                record.step(step, charge).await?;
                if step == "first" {
                    say("stepped", &key_of_body, &record.attempt().to_string());
                    end.notified().await;
                }
            }
            Ok::<_, Error>("charged".to_owned())
        };
        tell(key, self.manager.idempotent(key).on_crash(OnCrash::Resume).lease(lease).run(body).await);
    }

    async fn many(&self, key: &str, count: usize) {
        let call = self.manager.idempotent(key).wait(Duration::from_secs(20));
        let calls = (0..count).map(|number| {
            let file = self.file.clone();
            let call = call.clone();
            async move {
                call.run(move |_record| async move {
                    charge(&file, "body");
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    Ok::<_, Error>(format!("{}:{number}", std::process::id()))
                })
                .await
            }
        });
        let outcomes = futures_util::future::join_all(calls).await;
        let mut values: Vec<_> = outcomes.iter().map(|of| of.as_ref().map(Outcome::value)).collect();
        let replayed = outcomes.iter().flatten().filter(|outcome| outcome.is_replayed()).count();
        values.dedup_by_key(|value| value.as_ref().ok().map(|value| (*value).clone()));
        match values[..] {
            [Ok(value)] => say("ended", key, &format!("{value} {replayed}")),
            _ => say("failed", key, &format!("{} results: {:?}", values.len(), values.first())),
        }
    }
}

/// Appends a line to the file, as one write.
fn charge(file: &str, line: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).expect("the file opens");
    file.write_all(format!("{line}\n").as_bytes()).expect("the file is written");
}

/// Appends the time of a poll of a body.
fn beat(file: &str, key: &str, attempt: u32) {
    charge(file, &format!("beat {key} {attempt} {}", Moment::now().nanos()));
}

/// The time between two polls of a body.
const BEAT: Duration = Duration::from_millis(5);

fn tell(key: &str, ended: Result<Outcome<String>, Error>) {
    match ended {
        Ok(outcome) => {
            let how = if outcome.is_replayed() { "replayed" } else { "ran" };
            say("ended", key, &format!("{} {how}", outcome.value()));
        }
        Err(error) => fail(key, &error, ""),
    }
}
