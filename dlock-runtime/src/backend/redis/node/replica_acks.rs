//! What replicas must have, too, before anybody relies on it: it goes over a connection of its own, with a `WAIT` behind it.
//!
//! `WAIT` waits for what its own connection wrote last, and holds up all that comes behind it there. So what carries a body goes this
//! way, one pipeline at a time with one `WAIT` for all of it; all else goes over the connection for commands, where no replica holds
//! it up.
//!
//! Two connections have no order between them. What goes this way waits until what may change its key is answered that was sent
//! before: an acquire must not overtake the release of the same task. The other way round nothing waits. A release overtakes a
//! renewal at most, which finds nothing then; a leave may overtake the enqueue that it follows, and the answer to that enqueue, whom
//! nobody waits for, is left again. What another server of a cluster has sent on comes all this way, to keep its order; the replicas
//! count for what carries a body.
//!
//! Not here: a pipeline and its answers (`batch`), what carries a body (`protocol::command`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Notify;

use crate::backend::Request;
use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::node::connection::Connection;
use crate::backend::redis::reply_sink::ReplySink;
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::sync::lock;

/// The way over which replicas are waited for.
pub(crate) struct ReplicaAckConnection {
    pub(crate) connection: Connection,
    /// One of its own: what was answered on the other connection proves nothing about what is under way on this one.
    pub(crate) epoch: u64,
    route: Arc<ConnectTarget>,
    /// Who is told what cannot be sent any more.
    answers: Arc<dyn ReplySink>,
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Default)]
struct Queue {
    ready: Vec<Request>,
    /// The keys that something under way on the connection for commands may change.
    busy: HashMap<Name, Busy>,
}

#[derive(Default)]
struct Busy {
    under_way: usize,
    /// What waits for it.
    behind: Vec<Request>,
}

impl ReplicaAckConnection {
    pub(crate) fn new(
        connection: Connection,
        epoch: u64,
        route: Arc<ConnectTarget>,
        answers: Arc<dyn ReplySink>,
    ) -> Self {
        Self { connection, epoch, route, answers, queue: Mutex::default(), more: Notify::new() }
    }

    /// Keeps the requests that go this way, and returns those that do not; each of these is to be [answered](Self::answered).
    pub(crate) fn keep(&self, requests: Vec<Request>) -> Vec<Request> {
        let others = lock(&self.queue).keep(requests);
        self.more.notify_one();
        others
    }

    /// Returns the keys of those requests that others may wait for.
    pub(crate) fn changed<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Vec<Name> {
        let change = requests.into_iter().filter(|request| changes(request.command));
        change.map(|request| Name::clone(&request.key)).collect()
    }

    /// Requests that [changed](Self::changed) these keys and went over the connection for commands were answered.
    pub(crate) fn answered(&self, keys: &[Name]) {
        let mut queue = lock(&self.queue);
        for key in keys {
            queue.answered(key);
        }
        drop(queue);
        self.more.notify_one();
    }

    /// Returns what goes into the next pipeline, once there is something.
    pub(crate) async fn next(&self) -> Vec<Request> {
        loop {
            let more = self.more.notified();
            let next = lock(&self.queue).take();
            if !next.is_empty() {
                return next;
            }
            more.await;
        }
    }

    /// Takes out what was not written: it may go over another connection.
    pub(crate) fn take_unsent(&self) -> Vec<Request> {
        let queue = std::mem::take(&mut *lock(&self.queue));
        let behind = queue.busy.into_values().flat_map(|busy| busy.behind);
        queue.ready.into_iter().chain(behind).collect()
    }

    /// Returns the command that waits for the replicas: not for so long that the pipeline behind would be late as well.
    pub(crate) fn wait(&self) -> Cmd {
        let limit = self.route.response_timeout * 2 / 5;
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.route.replica_acks).arg(limit.max(SHORTEST_WAIT).as_millis().to_string());
        wait
    }

    /// Reads the answer to [`wait`](Self::wait), and returns what is missing.
    pub(crate) fn missing(&self, answer: Option<&Value>) -> Option<Failure> {
        let wanted = self.route.replica_acks;
        let what = match answer {
            Some(Value::Int(had)) if *had >= i64::from(wanted) => return None,
            Some(Value::Int(had)) => format!("only {had} of {wanted} replicas acknowledged it"),
            Some(Value::ServerError(error)) => return Some(self.route.shown.failure(error)),
            _ => "no answer that tells how many replicas acknowledged it".to_owned(),
        };
        Some(Failure::new(FailureKind::Passing, format!("redis at {}: {what}", self.route.shown)))
    }
}

