//! The order of requests for one key while their slot moves.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{Answer, HostileServer, Proxy, Request, within};

const SOON: Duration = Duration::from_secs(5);

/// Replies like a node of a cluster in which the server on `port` serves every slot.
pub(crate) fn of_a_cluster(request: &Request, port: u16) -> Answer {
    let text = match (request.name(), &*request.word(1).to_uppercase()) {
        ("CLUSTER", "INFO") => "$18\r\ncluster_state:ok\r\n\r\n".to_owned(),
        ("CLUSTER", _) => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:{port}\r\n"),
        ("ROLE", _) => "*1\r\n$6\r\nmaster\r\n".to_owned(),
        _ => return Answer::Usual,
    };
    Answer::Raw(text.into_bytes())
}

/// The port of the server that owns all slots, as every stub reports it.
type Owner = Arc<AtomicU16>;

/// A stub that redirects each `EVALSHA` to `port`, after a message on `may` or 5 s. Returns it with
/// its proxy, which owns all slots until then.
fn old_master(port: u16, owner: &Owner, may: Receiver<()>) -> (HostileServer, Proxy) {
    let may = Mutex::new(may);
    let all = Arc::clone(owner);
    let server = HostileServer::start(move |request| {
        if request.name() != "EVALSHA" {
            return of_a_cluster(request, all.load(Ordering::SeqCst));
        }
        let _ = may.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SOON);
        all.store(port, Ordering::SeqCst); // slot maps must not point to this server any more
        let slot = 15_123;
        Answer::Raw(format!("-MOVED {slot} 127.0.0.1:{port}\r\n").into_bytes())
    });
    let proxy = Proxy::start(server.port());
    owner.store(proxy.port(), Ordering::SeqCst);
    (server, proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_request_does_not_overtake_redirected_requests() {
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&order);
    let owner = Owner::default();
    let all = Arc::clone(&owner);
    let new = HostileServer::start(move |request| {
        if request.name() == "EVALSHA" {
            // The key, which ends with the request's number.
            noted.lock().unwrap_or_else(PoisonError::into_inner).push(request.word(3));
            return Answer::Raw(b":0\r\n".to_vec());
        }
        of_a_cluster(request, all.load(Ordering::SeqCst))
    });
    let (answer, may) = channel();
    let (_old, network) = old_master(new.port(), &owner, may);
    let url = format!("redis+cluster://127.0.0.1:{}?response_timeout=5s", network.port());
    let manager = LockManager::connect(&url).await.expect("its replies are those of a cluster");
    let ask = |number: u32| {
        let (manager, key) = (manager.clone(), format!("{{dlock:order:7}}:{number}")); // all in one slot
        tokio::spawn(async move { manager.inspect(key).await.expect("the server replies") })
    };
    let arrived = |count| {
        let new = &new;
        async move {
            while new.count("EVALSHA") < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };

    let mut pending = Vec::new();
    for number in 1..=2 {
        let seen = network.on_request(b"EVALSHA");
        pending.push(ask(number));
        within(SOON, "the request at the old master", seen).await;
    }
    answer.send(()).expect("the channel is open");
    within(SOON, "the first at the new master", arrived(1)).await;
    pending.push(ask(3));
    let overtaken = tokio::time::timeout(Duration::from_millis(100), arrived(2)).await;
    answer.send(()).expect("the channel is open");
    for pending in pending {
        within(SOON, "an answer", pending).await.expect("no panic");
    }

    assert!(overtaken.is_err(), "the third request arrived before the second was redirected");
    let order = order.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(order.len() == 3 && order.is_sorted(), "{order:?}");
}
