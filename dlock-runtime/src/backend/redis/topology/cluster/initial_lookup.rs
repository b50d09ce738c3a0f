//! The first lookup of the primaries, if the manager has started without it.
//!
//! ```text
//!  InProgress --found--> the slot map
//!      |                     ^
//!      +--failed--> Failed --+ found; each later attempt after a backoff, without end
//! ```
//!
//! Requests wait for the first attempt, and are refused at once after it has failed, as for the
//! connection to one server. That attempt is shorter than a response timeout, so a call with a
//! single try gets its reason.

use std::time::Duration;

use crate::backend::Request;
use crate::backend::redis::node::backoff::Backoff;
use crate::backend::redis::topology::cluster::{Cluster, RoutingDecision};
use crate::protocol::command::{Failure, FailureKind};
use crate::sync::lock;

/// The state of the first lookup, until it succeeds.
pub(super) enum InitialLookup {
    /// The first attempt is in progress, and requests wait for its end.
    InProgress(Vec<Request>),
    /// The last attempt has failed.
    Failed(Failure),
}

impl InitialLookup {
    /// Returns the state before the first attempt.
    pub(super) fn new() -> Self {
        Self::InProgress(Vec::new())
    }

    /// Keeps requests until the end of the first attempt, or refuses them.
    pub(super) fn take(&mut self, requests: Vec<Request>, decided: &mut RoutingDecision) {
        match self {
            Self::InProgress(waiting) => waiting.extend(requests),
            Self::Failed(failure) => {
                decided.refused.extend(requests.into_iter().map(|request| (request, failure.clone())));
            }
        }
    }

    /// Records that an attempt has failed, and refuses the requests that waited for it.
    fn fail(&mut self, failure: Failure, decided: &mut RoutingDecision) {
        // Whatever the reason, a later attempt may succeed.
        let failure = Failure { kind: FailureKind::Passing, ..failure };
        if let Self::InProgress(waiting) = std::mem::replace(self, Self::Failed(failure)) {
            self.take(waiting, decided);
        }
    }

    /// Ends the lookup, and returns the requests that wait for it.
    fn finish(self) -> Vec<Request> {
        if let Self::InProgress(waiting) = self { waiting } else { Vec::new() }
    }
}

impl Cluster {
    /// Looks for the primaries until they are found.
    pub(super) async fn look_up(&self) {
        let mut backoff = Backoff::new(&self.engine.engine);
        loop {
            let failure = match tokio::time::timeout(self.longest_lookup(), self.find()).await {
                Ok(Ok(())) => break,
                Ok(Err(failure)) => failure,
                Err(_) => self.late(),
            };
            self.decide(|state, decided| {
                if let Some(lookup) = &mut state.lookup {
                    lookup.fail(failure, decided);
                }
            });
            backoff.pause(Duration::ZERO).await;
        }
        self.route(|state| state.lookup.take().map(InitialLookup::finish).unwrap_or_default());
        self.recheck(false, |_| true); // retry requests that were refused meanwhile
    }

    /// Returns the limit of an attempt: requests wait for the first one only.
    fn longest_lookup(&self) -> Duration {
        let response_timeout = self.settings.rules.response_timeout;
        match lock(&self.state).lookup {
            Some(InitialLookup::InProgress(_)) => response_timeout.saturating_sub(response_timeout / 16),
            _ => self.settings.connect_timeout.saturating_add(response_timeout),
        }
    }

    fn late(&self) -> Failure {
        let seeds: Vec<_> = self.seeds.iter().map(|seed| seed.shown.to_string()).collect();
        let text = format!("the cluster of redis at {} has not been found yet", seeds.join(", "));
        Failure::new(FailureKind::Passing, text)
    }
}
