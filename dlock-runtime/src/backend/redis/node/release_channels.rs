//! Release channels: a pub/sub channel per key that announces releases, for encodings without a
//! queue.
//!
//! ```text
//!  try: contended --> subscribe, confirmed --> try again --> sleep until a message comes (or `poll_interval` has passed)
//! ```
//!
//! A waiter subscribes before its second try, so that no release falls between the try and the
//! sleep. A message is not proof, and any client may publish one: it only brings the next try
//! forward. Without a subscription, the waiter tries every `poll_interval`.
//!
//! A subscription lasts while a task of this process wants the key, and at most two seconds longer,
//! so that a busy key is subscribed to once.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use redis::RedisResult;
use redis::aio::PubSubSink;
use tokio::sync::Notify;

use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::sharded_subscriber::ShardSink;
use crate::backend::{EventReceiver, Request};
use crate::key::Name;
use crate::layout::Publish;
use crate::sync::lock;

/// The release channels that one node subscribes to.
pub(crate) struct ReleaseChannels {
    pub(crate) encoding: &'static dyn LockEncoding,
    shared: Arc<CommandQueue>,
    state: Mutex<ChannelState>,
    /// Notified when the first channel is added.
    first: Notify,
}

#[derive(Default)]
struct ChannelState {
    /// The handles that subscribe, while there is a connection.
    sinks: Option<ChannelSinks>,
    /// The channels by name.
    channels: HashMap<String, ReleaseChannel>,
}

/// The handles that subscribe, one per kind of pub/sub.
#[derive(Clone)]
struct ChannelSinks {
    plain: PubSubSink,
    shard: Option<ShardSink>,
    publish: Publish,
}

impl ChannelSinks {
    /// Subscribes to `names`. Returns `true` if releases are received.
    async fn subscribe(&mut self, names: &[String]) -> bool {
        let is_sharded = match &mut self.shard {
            Some(shard) => shard.subscribe(names).await.is_ok(),
            None => false,
        };
        let is_plain = match self.publish {
            Publish::Publish | Publish::Both => true,
            Publish::Spublish => false,
            Publish::Auto => !is_sharded, // the server has no sharded pub/sub
        };
        is_sharded | (is_plain && self.plain.subscribe(names).await.is_ok())
    }

    /// Unsubscribes from `names`. Both commands are enqueued at once, before any later
    /// subscription.
    async fn unsubscribe(mut self, names: Vec<String>) -> RedisResult<()> {
        let sharded = async {
            match &mut self.shard {
                Some(shard) => shard.unsubscribe(&names).await,
                None => Ok(()),
            }
        };
        let (plain, sharded) = tokio::join!(self.plain.unsubscribe(&names), sharded);
        plain.and(sharded)
    }
}

struct ReleaseChannel {
    key: Name,
    subscription: Subscription,
    /// Whether the channel was requested since the last sweep.
    was_requested: bool,
}

/// Whether a subscription is confirmed. A channel has another one for each connection, and after it
/// was removed: a confirmation of an ended subscription must not count.
#[derive(Clone, Default)]
struct Subscription(Arc<AtomicBool>);

