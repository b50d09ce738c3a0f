//! ReleaseChannels: one channel per key, which rings when its lock is let go of, for layouts that queue nobody in the server.
//!
//! ```text
//!  try: taken --> subscribe, confirmed --> look --> sleep until it rings (or `poll_interval` has passed)
//! ```
//!
//! Whoever is going to sleep listens first and looks once more then, so that no release falls between the two. A ring proves nothing,
//! and anybody may ring: it only brings the next look forward. Where a bell cannot be heard, looking every `poll_interval` does.
//!
//! A bell is listened to for as long as somebody here wants its key, and a second longer: a hot key is subscribed to once.
//!
//! Not here: which layouts ring, and where (`layout`), the connection (`hearing`), what follows from a ring (`protocol::invalidation`).

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use redis::aio::PubSubSink;
use tokio::sync::Notify;

use crate::backend::Request;
use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::node::sharded_subscriber::ShardSink;
use crate::engine::Engine;
use crate::key::Name;
use crate::layout::Publish;
use crate::sync::lock;

/// The bells that one node listens to.
pub(crate) struct ReleaseChannels {
    pub(crate) layout: LockEncoding,
    shared: Arc<CommandQueue>,
    state: Mutex<ChannelState>,
    /// Told when there is a first bell.
    first: Notify,
}

#[derive(Default)]
struct ChannelState {
    /// What subscribes, while there is a connection.
    sinks: Option<ChannelSinks>,
    /// How many connections there were: what one confirmed says nothing of the next.
    connection: u64,
    /// By their channels.
    bells: HashMap<String, ReleaseChannel>,
}

/// What subscribes, in the ways in which bells ring.
#[derive(Clone)]
struct ChannelSinks {
    plain: PubSubSink,
    shard: Option<ShardSink>,
    publish: Publish,
}

impl ChannelSinks {
    /// Subscribes, and returns whether the bells can be heard.
    async fn subscribe(&mut self, channels: &[String]) -> bool {
        let by_shard = match &mut self.shard {
            Some(shard) => shard.subscribe(channels).await,
            None => false,
        };
        let plainly = match self.publish {
            Publish::Publish | Publish::Both => true,
            Publish::Spublish => false,
            Publish::Auto => !by_shard, // the server has no shards
        };
        by_shard | (plainly && self.plain.subscribe(channels).await.is_ok())
    }

    /// Both are sent at once: whoever subscribes meanwhile comes behind both.
    async fn unsubscribe(mut self, channels: Vec<String>) {
        let by_shard = async {
            if let Some(shard) = &mut self.shard {
                shard.unsubscribe(&channels).await;
            }
        };
        let _ = tokio::join!(self.plain.unsubscribe(&channels), by_shard);
    }
}

struct ReleaseChannel {
    key: Name,
    /// Whether the subscription is confirmed.
    heard: bool,
    /// Whether somebody has asked for it since it was looked at last.
    fresh: bool,
}

impl ReleaseChannels {
    pub(crate) fn new(layout: LockEncoding, shared: Arc<CommandQueue>) -> Self {
        Self { layout, shared, state: Mutex::default(), first: Notify::new() }
    }

    /// Returns the channel of the bell of a key, where there is one.
    fn channel(&self, key: &str) -> Option<String> {
        self.layout.bell(&self.shared.namespaces, key)
    }

    /// Returns whether a request can be sent: its bell is heard, or need not be.
    pub(crate) fn lets_go(&self, request: &Request) -> bool {
        if !self.layout.listens_first(request.command) {
            return true;
        }
        let Some(channel) = self.channel(&request.key) else { return true };
        let mut state = lock(&self.state);
        state.sinks.is_none()
            || state.bells.get_mut(&channel).is_some_and(|bell| {
                bell.fresh = true;
                bell.heard
            })
    }

    /// Listens to the bells of `keys`, or gives up after `patience`.
    pub(crate) async fn listen(&self, keys: Vec<Name>, retry_state: Duration) {
        let (channels, sinks, connection) = {
            let mut state = lock(&self.state);
            let Some(sinks) = state.sinks.clone() else { return };
            if state.bells.is_empty() {
                self.first.notify_one();
            }
            let mut channels = Vec::with_capacity(keys.len());
            for key in keys {
                let Some(channel) = self.channel(&key) else { continue };
                let bell = ReleaseChannel { key, heard: false, fresh: true };
                state.bells.entry(channel.clone()).or_insert(bell).fresh = true;
                channels.push(channel);
            }
            (channels, sinks, state.connection)
        };
        self.subscribe(sinks, connection, channels, retry_state).await;
    }

