//! Sharded pub/sub: in a cluster, `SPUBLISH` reaches only subscribers at the servers of the
//! channel's slot.
//!
//! It needs a connection in RESP3: in RESP2 the client library does not read its messages.

use redis::{Pipeline, PushInfo, PushKind, Value};

use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::inbound::Pushes;
use crate::backend::redis::transport::keepalive::Keepalive;

/// A connection for sharded pub/sub.
pub(crate) struct ShardSubscriber {
    connection: Connection,
    pushes: Pushes,
}

impl ShardSubscriber {
    pub(crate) fn new(connection: Connection, pushes: Pushes) -> Self {
        Self { connection, pushes }
    }

    /// Returns a handle that subscribes to channels.
    pub(crate) fn sink(&self) -> ShardSink {
        ShardSink(self.connection.clone())
    }

    /// Returns the channel of the next message.
    ///
    /// Returns `None` if the connection has ended, if a `PING` is not answered, or if the server
    /// has ended the subscription to a channel that `is_wanted`, because its slot has moved.
    pub(crate) async fn next(
        &mut self,
        keepalive: &mut Keepalive,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Option<String> {
        loop {
            let Some(push) = keepalive.before_ping(self.pushes.next()).await else {
                self.connection.send_packed_command(&redis::cmd("PING")).await.ok()?;
                continue;
            };
            let PushInfo { kind, data } = push?;
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

/// A handle that subscribes to sharded channels.
#[derive(Clone)]
pub(crate) struct ShardSink(Connection);

impl ShardSink {
    /// Subscribes to `channels`. Returns `true` if all subscriptions succeeded.
    pub(crate) async fn subscribe(&mut self, channels: &[String]) -> bool {
        self.for_each("SSUBSCRIBE", channels).await
    }

    pub(crate) async fn unsubscribe(&mut self, channels: &[String]) {
        self.for_each("SUNSUBSCRIBE", channels).await;
    }

    /// Sends one command per channel, since each channel has a slot of its own.
    async fn for_each(&mut self, command: &str, channels: &[String]) -> bool {
        let mut pipeline = Pipeline::with_capacity(channels.len());
        for channel in channels {
            pipeline.cmd(command).arg(channel);
        }
        let replies = self.0.send_packed_commands(&pipeline, 0, channels.len()).await;
        replies.is_ok_and(|replies| !replies.iter().any(|reply| matches!(reply, Value::ServerError(_))))
    }
}
