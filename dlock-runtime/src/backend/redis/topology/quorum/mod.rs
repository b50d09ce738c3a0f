//! A quorum: servers that know nothing of each other, and a majority of which decides. (Redlock.)
//!
//! ```text
//!             +--> node --> server 0 --+
//!  requests --+--> node --> server 1 --+--> votes --> ballots --the outcome, once--> engine
//!             +--> node --> server 2 --+                 +---- leave, repair ---> nodes
//! ```
//!
//! Each command leaves for all servers at once, in the pipelines of the nodes, and its outcome is told when a majority makes it: the
//! price is the latency of the median server. What a server that is away may have done is undone by a list of its own.
//!
//! | file | owns |
//! |---|---|
//! | `ballots` | the ballots that are open, and what their votes lead to |
//! | `telling` | the outcome, to the engine |
//! | `muster` | the first connections: whether there are enough |
//! | `roll` | what the servers say of themselves: which are one, which have just come up |
//!
//! Not here: what votes come to (`protocol::quorum`), in which order it leaves (`outgoing`), one server (`node`).

mod connect;
pub(crate) mod membership;
mod operations;
mod outcome;

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};

use crate::backend::Request;
use crate::backend::redis::cleanup::CleanupQueue;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::connect::{ConnectTarget, GrantMessage};
use crate::backend::redis::node::inline_io::SharedDriver;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::reply_sink::{EngineSink, ReplySink};
use crate::backend::redis::topology::LoadHint;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::redis::topology::quorum::membership::{MemberIndex, Membership};
use crate::backend::redis::topology::quorum::operations::QuorumOperations;
use crate::backend::redis::topology::send_queue::{self, SendQueue};
use crate::clock::boot_time;
use crate::config::Settings;
use crate::config::quorum::QuorumEndpoint;
use crate::error::Result;
use crate::fork::in_one_process;
use crate::key::Name;
use crate::protocol::command::{Command, Failure, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::quorum::{FollowUp, majority};
use crate::sync::lock;
use crate::token::{ProcessId, Token};

/// The quorum.
pub(crate) struct Quorum {
    answers: EngineSink,
    voters: Vec<QuorumNode>,
    roll: Arc<Membership>,
    ballots: Mutex<QuorumOperations>,
    /// What has been decided with the ballots locked, and is to be sent.
    outgoing: SendQueue<QuorumFanOut>,
    /// Who reads what the servers answer.
    tender: Arc<SharedDriver>,
}

/// What the servers are asked, by their numbers.
type QuorumFanOut = send_queue::FanOut<usize>;

/// One of the servers.
struct QuorumNode {
    node: Arc<Node>,
    undoing: Arc<CleanupQueue>,
}

impl Quorum {
    pub(crate) fn new(
        voters: QuorumEndpoint,
        settings: &Settings,
        answers: EngineSink,
        process: ProcessId,
    ) -> Result<Arc<Self>> {
        let mut of_server = settings.clone();
        // A server that is away must not use up the lease that a majority grants.
        of_server.rules.response_timeout = settings.rules.response_timeout.min(settings.lease / 4);
        let tender: Arc<SharedDriver> = Arc::default();
        let route = |server| Ok(Arc::new(ConnectTarget::new(server, &of_server)?.driven_by(&tender)));
        let routes = voters.0.into_iter().map(route).collect::<Result<Vec<_>>>()?;
        let roll = Arc::new(Membership::new(routes.len(), settings.lease));
        let shared = Arc::clone(&answers.shared);
        let quorum = Arc::new_cyclic(|quorum| {
            let voter = |(server, route)| {
                let place = MemberIndex { roll: Arc::clone(&roll), server };
                let answers_of_server = Votes { quorum: Weak::clone(quorum), server };
                let node = Node::new(
                    Discovery::Quorum(route, place),
                    Arc::clone(&shared),
                    Weak::clone(&answers.engine),
                    Arc::new(answers_of_server),
                    process,
                    settings,
                );
                QuorumNode { node: Arc::new(node), undoing: Arc::default() }
            };
            let voters: Vec<_> = routes.into_iter().enumerate().map(voter).collect();
            let (roll, ballots, outgoing) = (Arc::clone(&roll), Mutex::default(), SendQueue::default());
            Self { answers, voters, roll, ballots, outgoing, tender }
        });
        let _ = shared
            .undoing_of_servers
            .set(quorum.voters.iter().map(|voter| Arc::clone(&voter.undoing)).collect());
        Ok(quorum)
    }

    /// Has every server asked.
    pub(crate) fn take(&self, requests: Vec<Request>) {
        let sent = boot_time();
        self.decide(|ballots, fan| {
            for request in requests {
                self.roll.is_asked(request.command, sent);
                let asked = request.for_one_of_many();
                let ballot = Some(ballots.open(request, sent, self.voters.len()));
                self.ask_all(&Request { ballot, ..asked }, fan);
            }
        });
        self.send();
    }

    /// Returns what is under way to the servers that it takes. Who is one of many leaves it to the driver: a write for each server is
    /// dear, and is to be one for many.
    pub(crate) fn traffic(&self) -> LoadHint {
        let idle = self.voters.iter().filter(|voter| voter.node.under_way() == LoadHint::Idle).count();
        if idle >= majority(self.voters.len()) { LoadHint::Idle } else { LoadHint::OfTheDriver }
    }

    /// Queues the leaves that are due at servers that can be asked, and returns how long those that come next have.
    pub(crate) fn undo(&self, longest: Duration) -> Duration {
        let ready = self.voters.iter().enumerate().filter(|(_, voter)| voter.node.is_ready());
        let next = ready.map(|(server, QuorumNode { undoing, .. })| {
            let mut fan = QuorumFanOut::default();
            undoing.due_leaves().into_iter().for_each(|leave| fan.ask(server, |of| *of == server, leave));
            self.push(fan);
            undoing.due_in()
        });
        let next = next.min().unwrap_or(longest).min(longest);
        self.send();
        next
    }

    /// Has connections whenever they can be had, without end. `first` is told whether there were enough at the start.
    pub(crate) async fn run(
        &self,
        first: Option<oneshot::Sender<Result<(), Failure>>>,
    ) -> Result<(), JoinError> {
        let mut nodes = JoinSet::new(); // they end with it
        let tender = Arc::clone(&self.tender);
        nodes.spawn(in_one_process(async move { tender.run().await }));
        let mut outcomes = Vec::new();
        for QuorumNode { node, .. } in &self.voters {
            let (told, outcome) = first.is_some().then(oneshot::channel).unzip();
            outcomes.extend(outcome);
            let node = Arc::clone(node);
            nodes.spawn(in_one_process(async move {
                if told.is_some() {
                    Arc::clone(&node).run(told).await;
                }
                node.run(None).await; // it could not be reached at the start, and may be later
            }));
        }
        let mustered = async {
            let Some(first) = first else { return std::future::pending().await };
            let mustered = connect::connect_majority(outcomes).await;
            let enough = mustered.is_ok();
            if first.send(mustered).is_ok() && enough {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = mustered => Ok(()),
            ended = nodes.join_next() => ended.unwrap_or(Ok(())),
        }
    }

    /// Decides what is to be sent. It stands in the queue before anybody else decides: what a vote has put again must not come behind the
    /// release that would take it back.
    fn decide(&self, decide: impl FnOnce(&mut QuorumOperations, &mut QuorumFanOut)) {
        let (mut ballots, mut fan) = (lock(&self.ballots), QuorumFanOut::default());
        decide(&mut ballots, &mut fan);
        self.push(fan);
    }

    fn push(&self, fan: QuorumFanOut) {
        if !fan.is_empty() {
            self.outgoing.push(fan);
        }
    }

    /// Has every server asked the same.
    fn ask_all(&self, asked: &Request, fan: &mut QuorumFanOut) {
        for server in 0..self.voters.len() {
            fan.ask(server, |of| *of == server, asked.for_one_of_many());
        }
    }

    /// Sends to each server what it is asked, or has it sent.
    fn send(&self) {
        self.outgoing.send(&self.answers.shared, |fan| {
            for (server, asked) in fan {
                if let Some(voter) = self.voters.get(server) {
                    voter.node.take(asked, RouteHistory::default());
                }
            }
        });
    }

    /// A server has answered what it was asked at `sent` over the connection of `epoch`, or will not.
    fn voted(&self, server: usize, votes: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>) {
        let now = boot_time();
        let counts = self.roll.counts(server, sent);
        let (mut outcomes, mut own, mut over) = (Vec::new(), Vec::new(), 0);
        self.decide(|ballots, fan| {
            for (request, reply) in votes {
                if request.ballot.is_none() {
                    if let Command::Acquire { .. } = request.command {
                        ballots.repaired(server, request.token, &reply);
                    } else {
                        own.push((request, reply));
                    }
                    continue;
                }
                let counted = ballots.vote(server, &request, reply, counts);
                for (server, follow) in counted.follows {
                    self.follow(server, follow, &request, fan);
                }
                if let Some(next) = counted.next {
                    self.ask_all(&next, fan);
                }
                outcomes.extend(counted.outcome);
                over += usize::from(counted.is_over);
            }
        });
        self.undone(server, own, epoch, now);
        self.send();
        self.tell(outcomes, now);
        self.answers.shared.answered(over);
    }

    /// Does what a vote led to at a server.
    fn follow(&self, server: usize, follow: FollowUp, asked: &Request, fan: &mut QuorumFanOut) {
        let (key, token) = (Name::clone(&asked.key), asked.token);
        let command = match follow {
            FollowUp::Leave => Command::Withdraw,
            FollowUp::Repair(lease) => Command::Acquire { lease },
            FollowUp::Abandon => return self.abandon(server, vec![(key, token)]),
            FollowUp::Unsure => return,
        };
        fan.ask(server, |of| *of == server, Request::new(key, token, command));
    }

    /// Has a server told to undo what commands without an answer may have done there.
    fn abandon(&self, server: usize, abandoned: Vec<(Name, Token)>) {
        if let Some(voter) = self.voters.get(server) {
            voter.undoing.add(abandoned, Some(NO_CONNECTION));
            self.answers.shared.undoing.more.notify_one();
        }
    }

    /// A server has answered what it was told to undo, or will not.
    fn undone(&self, server: usize, mut own: Vec<(Request, Reply)>, epoch: Option<u64>, now: BootInstant) {
        let Some(voter) = self.voters.get(server).filter(|_| !own.is_empty()) else { return };
        voter.undoing.left(&mut own, epoch, now);
        let failed =
            own.into_iter().filter(|(_, reply)| matches!(reply, Reply::Unknown(_) | Reply::Refused(_)));
        self.abandon(server, failed.map(|(request, _)| (request.key, request.token)).collect());
        self.answers.shared.undoing.more.notify_one();
        self.answers.shared.settled.notify_waiters();
    }
}

/// What one of the servers says goes to the ballots.
struct Votes {
    quorum: Weak<Quorum>,
    server: usize,
}

impl ReplySink for Votes {
    fn on_replies(&self, replies: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>) {
        if let Some(quorum) = self.quorum.upgrade() {
            quorum.voted(self.server, replies, sent, epoch);
        }
    }

    /// Nobody is granted anything by one server.
    fn on_grant(&self, _grant: GrantMessage) {}

    fn on_key_event(&self, key: &Name) {
        if let Some(quorum) = self.quorum.upgrade() {
            quorum.answers.on_key_event(key);
        }
    }

    fn connected(&self, moved: bool) {
        if let Some(quorum) = self.quorum.upgrade() {
            quorum.answers.connected(moved);
        }
    }
}

/// No connection has this number: a leave is proved by being answered twice.
const NO_CONNECTION: u64 = 0;
