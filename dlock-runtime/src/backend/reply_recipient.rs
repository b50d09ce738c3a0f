//! [`ReplyRecipient`], the recipient of a reply in addition to the protocol.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::key::LockKey;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::telemetry::CallSpan;

/// The recipient of a reply, in addition to the protocol.
///
/// It travels with the request, so that it is completed even if the engine has been dropped.
#[derive(Debug)]
pub(crate) enum ReplyRecipient {
    /// A task that waits for it.
    Caller(oneshot::Sender<Reply>),
    /// The log of the call that released this lock in the background.
    Log(Arc<dyn ReleasedHold>, CallSpan),
    /// The log, for a guard of this lock that was dropped.
    DroppedGuard(Arc<dyn ReleasedHold>),
    /// An operation of the backend itself, by its number: it sends the request of the engine to
    /// several servers.
    Operation(usize),
}

/// A hold that was released, and whose reply no task waits for, as the log describes it.
pub(crate) trait ReleasedHold: Debug + Send + Sync {
    fn key(&self) -> &LockKey;

    /// Returns how long the lock had been held at `now`.
    fn held_for(&self, now: BootInstant) -> Duration;
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
            Self::Caller(_) | Self::Log(..) | Self::DroppedGuard(_) => None,
        }
    }

    /// Delivers the reply that arrived at `now`. Nothing may be locked, since the recipient is
    /// foreign code. Has no effect for an operation, whose backend reads the number.
    pub(crate) fn complete(self, reply: Reply, now: BootInstant) {
        match self {
            Self::Caller(caller) => drop(caller.send(reply)),
            Self::Log(hold, telemetry) => {
                telemetry.record_background_release(hold.key(), &reply, || hold.held_for(now));
            }
            Self::DroppedGuard(hold) => {
                CallSpan::none().record_background_release(hold.key(), &reply, || hold.held_for(now));
            }
            Self::Operation(_) => {}
        }
    }
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
