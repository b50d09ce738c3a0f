//! A waker is code of whoever waits, and may ask for a lock itself, on the thread that wakes it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager};
use dlock_tests::{RedisServer, within};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{KEY, LONG};

/// How long a call waits for its turn.
const WAIT: Duration = Duration::from_millis(50);
/// Far longer than that on a busy machine, and far shorter than what is due for the holder.
const MUCH_LATER: Duration = Duration::from_secs(4);

type Call = Pin<Box<dyn Future<Output = dlock_runtime::Result<LockGuard>> + Send>>;

/// Asks for a lock that is held, and looks whether it is there.
fn asked(manager: &LockManager, waker: &Waker) -> Call {
    let lock = manager.lock(KEY).wait(WAIT);
    let mut call: Call = Box::pin(async move { lock.acquire().await });
    assert!(call.as_mut().poll(&mut Context::from_waker(waker)).is_pending(), "it is held");
    call
}

/// Asks again when it is woken.
struct AsksAgain {
    manager: LockManager,
    again: UnboundedSender<Call>,
}

impl Wake for AsksAgain {
    fn wake(self: Arc<Self>) {
        self.again.send(asked(&self.manager, Waker::noop())).expect("the test listens");
    }
}

#[tokio::test]
async fn a_call_that_a_waker_begins_is_over_in_its_time() {
    let server = RedisServer::start();
    let url = server.url_with("?tracking=off"); // nothing is due for the holder but its renewal
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let _held = manager.lock(KEY).lease(LONG).acquire().await.expect("the lock is free");
    let (again, mut begun) = unbounded_channel();
    let waker = Waker::from(Arc::new(AsksAgain { manager: manager.clone(), again }));

    let _first = asked(&manager, &waker);
    let second = within(MUCH_LATER, "the end of the first wait", begun.recv()).await.expect("it is woken");
    let refused = within(MUCH_LATER, "the end of the second wait", second).await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
}
