//! Requests that go out together, and their answers.
//!
//! Each request is answered exactly once, whatever happens: what has no answer when its batch is dropped is answered "unknown".
//!
//! Not here: which connection is used and when it is given up (`node`, `health`), what bytes go over it (`codec`), who is told
//! (`answers`).

use std::collections::VecDeque;
use std::sync::Arc;

use redis::Value;

use crate::backend::Request;
use crate::backend::redis::codec;
use crate::backend::redis::health::Link;
use crate::backend::redis::node::Node;
use crate::clock::boot_time;
use crate::protocol::command::{Failure, FailureKind, Reply};
use crate::protocol::deadline::BootTime;

/// Requests in one pipeline.
pub(super) struct Batch {
    node: Arc<Node>,
    link: Arc<Link>,
    requests: VecDeque<Request>,
    /// When they left: read before the first byte.
    sent: BootTime,
    /// Whether scripts go by their text, which a server that has forgotten their names learns by.
    by_text: bool,
    passage: Passage,
}

/// How requests have come to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Passage {
    /// When they were sent for the first time, where this is another.
    pub(super) since: Option<BootTime>,
    /// How often a server has sent them elsewhere.
    pub(super) hops: u32,
    /// Whether the server is to take them though another serves their slot.
    pub(super) asking: bool,
}

impl Batch {
    pub(super) fn new(
        node: &Arc<Node>,
        link: &Arc<Link>,
        requests: impl Iterator<Item = Request>,
        by_text: bool,
        passage: Passage,
    ) -> Self {
        let (node, link) = (Arc::clone(node), Arc::clone(link));
        Self { node, link, requests: requests.collect(), sent: boot_time(), by_text, passage }
    }

    /// Sends the requests and deals with their answers. Those whose script the server does not know have not run; they are sent
    /// again by their text, as a batch with a time of its own.
    pub(super) async fn exchange(self) {
        let mut batch = self;
        while let Some(forgotten) = batch.exchange_once().await {
            batch = forgotten;
        }
    }

    async fn exchange_once(&mut self) -> Option<Self> {
        let loaded = (!self.by_text).then_some(&self.link.scripts);
        let asking = usize::from(self.passage.asking);
        let mut pipeline = redis::Pipeline::with_capacity(self.requests.len() * (1 + asking));
        for request in &self.requests {
            if self.passage.asking {
                pipeline.cmd("ASKING");
            }
            codec::encode(request, self.node.grant_lease, loaded, &mut pipeline);
        }
        let mut connection = self.link.connection.clone();
        match connection.send_packed_commands(&pipeline, 0, pipeline.len()).await {
            Ok(answers) => self.deliver(answers.iter().skip(asking).step_by(1 + asking)),
            Err(error) => {
                let gone = !error.is_timeout();
                let failure = self.link.route.failure(error);
                self.link.unanswered(&failure, gone);
                self.fail(&failure);
                None
            }
        }
    }

    /// Gives the answers to whom they belong, and returns what is to be sent again.
    fn deliver<'a>(&mut self, answers: impl Iterator<Item = &'a Value> + Clone) -> Option<Self> {
        if answers.clone().any(codec::is_out_of_service) {
            self.link.give_up_since("is out of service: read-only, loading or without a master");
        } else {
            self.link.answered();
        }
        let node = Arc::clone(&self.node);
        let redirects = node.answers.redirects();
        let mut replies = Vec::with_capacity(self.requests.len());
        let (mut forgotten, mut sent_away) = (VecDeque::new(), Vec::new());
        for answer in answers {
            let Some(request) = self.requests.pop_front() else { break };
            if codec::is_unknown_script(answer) && !self.by_text {
                forgotten.push_back(request);
            } else if let Some(elsewhere) = redirects.and_then(|redirects| redirects.read(answer)) {
                sent_away.push((request, elsewhere));
            } else {
                let reply = codec::decode(request.command, answer, &self.link.route.shown);
                replies.push((request, reply));
            }
        }
        self.reply(replies);
        if let Some(redirects) = redirects.filter(|_| !sent_away.is_empty()) {
            let since = self.passage.since.or(Some(self.sent));
            redirects.follow(sent_away, Passage { since, ..self.passage });
        }
        let again = !forgotten.is_empty();
        again.then(|| Self::new(&self.node, &self.link, forgotten.into_iter(), true, self.passage))
    }

    fn fail(&mut self, failure: &Failure) {
        let requests = std::mem::take(&mut self.requests);
        self.reply(requests.into_iter().map(|request| (request, Reply::Unknown(failure.clone()))).collect());
    }

    fn reply(&self, replies: Vec<(Request, Reply)>) {
        self.node.answers.replies(replies, self.sent, Some(self.link.epoch));
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
