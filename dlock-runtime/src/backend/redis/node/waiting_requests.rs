//! Requests that wait for the first connection, or for the attempts to replace a lost one. None of
//! them was written.
//!
//! Each waits for less than one response timeout, and their number is bounded. Requests beyond
//! either limit are rejected. They leave in the order in which they came.

use std::collections::VecDeque;
use std::time::Duration;

use crate::backend::Request;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::protocol::deadline::BootInstant;

/// The waiting requests, oldest first.
#[derive(Default)]
pub(crate) struct WaitingRequests {
    queue: VecDeque<(BootInstant, Vec<Request>, RouteHistory)>,
    count: usize,
}

impl WaitingRequests {
    /// Adds requests that came at `now`, for a server with this `response_timeout`.
    ///
    /// # Errors
    ///
    /// Returns the requests if too many wait already.
    pub(crate) fn push(
        &mut self,
        requests: Vec<Request>,
        route_history: RouteHistory,
        now: BootInstant,
        response_timeout: Duration,
    ) -> Result<(), Vec<Request>> {
        if self.count.saturating_add(requests.len()) > MAX_WAITING {
            return Err(requests);
        }
        self.count += requests.len();
        self.queue.push_back((expiry(now, response_timeout), requests, route_history));
        Ok(())
    }

    /// Adds requests before all others, regardless of the limit.
    pub(crate) fn push_first(
        &mut self,
        requests: Vec<Request>,
        now: BootInstant,
        response_timeout: Duration,
    ) {
        if !requests.is_empty() {
            self.count += requests.len();
            self.queue.push_front((expiry(now, response_timeout), requests, RouteHistory::default()));
        }
    }

    /// Removes the requests that have expired at `now`.
    pub(crate) fn take_expired(&mut self, now: BootInstant) -> Vec<Request> {
        let mut expired = Vec::new();
        while self.queue.front().is_some_and(|(until, ..)| *until <= now)
            && let Some((_, requests, _)) = self.queue.pop_front()
        {
            self.count -= requests.len();
            expired.extend(requests);
        }
        expired
    }

    /// Removes the requests for which `is_taken` returns `true`, in order.
    pub(crate) fn take_if(&mut self, is_taken: impl Fn(&Request) -> bool) -> Vec<Request> {
        let mut taken = Vec::new();
        self.queue.retain_mut(|(_, requests, _)| {
            taken.extend(requests.extract_if(.., |request| is_taken(request)));
            !requests.is_empty()
        });
        self.count -= taken.len();
        taken
    }

    /// Returns when the first requests expire; `None` if none wait.
    pub(crate) fn next_expiry(&self) -> Option<BootInstant> {
        self.queue.front().map(|(until, ..)| *until)
    }

    /// Removes all requests, in order.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (Vec<Request>, RouteHistory)> + use<> {
        self.count = 0;
        std::mem::take(&mut self.queue)
            .into_iter()
            .map(|(_, requests, route_history)| (requests, route_history))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

fn expiry(now: BootInstant, response_timeout: Duration) -> BootInstant {
    now.plus(longest_wait(response_timeout))
}

/// Returns how long a request waits.
///
/// That is 1/16 less than the timeout of a single try, so that the call returns the reason rather
/// than a timeout.
pub(crate) fn longest_wait(response_timeout: Duration) -> Duration {
    response_timeout.saturating_sub(response_timeout / 16)
}

/// The limit for one server: about 10 MB.
const MAX_WAITING: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::node::test_node::acquire;
    use crate::bounds::{assert_listed, written};

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn waiting_requests_leave_in_order_until_they_expire() {
        let (mut waiting, timeout) = (WaitingRequests::default(), Duration::from_millis(160));
        for (key, now) in [("a", 0), ("b", 10), ("c", 20)] {
            assert!(waiting.push(vec![acquire(key)], RouteHistory::default(), at(now), timeout).is_ok());
        }
        let keys = |requests: Vec<Request>| requests.iter().map(|of| of.key.to_string()).collect::<Vec<_>>();

        assert_eq!(waiting.next_expiry(), Some(at(150)));
        assert!(waiting.take_expired(at(149)).is_empty());
        assert_eq!(keys(waiting.take_expired(at(150))), ["a"]);
        assert_eq!(keys(waiting.take().flat_map(|(requests, _)| requests).collect()), ["b", "c"]);
        assert!(waiting.is_empty() && waiting.next_expiry().is_none());
    }

