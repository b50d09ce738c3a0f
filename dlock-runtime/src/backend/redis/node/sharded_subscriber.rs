//! Messages of shards: what `SPUBLISH` says, in a cluster to those alone who listen at the servers of the channel's slot.
//!
//! They come over a connection of their own, in protocol version 3: in version 2 the client library does not read them.
//!
//! Not here: which channels (`bells`), when the connection is made (`hearing`).

use redis::{Pipeline, PushInfo, PushKind, Value};

use crate::backend::redis::node::connection::Connection;
use crate::backend::redis::node::inbound::Pushes;
use crate::backend::redis::node::keepalive::Pulse;

/// What hears messages of shards.
pub(crate) struct ShardSubscriber {
    connection: Connection,
    told: Pushes,
}

impl ShardSubscriber {
    pub(crate) fn new(connection: Connection, told: Pushes) -> Self {
        Self { connection, told }
    }

    /// Returns what subscribes to channels.
    pub(crate) fn sink(&self) -> ShardSink {
        ShardSink(self.connection.clone())
    }

    /// Returns the channel of the next message. There is none when the connection has ended or does not answer a ping, or when the
    /// server has dropped a channel that `is_wanted`: its slot goes to another.
    pub(crate) async fn next(
        &mut self,
        pulse: &mut Pulse,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Option<String> {
        loop {
            let Some(told) = pulse.before_a_ping(self.told.next()).await else {
                self.connection.send_packed_command(&redis::cmd("PING")).await.ok()?;
                continue;
            };
            let PushInfo { kind, data } = told?;
            let channel = match data.first() {
                Some(Value::BulkString(channel)) => std::str::from_utf8(channel).unwrap_or_default(),
                _ => "",
            };
            match kind {
                PushKind::SMessage => return Some(channel.to_owned()),
                PushKind::SUnsubscribe if is_wanted(channel) => return None,
                _ => {}
            }
        }
    }
}

/// What subscribes to channels of shards.
#[derive(Clone)]
pub(crate) struct ShardSink(Connection);

impl ShardSink {
    /// Subscribes, and returns whether to all.
    pub(crate) async fn subscribe(&mut self, channels: &[String]) -> bool {
        self.for_each("SSUBSCRIBE", channels).await
    }

    pub(crate) async fn unsubscribe(&mut self, channels: &[String]) {
        self.for_each("SUNSUBSCRIBE", channels).await;
    }

    /// One command a channel, since each has a slot of its own.
    async fn for_each(&mut self, command: &str, channels: &[String]) -> bool {
        let mut pipeline = Pipeline::with_capacity(channels.len());
        for channel in channels {
            pipeline.cmd(command).arg(channel);
        }
        let answers = self.0.send_packed_commands(&pipeline, 0, channels.len()).await;
        answers.is_ok_and(|answers| !answers.iter().any(|answer| matches!(answer, Value::ServerError(_))))
    }
}
