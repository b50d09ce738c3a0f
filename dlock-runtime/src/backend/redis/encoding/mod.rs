//! How locks are stored in a server: the scripts, and the channels that announce a release.
//!
//! [`LockEncoding`] is implemented by:
//!
//! | encoding | value | waiters |
//! |---|---|---|
//! | [`NativeEncoding`] | a string: the holder, then the waiters | queue in the value; a release hands the lock to the first |
//! | [`PlainEncoding`](plain::PlainEncoding) | a string: the holder | do not queue; a release publishes on the key's release channel, and subscribers try again |
//! | [`RedissonEncoding`] | a hash: the holder, see `redisson` | as with plain, on Redisson's own channels |
//!
//! With plain and Redisson, an enqueue only checks the lock ([`Reply::NotQueued`]), and a yield
//! releases it if the channel has a subscriber.
//!
//! | module | contents |
//! |---|---|
//! | `lock_encoding` | the trait, and what scripts are called with |
//! | `native`, `plain`, `redisson` | the encodings |
//! | `codec` | encodes commands and decodes replies, for locks that are strings |
//! | `scripts` | the Lua scripts of each encoding |
//! | `store_call` | operations on keys that are no locks |

pub(super) mod codec;
mod lock_encoding;
pub(super) mod native;
pub(super) mod plain;
pub(super) mod redisson;
pub(super) mod scripts;
pub(super) mod store_call;
#[cfg(test)]
mod tests;

use crate::backend::redis::encoding::native::NativeEncoding;
use crate::backend::redis::encoding::redisson::RedissonEncoding;
use crate::config::Settings;
use crate::layout::Layout;
#[cfg(doc)]
use crate::protocol::command::Reply;

pub(super) use self::lock_encoding::{LockEncoding, ScriptParameters, ScriptTimes};

/// Returns the configured encoding for servers that have their keys alone. `in_cluster`: the
/// servers form a cluster.
pub(crate) fn of_settings(settings: &Settings, in_cluster: bool) -> &'static dyn LockEncoding {
    match settings.layout {
        Layout::Native => &NativeEncoding,
        Layout::Redisson => RedissonEncoding::with_publish(settings.publish, in_cluster),
    }
}
