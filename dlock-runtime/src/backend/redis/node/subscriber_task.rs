//! Receives grants and releases over a pub/sub connection, and replaces the connection when it
//! breaks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::PubSubSink;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backend::redis::namespaces::may_grant;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::grant_message::{GrantMessage, changed_key};
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::transport::backoff::Backoff;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::keepalive::Keepalive;
use crate::backend::redis::transport::sharded_subscriber::ShardSubscriber;
use crate::backend::redis::transport::subscriber::Subscriber;
use crate::fork::in_one_process;
use crate::layout::Publish;
use crate::protocol::command::Failure;
use crate::sync::lock;
use crate::telemetry;

impl Node {
    /// Receives messages while `connection` is used.
    ///
    /// After each subscription all waiters try again, since messages may have been missed. If the
    /// server has changed, or belongs to a quorum, all holds are verified, too.
    pub(crate) async fn run_subscriber(self: &Arc<Self>, connection: &NodeConnection, moved: bool) {
        let mut subscriber = connection.take_subscriber();
        self.sink.connected(moved);
        let mut backoff = Backoff::new(&self.jitter);
        loop {
            let since = Instant::now();
            if let Some(subscriber) = subscriber.take() {
                let shards = match self.encoding().publish() {
                    Publish::Publish => None, // no release is published by sharded pub/sub
                    _ => connection.target.open_for_shards().await.ok(),
                };
                self.begin_subscriptions(&subscriber, &connection.target);
                self.listening.store(true, Ordering::Release);
                let shard = shards.as_ref().map(ShardSubscriber::sink);
                self.release_channels
                    .open(subscriber.sink(), shard, connection.target.response_timeout)
                    .await;
                self.sink.connected(false);
                let namespaces = self.subscribe_to_namespaces(subscriber.sink(), &connection.target);
                tokio::select! {
                    () = self.run_messages(subscriber) => {}
                    () = self.receive_shard_messages(shards) => {}
                    () = self.release_channels.sweep(&self.events, &connection.target) => {}
                    () = namespaces => {}
                }
                self.release_channels.close();
                self.listening.store(false, Ordering::Release);
                connection.check_now.notify_one(); // the cause may have broken the other connection, too
            }
            backoff.pause(since.elapsed()).await;
            let target = &connection.target;
            let channels = self.shared.namespaces.own().channels(self.process, &target.owner);
            match target.try_subscribe(&channels).await {
                Ok(opened) => subscriber = Some(opened),
                Err(failure) => {
                    self.report_no_subscription(self.shared.namespaces.own().name(), &failure);
                }
            }
        }
    }

    /// Notes whether a new connection is subscribed to the grants of the manager's own namespace.
    /// All subscriptions of the previous connection are void.
    fn begin_subscriptions(&self, subscriber: &Subscriber, target: &ConnectTarget) {
        let own = self.shared.namespaces.own();
        let is_subscribed = subscriber.refused.is_none();
        *lock(&self.subscribed) = is_subscribed.then(|| Arc::clone(own.name())).into_iter().collect();
        match &subscriber.refused {
            Some(error) => self.report_no_subscription(own.name(), &target.failure(error.clone().into())),
            None => _ = lock(&self.refused).remove(own.name()),
        }
    }

    /// Reports a refused subscription, once for each namespace until one succeeds.
    pub(super) fn report_no_subscription(&self, namespace: &Arc<str>, failure: &Failure) {
        let is_new = lock(&self.refused).insert(Arc::clone(namespace));
        if is_new {
            telemetry::not_listening(namespace, &failure.reason);
        }
    }

    /// Subscribes to the grants of each namespace when one of its keys is used, forever.
    ///
    /// If the server refuses one, tries again every second. After a new subscription all waiters
    /// try again.
    async fn subscribe_to_namespaces(&self, mut sink: PubSubSink, target: &ConnectTarget) {
        if !self.encoding().has_queue() {
            return std::future::pending().await; // no grant is published
        }
        loop {
            let added = self.shared.namespaces.added.notified();
            let (mut is_missing, mut is_new) = (false, false);
            for namespace in self.shared.namespaces.all() {
                if lock(&self.subscribed).contains(namespace.name()) {
                    continue;
                }
                let channels = namespace.channels(self.process, &target.owner);
                match tokio::time::timeout(target.response_timeout, sink.subscribe(&channels[..])).await {
                    Ok(Ok(())) => {
                        is_new |= lock(&self.subscribed).insert(Arc::clone(namespace.name()));
                        lock(&self.refused).remove(namespace.name());
                    }
                    Ok(Err(error)) => {
                        is_missing = true;
                        // An error without a code is one of the connection, which its reader finds,
                        // too.
                        if error.code().is_some() {
                            self.report_no_subscription(namespace.name(), &target.failure(error));
                        }
                    }
                    Err(_) => is_missing = true, // the next PING shows whether the connection works
                }
            }
            if is_new {
                self.sink.connected(false);
            }
            if is_missing {
                let _ = tokio::time::timeout(SUBSCRIBE_RETRY_INTERVAL, added).await;
            } else {
                added.await;
            }
        }
    }