impl Subscription {
    fn confirm(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_confirmed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl ReleaseChannels {
    pub(crate) fn new(encoding: &'static dyn LockEncoding, shared: Arc<CommandQueue>) -> Self {
        Self { encoding, shared, state: Mutex::default(), first: Notify::new() }
    }

    /// Returns the name of the release channel of a key, if the encoding has one.
    fn channel_name(&self, key: &str) -> Option<String> {
        self.encoding.release_channel(&self.shared.namespaces, key)
    }

    /// Returns `true` if a request can be sent: it needs no channel, or the subscription is
    /// confirmed.
    fn can_send(&self, request: &Request) -> bool {
        if !self.encoding.listens_first(request.command) {
            return true;
        }
        let Some(name) = self.channel_name(&request.key) else { return true };
        let mut state = lock(&self.state);
        state.sinks.is_none()
            || state.channels.get_mut(&name).is_some_and(|channel| {
                channel.was_requested = true;
                channel.subscription.is_confirmed()
            })
    }

    /// Removes and returns the requests that must wait for a subscription.
    ///
    /// Checks each request once, since subscriptions change meanwhile.
    pub(crate) fn take_unsubscribed(&self, requests: &mut Vec<Request>) -> Vec<Request> {
        requests.extract_if(.., |request| !self.can_send(request)).collect()
    }

    /// Subscribes to the channels of `keys`. Gives up after `timeout`.
    pub(crate) async fn subscribe_to(&self, keys: Vec<Name>, timeout: Duration) {
        let (subscriptions, sinks) = {
            let mut state = lock(&self.state);
            let Some(sinks) = state.sinks.clone() else { return };
            if state.channels.is_empty() {
                self.first.notify_one();
            }
            let mut subscriptions = Vec::with_capacity(keys.len());
            for key in keys {
                let Some(name) = self.channel_name(&key) else { continue };
                subscriptions.push((name.clone(), state.request(name, key)));
            }
            (subscriptions, sinks)
        };
        Self::subscribe(sinks, subscriptions, timeout).await;
    }

    /// Subscribes to all channels over a new connection. Gives up after `timeout`.
    pub(crate) async fn open(&self, plain: PubSubSink, shard: Option<ShardSink>, timeout: Duration) {
        let sinks = ChannelSinks { plain, shard, publish: self.encoding.publish() };
        let subscriptions = {
            let mut state = lock(&self.state);
            state.sinks = Some(sinks.clone());
            state.renew_subscriptions()
        };
        Self::subscribe(sinks, subscriptions, timeout).await;
    }

    /// Forgets the connection.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.sinks = None;
        state.renew_subscriptions();
    }

    async fn subscribe(
        mut sinks: ChannelSinks,
        subscriptions: Vec<(String, Subscription)>,
        timeout: Duration,
    ) {
        let (names, subscriptions): (Vec<_>, Vec<_>) = subscriptions.into_iter().unzip();
        if names.is_empty() {
            return;
        }
        if tokio::time::timeout(timeout, sinks.subscribe(&names)).await == Ok(true) {
            subscriptions.iter().for_each(Subscription::confirm);
        }
    }

    /// Returns the key of a channel.
    pub(crate) fn key_of(&self, name: &str) -> Option<Name> {
        lock(&self.state).channels.get(name).map(|channel| Name::clone(&channel.key))
    }

    /// Unsubscribes from channels of keys that no task of this process wants, forever. Reports once
    /// that the server refuses it, since the channels then stay until the connection ends.
    pub(crate) async fn sweep(&self, events: &EventReceiver, target: &ConnectTarget) {
        loop {
            let first = self.first.notified();
            if lock(&self.state).channels.is_empty() {
                first.await;
            }
            tokio::time::sleep(SWEEP_INTERVAL).await;
            let Some(events) = events.get() else { return };
            let unsubscribed = self.unsubscribe(|key| events.is_in_use(key));
            drop(events);
            if let Some(unsubscribed) = unsubscribed
                && let Err(error) = unsubscribed.await
            {
                target.note_lacking_unsubscribe(error);
            }
        }
    }

    /// Removes the channels of unwanted keys. The returned future waits until the server has
    /// replied.
    fn unsubscribe(&self, is_wanted: impl Fn(&Name) -> bool) -> Option<Unsubscribed> {
        let mut state = lock(&self.state);
        let removed = state.remove_unwanted(is_wanted);
        let sinks = state.sinks.clone().filter(|_| !removed.is_empty())?;
        let mut unsubscribed: Unsubscribed = Box::pin(sinks.unsubscribe(removed));
        // Enqueued before any thread can subscribe again: the connection keeps the order.
        let is_done = (&mut unsubscribed).now_or_never().is_some();
        (!is_done).then_some(unsubscribed)
    }
}

/// A future that waits for the replies of the server.
type Unsubscribed = Pin<Box<dyn Future<Output = RedisResult<()>> + Send>>;

impl ChannelState {
    /// Records that the channel of a key is requested. Returns its subscription.
    fn request(&mut self, name: String, key: Name) -> Subscription {
        let new = || ReleaseChannel { key, subscription: Subscription::default(), was_requested: true };
        let channel = self.channels.entry(name).or_insert_with(new);
        channel.was_requested = true;
        channel.subscription.clone()
    }