impl Drop for ReplicaAckConnection {
    /// What was not sent has not run.
    fn drop(&mut self) {
        let text = format!("the connection to redis at {} was given up", self.route.shown);
        let refused = Reply::Refused(Failure::new(FailureKind::Passing, text));
        let replies: Vec<_> =
            self.take_unsent().into_iter().map(|request| (request, refused.clone())).collect();
        if !replies.is_empty() {
            self.answers.on_replies(replies, boot_time(), None);
        }
    }
}

impl Queue {
    fn keep(&mut self, requests: Vec<Request>) -> Vec<Request> {
        let mut others = Vec::new();
        for request in requests {
            if !request.command.grants_ownership() {
                if changes(request.command) {
                    self.busy.entry(Name::clone(&request.key)).or_default().under_way += 1;
                }
                others.push(request);
            } else if let Some(busy) = self.busy.get_mut(&request.key) {
                busy.behind.push(request);
            } else {
                self.ready.push(request);
            }
        }
        others
    }

    fn answered(&mut self, key: &Name) {
        let Some(busy) = self.busy.get_mut(key) else { return };
        busy.under_way -= 1;
        if busy.under_way == 0 {
            let behind = self.busy.remove(key).map(|busy| busy.behind);
            self.ready.extend(behind.into_iter().flatten());
        }
    }

    fn take(&mut self) -> Vec<Request> {
        let count = self.ready.len().min(LONGEST_BATCH);
        self.ready.drain(..count).collect()
    }
}

/// Returns whether a command that carries no body may change its key: who only looks, be it without end, holds up nobody.
fn changes(command: Command) -> bool {
    !matches!(command, Command::Inspect | Command::Ping | Command::Verify)
}

/// Long enough that one `WAIT` serves many, and answered well before it is late.
const LONGEST_BATCH: usize = 1_000;

/// For ever would be 0.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenSource;

    const ACQUIRE: Command = Command::Acquire { lease: Duration::from_secs(30) };

    fn request(key: &str, command: Command) -> Request {
        Request::new(key.into(), TokenSource::of_process(1).next(), command)
    }

    fn keys(requests: &[Request]) -> Vec<&str> {
        requests.iter().map(|request| &*request.key).collect()
    }

    #[test]
    fn an_acquire_waits_until_the_releases_before_it_are_answered() {
        let mut queue = Queue::default();

        let others = queue.keep(vec![
            request("a", Command::Release),
            request("a", Command::Withdraw),
            request("a", ACQUIRE),
            request("b", ACQUIRE),
        ]);
        assert_eq!((keys(&others), keys(&queue.take())), (vec!["a", "a"], vec!["b"]));
        queue.answered(&"a".into());
        assert!(queue.take().is_empty());
        queue.answered(&"a".into());

        assert_eq!(keys(&queue.take()), ["a"]);
        assert!(queue.busy.is_empty());
    }

    #[test]
    fn what_follows_what_waits_waits_behind_it() {
        let mut queue = Queue::default();
        queue.keep(vec![request("a", Command::Release), request("a", ACQUIRE)]);

        queue.keep(vec![request("a", Command::Renew { lease: Duration::from_secs(9) })]);
        queue.answered(&"a".into());

        assert!(matches!(
            queue.take()[..],
            [Request { command: ACQUIRE, .. }, Request { command: Command::Renew { .. }, .. }]
        ));
    }

    #[test]
    fn who_only_looks_holds_up_nobody() {
        let mut queue = Queue::default();
        let looks = || vec![request("a", Command::Inspect), request("a", Command::Verify)];

        let others = queue.keep(looks().into_iter().chain([request("a", ACQUIRE)]).collect());

        assert_eq!((others.len(), keys(&queue.take())), (2, vec!["a"]));
        assert!(ReplicaAckConnection::changed(&looks()).is_empty());
    }

    #[test]
    fn what_only_asks_whether_a_hold_is_ours_waits_for_no_replica() {
        let mut queue = Queue::default();

        let others = queue.keep(vec![request("a", Command::Verify)]);

        assert_eq!(keys(&others), ["a"]);
    }
}