    /// Receives messages of sharded pub/sub until the connection ends. Without one, waits for the
    /// next attempt to connect.
    async fn receive_shard_messages(&self, subscriber: Option<ShardSubscriber>) {
        match subscriber {
            Some(mut subscriber) => {
                let mut keepalive = Keepalive::new();
                let is_wanted = |channel: &str| self.release_channels.key_of(channel).is_some();
                while let Some(channel) = subscriber.next(&mut keepalive, is_wanted).await {
                    if let Some(key) = self.release_channels.key_of(&channel) {
                        self.sink.on_key_event(Some(&key));
                    }
                }
            }
            None if self.encoding().publish() == Publish::Publish => std::future::pending().await,
            None => tokio::time::sleep(SHARD_RETRY_INTERVAL).await,
        }
    }

    /// Runs [`receive_messages`](Self::receive_messages) in a task: a message wakes that task only.
    async fn run_messages(self: &Arc<Self>, subscriber: Subscriber) {
        let mut messages = JoinSet::new();
        messages.spawn(in_one_process(Arc::clone(self).receive_messages(subscriber)));
        match messages.join_next().await {
            Some(Ok(())) => {}
            Some(Err(failed)) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
            _ => std::future::pending().await, // the runtime shuts down, and drops this task, too
        }
    }

    /// Receives messages until the connection ends. Any client may publish messages; unknown ones
    /// are skipped.
    async fn receive_messages(self: Arc<Self>, mut subscriber: Subscriber) {
        let (mut keepalive, mut count) = (Keepalive::new(), 0_u64);
        while let Some(message) = subscriber.next(&mut keepalive).await {
            if !self.is_listening() {
                break; // the caller was dropped, and this task is about to be aborted
            }
            count = count.wrapping_add(1);
            if count.is_multiple_of(MESSAGES_PER_YIELD) {
                tokio::task::yield_now().await; // a flood of messages must not delay replies and timers
            }
            if let Some(key) = self.release_channels.key_of(message.get_channel_name()) {
                self.sink.on_key_event(Some(&key));
            } else if let Some(grant) = GrantMessage::parse(message.get_payload_bytes())
                && may_grant(message.get_channel_name(), &grant.key)
            {
                self.sink.on_grant(grant);
            } else if let Some(key) = changed_key(message.get_payload_bytes())
                && may_grant(message.get_channel_name(), key)
            {
                self.sink.on_key_event(Some(&key.into()));
            }
        }
    }
}

