//! A pub/sub connection that receives grants, or messages of another channel.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use redis::{Msg, ProtocolVersion, Value};

use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::inbound::{Content, Inbound};
use crate::backend::redis::transport::keepalive::{Keepalive, PONG_TIMEOUT};
use crate::backend::redis::transport::stream;
use crate::protocol::failure::{Failure, FailureKind};
use crate::sync::lock;

/// A pub/sub connection.
pub(crate) struct Subscriber {
    sink: PubSubSink,
    stream: PubSubStream,
    inbound: Arc<Inbound>,
    /// Why the server refused the first subscription, if it did.
    pub(crate) refused: Option<Failure>,
}

impl Subscriber {
    /// Returns a handle that subscribes to more channels.
    pub(crate) fn sink(&self) -> PubSubSink {
        self.sink.clone()
    }

    /// Returns the next message, or `None` if the connection has ended or a `PING` is not answered.
    pub(crate) async fn next(&mut self, keepalive: &mut Keepalive) -> Option<Msg> {
        loop {
            if let Some(message) = keepalive.before_ping(self.stream.next()).await {
                if message.is_some() {
                    self.inbound.on_handled();
                }
                return message;
            }
            let ping = tokio::time::timeout(PONG_TIMEOUT, self.sink.ping::<Value>()).await;
            if !matches!(ping, Ok(Ok(_))) {
                return None;
            }
        }
    }
}

/// Not at the end of the messages: whatever notices the end first, nothing reads on.
impl Drop for Subscriber {
    fn drop(&mut self) {
        self.inbound.on_end();
    }
}

impl ConnectTarget {
    /// Opens a pub/sub connection, and subscribes to `channel`.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<Subscriber, Failure> {
        let subscriber = self.try_subscribe(&[channel.to_owned()]).await?;
        subscriber.refused.clone().map_or(Ok(subscriber), Err)
    }

    /// Opens a pub/sub connection, and tries to subscribe to `channels`, with one command.
    ///
    /// If the server refuses a channel, the connection is returned without subscriptions: another
    /// channel may be allowed.
    pub(crate) async fn try_subscribe(&self, channels: &[String]) -> Result<Subscriber, Failure> {
        let last_inbound = Mutex::new(None);
        let opened = async {
            let opened =
                self.open_with(ProtocolVersion::RESP2, Content::Messages, self.attempt(), |dialer| {
                    let inbound = Arc::clone(&dialer.inbound);
                    *lock(&last_inbound) = Some(Arc::clone(&inbound));
                    async move { Ok((stream::pubsub(&dialer).await?, inbound)) }
                });
            let (mut pubsub, inbound) = opened.await?;
            let refused = match pubsub.subscribe(channels).await {
                Err(error) if error.code().is_none() => {
                    return Err(self.connect_failure(error, &inbound));
                }
                subscribed => subscribed.err().map(|error| self.failure(error)),
            };
            let (sink, stream) = pubsub.split();
            Ok(Subscriber { sink, stream, inbound, refused })
        };
        let late = || {
            let violation = lock(&last_inbound).as_ref().and_then(|inbound| self.violation(inbound));
            let reason = format!(
                "redis at {} did not confirm a subscription in {} ms",
                self.shown,
                self.connect_timeout.as_millis()
            );
            violation.unwrap_or_else(|| Failure::new(FailureKind::Passing, reason))
        };
        tokio::time::timeout(self.connect_timeout, opened).await.unwrap_or_else(|_| Err(late()))
    }
}
