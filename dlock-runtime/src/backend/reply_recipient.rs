//! [`ReplyRecipient`], the recipient of a reply in addition to the protocol.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::key::LockKey;
use crate::protocol::command::{Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::telemetry::CallSpan;

/// The recipient of a reply, in addition to the protocol.
///
/// It travels with the request, so that it is completed even if the engine has been dropped.
#[derive(Debug)]
pub(crate) enum ReplyRecipient {
    /// A task that waits for it.
    Caller(oneshot::Sender<Reply>),
    /// A task that has released this lock, or the log if the task has stopped waiting.
    Releaser(oneshot::Sender<Reply>, Arc<dyn ReleasedHold>),
    /// The log of the call that released this lock in the background.
    Log(Arc<dyn ReleasedHold>, CallSpan),
    /// The log, for a guard of this lock that was dropped.
    DroppedGuard(Arc<dyn ReleasedHold>),
    /// An operation of the backend itself, by its number: it sends the request of the engine to
    /// several servers.
    Operation(usize),
}

/// A hold that was released, as the log describes it.
pub(crate) trait ReleasedHold: Debug + Send + Sync {
    fn key(&self) -> &LockKey;

    /// Returns how long the lock had been held at `now`.
    fn held_for(&self, now: BootInstant) -> Duration;

    /// Returns `true` if the lease that it had at the release has expired at `now`.
    fn has_expired(&self, now: BootInstant) -> bool;
}

impl ReplyRecipient {
    /// Returns `true` if a call has released the lock in the background.
    pub(crate) fn is_background(&self) -> bool {
        matches!(self, Self::Log(..))
    }

    /// Returns the number of the operation of the backend that receives the reply.
    pub(crate) fn operation(&self) -> Option<usize> {
        match self {
            Self::Operation(number) => Some(*number),
            Self::Caller(_) | Self::Releaser(..) | Self::Log(..) | Self::DroppedGuard(_) => None,
        }
    }

    /// Delivers the reply that arrived at `now`. Nothing may be locked, since the recipient is
    /// foreign code. Has no effect for an operation, whose backend reads the number.
    pub(crate) fn complete(self, reply: Reply, now: BootInstant) {
        match self {
            Self::Caller(caller) => drop(caller.send(reply)),
            Self::Releaser(caller, hold) => {
                if let Err(reply) = caller.send(reply) {
                    log(&*hold, &CallSpan::none(), reply, now);
                }
            }
            Self::Log(hold, telemetry) => log(&*hold, &telemetry, reply, now),
            Self::DroppedGuard(hold) => log(&*hold, &CallSpan::none(), reply, now),
            Self::Operation(_) => {}
        }
    }
}

/// Returns what the reply to the release of a hold that was valid then means at `now`.
///
/// If its lease has expired since, the key may have expired before the release reached the server.
/// Then no work was interrupted.
pub(crate) fn release_outcome(hold: &dyn ReleasedHold, reply: Reply, now: BootInstant) -> Reply {
    match reply {
        Reply::NotOwner if hold.has_expired(now) => {
            Reply::Unknown(Failure::new(FailureKind::Passing, "the lease expired before the server replied"))
        }
        reply => reply,
    }
}

fn log(hold: &dyn ReleasedHold, telemetry: &CallSpan, reply: Reply, now: BootInstant) {
    let reply = release_outcome(hold, reply, now);
    telemetry.record_background_release(hold.key(), &reply, || hold.held_for(now));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_and_an_operation_are_no_background_release() {
        let (caller, mut receiver) = oneshot::channel();
        let (caller, operation) = (ReplyRecipient::Caller(caller), ReplyRecipient::Operation(7));

        assert!(!caller.is_background() && !operation.is_background());
        assert_eq!((caller.operation(), operation.operation()), (None, Some(7)));
        operation.complete(Reply::Owner, BootInstant::START);
        caller.complete(Reply::Owner, BootInstant::START);

        assert!(matches!(receiver.try_recv(), Ok(Reply::Owner)));
    }
}