    #[test]
    fn some_requests_are_taken_in_order() {
        let (mut waiting, timeout) = (WaitingRequests::default(), Duration::from_millis(160));
        for keys in [&["a1", "b1", "a2"][..], &["a3"], &["b2"]] {
            let requests = keys.iter().map(|key| acquire(key)).collect();
            assert!(waiting.push(requests, RouteHistory::default(), at(0), timeout).is_ok());
        }
        let keys = |requests: Vec<Request>| requests.iter().map(|of| of.key.to_string()).collect::<Vec<_>>();

        assert_eq!(keys(waiting.take_if(|request| request.key.starts_with('a'))), ["a1", "a2", "a3"]);

        assert_eq!((waiting.count, waiting.queue.len()), (2, 2));
        assert_eq!(keys(waiting.take().flat_map(|(requests, _)| requests).collect()), ["b1", "b2"]);
    }

    #[test]
    fn requests_beyond_the_limit_are_returned() {
        let (mut waiting, timeout) = (WaitingRequests::default(), Duration::from_millis(160));
        let many = (0..MAX_WAITING).map(|_| acquire("a")).collect();
        assert!(waiting.push(many, RouteHistory::default(), at(0), timeout).is_ok());

        let refused = waiting.push(vec![acquire("b")], RouteHistory::default(), at(0), timeout);

        assert_listed("requests that wait for a new connection", &written(MAX_WAITING));

        assert_eq!(refused.map_err(|requests| requests.len()), Err(1));
        assert_eq!(waiting.take_expired(at(150)).len(), MAX_WAITING);
        assert!(waiting.push(vec![acquire("b")], RouteHistory::default(), at(150), timeout).is_ok());
    }

    #[test]
    fn unsent_requests_of_a_lost_connection_come_first() {
        let (mut waiting, timeout) = (WaitingRequests::default(), Duration::from_millis(160));
        let requests = |count| (0..count).map(|_| acquire("first")).collect::<Vec<_>>();
        assert!(waiting.push(vec![acquire("last")], RouteHistory::default(), at(0), timeout).is_ok());

        waiting.push_first(Vec::new(), at(0), timeout);
        assert_eq!(waiting.queue.len(), 1);
        waiting.push_first(requests(MAX_WAITING), at(0), timeout);

        assert_eq!(waiting.count, MAX_WAITING + 1, "the limit does not apply to them");
        let refused = waiting.push(vec![acquire("b")], RouteHistory::default(), at(0), timeout);
        assert!(refused.is_err());
        let order: Vec<_> = waiting.take().map(|(requests, _)| requests[0].key.to_string()).collect();
        assert_eq!(order, ["first", "last"]);
        assert!(waiting.push(requests(MAX_WAITING), RouteHistory::default(), at(0), timeout).is_ok());
    }

    #[test]
    fn requests_that_have_left_make_room_for_others() {
        let (mut waiting, timeout) = (WaitingRequests::default(), Duration::from_millis(160));
        let push = |waiting: &mut WaitingRequests, count, ms| {
            let requests = (0..count).map(|_| acquire("a")).collect();
            waiting.push(requests, RouteHistory::default(), at(ms), timeout).is_ok()
        };
        assert!(push(&mut waiting, 2, 0) && push(&mut waiting, MAX_WAITING - 2, 10));
        assert!(!push(&mut waiting, 1, 10));

        assert_eq!(waiting.take_expired(at(150)).len(), 2);

        assert!(!push(&mut waiting, 3, 20) && push(&mut waiting, 2, 20));
        assert!(waiting.take_if(|_| false).is_empty());
        assert!(!push(&mut waiting, 1, 20));
    }
}
