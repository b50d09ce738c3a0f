//! Requests on one key while their slot moves.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{Answer, HostileServer, Proxy, Request, within};

const SOON: Duration = Duration::from_secs(5);

/// What a server of a cluster says in which the one on `port` serves every slot.
pub(crate) fn of_a_cluster(request: &Request, port: u16) -> Answer {
    let text = match (request.name(), &*request.word(1).to_uppercase()) {
        ("CLUSTER", "INFO") => "$18\r\ncluster_state:ok\r\n\r\n".to_owned(),
        ("CLUSTER", _) => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:{port}\r\n"),
        ("ROLE", _) => "*1\r\n$6\r\nmaster\r\n".to_owned(),
        _ => return Answer::Usual,
    };
    Answer::Raw(text.into_bytes())
}

/// The port of the server that serves all slots, as every server says that is asked.
type Owner = Arc<AtomicU16>;

/// A server that says of each request, once it may, that all slots belong to the one on `port`. Returns it with the network before it,
/// which is who serves until then.
fn old_master(port: u16, owner: &Owner, may: Receiver<()>) -> (HostileServer, Proxy) {
    let may = Mutex::new(may);
    let all = Arc::clone(owner);
    let server = HostileServer::start(move |request| {
        if request.name() != "EVALSHA" {
            return of_a_cluster(request, all.load(Ordering::SeqCst));
        }
        let _ = may.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SOON);
        all.store(port, Ordering::SeqCst); // whoever asks for the map from now on must not be sent back here
        let slot = 15_123;
        Answer::Raw(format!("-MOVED {slot} 127.0.0.1:{port}\r\n").into_bytes())
    });
    let proxy = Proxy::start(server.port());
    owner.store(proxy.port(), Ordering::SeqCst);
    (server, proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_in_while_a_slot_moves_does_not_overtake_what_its_old_master_sends_on() {
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&order);
    let owner = Owner::default();
    let all = Arc::clone(&owner);
    let new = HostileServer::start(move |request| {
        if request.name() == "EVALSHA" {
            noted.lock().unwrap_or_else(PoisonError::into_inner).push(request.word(3)); // the key: they are numbered
            return Answer::Raw(b":0\r\n".to_vec());
        }
        of_a_cluster(request, all.load(Ordering::SeqCst))
    });
    let (answer, may) = channel();
    let (_old, network) = old_master(new.port(), &owner, may);
    let url = format!("redis+cluster://127.0.0.1:{}?response_timeout=5s", network.port());
    let manager = LockManager::connect(&url).await.expect("it says that it is a cluster");
    let ask = |number: u32| {
        let (manager, key) = (manager.clone(), format!("{{dlock:order:7}}:{number}")); // all in one slot
        tokio::spawn(async move { manager.inspect(key).await.expect("it is answered") })
    };
    let arrived = |count| {
        let new = &new;
        async move {
            while new.count("EVALSHA") < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };

    let mut asked = Vec::new();
    for number in 1..=2 {
        let seen = network.on_request(b"EVALSHA");
        asked.push(ask(number));
        within(SOON, "the request at the old master", seen).await;
    }
    answer.send(()).expect("the old master listens");
    within(SOON, "the first at the new master", arrived(1)).await;
    asked.push(ask(3));
    let overtaken = tokio::time::timeout(Duration::from_millis(100), arrived(2)).await;
    answer.send(()).expect("the old master listens");
    for asked in asked {
        within(SOON, "an answer", asked).await.expect("no panic");
    }

    assert!(overtaken.is_err(), "the third came before the second was sent on");
    let order = order.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(order.len() == 3 && order.is_sorted(), "{order:?}");
}