    /// There is a connection that bells can be heard over: those of before are listened to again.
    pub(crate) async fn open(&self, plain: PubSubSink, shard: Option<ShardSink>, retry_state: Duration) {
        let sinks = ChannelSinks { plain, shard, publish: self.layout.publish() };
        let (channels, connection) = {
            let mut state = lock(&self.state);
            state.sinks = Some(sinks.clone());
            state.connection += 1;
            (state.bells.keys().cloned().collect(), state.connection)
        };
        self.subscribe(sinks, connection, channels, retry_state).await;
    }

    /// The connection is gone.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.sinks = None;
        state.bells.values_mut().for_each(|bell| bell.heard = false);
    }

    async fn subscribe(
        &self,
        mut sinks: ChannelSinks,
        connection: u64,
        channels: Vec<String>,
        retry_state: Duration,
    ) {
        if channels.is_empty() {
            return;
        }
        let subscribed = tokio::time::timeout(retry_state, sinks.subscribe(&channels)).await;
        let mut state = lock(&self.state);
        if subscribed == Ok(true) && state.connection == connection && state.sinks.is_some() {
            for channel in &channels {
                if let Some(bell) = state.bells.get_mut(channel) {
                    bell.heard = true;
                }
            }
        }
    }

    /// Returns whose bell rings on `channel`.
    pub(crate) fn key_of(&self, channel: &str) -> Option<Name> {
        lock(&self.state).bells.get(channel).map(|bell| Name::clone(&bell.key))
    }

    /// Listens no more to bells of keys that nobody here wants, without end.
    pub(crate) async fn sweep(&self, engine: &Weak<Engine>) {
        loop {
            let first = self.first.notified();
            if lock(&self.state).bells.is_empty() {
                first.await;
            }
            tokio::time::sleep(SWEEP_EVERY).await;
            let Some(engine) = engine.upgrade() else { return };
            let unsubscribed = self.unsubscribe(|key| engine.wants(key));
            drop(engine);
            if let Some(unsubscribed) = unsubscribed {
                unsubscribed.await;
            }
        }
    }

    /// Takes out the bells that nobody wants; what is returned waits until the server has done so, too.
    fn unsubscribe(&self, is_wanted: impl Fn(&Name) -> bool) -> Option<Unsubscribed> {
        let mut state = lock(&self.state);
        let unwanted = state.take_unwanted(is_wanted);
        let sinks = state.sinks.clone().filter(|_| !unwanted.is_empty())?;
        let mut unsubscribed: Unsubscribed = Box::pin(sinks.unsubscribe(unwanted));
        // Queued before anybody, on whatever thread, can subscribe again: the connection keeps the order.
        let is_done = (&mut unsubscribed).now_or_never().is_some();
        (!is_done).then_some(unsubscribed)
    }
}

/// WaitGraph until the server has heard it.
type Unsubscribed = Pin<Box<dyn Future<Output = ()> + Send>>;

impl ChannelState {
    fn take_unwanted(&mut self, is_wanted: impl Fn(&Name) -> bool) -> Vec<String> {
        let mut unwanted = Vec::new();
        self.bells.retain(|channel, bell| {
            let stays = std::mem::take(&mut bell.fresh) || is_wanted(&bell.key);
            if !stays {
                unwanted.push(channel.clone());
            }
            stays
        });
        unwanted
    }
}

const SWEEP_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn with_bells(keys: &[&str]) -> ReleaseChannels {
        let bells = ReleaseChannels::new(LockEncoding::Plain, Arc::new(CommandQueue::new("dlock")));
        for key in keys {
            let bell = ReleaseChannel { key: (*key).into(), heard: true, fresh: true };
            lock(&bells.state).bells.insert(bells.channel(key).unwrap_or_default(), bell);
        }
        bells
    }

    #[test]
    fn a_bell_is_known_by_its_channel_and_nothing_else_is() {
        let bells = with_bells(&["dlock:order:7"]);

        assert_eq!(bells.key_of("dlock:free:dlock:order:7").as_deref(), Some("dlock:order:7"));
        assert_eq!(bells.key_of("dlock:free:dlock:order:8"), None);
    }

    #[test]
    fn a_bell_that_was_just_asked_for_is_kept_though_nobody_wants_its_key() {
        let bells = with_bells(&["wanted", "unwanted"]);
        let sweep = || lock(&bells.state).take_unwanted(|key| &**key == "wanted");

        assert!(sweep().is_empty());

        assert_eq!(sweep(), ["dlock:free:unwanted"]);
    }

    #[test]
    fn what_a_connection_confirmed_is_forgotten_with_it() {
        let bells = with_bells(&["k"]);

        bells.close();

        assert!(lock(&bells.state).bells.values().all(|bell| !bell.heard));
    }
}
