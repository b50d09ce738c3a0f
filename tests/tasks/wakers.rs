//! A waker is code of the waiting task. It may request a lock itself, on the thread that calls it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use dlock_runtime::{Error, LockGuard, LockManager};
use dlock_tests::{RedisServer, within};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{KEY, LONG};

/// The wait limit of each call.
const WAIT: Duration = Duration::from_millis(50);
/// Far longer than `WAIT` on a busy machine, and far shorter than the time to the holder's renewal.
const MUCH_LATER: Duration = Duration::from_secs(4);

type Call = Pin<Box<dyn Future<Output = dlock_runtime::Result<LockGuard>> + Send>>;

/// Requests a held lock, and polls the call once.
fn request(manager: &LockManager, waker: &Waker) -> Call {
    let lock = manager.lock(KEY).wait(WAIT);
    let mut call: Call = Box::pin(async move { lock.acquire().await });
    assert!(call.as_mut().poll(&mut Context::from_waker(waker)).is_pending(), "it is held");
    call
}

/// Requests the lock again when it is woken.
struct RequestsInWake {
    manager: LockManager,
    again: UnboundedSender<Call>,
}

impl Wake for RequestsInWake {
    fn wake(self: Arc<Self>) {
        self.again.send(request(&self.manager, Waker::noop())).expect("the receiver is open");
    }
}

#[tokio::test]
async fn a_call_started_in_a_waker_ends_in_time() {
    let server = RedisServer::start();
    let url = server.url_with("?tracking=off"); // the holder's only timer is its renewal
    let manager = LockManager::connect(&url).await.expect("the server accepts connections");
    let _held = manager.lock(KEY).lease(LONG).acquire().await.expect("the lock is free");
    let (again, mut begun) = unbounded_channel();
    let waker = Waker::from(Arc::new(RequestsInWake { manager: manager.clone(), again }));

    let _first = request(&manager, &waker);
    let second = within(MUCH_LATER, "the end of the first wait", begun.recv()).await.expect("it is woken");
    let refused = within(MUCH_LATER, "the end of the second wait", second).await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
}
