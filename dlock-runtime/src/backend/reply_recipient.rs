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
}

/// A hold that was released in the background, as the log describes it.
pub(crate) trait ReleasedHold: Debug + Send + Sync {
    fn key(&self) -> &LockKey;

    /// Returns how long the lock had been held at `now`.
    fn held_for(&self, now: BootInstant) -> Duration;
}

impl ReplyRecipient {
    /// Returns `true` if no task waits for the reply.
    pub(crate) fn is_background(&self) -> bool {
        matches!(self, Self::Log(..))
    }

    /// Delivers the reply that arrived at `now`. Nothing may be locked, since the recipient is
    /// foreign code.
    pub(crate) fn complete(self, reply: Reply, now: BootInstant) {
        match self {
            Self::Caller(answer) => drop(answer.send(reply)),
            Self::Log(hold, telemetry) => {
                telemetry.record_background_release(hold.key(), &reply, || hold.held_for(now));
            }
        }
    }
}
