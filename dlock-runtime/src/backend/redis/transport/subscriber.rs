//! A pub/sub connection that receives grants, or messages of another channel.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use redis::{Msg, ProtocolVersion, ServerError, Value};

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
    /// The error by which the server refused the first subscription, if it did.
    pub(crate) refused: Option<ServerError>,
}

impl Subscriber {
    /// Returns a handle that subscribes to more channels.
    pub(crate) fn sink(&self) -> PubSubSink {
        self.sink.clone()
    }

    pub(crate) fn inbound(&self) -> &Inbound {
        &self.inbound
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
        match &subscriber.refused {
            Some(error) => Err(self.failure(error.clone().into())),
            None => Ok(subscriber),
        }
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
                Ok(()) => None,
                Err(error) => match ServerError::try_from(error) {
                    Ok(error) => Some(error),
                    Err(error) => {
                        let closed = self.closed_on_command(&error, &inbound, "SUBSCRIBE");
                        return Err(closed.unwrap_or_else(|| self.connect_failure(error, &inbound)));
                    }
                },
            };
            let (sink, stream) = pubsub.split();
            Ok(Subscriber { sink, stream, inbound, refused })
        };
        let late = || {
            let violation = lock(&last_inbound).as_ref().and_then(|inbound| self.violation(inbound));
            let reason = format!(
                "redis at {} did not open a connection and confirm a subscription in {} ms",
                self.shown,
                self.connect_timeout.as_millis()
            );
            violation.unwrap_or_else(|| Failure::new(FailureKind::Passing, reason))
        };
        tokio::time::timeout(self.connect_timeout, opened).await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use redis::RedisConnectionInfo;
    use redis::aio::PubSub;
    use tokio::time::Instant;

    use super::*;
    use crate::backend::redis::simulation::disconnects::Reasons;
    use crate::backend::redis::tests::resp::{list, message, primary, subscribed};
    use crate::backend::redis::tests::scripted_server::{ScriptedServer, patient};
    use crate::backend::redis::transport::inbound::InboundStream;
    use crate::backend::redis::transport::redacted::Redacted;
    use crate::backend::redis::transport::tests::duplex_server::serve;
    use crate::config::Settings;

    /// Returns a subscriber of a server that replies as `reply` does.
    async fn subscriber(reply: impl Fn(&str) -> String + Send + 'static) -> Subscriber {
        let (near, far) = tokio::io::duplex(1 << 16);
        tokio::spawn(serve(far, reply));
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Messages);
        let access = RedisConnectionInfo::default().set_skip_set_lib_name();
        let pubsub = PubSub::new(&access, InboundStream::new(near, &inbound)).await;
        let (sink, stream) = pubsub.expect("the server replies").split();
        Subscriber { sink, stream, inbound, refused: None }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_subscriber_is_pinged_until_no_reply_comes() {
        let pings = Mutex::new(0);
        let mut subscriber = subscriber(move |_| {
            *lock(&pings) += 1;
            match *lock(&pings) {
                1 => list(&["pong", ""]),
                2 => list(&["pong", ""]) + &message("order", "m"),
                _ => String::new(),
            }
        })
        .await;
        let (mut keepalive, begun) = (Keepalive::new(), Instant::now());

        let received = subscriber.next(&mut keepalive).await;
        assert_eq!(received.map(|message| message.get_channel_name().to_owned()).as_deref(), Some("order"));
        assert_eq!(begun.elapsed().as_secs(), 2 * 55);
        assert!(subscriber.next(&mut keepalive).await.is_none());
        assert_eq!(begun.elapsed().as_secs(), 3 * 55 + PONG_TIMEOUT.as_secs());
    }

    #[tokio::test]
    async fn a_flood_of_messages_is_reported_by_its_subscriber() {
        let reasons = Reasons::record();
        let mut subscriber = subscriber(|_| "*1000000000\r\n".to_owned()).await;

        assert!(subscriber.sink.subscribe("order").await.is_err());
        drop(subscriber);

        let reasons = reasons.taken();
        assert!(reasons.len() == 1 && reasons[0].contains("more than 1024 values"), "{reasons:?}");
    }

    #[tokio::test]
    async fn a_refused_channel_leaves_the_connection_open() {
        for (reply, opens) in [
            (Some("-NOPERM no permissions\r\n"), true),
            (Some("HTTP/1.1 400 Bad Request\r\n"), false),
            (None, false),
        ] {
            let server = ScriptedServer::start(move |command| {
                if command.starts_with("SUBSCRIBE") {
                    reply.map(str::to_owned)
                } else {
                    Some(primary(command))
                }
            });
            let target = server.target(&patient());

            let tried = target.try_subscribe(&["a".to_owned(), "b".to_owned()]).await;
            let subscribed = target.subscribe("a").await;

            let refused = tried.as_ref().ok().and_then(|subscriber| subscriber.refused.as_ref());
            assert_eq!(tried.is_ok(), opens, "{reply:?}");
            assert_eq!(refused.is_some_and(|error| error.code() == "NOPERM"), opens, "{reply:?}");
            assert!(subscribed.is_err(), "{reply:?}");
            assert_eq!((server.count("SUBSCRIBE a b"), server.count("SUBSCRIBE")), (1, 2));
        }
    }

    #[tokio::test]
    async fn a_subscription_without_a_reply_fails_in_time() {
        let server = ScriptedServer::start(|command| {
            if command.starts_with("SUBSCRIBE") { String::new() } else { primary(command) }
        });
        // It limits the TCP connection and the handshake, too.
        let settings = Settings { connect_timeout: std::time::Duration::from_secs(1), ..patient() };

        let failure = server.target(&settings).subscribe("a").await.err().expect("it is not confirmed");

        let reason = failure.reason;
        assert!(reason.contains("confirm a subscription in 1000 ms"), "{reason}");
    }

    #[tokio::test]
    async fn messages_are_received_after_a_subscription() {
        let server = ScriptedServer::start(|command| match command {
            "SUBSCRIBE order" => subscribed(["order"]) + &message("order", "m"),
            _ => primary(command),
        });

        let subscriber = server.target(&patient()).subscribe("order").await;

        let mut subscriber = subscriber.expect("it is confirmed");
        assert!(subscriber.refused.is_none());
        let received = subscriber.next(&mut Keepalive::new()).await.expect("a message was sent");
        assert_eq!(received.get_channel_name(), "order");
    }
}
