//! The first connections of a quorum: whether a majority is reachable and every reachable server is
//! suitable.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::quorum::majority;

/// Waits until a majority is connected. The other servers may connect later.
///
/// A server that is permanently unsuitable is reported if it replies within 100 ms after that.
///
/// # Errors
///
/// Fails if no majority can be reached, or if a server is unsuitable for a quorum or rejects the
/// connection.
pub(super) async fn connect_majority(
    outcomes: Vec<oneshot::Receiver<Result<(), Failure>>>,
) -> Result<(), Failure> {
    let servers = outcomes.len();
    let mut outcomes: FuturesUnordered<_> = outcomes.into_iter().collect();
    let (mut connected, mut away) = (0, 0);
    loop {
        let next = if connected >= majority(servers) {
            tokio::time::timeout(GRACE, outcomes.next()).await.ok().flatten()
        } else {
            outcomes.next().await
        };
        match next {
            Some(Ok(Ok(()))) => connected += 1,
            Some(Ok(Err(failure))) if failure.kind != FailureKind::Passing => return Err(failure),
            Some(Ok(Err(failure))) => {
                away += 1;
                if servers - away < majority(servers) {
                    let text = format!(
                        "a quorum needs {} of {servers} servers, and {away} cannot be reached: {}",
                        majority(servers),
                        failure.reason
                    );
                    return Err(Failure { reason: text.into(), ..failure });
                }
            }
            Some(Err(_)) | None => return Ok(()),
        }
    }
}

/// Servers in one network have similar latency. A slower server is considered unreachable.
const GRACE: Duration = Duration::from_millis(100);
