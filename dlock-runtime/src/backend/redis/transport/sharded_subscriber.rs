//! Sharded pub/sub: in a cluster, `SPUBLISH` reaches only subscribers at the servers of the
//! channel's slot.
//!
//! It needs a connection in RESP3: in RESP2 the client library does not read its messages.

use redis::{Pipeline, PushInfo, PushKind, RedisResult, Value};

use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::inbound::{Inbound, Pushes};
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

    pub(crate) fn inbound(&self) -> &Inbound {
        self.connection.inbound()
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
    /// Subscribes to `channels`. Fails if one of the subscriptions does.
    pub(crate) async fn subscribe(&mut self, channels: &[String]) -> RedisResult<()> {
        self.for_each("SSUBSCRIBE", channels).await
    }

    pub(crate) async fn unsubscribe(&mut self, channels: &[String]) -> RedisResult<()> {
        self.for_each("SUNSUBSCRIBE", channels).await
    }

    /// Sends one command per channel, since each channel has a slot of its own.
    async fn for_each(&mut self, command: &str, channels: &[String]) -> RedisResult<()> {
        let mut pipeline = Pipeline::with_capacity(channels.len());
        for channel in channels {
            pipeline.cmd(command).arg(channel);
        }
        let replies = self.0.send_packed_commands(&pipeline, 0, channels.len()).await?;
        replies.into_iter().try_for_each(|reply| reply.extract_error().map(drop))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use redis::AsyncConnectionConfig;
    use tokio::sync::mpsc::unbounded_channel;
    use tokio::time::Instant;

    use super::*;
    use crate::backend::redis::tests::resp::{bulk, primary, push};
    use crate::backend::redis::transport::tests::duplex_server::connection;
    use crate::sync::lock;

    /// Returns a subscriber of a server that replies as `reply` does.
    async fn subscriber(reply: impl Fn(&str) -> String + Send + 'static) -> ShardSubscriber {
        let (sender, queue) = unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let config = config.set_response_timeout(Some(Duration::from_secs(1)));
        let (connection, _) = connection(config, reply).await;
        let pushes = Pushes::new(queue, connection.inbound());
        ShardSubscriber::new(connection, pushes)
    }

    fn message(channel: &str) -> String {
        push([bulk("smessage"), bulk(channel), bulk("m")])
    }

    /// Confirms a command of a subscriber.
    fn confirmed(kind: &str, channel: &str, count: usize) -> String {
        push([bulk(kind), bulk(channel), format!(":{count}\r\n")])
    }

    /// Replies to a subscription to each channel, which is then followed by `messages`.
    fn followed_by(messages: String) -> impl Fn(&str) -> String {
        move |command| match command.split_once(' ') {
            Some(("SSUBSCRIBE", channel)) => confirmed("ssubscribe", channel, 1) + &messages,
            _ => primary(command),
        }
    }

    #[tokio::test]
    async fn the_channel_of_each_message_is_returned() {
        let mut subscriber = subscriber(followed_by(message("a") + &message("b"))).await;

        assert!(subscriber.sink().subscribe(&["a".to_owned()]).await.is_ok());

        let mut keepalive = Keepalive::new();
        for channel in ["a", "b"] {
            assert_eq!(subscriber.next(&mut keepalive, |_| true).await.as_deref(), Some(channel));
        }
    }

    #[tokio::test]
    async fn only_the_end_of_a_wanted_subscription_is_reported() {
        let ended = |channel| confirmed("sunsubscribe", channel, 0);
        let messages = ended("b") + &message("a") + &ended("a");
        let mut subscriber = subscriber(followed_by(messages)).await;
        assert!(subscriber.sink().subscribe(&["a".to_owned()]).await.is_ok());
        let mut keepalive = Keepalive::new();

        let message = subscriber.next(&mut keepalive, |channel| channel == "a").await;
        let end = subscriber.next(&mut keepalive, |channel| channel == "a").await;

        assert_eq!((message.as_deref(), end), (Some("a"), None));
    }

    #[tokio::test]
    async fn a_subscription_succeeds_if_no_channel_is_refused() {
        let commands = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&commands);
        let subscriber = subscriber(move |command| {
            lock(&received).push(command.to_owned());
            let is_refused = command == "SSUBSCRIBE b";
            if is_refused { "-NOPERM not b\r\n".to_owned() } else { followed_by(String::new())(command) }
        })
        .await;
        let [a, b, c] = ["a", "b", "c"].map(str::to_owned);
        let mut sink = subscriber.sink();

        assert!(sink.subscribe(&[a.clone(), c.clone()]).await.is_ok());
        let refused = sink.subscribe(&[a.clone(), b.clone(), c.clone()]).await;
        assert!(refused.is_err_and(|error| error.code() == Some("NOPERM")));
        assert!(sink.unsubscribe(&[a, c]).await.is_ok());

        let commands = lock(&commands).split_off(1);
        let names = ["SSUBSCRIBE a", "SSUBSCRIBE c", "SSUBSCRIBE a", "SSUBSCRIBE b", "SSUBSCRIBE c"];
        assert_eq!(commands, [&names[..], &["SUNSUBSCRIBE a", "SUNSUBSCRIBE c"]].concat());
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_subscriber_ends_if_a_ping_is_not_answered() {
        let pings = Mutex::new(0);
        let mut subscriber = subscriber(move |command| {
            if command != "PING" {
                return primary(command);
            }
            *lock(&pings) += 1;
            if *lock(&pings) < 3 { primary(command) } else { String::new() }
        })
        .await;
        let begun = Instant::now();

        assert_eq!(subscriber.next(&mut Keepalive::new(), |_| true).await, None);

        assert_eq!(begun.elapsed().as_secs(), 3 * 55 + 1);
    }
}
