//! How a node hears of grants and of locks that are let go of: over a connection of its own, which is made anew when it breaks.
//!
//! Not here: who is told (`answers`), which bells are listened to (`bells`), what a message means (`protocol`).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::PubSubSink;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::namespaces::may_grant;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::backoff::Backoff;
use crate::backend::redis::node::connect::{ConnectTarget, GrantMessage, Subscriber};
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::keepalive::{Pulse, Use};
use crate::backend::redis::node::sharded_subscriber::ShardSubscriber;
use crate::clock::boot_time;
use crate::fork::in_one_process;
use crate::layout::Publish;
use crate::protocol::command::Failure;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::telemetry;

impl Node {
    /// Hears of grants and bells as long as the connection is used. After each subscription everything that waits is looked at again:
    /// messages were missed meanwhile. On a server that is another than the last one, so is everything that is held.
    pub(crate) async fn hear(self: &Arc<Self>, link: &NodeConnection, moved: bool) {
        let mut ear = link.take_ear();
        self.answers.connected(moved);
        let mut backoff = Backoff::new(&self.engine);
        loop {
            let since = Instant::now();
            if let Some(ear) = ear.take() {
                let shards = self.listen_to_shards(link).await;
                self.begin_subscriptions(&ear);
                self.listening.store(true, Ordering::Release);
                let shard = shards.as_ref().map(ShardSubscriber::sink);
                self.bells.open(ear.sink(), shard, link.route.response_timeout).await;
                self.answers.connected(false);
                let namespaces = self.subscribe_to_namespaces(ear.sink(), &link.route);
                tokio::select! {
                    heard = self.telling(ear, link.beat.pulse()) => {
                        self.idleness.ended(Use::Messages, link.beat.idle_at(boot_time(), Some(heard)));
                    }
                    () = self.tell_of_shards(shards, link) => {}
                    () = self.bells.sweep(&self.engine) => {}
                    () = namespaces => {}
                }
                self.bells.close();
                self.listening.store(false, Ordering::Release);
                link.doubt.notify_one(); // what cut this connection may have cut the other
            }
            backoff.pause(since.elapsed()).await;
            match link.route.listen(&self.shared.namespaces.own().grant_channel(self.process)).await {
                Ok(opened) => ear = Some(opened),
                Err(failure) => {
                    self.idleness.failed();
                    self.report_not_listening(&failure);
                }
            }
        }
    }

    /// Notes whether a new connection is subscribed to the grants of the manager's own namespace. None of what the last one was counts.
    fn begin_subscriptions(&self, ear: &Subscriber) {
        let own = self.shared.namespaces.own();
        let is_subscribed = ear.refused.is_none();
        *lock(&self.subscribed) = is_subscribed.then(|| Arc::clone(own.name())).into_iter().collect();
        match &ear.refused {
            Some(failure) => self.report_not_listening(failure),
            None => self.has_told_not_listening.store(false, Ordering::Relaxed),
        }
    }

    /// Reports that the server does not let us subscribe, once until it does.
    pub(super) fn report_not_listening(&self, failure: &Failure) {
        if !self.has_told_not_listening.swap(true, Ordering::Relaxed) {
            telemetry::not_listening(&failure.reason);
        }
    }

