//! The first connections of a quorum: whether there are enough of them, and whether all are what they should be.
//!
//! Not here: how one is made, and made again (`node`).

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::quorum::majority;

/// WaitGraph until a majority is connected; whoever is not may come later. A server that will never do is told of, if it says so in time.
///
/// # Errors
///
/// Fails where no majority can be reached, and for a server that is not one of a quorum or does not let us in.
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

/// Topology of one network are as far from us as their majority; who is later than this is taken to be away.
const GRACE: Duration = Duration::from_millis(100);
