//! How a node hears of grants: over a connection of its own, which is made anew when it breaks.
//!
//! Not here: who is told (`answers`), what a grant means (`protocol`).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::backend::redis::backoff::Backoff;
use crate::backend::redis::health::Link;
use crate::backend::redis::link::Ear;
use crate::backend::redis::node::Node;

impl Node {
    /// Hears of grants as long as the connection is used. After each subscription everything that waits is looked at again: messages
    /// were missed meanwhile. On a server that is another than the last one, so is everything that is held.
    pub(super) async fn hear(&self, link: &Link, moved: bool) {
        let mut ear = link.take_ear();
        self.answers.connected(moved);
        let mut backoff = Backoff::new(&self.engine);
        loop {
            let since = Instant::now();
            if let Some(mut ear) = ear.take() {
                self.listening.store(true, Ordering::Release);
                self.answers.connected(false);
                self.tell_grants(&mut ear).await;
                self.listening.store(false, Ordering::Release);
                link.doubt.notify_one(); // what cut this connection may have cut the other
            }
            backoff.pause(since.elapsed()).await;
            ear = link.route.listen(self.process).await.ok();
        }
    }

    async fn tell_grants(&self, ear: &mut Ear) {
        while let Some(grant) = ear.next_grant(PING_EVERY).await {
            self.answers.granted(grant);
        }
    }
}

/// How often a connection that may be idle is asked whether it is alive.
pub(super) const PING_EVERY: Duration = Duration::from_secs(5);
