//! Requests that go out together, and their answers.
//!
//! Each request is answered exactly once, whatever happens: what has no answer when its batch is dropped is answered "unknown".
//!
//! Not here: which connection is used and when it is given up (`node`, `health`), what bytes go over it (`codec`), who is told
//! (`answers`).

use std::collections::VecDeque;
use std::sync::Arc;

use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::backend::Request;
use crate::backend::redis::layout::codec;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::acks::Acks;
use crate::backend::redis::node::health::Link;
use crate::backend::redis::node::tracking::Wire;
use crate::clock::boot_time;
use crate::protocol::command::{Failure, FailureKind, Reply};
use crate::protocol::deadline::BootTime;

/// Over which of a link's connections a pipeline goes.
#[derive(Clone)]
pub(crate) enum Way {
    Commands,
    /// That on which replicas are waited for.
    Acks,
    /// That on which what is read is tracked.
    Tracked(Wire),
}

/// Requests in one pipeline.
pub(crate) struct Batch {
    node: Arc<Node>,
    link: Arc<Link>,
    way: Way,
    requests: VecDeque<Request>,
    /// When they left: read before the first byte.
    sent: BootTime,
    /// Whether scripts go by their text, which a server that has forgotten their names learns by.
    by_text: bool,
    passage: Passage,
}

/// How requests have come to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passage {
    /// When they were sent for the first time, where this is another.
    pub(crate) since: Option<BootTime>,
    /// How often a server has sent them elsewhere.
    pub(crate) hops: u32,
    /// Whether the server is to take them though another serves their slot.
    pub(crate) asking: bool,
}

impl Batch {
    pub(crate) fn new(
        node: &Arc<Node>,
        link: &Arc<Link>,
        way: Way,
        requests: impl IntoIterator<Item = Request>,
        passage: Passage,
    ) -> Self {
        let (node, link) = (Arc::clone(node), Arc::clone(link));
        let requests = requests.into_iter().collect();
        Self { node, link, way, requests, sent: boot_time(), by_text: false, passage }
    }

    /// Sends the requests and deals with their answers. Those whose script the server does not know have not run; they are sent
    /// again by their text, as a batch with a time of its own.
    pub(crate) async fn exchange(self) {
        let mut batch = self;
        while let Some(forgotten) = batch.exchange_once().await {
            batch = forgotten;
        }
    }

    /// Does the same once `ready` is done: the requests leave then, and not before.
    pub(crate) async fn exchange_after(mut self, ready: impl Future<Output = ()>) {
        ready.await;
        self.sent = boot_time();
        self.exchange().await;
    }

    async fn exchange_once(&mut self) -> Option<Self> {
        let loaded = (!self.by_text).then_some(&self.link.scripts);
        let besides = |request: &Request| match self.way {
            Way::Acks if request.command.carries_a_body() => Some("write"),
            Way::Commands | Way::Acks => None,
            Way::Tracked(_) => Some("read"),
        };
        let mut pipeline = redis::Pipeline::with_capacity(self.requests.len() * self.stride() + 1);
        for request in &self.requests {
            if self.passage.asking {
                pipeline.cmd("ASKING");
            }
            let (layout, grant_lease) = (self.node.layout(), self.node.grant_lease);
            layout.encode(request, grant_lease, loaded, besides(request), &mut pipeline);
        }
        if let Some(acks) = self.acks() {
            pipeline.add_command(acks.wait());
        }
        let (mut connection, _) = self.path();
        match connection.send_packed_commands(&pipeline, 0, pipeline.len()).await {
            Ok(answers) => self.deliver(&answers),
            Err(error) => {
                let timeout = error.is_timeout();
                let failure = self.link.route.failure(error);
                match self.way {
                    Way::Commands => self.link.unanswered(&failure, !timeout),
                    // Nobody looks now and then whether this one is alive.
                    Way::Acks => self.link.give_up(failure.clone()),
                    Way::Tracked(_) => self.node.tracking.give_up(),
                }
                self.fail(&failure);
                None
            }
        }
    }

