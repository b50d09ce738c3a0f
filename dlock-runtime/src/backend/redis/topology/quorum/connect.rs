//! The first connections of a quorum: whether a majority is reachable and every reachable server is
//! suitable.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::quorum::majority;

/// Waits until a majority is connected. The other servers may connect later: their outcomes stay in
/// `outcomes`, because a node whose outcome is not wanted ends.
///
/// A server that is permanently unsuitable is reported if it replies within 100 ms after that.
///
/// # Errors
///
/// Fails if no majority can be reached, or if a server is unsuitable for a quorum or rejects the
/// connection.
pub(super) async fn connect_majority(
    outcomes: &mut FuturesUnordered<oneshot::Receiver<Result<(), Failure>>>,
) -> Result<(), Failure> {
    let servers = outcomes.len();
    let (mut connected, mut away) = (0, 0);
    loop {
        let next = if connected >= majority(servers) {
            tokio::time::timeout(GRACE, outcomes.next()).await.ok().flatten()
        } else {
            outcomes.next().await
        };
        let Some(attempt) = next else { return Ok(()) };
        // An attempt without an outcome has panicked.
        let panicked = |_| Err(Failure::new(FailureKind::Passing, "the attempt to connect panicked"));
        match attempt.unwrap_or_else(panicked) {
            Ok(()) => connected += 1,
            Err(failure) if failure.kind != FailureKind::Passing => return Err(failure),
            Err(failure) => {
                away += 1;
                if servers - away < majority(servers) {
                    let text = format!(
                        "a quorum needs {} of {servers} servers, and {away} cannot be reached, the last one because: {}",
                        majority(servers),
                        failure.reason
                    );
                    return Err(Failure { reason: text.into(), ..failure });
                }
            }
        }
    }
}

/// Servers in one network have similar latency. A slower server is considered unreachable.
const GRACE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::Instant;

    use super::*;

    type Attempt = oneshot::Sender<Result<(), Failure>>;

    /// The attempts to connect to so many servers, and the outcome.
    fn connecting(servers: usize) -> (Vec<Attempt>, impl Future<Output = Result<(), Failure>>) {
        let (attempts, outcomes): (_, Vec<_>) = (0..servers).map(|_| oneshot::channel()).unzip();
        let mut outcomes = outcomes.into_iter().collect();
        (attempts, async move { connect_majority(&mut outcomes).await })
    }

    fn end(attempts: &mut Vec<Attempt>, outcome: Result<(), Failure>) {
        let attempt = attempts.pop().expect("an attempt is in progress");
        attempt.send(outcome).expect("its outcome matters");
    }

    fn away() -> Failure {
        Failure::new(FailureKind::Passing, "it is away")
    }

    #[tokio::test(start_paused = true)]
    async fn a_majority_is_waited_for_and_the_others_for_a_while() {
        let (mut attempts, connected) = connecting(3);
        tokio::pin!(connected);
        end(&mut attempts, Ok(()));
        let early = tokio::time::timeout(Duration::from_secs(60), &mut connected).await;
        assert!(early.is_err(), "one of three is no majority");

        end(&mut attempts, Ok(()));
        let begun = Instant::now();

        assert_eq!(connected.await.map_err(|failure| failure.reason), Ok(()));
        assert_eq!(begun.elapsed(), GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_majority_without_the_others_suffices() {
        for servers in [3, 5] {
            let (mut attempts, connected) = connecting(servers);
            tokio::pin!(connected);
            for _ in majority(servers)..servers {
                end(&mut attempts, Err(away()));
            }
            assert!((&mut connected).now_or_never().is_none(), "the others may connect");
            while !attempts.is_empty() {
                end(&mut attempts, Ok(()));
            }

            assert!(connected.now_or_never().is_some_and(|connected| connected.is_ok()), "all have ended");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_majority_that_is_away_is_reported_at_once() {
        for (servers, text) in [
            (3, "a quorum needs 2 of 3 servers, and 2 cannot be reached, the last one because: it is away"),
            (5, "a quorum needs 3 of 5 servers, and 3 cannot be reached, the last one because: it is away"),
        ] {
            let (mut attempts, connected) = connecting(servers);
            for _ in 0..majority(servers) {
                end(&mut attempts, Err(away()));
            }

            let failure = connected.now_or_never().expect("it is known").expect_err("too few are left");

            assert_eq!((&*failure.reason, failure.kind), (text, FailureKind::Passing));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_without_an_outcome_count_as_failed() {
        let (mut attempts, connected) = connecting(3);
        end(&mut attempts, Ok(()));

        drop(attempts);

        let failure = connected.now_or_never().expect("it is known").expect_err("too few are left");
        assert!(failure.reason.ends_with("the attempt to connect panicked"), "{}", failure.reason);
    }

    #[tokio::test(start_paused = true)]
    async fn one_unsuitable_server_is_reported() {
        let (mut attempts, connected) = connecting(3);
        end(&mut attempts, Ok(()));
        end(&mut attempts, Ok(()));
        end(&mut attempts, Err(Failure::new(FailureKind::Lasting, "it is a replica")));

        let failure = connected.now_or_never().expect("it is known").expect_err("one is unsuitable");

        assert_eq!(&*failure.reason, "it is a replica");
    }
}