    /// Returns an unconfirmed subscription of each channel, by name.
    fn renew_subscriptions(&mut self) -> Vec<(String, Subscription)> {
        let renewed = self.channels.iter_mut().map(|(name, channel)| {
            channel.subscription = Subscription::default();
            (name.clone(), channel.subscription.clone())
        });
        renewed.collect()
    }

    fn remove_unwanted(&mut self, is_wanted: impl Fn(&Name) -> bool) -> Vec<String> {
        let mut removed = Vec::new();
        self.channels.retain(|name, channel| {
            let is_kept = std::mem::take(&mut channel.was_requested) || is_wanted(&channel.key);
            if !is_kept {
                removed.push(name.clone());
            }
            is_kept
        });
        removed
    }
}

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::encoding::plain::PlainEncoding;
    use crate::backend::redis::node::pipeline::RouteHistory;
    use crate::backend::redis::node::test_node::{TestNode, acquire};
    use crate::backend::redis::tests::resp::{array, bulk};
    use crate::backend::redis::topology::discovery::Discovery;
    use crate::backend::tests::recorded_events::RecordedEvents;
    use crate::layout::Layout;
    use crate::protocol::command::{Command, EnqueueMode};

    const NAME: &str = "redisson_lock__channel:{k}";
    const CHANNEL: &str = "SUBSCRIBE redisson_lock__channel:{k}";

    fn with_channels(keys: &[&str]) -> ReleaseChannels {
        let channels = ReleaseChannels::new(&PlainEncoding, Arc::new(CommandQueue::new("dlock")));
        for key in keys {
            let name = channels.channel_name(key).unwrap_or_default();
            lock(&channels.state).request(name, (*key).into()).confirm();
        }
        channels
    }

    fn are_subscribed(channels: &ReleaseChannels) -> bool {
        lock(&channels.state).channels.values().all(|channel| channel.subscription.is_confirmed())
    }

    #[test]
    fn a_channel_maps_to_its_key_only() {
        let channels = with_channels(&["dlock:order:7"]);

        assert_eq!(channels.key_of("dlock:free:dlock:order:7").as_deref(), Some("dlock:order:7"));
        assert_eq!(channels.key_of("dlock:free:dlock:order:8"), None);
    }

    #[test]
    fn a_recently_requested_channel_survives_one_sweep() {
        let channels = with_channels(&["wanted", "unwanted"]);
        let sweep = || lock(&channels.state).remove_unwanted(|key| &**key == "wanted");

        assert!(sweep().is_empty());

        assert_eq!(sweep(), ["dlock:free:unwanted"]);
    }

    #[test]
    fn subscriptions_end_with_their_connection() {
        let channels = with_channels(&["k"]);

        channels.close();

        assert!(!are_subscribed(&channels));
    }

    const LONG: Duration = Duration::from_secs(20);

    fn waiter(key: &str, mode: EnqueueMode) -> Request {
        Request { command: Command::Enqueue { lease: LONG, mode }, ..acquire(key) }
    }

    /// Returns a node whose waiters subscribe to a channel per key, once it listens. Its engine
    /// uses the key `k`.
    async fn with_channel_per_key(accepts: bool) -> (TestNode, Arc<RecordedEvents>) {
        let mut test = TestNode::down_with(Discovery::Fixed, |settings| {
            settings.layout = Layout::Redisson;
            settings.rules.response_timeout = LONG;
        });
        let events = RecordedEvents::attach(|events| test.node.events.attach(events));
        events.set_in_use("k");
        test.set_reply("EVALSHA", "*2\r\n:1\r\n:0\r\n");
        if accepts {
            test.accept_subscriptions(&[]);
        }
        test.connect().await;
        while lock(&test.node.release_channels.state).sinks.is_none() {
            tokio::task::yield_now().await;
        }
        (test, events)
    }

