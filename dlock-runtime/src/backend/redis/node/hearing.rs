//! How a node hears of grants and of locks that are let go of: over a connection of its own, which is made anew when it breaks.
//!
//! Not here: who is told (`answers`), which bells are listened to (`bells`), what a message means (`protocol`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backend::redis::node::Node;
use crate::backend::redis::node::backoff::Backoff;
use crate::backend::redis::node::beat::{Pulse, Use};
use crate::backend::redis::node::health::Link;
use crate::backend::redis::node::link::{Ear, Grant};
use crate::backend::redis::node::shards::ShardEar;
use crate::clock::boot_time;
use crate::layout::Publish;
use crate::protocol::deadline::BootTime;
use crate::telemetry;

impl Node {
    /// Hears of grants and bells as long as the connection is used. After each subscription everything that waits is looked at again:
    /// messages were missed meanwhile. On a server that is another than the last one, so is everything that is held.
    pub(crate) async fn hear(self: &Arc<Self>, link: &Link, moved: bool) {
        let mut ear = link.take_ear();
        self.answers.connected(moved);
        let mut backoff = Backoff::new(&self.engine);
        loop {
            let since = Instant::now();
            if let Some(ear) = ear.take() {
                let shards = self.listen_to_shards(link).await;
                self.listening.store(true, Ordering::Release);
                let shard = shards.as_ref().map(ShardEar::sink);
                self.bells.open(ear.sink(), shard, link.route.response_timeout).await;
                self.answers.connected(false);
                tokio::select! {
                    heard = self.telling(ear, link.beat.pulse()) => {
                        self.idleness.ended(Use::Messages, link.beat.idle_at(boot_time(), Some(heard)));
                    }
                    () = self.tell_of_shards(shards, link) => {}
                    () = self.bells.sweep(&self.engine) => {}
                }
                self.bells.close();
                self.listening.store(false, Ordering::Release);
                link.doubt.notify_one(); // what cut this connection may have cut the other
            }
            backoff.pause(since.elapsed()).await;
            match link.route.listen(self.process).await {
                Ok(opened) => ear = Some(opened),
                Err(failure) => {
                    self.idleness.failed();
                    telemetry::not_listening(&failure.reason);
                }
            }
        }
    }

    /// Connects for messages of shards, where bells ring by them.
    async fn listen_to_shards(&self, link: &Link) -> Option<ShardEar> {
        if self.layout().publish() == Publish::Publish {
            return None;
        }
        link.route.listen_to_shards().await.ok()
    }

    /// Tells what is heard of shards, until the connection ends; without one, until it is time to try again.
    async fn tell_of_shards(&self, ear: Option<ShardEar>, link: &Link) {
        match ear {
            Some(mut ear) => {
                let mut pulse = link.beat.pulse();
                let is_wanted = |channel: &str| self.bells.key_of(channel).is_some();
                while let Some(channel) = ear.next(&mut pulse, is_wanted).await {
                    if let Some(key) = self.bells.key_of(&channel) {
                        self.answers.rung(&key);
                    }
                }
            }
            None if self.layout().publish() == Publish::Publish => std::future::pending().await,
            None => tokio::time::sleep(BEFORE_ANOTHER_TRY).await,
        }
    }

    /// Has a task of its own [`tell`](Self::tell) what is heard, for as long as this is waited for: a message wakes that, and not all that
    /// goes on beside it.
    async fn telling(self: &Arc<Self>, ear: Ear, pulse: Pulse) -> BootTime {
        let mut telling = JoinSet::new();
        telling.spawn(Arc::clone(self).tell(ear, pulse));
        match telling.join_next().await {
            Some(Ok(heard)) => heard,
            Some(Err(failed)) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
            _ => std::future::pending().await, // its runtime ends, and so do we
        }
    }

    /// Tells what is heard, until the connection ends, and returns when something was heard last. Anybody may publish anything: what is no
    /// message of ours is passed over.
    async fn tell(self: Arc<Self>, mut ear: Ear, mut pulse: Pulse) -> BootTime {
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
                self.answers.rung(&key);
            } else if let Some(grant) = Grant::parse(message.get_payload_bytes()) {
                self.answers.granted(grant);
            }
        }
        heard
    }
}

/// How long bells of shards are done without where there was no connection for them.
const BEFORE_ANOTHER_TRY: Duration = Duration::from_secs(5);

/// So many messages are dealt with between two looks at all else that happens on the thread.
const IN_ONE_GO: u64 = 16;
