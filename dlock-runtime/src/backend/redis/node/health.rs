//! A connection in use, and what is known of its health.
//!
//! Not here: how it is made (`link`), when (`node`), what goes over it (`batch`), when it is asked whether it is alive (`beat`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::redis::encoding::scripts::Loaded;
use crate::backend::redis::node::backoff::PROVEN;
use crate::backend::redis::node::connect::{ConnectTarget, NewConnection, Subscriber};
use crate::backend::redis::node::connection::Connection;
use crate::backend::redis::node::in_flight::InFlight;
use crate::backend::redis::node::inline_io::InlineDriver;
use crate::backend::redis::node::keepalive::Beat;
use crate::backend::redis::node::replica_acks::ReplicaAckConnection;
use crate::protocol::command::{Failure, FailureKind};
use crate::sync::lock;

/// A connection that works.
pub(crate) struct NodeConnection {
    pub(crate) connection: Connection,
    /// The same, over which nobody finds out that answers are late.
    pub(crate) untimed: Connection,
    /// The names of the scripts; `None` where they go by their text.
    pub(crate) scripts: Option<Loaded>,
    lacks_evalsha: AtomicBool,
    /// What drives the connection, where the client leaves that to us.
    pub(crate) pump: Option<Arc<InlineDriver>>,
    /// Where it leads to.
    pub(crate) route: Arc<ConnectTarget>,
    /// Which connection of this manager it is.
    pub(crate) epoch: u64,
    /// The other one, where replicas are waited for.
    pub(crate) acks: Option<ReplicaAckConnection>,
    /// What hears of grants, until it is taken to be listened to; `None` where the server does not let us subscribe.
    ear: Mutex<Option<Subscriber>>,
    /// Told when the connection is to be given up.
    pub(crate) broken: Notify,
    /// Asks for a look at the server at once.
    pub(crate) doubt: Notify,
    health: Mutex<ConnectionHealth>,
    /// Whether it is to be given up: nothing more is written to it.
    is_given_up: AtomicBool,
    opened: Instant,
    /// How many connections before it, in a row, were lost before they were of use.
    pub(crate) useless_before: u32,
    /// When it and those beside it are asked whether they are alive.
    pub(crate) beat: Beat,
    /// What is under way on it.
    pub(crate) exchanges: InFlight,
}

/// How many answers in a row were late, and why the connection is given up.
#[derive(Default)]
struct ConnectionHealth {
    late_in_a_row: u32,
    /// Whether a reply came.
    has_answered: bool,
    failure: Option<Failure>,
}

impl NodeConnection {
    pub(crate) fn new(
        opened: NewConnection,
        route: Arc<ConnectTarget>,
        epoch: u64,
        acks: Option<ReplicaAckConnection>,
        ear: Option<Subscriber>,
        beat: Beat,
    ) -> Self {
        let NewConnection { connection, untimed, scripts, pump } = opened;
        Self {
            connection,
            untimed,
            scripts,
            lacks_evalsha: AtomicBool::new(false),
            pump: pump.map(Arc::new),
            route,
            epoch,
            acks,
            ear: Mutex::new(ear),
            broken: Notify::new(),
            doubt: Notify::new(),
            health: Mutex::default(),
            is_given_up: AtomicBool::new(false),
            opened: Instant::now(),
            useless_before: 0,
            beat,
            exchanges: InFlight::default(),
        }
    }

    /// Returns when the connection has ended by itself, where somebody finds that out.
    pub(crate) async fn ended(&self) {
        match &self.pump {
            Some(pump) => pump.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Takes what hears of grants, to listen to it.
    pub(crate) fn take_ear(&self) -> Option<Subscriber> {
        lock(&self.ear).take()
    }

    /// Returns `true` if the server has no `EVALSHA`.
    pub(crate) fn lacks_evalsha(&self) -> bool {
        self.lacks_evalsha.load(Ordering::Relaxed)
    }

    /// Notes that the server has no `EVALSHA`. Returns `true` the first time.
    pub(crate) fn note_lacking_evalsha(&self) -> bool {
        !self.lacks_evalsha.swap(true, Ordering::Relaxed)
    }

    /// Notes that an answer came.
    pub(crate) fn answered(&self) {
        let mut health = lock(&self.health);
        (health.late_in_a_row, health.has_answered) = (0, true);
    }

    /// Returns `true` if the connection was of use: it replied to a request, or has lasted for a while.
    pub(crate) fn is_proven(&self) -> bool {
        lock(&self.health).has_answered || self.opened.elapsed() >= PROVEN
    }

    /// Returns `true` if requests may wait for the first attempt to replace it. If several in a row were lost before they were of use, the
    /// next one is unlikely to be better, and late.
    pub(crate) fn may_be_waited_for(&self) -> bool {
        self.useless_before < MOST_USELESS || self.is_proven()
    }

    /// Returns `true` if it is to be given up: nothing more is written to it.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Notes that an answer did not come; after two in a row, or where the connection is gone, it is given up.
    pub(crate) fn unanswered(&self, failure: &Failure, gone: bool) {
        let late_in_a_row = {
            let mut health = lock(&self.health);
            health.late_in_a_row += 1;
            health.late_in_a_row
        };
        if gone || late_in_a_row >= 2 {
            self.give_up(failure.clone());
        } else {
            self.doubt.notify_one(); // what comes next may go another way, or not come for long
        }
    }

    /// Has the connection given up; what was said first is the reason.
    pub(crate) fn give_up(&self, failure: Failure) {
        lock(&self.health).failure.get_or_insert(failure);
        self.is_given_up.store(true, Ordering::Release);
        self.broken.notify_one();
    }

    /// Gives it up for what a server said, or is.
    pub(crate) fn give_up_since(&self, what: &str) {
        let text = format!("redis at {} {what}", self.route.shown);
        self.give_up(Failure::new(FailureKind::Passing, text));
    }

    /// Gives it up since it has ended by itself, or for what came over it.
    pub(crate) fn give_up_ended(&self) {
        match self.route.violation(self.connection.inbound()) {
            Some(failure) => self.give_up(failure),
            None => self.give_up_since("has ended the connection"),
        }
    }

    /// Returns why it was given up.
    pub(crate) fn failure(&self) -> Failure {
        self.failed_by().unwrap_or_else(|| {
            let text = format!("the connection to redis at {} was given up", self.route.shown);
            Failure::new(FailureKind::Passing, text)
        })
    }

    /// Returns why nothing is answered any more that is under way.
    pub(crate) fn unanswered_since(&self) -> Failure {
        let why = self.failed_by().map(|failure| format!(": {}", failure.reason)).unwrap_or_default();
        let text =
            format!("the connection to redis at {} was given up before it answered{why}", self.route.shown);
        Failure::new(FailureKind::Passing, text)
    }

    fn failed_by(&self) -> Option<Failure> {
        lock(&self.health).failure.clone()
    }
}

/// The next attempt comes 160 ms later by then (`backoff`).
const MOST_USELESS: u32 = 4;