    /// Gives the answers to whom they belong, and returns what is to be sent again.
    fn deliver(&mut self, answers: &[Value]) -> Option<Self> {
        if answers.iter().any(codec::is_out_of_service) {
            self.link.give_up_since("is out of service: read-only, loading or without a master");
        } else {
            self.link.answered();
        }
        let (node, count) = (Arc::clone(&self.node), self.requests.len());
        let redirects = node.answers.redirects();
        // The answer to the `WAIT` stands behind those to the requests.
        let missing = self.acks().and_then(|acks| acks.missing(answers.get(count * self.stride())));
        let mut replies = Vec::with_capacity(count);
        let (mut forgotten, mut sent_away) = (VecDeque::new(), Vec::new());
        for answer in answers.iter().skip(self.stride() - 1).step_by(self.stride()) {
            let Some(request) = self.requests.pop_front() else { break };
            if codec::is_unknown_script(answer) && !self.by_text {
                forgotten.push_back(request);
            } else if let Some(elsewhere) = redirects.and_then(|redirects| redirects.read(answer)) {
                self.asked_in_vain(&request);
                sent_away.push((request, elsewhere));
            } else {
                let layout = self.node.layout();
                let reply = match (layout.decode(request.command, answer, &self.link.route.shown), &missing) {
                    (Reply::Ours, Some(missing)) if request.command.carries_a_body() => {
                        Reply::Unknown(missing.clone())
                    }
                    (reply, _) => reply,
                };
                if let Reply::NotOurs = reply {
                    self.asked_in_vain(&request);
                }
                if self.node.is_a_strangers(request.command, &reply) {
                    self.node.tracking.stranger_has(&request.key);
                }
                replies.push((request, reply));
            }
        }
        self.reply(replies);
        if let Some(redirects) = redirects.filter(|_| !sent_away.is_empty()) {
            if let Some(acks) = self.link.acks.as_ref().filter(|_| self.acks().is_none()) {
                acks.answered(&Acks::changed(sent_away.iter().map(|(request, _)| request)));
            }
            let since = self.passage.since.or(Some(self.sent));
            redirects.follow(sent_away, Passage { since, ..self.passage });
        }
        let again = !forgotten.is_empty();
        again.then(|| {
            let mut again = Self::new(&self.node, &self.link, self.way.clone(), forgotten, self.passage);
            again.by_text = true;
            again
        })
    }

    /// What was asked about over the connection that tells of changes is not ours, or not there.
    fn asked_in_vain(&self, request: &Request) {
        if let Way::Tracked(_) = self.way {
            self.node.tracking.forget(&request.key);
        }
    }

    /// Returns how many answers there are to each request, of which the last is its own.
    fn stride(&self) -> usize {
        1 + usize::from(self.passage.asking)
    }

    /// Returns the way over which it goes, where that is the one on which replicas are waited for.
    fn acks(&self) -> Option<&Acks> {
        self.link.acks.as_ref().filter(|_| matches!(self.way, Way::Acks))
    }

    /// Returns the connection that it goes over, and which one that is.
    fn path(&self) -> (MultiplexedConnection, u64) {
        match (&self.way, self.acks()) {
            (Way::Tracked(wire), _) => (wire.connection.clone(), wire.epoch),
            (_, Some(acks)) => (acks.connection.clone(), acks.epoch),
            _ => (self.link.connection.clone(), self.link.epoch),
        }
    }

    fn fail(&mut self, failure: &Failure) {
        let requests = std::mem::take(&mut self.requests);
        self.reply(requests.into_iter().map(|request| (request, Reply::Unknown(failure.clone()))).collect());
    }

    fn reply(&self, replies: Vec<(Request, Reply)>) {
        let (_, epoch) = self.path();
        let behind = self
            .link
            .acks
            .as_ref()
            .filter(|_| self.acks().is_none())
            .map(|acks| (acks, Acks::changed(replies.iter().map(|(request, _)| request))));
        self.node.answers.replies(replies, self.sent, Some(epoch));
        if let Some((acks, keys)) = behind {
            acks.answered(&keys);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            let text = format!(
                "the connection to redis at {} was given up before it answered",
                self.link.route.shown
            );
            self.fail(&Failure::new(FailureKind::Passing, text));
        }
    }
}