/// How long to wait before connecting for sharded pub/sub again.
const SHARD_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long to wait before a refused subscription is tried again: the ACL may have changed.
const SUBSCRIBE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How many messages are handled before the task yields.
const MESSAGES_PER_YIELD: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::node::test_node::TestNode;
    use crate::backend::redis::topology::discovery::Discovery;
    use crate::layout::Layout;
    use crate::token::TokenSource;

    const LONG: Duration = Duration::from_secs(20);

    /// Returns the subscriptions of a node so far, without the rest of long names.
    fn namespaces(test: &TestNode) -> Vec<String> {
        let before = |command: String| {
            let channels = command.strip_prefix("SUBSCRIBE ")?;
            Some(channels.split_once(":grant:")?.0.to_owned())
        };
        test.commands("SUBSCRIBE").into_iter().filter_map(before).collect()
    }

    async fn until(condition: impl Fn() -> bool) {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn messages_count_only_on_the_channel_of_their_namespace() {
        let mut test = TestNode::down(LONG);
        let own = test.shared.namespaces.own().grant_channel(test.node.process);
        let grant = |key: &str| format!("{}1000|{key}", TokenSource::of_process(1).next());
        test.accept_subscriptions(&[
            (&own, "no grant"),
            (&own, &grant("shop:1")),
            (&own, &grant("dlock:2")),
            (&own, "changed|shop:3"),
            (&own, "changed|dlock:4"),
            ("other", &grant("dlock:5")),
            ("other", "changed|dlock:6"),
            (&own, &grant("dlock:last")),
        ]);

        test.connect().await;
        test.until_event("grant dlock:last").await;

        let messages: Vec<_> =
            test.events().into_iter().filter(|event| !event.starts_with("connected")).collect();
        assert_eq!(messages, ["grant dlock:2", "event dlock:4", "grant dlock:last"]);
        assert!(test.node.is_listening() && test.node.receives_messages_about("dlock:7"));
    }

    #[tokio::test]
    async fn each_namespace_in_use_is_subscribed_to() {
        let mut test = TestNode::down(LONG);
        test.accept_subscriptions(&[]);
        test.connect().await;
        until(|| test.node.is_listening()).await;
        assert_eq!(test.events(), ["connected moved=false"; 2], "messages may have been missed");
        assert!(!test.node.receives_messages_about("shop:7"));

        test.shared.namespaces.add("shop");
        until(|| test.events().len() == 3).await;

        assert!(test.node.receives_messages_about("shop:7"));
        assert_eq!(test.events()[2], "connected moved=false", "waiters try again");
        assert_eq!(namespaces(&test), ["dlock", "shop"]);
    }

    #[tokio::test]
    async fn a_refused_subscription_is_tried_again() {
        let mut test = TestNode::down(LONG);
        test.connect().await;
        until(|| namespaces(&test).len() >= 2).await;
        assert!(test.node.is_listening() && !test.node.receives_messages_about("dlock:7"));
        assert!(lock(&test.node.refused).contains("dlock"));

        test.accept_subscriptions(&[]);
        until(|| test.node.receives_messages_about("dlock:7")).await;

        assert!(!lock(&test.node.refused).contains("dlock"), "the next refusal is reported again");
    }

    #[tokio::test]
    async fn a_layout_without_grants_subscribes_to_no_namespace() {
        let mut test = TestNode::down_with(Discovery::Fixed, |settings| settings.layout = Layout::Redisson);
        test.accept_subscriptions(&[]);
        test.connect().await;
        until(|| test.node.is_listening()).await;

        test.shared.namespaces.add("shop");
        let connection = test.connection();
        let subscriber = connection.target.subscribe("any").await.expect("the server accepts it");
        let waits = test.node.subscribe_to_namespaces(subscriber.sink(), &connection.target);
        assert!(tokio::time::timeout(Duration::from_millis(20), waits).await.is_err());

        assert!(!namespaces(&test).contains(&"shop".to_owned()));
    }

    #[tokio::test]
    async fn a_refusal_is_noted_once_per_namespace() {
        let test = TestNode::down(LONG);
        let failure = Failure::new(crate::protocol::command::FailureKind::Lasting, "not allowed");

        for namespace in ["a", "a", "b"] {
            test.node.report_no_subscription(&namespace.into(), &failure);
        }

        assert_eq!(lock(&test.node.refused).len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_for_shards_is_tried_again_if_they_are_used() {
        for (layout, discovery, ends) in [
            (Layout::Native, Discovery::Fixed as fn(Arc<ConnectTarget>) -> Discovery, false),
            (Layout::Redisson, Discovery::Fixed, false),
            (Layout::Redisson, Discovery::Primary, true), // in a cluster
        ] {
            let test = TestNode::down_with(discovery, |settings| settings.layout = layout);
            let begun = Instant::now();

            let received = tokio::time::timeout(LONG, test.node.receive_shard_messages(None)).await;

            assert_eq!(received.is_ok(), ends, "{layout:?}");
            assert_eq!(begun.elapsed(), if ends { SHARD_RETRY_INTERVAL } else { LONG });
        }
    }

    /// Otherwise the node would receive no messages any more.
    #[tokio::test]
    async fn a_panic_while_a_message_is_handled_ends_the_node() {
        let mut test = TestNode::down(LONG);
        let own = test.shared.namespaces.own().grant_channel(test.node.process);
        test.accept_subscriptions(&[(&own, "changed|dlock:panic")]);

        test.connect().await;

        assert!(test.panics().await);
    }

    #[tokio::test]
    async fn a_closed_subscription_is_replaced() {
        let mut test = TestNode::down(LONG);
        test.accept_subscriptions(&[]);
        test.connect().await;
        until(|| test.node.is_listening()).await;
        test.set_replies("SUBSCRIBE", "", 1);

        test.shared.namespaces.add("shop"); // the server closes the connection on its subscription
        until(|| test.node.receives_messages_about("shop:7")).await;

        assert!(test.node.is_listening() && test.node.receives_messages_about("dlock:7"));
        assert_eq!(namespaces(&test), ["dlock", "shop", "dlock", "shop"]);
        let missed = test.events().iter().filter(|event| *event == "connected moved=false").count();
        assert_eq!(missed, 4, "waiters try again after each subscription");
        assert!(!test.events().contains(&"disconnected".to_owned()), "commands have their own connection");
    }
}
