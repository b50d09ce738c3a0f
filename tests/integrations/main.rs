//! Annotated handlers in real servers of axum, actix-web and tonic, asked over real sockets.
//!
//! | file | owns |
//! |---|---|
//! | `http` | what every service over HTTP must do: one suite, run on each framework |
//! | `axum`, `actix` | the handlers in that framework, as its users stack and type them, and what is its own |
//! | `tonic` | the same for a service over gRPC |
//! | `visit` | bodies of handlers that a test leads by the hand |

mod actix;
mod axum;
mod http;
mod tonic;
mod visit;

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::world::World;

/// What a wake-up may take on a busy machine, far below the lease of the handlers.
const PROMPT: Duration = Duration::from_secs(2);

/// What handlers have in common: where the locks are, and who is told of a body that runs.
#[derive(Clone)]
struct Shop {
    locks: LockManager,
    door: visit::Door,
}

/// Asserts that `key`, whose holder is gone before its end, is there for the next at once.
async fn assert_free_at_once(world: &World, key: &str) {
    let begun = tokio::time::Instant::now();
    let next = world.manager().await.lock(key).wait(PROMPT * 10).acquire().await;

    assert!(next.is_ok() && begun.elapsed() < PROMPT, "{next:?} after {:?}", begun.elapsed());
}