    #[tokio::test]
    async fn changing_subscriptions_send_no_empty_pipeline() {
        let (test, _events) = with_channel_per_key(true).await;
        let (channels, connection) = (&test.node.release_channels, test.connection());
        let has_ended = AtomicBool::new(false);

        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sinks = None;
                while !has_ended.load(Ordering::Relaxed) {
                    std::mem::swap(&mut lock(&channels.state).sinks, &mut sinks);
                }
            });
            for _ in 0..5_000 {
                test.node.take(vec![waiter("k", EnqueueMode::Join)], RouteHistory::default());
            }
            has_ended.store(true, Ordering::Relaxed);
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }

        assert!(!connection.is_given_up(), "{:?}", connection.failure());
    }

    #[tokio::test]
    async fn a_waiter_is_sent_after_its_subscription() {
        let (test, _events) = with_channel_per_key(true).await;
        let channels = &test.node.release_channels;
        assert!(!channels.can_send(&waiter("k", EnqueueMode::Join)));
        assert!(channels.can_send(&waiter("k", EnqueueMode::TryOnly)) && channels.can_send(&acquire("k")));

        let requests = vec![waiter("k", EnqueueMode::Join), acquire("other")];
        test.node.take(requests, RouteHistory::default());
        test.until_replied(2).await;

        assert_eq!(test.told(), [("other".to_owned(), true), ("k".to_owned(), true)]);
        assert_eq!(test.commands("SUBSCRIBE").last().map(String::as_str), Some(CHANNEL));
        assert!(channels.can_send(&waiter("k", EnqueueMode::Join)));
        assert!(!channels.can_send(&waiter("unknown", EnqueueMode::Recheck)));
    }

    #[tokio::test]
    async fn a_waiter_without_a_subscription_is_sent_all_the_same() {
        let (test, _events) = with_channel_per_key(false).await;

        test.node.take(vec![waiter("k", EnqueueMode::Join)], RouteHistory::default());
        test.until_replied(1).await;

        assert_eq!(test.told(), [("k".to_owned(), true)]);
        assert_eq!(test.commands("SUBSCRIBE").last().map(String::as_str), Some(CHANNEL));
        assert!(!test.node.release_channels.can_send(&waiter("k", EnqueueMode::Join)));
    }

    #[tokio::test]
    async fn a_confirmation_counts_only_until_its_connection_ends_or_the_channel_is_removed() {
        let (test, _events) = with_channel_per_key(true).await;
        let channels = &test.node.release_channels;
        let sinks = lock(&channels.state).sinks.clone().expect("it is connected");
        let request = || vec![(NAME.to_owned(), lock(&channels.state).request(NAME.to_owned(), "k".into()))];
        let subscribe = |to| ReleaseChannels::subscribe(sinks.clone(), to, LONG);

        let of_old_connection = request();
        channels.close();
        subscribe(of_old_connection).await;
        assert!(!are_subscribed(channels) && channels.can_send(&waiter("k", EnqueueMode::Join)));

        channels.open(sinks.plain.clone(), None, LONG).await;
        assert!(are_subscribed(channels), "a new connection subscribes to all channels");

        let of_removed_channel = request();
        lock(&channels.state).channels.clear();
        let of_channel = request();
        subscribe(of_removed_channel).await;
        assert!(!are_subscribed(channels));
        subscribe(of_channel).await;
        assert!(are_subscribed(channels));
    }

    #[tokio::test]
    async fn channels_of_unwanted_keys_are_unsubscribed() {
        let (test, _events) = with_channel_per_key(true).await;
        let channels = &test.node.release_channels;
        channels.subscribe_to(vec!["k".into(), "wanted".into()], LONG).await;
        let confirmation = array([bulk("unsubscribe"), bulk(NAME), ":1\r\n".to_owned()]);
        test.set_reply("UNSUBSCRIBE", &confirmation);
        let is_wanted = |key: &Name| key == "wanted";

        assert!(channels.unsubscribe(is_wanted).is_none(), "they were requested since the last sweep");
        if let Some(unsubscribed) = channels.unsubscribe(is_wanted) {
            assert_eq!(unsubscribed.await, Ok(()));
        }

        assert_eq!(test.commands("UNSUBSCRIBE"), [format!("UNSUBSCRIBE {NAME}")]);
        assert_eq!(channels.key_of(NAME), None);
        assert_eq!(channels.key_of("redisson_lock__channel:{wanted}").as_deref(), Some("wanted"));
    }

    #[tokio::test]
    async fn a_refused_unsubscribe_is_an_error() {
        let (test, _events) = with_channel_per_key(true).await;
        let sinks = lock(&test.node.release_channels.state).sinks.clone().expect("it is connected");
        test.set_reply("UNSUBSCRIBE", "-NOPERM no\r\n");

        let refused = sinks.unsubscribe(vec![NAME.to_owned()]).await;

        assert!(refused.as_ref().is_err_and(|error| error.code() == Some("NOPERM")), "{refused:?}");
    }

    #[tokio::test]
    async fn subscriptions_end_after_their_keys_are_unused() {
        let (test, _events) = with_channel_per_key(true).await;
        let channels = &test.node.release_channels;

        channels.subscribe_to(vec!["k".into(), "unused".into()], LONG).await;
        while test.commands("UNSUBSCRIBE").is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }

        assert_eq!(test.commands("UNSUBSCRIBE"), ["UNSUBSCRIBE redisson_lock__channel:{unused}"]);
        assert!(channels.can_send(&waiter("k", EnqueueMode::Join)));
    }

    #[tokio::test]
    async fn releases_are_received_over_the_configured_kind_of_channel() {
        let names = [NAME.to_owned()];
        for accepts in [true, false] {
            let (test, _events) = with_channel_per_key(accepts).await;
            let sinks = lock(&test.node.release_channels.state).sinks.clone().expect("it is connected");
            for (publish, is_plain) in [
                (Publish::Publish, true),
                (Publish::Both, true),
                (Publish::Auto, true), // the server has no sharded pub/sub
                (Publish::Spublish, false),
            ] {
                let mut sinks = ChannelSinks { publish, ..sinks.clone() };

                assert_eq!(sinks.subscribe(&names).await, is_plain && accepts, "{publish:?}");
            }
        }
    }

    #[tokio::test]
    async fn sharded_channels_replace_plain_ones_where_both_exist() {
        let names = [NAME.to_owned()];
        for accepts in [true, false] {
            let (test, _events) = with_channel_per_key(accepts).await;
            let sinks = lock(&test.node.release_channels.state).sinks.clone().expect("it is connected");
            let shards = test.connection().target.open_for_shards().await.expect("the server accepts it");
            for (reply, has_shards) in [("+OK\r\n", true), ("-ERR no shards here\r\n", false)] {
                test.set_reply("SSUBSCRIBE", reply);
                for (publish, is_plain) in
                    [(Publish::Auto, !has_shards), (Publish::Spublish, false), (Publish::Both, true)]
                {
                    let shard = Some(shards.sink());
                    let mut sinks = ChannelSinks { plain: sinks.plain.clone(), shard, publish };
                    let before = test.commands("SUBSCRIBE").len();

                    let is_subscribed = sinks.subscribe(&names).await;

                    assert_eq!(is_subscribed, has_shards || is_plain && accepts, "{publish:?} {reply}");
                    assert_eq!(test.commands("SUBSCRIBE").len() > before, is_plain, "{publish:?} {reply}");
                }
            }
        }
    }
}
