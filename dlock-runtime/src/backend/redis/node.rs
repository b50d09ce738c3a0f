//! The actor of one Redis: it owns the connections, sends what is queued, answers the engine, and keeps the time.
//!
//! ```text
//!            opened: scripts loaded, subscribed                    broken, out of service, two timeouts
//!  Connecting ---------------------------------> Ready (an epoch) -------------------------------------> Backoff
//!      ^                                                                                                   |
//!      +--------------------------- 10 ms to 1 s, with jitter, without end --------------------------------+
//! ```
//!
//! It runs on a thread of its own, so that leases are renewed while the application's threads are busy and after the runtime that
//! made the manager has ended. While no connection is ready it refuses what is queued at once.
//!
//! Not here: how to connect (`link`), what bytes go over it (`codec`), what an answer means (`protocol`).

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, oneshot};

use crate::backend::Request;
use crate::backend::redis::Shared;
use crate::backend::redis::codec;
use crate::backend::redis::link::{Ear, Route};
use crate::backend::redis::scripts::Loaded;
use crate::clock::boot_time;
use crate::engine::{Engine, lock};
use crate::protocol::command::{Command, Enqueue, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootTime;
use crate::token::ProcessId;

/// The actor.
pub(super) struct Node {
    pub(super) route: Route,
    pub(super) shared: Arc<Shared>,
    pub(super) engine: Weak<Engine>,
    pub(super) grant_lease: Duration,
    /// Whose grants are listened for.
    pub(super) process: ProcessId,
}

/// A connection that works.
struct Link {
    connection: MultiplexedConnection,
    scripts: Loaded,
    /// What hears of grants, until it is taken to be listened to; `None` where the server does not let us subscribe.
    ear: Mutex<Option<Ear>>,
    epoch: u64,
    /// Told when the connection is to be given up.
    broken: Notify,
    /// Why it was given up, and how many answers in a row were late.
    health: Mutex<Health>,
}

#[derive(Default)]
struct Health {
    late_in_a_row: u32,
    failure: Option<Failure>,
}

/// Whether the engine is still there.
enum Drive<T> {
    Done(T),
    EngineGone,
}

impl Node {
    /// Runs until the engine is gone. `first` is told how the first attempt to connect ended; after a failure there is no second.
    pub(super) async fn run(self: Arc<Self>, first: oneshot::Sender<Result<(), Failure>>) {
        let mut first = Some(first);
        let mut down =
            Failure::new(FailureKind::Passing, format!("not connected to redis at {} yet", self.route.shown));
        let mut attempt = 0;
        for epoch in 1.. {
            let opened =
                match self.drive(self.open(epoch), |node, requests| node.refuse(requests, &down)).await {
                    Drive::Done(opened) => opened,
                    Drive::EngineGone => return,
                };
            let link = match (opened, first.take()) {
                (Ok(link), told) => {
                    if told.is_some_and(|told| told.send(Ok(())).is_err()) {
                        return;
                    }
                    link
                }
                (Err(failure), Some(told)) => {
                    let _ = told.send(Err(failure));
                    return;
                }
                (Err(failure), None) => {
                    down = failure;
                    let pause = tokio::time::sleep(self.backoff(attempt));
                    attempt += 1;
                    match self.drive(pause, |node, requests| node.refuse(requests, &down)).await {
                        Drive::Done(()) => continue,
                        Drive::EngineGone => return,
                    }
                }
            };
            attempt = 0;
            match self.serve(&Arc::new(link)).await {
                Drive::Done(failure) => {
                    tracing::warn!(name: "dlock.disconnected", target: "dlock", reason = &*failure.reason, "dlock.disconnected");
                    down = failure;
                }
                Drive::EngineGone => return,
            }
            let pause = tokio::time::sleep(self.backoff(0));
            if let Drive::EngineGone = self.drive(pause, |node, requests| node.refuse(requests, &down)).await
            {
                return;
            }
        }
    }

    async fn open(&self, epoch: u64) -> Result<Link, Failure> {
        let (commands, ear) = tokio::join!(self.route.connect(), self.route.listen(self.process));
        let (connection, scripts) = commands?;
        if let Err(failure) = &ear {
            tracing::warn!(name: "dlock.not_listening", target: "dlock", reason = &*failure.reason, "dlock.not_listening");
        }
        let ear = Mutex::new(ear.ok());
        Ok(Link { connection, scripts, ear, epoch, broken: Notify::new(), health: Mutex::default() })
    }

    /// Uses a connection until it is to be given up, and returns why.
    async fn serve(self: &Arc<Self>, link: &Arc<Link>) -> Drive<Failure> {
        let mut batches = tokio::task::JoinSet::new();
        let send = |_: &Self, requests: Vec<Request>| Self::send(self, link, &mut batches, requests);
        let ended = self.drive(
            async {
                let watched = async {
                    tokio::join!(self.hear(lock(&link.ear).take()), self.undo(link), self.ping(link));
                };
                tokio::select! {
                    () = link.broken.notified() => {}
                    () = watched => {}
                }
            },
            send,
        );
        let ended = ended.await;
        self.shared.listening.store(false, Ordering::Release);
        if let Drive::EngineGone = ended {
            // What was pushed still goes out: releases above all.
            let last = self.shared.take();
            Self::send(self, link, &mut batches, last);
            while batches.join_next().await.is_some() {}
            return Drive::EngineGone;
        }
        // The batches that are still under way are answered "unknown" as they are dropped, and the socket is closed with them.
        drop(batches);
        let failure = lock(&link.health).failure.take();
        Drive::Done(failure.unwrap_or_else(|| {
            Failure::new(
                FailureKind::Passing,
                format!("the connection to redis at {} was given up", self.route.shown),
            )
        }))
    }

    /// Waits for `until`, and meanwhile gives what is queued to `handle` and does what comes due.
    async fn drive<T>(
        &self,
        until: impl Future<Output = T>,
        mut handle: impl FnMut(&Self, Vec<Request>),
    ) -> Drive<T> {
        let mut until = pin!(until);
        loop {
            let wake = self.shared.wake.notified();
            self.shared.asleep_until.store(0, Ordering::SeqCst);
            let now = boot_time();
            let due = match self.engine.upgrade() {
                Some(engine) => engine.tick(now),
                None => return Drive::EngineGone,
            };
            let requests = self.shared.take();
            if !requests.is_empty() {
                handle(self, requests);
            }
            self.shared.asleep_until.store(due.nanos(), Ordering::SeqCst);
            if self.engine.upgrade().is_some_and(|engine| engine.due() < due) {
                continue; // something came due earlier while we were not looking
            }
            let sleep = async {
                if due == BootTime::NEVER {
                    std::future::pending::<()>().await;
                } else {
                    tokio::time::sleep(due.since(now)).await;
                }
            };
            tokio::select! {
                biased;
                done = &mut until => return Drive::Done(done),
                () = wake => {}
                () = sleep => {}
            }
        }
    }

    /// Answers what cannot be sent.
    fn refuse(&self, requests: Vec<Request>, failure: &Failure) {
        let Some(engine) = self.engine.upgrade() else { return };
        for request in requests {
            engine.reply(request, boot_time(), Reply::Refused(failure.clone()));
            self.shared.answered(1);
        }
    }

    /// Sends requests in pipelines that are short enough not to hold up others.
    fn send(
        self: &Arc<Self>,
        link: &Arc<Link>,
        batches: &mut tokio::task::JoinSet<()>,
        requests: Vec<Request>,
    ) {
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let batch = Batch {
                node: Arc::clone(self),
                epoch: link.epoch,
                requests: requests
                    .by_ref()
                    .take(LONGEST_BATCH)
                    .map(|request| self.without_an_ear(request))
                    .collect(),
                sent: boot_time(),
            };
            batches.spawn(batch.exchange(Arc::clone(link)));
        }
        while batches.try_join_next().is_some() {}
    }

    /// Where nobody can tell us of a grant we queue nowhere: the next release would take us for dead.
    fn without_an_ear(&self, mut request: Request) -> Request {
        if let Command::Enqueue { mode: mode @ Enqueue::First, .. } = &mut request.command
            && !self.shared.listening.load(Ordering::Acquire)
        {
            *mode = Enqueue::Peek;
        }
        request
    }

    /// Hears of grants as long as the connection is used, over a connection of its own that is made anew when it breaks. After each
    /// subscription everything that waits is looked at again: messages were missed meanwhile.
    async fn hear(&self, mut ear: Option<Ear>) {
        let mut attempt = 0;
        loop {
            if let Some(mut ear) = ear.take() {
                attempt = 0;
                self.shared.listening.store(true, Ordering::Release);
                self.look_again();
                self.tell_grants(&mut ear).await;
                self.shared.listening.store(false, Ordering::Release);
            } else if attempt == 0 {
                self.look_again();
            }
            tokio::time::sleep(self.backoff(attempt)).await;
            attempt += 1;
            ear = self.route.listen(self.process).await.ok();
        }
    }

    fn look_again(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.reconnected();
        }
    }

    async fn tell_grants(&self, ear: &mut Ear) {
        while let Some((key, token)) = ear.next(PING_EVERY).await {
            let Some(engine) = self.engine.upgrade() else { return };
            engine.granted(&key, token);
        }
    }

    /// Undoes the effect of commands without an answer, as soon as they are known.
    async fn undo(&self, link: &Arc<Link>) {
        loop {
            let more = self.shared.abandoned_more.notified();
            let (due, next) = {
                let mut abandoned = lock(&self.shared.abandoned);
                let due = abandoned.take_due(boot_time());
                (due, abandoned.due())
            };
            for chunk in due.chunks(LONGEST_BATCH) {
                let requests = chunk.iter().map(|entry| Request {
                    key: Arc::clone(&entry.key),
                    token: entry.token,
                    command: Command::Leave,
                    answer: None,
                });
                let mut pipeline = redis::pipe();
                // By its text: rare enough that a script unknown to the server is not worth a second way.
                requests.for_each(|request| codec::encode(&request, self.grant_lease, None, &mut pipeline));
                let mut connection = link.connection.clone();
                let answers =
                    connection.send_packed_commands(&pipeline, 0, pipeline.len()).await.unwrap_or_default();
                let now = boot_time();
                let mut abandoned = lock(&self.shared.abandoned);
                for (at, entry) in chunk.iter().enumerate() {
                    let answered = matches!(answers.get(at), Some(redis::Value::Int(_)));
                    abandoned.left(entry.clone(), answered, link.epoch, now);
                }
            }
            let next = if due.is_empty() { next } else { lock(&self.shared.abandoned).due() };
            let pause = next.since(boot_time()).min(Duration::from_secs(3600));
            tokio::select! {
                () = more => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Finds out that a connection is dead before somebody needs it.
    async fn ping(&self, link: &Arc<Link>) {
        let ping = redis::cmd("PING");
        loop {
            tokio::time::sleep(PING_EVERY).await;
            match link.connection.clone().send_packed_command(&ping).await {
                Ok(value) if codec::is_out_of_service(&value) => self.give_up(link, "it is out of service"),
                Ok(_) => {}
                Err(error) => Self::unanswered(link, &self.route.failure(error), true),
            }
        }
    }

    /// Notes that an answer did not come; after two in a row, or where the connection is gone, it is given up.
    fn unanswered(link: &Link, failure: &Failure, gone: bool) {
        let mut health = lock(&link.health);
        health.late_in_a_row += 1;
        if gone || health.late_in_a_row >= 2 {
            health.failure.get_or_insert_with(|| failure.clone());
            link.broken.notify_one();
        }
    }

    fn give_up(&self, link: &Link, why: &str) {
        let failure = Failure::new(FailureKind::Passing, format!("redis at {}: {why}", self.route.shown));
        lock(&link.health).failure.get_or_insert(failure);
        link.broken.notify_one();
    }

    /// From 10 ms doubling to 1 s, spread by half so that a fleet does not come back in step.
    fn backoff(&self, attempt: u32) -> Duration {
        let longest =
            Duration::from_millis(10).saturating_mul(1 << attempt.min(7)).min(Duration::from_secs(1));
        let draw = self.engine.upgrade().map_or(0, |engine| engine.tokens.draw());
        longest.mul_f64(0.5 + 0.5 * f64::from(draw) / f64::from(u32::MAX))
    }
}

/// Requests that went out together. Whatever is not answered when it is dropped is answered "unknown".
struct Batch {
    node: Arc<Node>,
    epoch: u64,
    requests: std::collections::VecDeque<Request>,
    sent: BootTime,
}

impl Batch {
    async fn exchange(mut self, link: Arc<Link>) {
        let mut pipeline = redis::Pipeline::with_capacity(self.requests.len());
        for request in &self.requests {
            codec::encode(request, self.node.grant_lease, Some(&link.scripts), &mut pipeline);
        }
        let mut connection = link.connection.clone();
        match connection.send_packed_commands(&pipeline, 0, self.requests.len()).await {
            Ok(answers) => {
                lock(&link.health).late_in_a_row = 0;
                self.deliver(&link, answers).await;
            }
            Err(error) => {
                let gone = !error.is_timeout();
                let failure = self.node.route.failure(error);
                Node::unanswered(&link, &failure, gone);
                self.fail(&failure);
            }
        }
    }

    async fn deliver(&mut self, link: &Link, answers: Vec<redis::Value>) {
        if answers.iter().any(codec::is_out_of_service) {
            self.node.give_up(link, "it is out of service");
        }
        let mut replies = Vec::with_capacity(answers.len());
        for answer in answers {
            let Some(request) = self.requests.pop_front() else { break };
            if codec::is_unknown_script(&answer) {
                self.reply(std::mem::take(&mut replies)); // what is known is not lost when the await below is the last
                self.by_text(link, request).await;
            } else {
                let reply = codec::decode(request.command, &answer, &self.node.route.shown);
                replies.push((request, reply));
            }
        }
        self.reply(replies);
    }

    /// The server has forgotten the scripts (`SCRIPT FLUSH`, a restart behind a proxy): nothing ran, so it is said again by its text,
    /// which teaches the server the script as well.
    async fn by_text(&mut self, link: &Link, request: Request) {
        let mut pipeline = redis::pipe();
        codec::encode(&request, self.node.grant_lease, None, &mut pipeline);
        self.requests.push_front(request);
        self.sent = boot_time();
        let answer = link.connection.clone().send_packed_commands(&pipeline, 0, 1).await;
        let Some(request) = self.requests.pop_front() else { return };
        match answer.map(|mut answers| answers.pop()) {
            Ok(Some(answer)) => self.answer(request, &answer),
            Ok(None) => {
                let failure = Failure::new(FailureKind::Passing, "an empty answer");
                self.reply(vec![(request, Reply::Unknown(failure))]);
            }
            Err(error) => {
                let failure = self.node.route.failure(error);
                Node::unanswered(link, &failure, false);
                self.reply(vec![(request, Reply::Unknown(failure))]);
            }
        }
    }

    fn answer(&self, request: Request, answer: &redis::Value) {
        let reply = codec::decode(request.command, answer, &self.node.route.shown);
        self.reply(vec![(request, reply)]);
    }

    fn fail(&mut self, failure: &Failure) {
        let requests = std::mem::take(&mut self.requests);
        self.reply(requests.into_iter().map(|request| (request, Reply::Unknown(failure.clone()))).collect());
    }

    fn reply(&self, replies: Vec<(Request, Reply)>) {
        // What is abandoned because of these replies was sent on this connection.
        self.node.shared.answering.store(self.epoch, Ordering::Release);
        let count = replies.len();
        if let Some(engine) = self.node.engine.upgrade() {
            engine.replies(self.sent, replies);
        }
        self.node.shared.answered(count);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            let text = format!(
                "the connection to redis at {} was given up before it answered",
                self.node.route.shown
            );
            self.fail(&Failure::new(FailureKind::Passing, text));
        }
    }
}

/// Ten thousand renewals in pipelines of this length leave other calls their place between them.
const LONGEST_BATCH: usize = 100;

/// How often a connection that may be idle is asked whether it is alive.
const PING_EVERY: Duration = Duration::from_secs(5);