    /// Subscribes to the grants of each namespace as soon as one of its keys is used, without end; again after a while where the server
    /// refuses it. What waits in a namespace from before is checked then.
    async fn subscribe_to_namespaces(&self, mut sink: PubSubSink, route: &ConnectTarget) {
        if self.layout() != LockEncoding::Native {
            return std::future::pending().await; // nobody is granted a lock by a message
        }
        let mut refused = HashSet::from([Arc::clone(self.shared.namespaces.own().name())]); // that was told already
        loop {
            let added = self.shared.namespaces.added.notified();
            let (mut is_missing, mut is_new) = (false, false);
            for namespace in self.shared.namespaces.all() {
                if lock(&self.subscribed).contains(namespace.name()) {
                    continue;
                }
                let channel = namespace.grant_channel(self.process);
                match tokio::time::timeout(route.response_timeout, sink.subscribe(&channel)).await {
                    Ok(Ok(())) => is_new |= lock(&self.subscribed).insert(Arc::clone(namespace.name())),
                    Ok(Err(error)) => {
                        is_missing = true;
                        // Without a code it is the connection that failed, which whoever reads it finds out, too.
                        if error.code().is_some() && refused.insert(Arc::clone(namespace.name())) {
                            telemetry::not_listening(&route.failure(error).reason);
                        }
                    }
                    Err(_) => is_missing = true, // the ping finds out whether the connection is alive
                }
            }
            if is_new {
                self.answers.connected(false);
            }
            if is_missing {
                let _ = tokio::time::timeout(BEFORE_ANOTHER_SUBSCRIPTION, added).await;
            } else {
                added.await;
            }
        }
    }

    /// Connects for messages of shards, where bells ring by them.
    async fn listen_to_shards(&self, link: &NodeConnection) -> Option<ShardSubscriber> {
        if self.layout().publish() == Publish::Publish {
            return None;
        }
        link.route.listen_to_shards().await.ok()
    }

    /// Tells what is heard of shards, until the connection ends; without one, until it is time to try again.
    async fn tell_of_shards(&self, ear: Option<ShardSubscriber>, link: &NodeConnection) {
        match ear {
            Some(mut ear) => {
                let mut pulse = link.beat.pulse();
                let is_wanted = |channel: &str| self.bells.key_of(channel).is_some();
                while let Some(channel) = ear.next(&mut pulse, is_wanted).await {
                    if let Some(key) = self.bells.key_of(&channel) {
                        self.answers.on_key_event(&key);
                    }
                }
            }
            None if self.layout().publish() == Publish::Publish => std::future::pending().await,
            None => tokio::time::sleep(BEFORE_ANOTHER_TRY).await,
        }
    }

    /// Has a task of its own [`tell`](Self::tell) what is heard, for as long as this is waited for: a message wakes that, and not all that
    /// goes on beside it.
    async fn telling(self: &Arc<Self>, ear: Subscriber, pulse: Pulse) -> BootInstant {
        let mut telling = JoinSet::new();
        telling.spawn(in_one_process(Arc::clone(self).tell(ear, pulse)));
        match telling.join_next().await {
            Some(Ok(heard)) => heard,
            Some(Err(failed)) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
            _ => std::future::pending().await, // its runtime ends, and so do we
        }
    }

    /// Tells what is heard, until the connection ends, and returns when something was heard last. Anybody may publish anything: what is no
    /// message of ours is passed over.
    async fn tell(self: Arc<Self>, mut ear: Subscriber, mut pulse: Pulse) -> BootInstant {
        let (mut heard, mut count) = (boot_time(), 0_u64);
        while let Some(message) = ear.next(&mut pulse).await {
            if !self.is_listening() {
                break; // nobody waits for it any more, which a task is told a little later
            }
            (heard, count) = (boot_time(), count.wrapping_add(1));
            if count.is_multiple_of(IN_ONE_GO) {
                tokio::task::yield_now().await; // a flood of messages must not keep answers and timers waiting
            }
            if let Some(key) = self.bells.key_of(message.get_channel_name()) {
                self.answers.on_key_event(&key);
            } else if let Some(grant) = GrantMessage::parse(message.get_payload_bytes())
                && may_grant(message.get_channel_name(), &grant.key)
            {
                self.answers.on_grant(grant);
            }
        }
        heard
    }
}

/// How long bells of shards are done without where there was no connection for them.
const BEFORE_ANOTHER_TRY: Duration = Duration::from_secs(5);

/// Rights that were missing may have been given meanwhile.
const BEFORE_ANOTHER_SUBSCRIPTION: Duration = Duration::from_secs(1);

/// So many messages are dealt with between two looks at all else that happens on the thread.
const IN_ONE_GO: u64 = 16;
