//! Annotated handlers in real axum, actix-web, and tonic servers over real sockets.
//!
//! | file | contents |
//! |---|---|
//! | `http` | behavior of every HTTP service: one suite, which runs on each framework |
//! | `axum`, `actix` | handlers in typical style of that framework, and its specifics |
//! | `tonic` | the same for a service over gRPC |
//! | `lock_layer` | `LockLayer` around services of axum, hyper, and tonic |
//! | `lock_layer_end` | how a hold of `LockLayer` ends |
//! | `shutdown` | the two orders of shutting down a service |
//! | `visit` | handler bodies under the control of a test |

mod actix;
mod axum;
mod http;
mod lock_layer;
mod lock_layer_end;
mod shutdown;
mod tonic;
mod visit;

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::world::World;

/// The bound of one wake-up on a busy machine, far below the lease of the handlers.
const PROMPT: Duration = Duration::from_secs(2);

/// The shared state of the handlers: the lock manager, and the channel that reports each body.
#[derive(Clone)]
struct Shop {
    locks: LockManager,
    door: visit::Door,
}

/// Asserts that `key`, whose holder was dropped, can be acquired well before its lease expires.
async fn assert_free_at_once(world: &World, key: &str) {
    let begun = tokio::time::Instant::now();
    let next = world.manager().await.lock(key).wait(PROMPT * 10).acquire().await;

    assert!(next.is_ok() && begun.elapsed() < PROMPT, "{next:?} after {:?}", begun.elapsed());
}
