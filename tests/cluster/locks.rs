//! Lock guarantees on a healthy cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, LossCause};
use dlock_tests::handoff::{allow_namespaces, assert_handed_off_in_each_namespace};
use dlock_tests::resp::Reply;
use dlock_tests::world::{FOREIGN, ids_in, name};
use dlock_tests::{ClusterFleet, Moment, within};
use tokio::sync::mpsc;

const LONG: Duration = Duration::from_secs(30);
/// The bound of one wake-up on a busy machine, far below every poll interval of these tests.
const PROMPT: Duration = Duration::from_millis(500);
/// No waiter polls before its test ends, so a waiter that wakes has received a message.
const NEVER_POLLS: &str = "?grant_lease=30s&poll_interval=30s";

async fn manager_of(fleet: &ClusterFleet, options: &str) -> LockManager {
    LockManager::connect(&fleet.url_with(options)).await.expect("the cluster accepts connections")
}

pub(crate) async fn until_ids_in(fleet: &ClusterFleet, key: &str, count: usize) {
    let server = fleet.server(fleet.owner(fleet.slot(key)));
    let queued = async {
        while server.call(&["GET", &name(key)]).text().map_or(0, ids_in) != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "the queue entries", queued).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_in_each_namespace_on_every_master() {
    let fleet = ClusterFleet::start();
    fleet.servers().iter().for_each(allow_namespaces);
    let (ours, theirs) = (manager_of(&fleet, NEVER_POLLS).await, manager_of(&fleet, NEVER_POLLS).await);

    // Four keys in three namespaces cover every master with high probability.
    for number in 0..4 {
        assert_handed_off_in_each_namespace(&ours, &theirs, &format!("order:{number}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_several_managers_are_granted_on_every_master() {
    let fleet = ClusterFleet::start();
    let first = manager_of(&fleet, NEVER_POLLS).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(manager_of(&fleet, NEVER_POLLS).await);
    }

    for key in fleet.keys_on_each("order") {
        let held = first.lock(&*key).lease(LONG).acquire().await.expect("the lock is free");
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for (number, other) in others.iter().enumerate() {
            let (lock, sender) = (other.lock(&*key).lease(LONG).wait(LONG), sender.clone());
            tokio::spawn(async move {
                let guard = lock.acquire().await.expect("the lock is granted");
                let fence = guard.fencing_token().await.expect("it is held");
                sender.send((number, fence)).expect("the receiver is open");
                guard.release().await.expect("it was held");
            });
            until_ids_in(&fleet, &key, number + 2).await;
        }
        let before = held.fencing_token().await.expect("it is held");
        let released = Moment::now();
        held.release().await.expect("it was held");
        let mut holds = Vec::new();
        for _ in &others {
            holds.push(within(LONG, "a hold", receiver.recv()).await.expect("every waiter is served"));
        }

        assert!(released.elapsed() < PROMPT, "`{key}`: {:?}", released.elapsed());
        assert_eq!(holds.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        let fences: Vec<_> = std::iter::once(before).chain(holds.iter().map(|(_, fence)| *fence)).collect();
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_force_release_theft_and_cancel_on_every_master() {
    let fleet = ClusterFleet::start();
    let (ours, theirs) = (manager_of(&fleet, "").await, manager_of(&fleet, "").await);
    ours.ready().await.expect("all masters reply");

    for key in fleet.keys_on_each("order") {
        let held = ours.lock(&*key).lease(LONG).acquire().await.expect("the lock is free");
        let refused = theirs.lock(&*key).acquire().await;
        assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
        let seen = theirs.inspect(&*key).await.expect("the server replies").expect("it is held");
        assert_eq!(seen.holder(), Some(&*ours.id()));

        let lock = theirs.lock(&*key).lease(LONG).wait(LONG);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        until_ids_in(&fleet, &key, 2).await;
        waiter.abort();
        until_ids_in(&fleet, &key, 1).await;

        assert!(theirs.force_release(&*key).await.expect("the server replies"));
        let taken = theirs.lock(&*key).lease(LONG).acquire().await.expect("it was freed");
        assert!(held.release().await.is_err_and(|error| error.is_lost()));
        taken.release().await.expect("it is held");

        let stolen = ours.lock(&*key).lease(Duration::from_millis(600)).acquire().await;
        let stolen = stolen.expect("the lock is free");
        let server = fleet.server(fleet.owner(fleet.slot(&key)));
        server.call(&["SET", &name(&key), FOREIGN, "PX", "60000"]);
        assert_eq!(within(LONG, "the loss", stolen.lost()).await, LossCause::NotOwner);
    }
}

/// While a slot migrates, existing keys are on the old master, and new keys are on the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_while_their_slot_is_between_two_masters() {
    let fleet = ClusterFleet::start();
    let (ours, theirs) = (manager_of(&fleet, NEVER_POLLS).await, manager_of(&fleet, NEVER_POLLS).await);
    let old = fleet.key_in(0, "order");
    let new = format!("new{{{}}}", name(&old)); // the hash tag puts it into the same slot
    let (slot, to) = (fleet.slot(&old), fleet.masters()[1]);
    // Connect `theirs` to the new master. Without a connection, it would be skipped there and poll
    // later.
    drop(theirs.lock(fleet.key_in(1, "order")).acquire().await.expect("the lock is free"));
    let held = ours.lock(&*old).lease(LONG).acquire().await.expect("the lock is free");
    let lock = theirs.lock(&*old).lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_ids_in(&fleet, &old, 2).await;

    fleet.begin_to_move(slot, to);
    let fresh = ours.lock(&*new).lease(LONG).acquire().await.expect("the lock is free");
    let keys = fleet.server(to).call(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
    // The lock is on the old master, and a new counter would be on the new one: no server has both
    // keys.
    let between = held.fencing_token().await;
    let moving = Moment::now();
    let finish = async { tokio::task::block_in_place(|| fleet.finish_the_move(slot, to)) };
    let (fence, ()) = tokio::join!(held.fencing_token(), finish);
    let fence = fence.expect("the counter has moved with its lock during the request");
    held.release().await.expect("it has moved");
    let granted = within(LONG, "the grant", waiter).await.expect("no panic").expect("the lock is granted");

    assert_eq!(keys, Reply::Integer(1));
    assert!(between.as_ref().is_err_and(Error::is_unavailable), "{between:?}");
    assert!(moving.elapsed() < PROMPT, "{:?}", moving.elapsed());
    assert!(granted.fencing_token().await.expect("it is held") > fence);
    fresh.release().await.expect("it has moved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skipped_waiter_ignores_a_grant_from_another_server() {
    let fleet = ClusterFleet::start();
    let key = fleet.key_in(0, "order");
    let owner = fleet.server(fleet.owner(fleet.slot(&key)));
    let first = manager_of(&fleet, "").await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(manager_of(&fleet, "").await);
    }

    for _ in 0..5 {
        let held = first.lock(&*key).lease(LONG).acquire().await.expect("the lock is free");
        let inside = Arc::new(AtomicU32::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for (number, other) in others.iter().enumerate() {
            let (lock, inside) = (other.lock(&*key).lease(LONG).wait(LONG), Arc::clone(&inside));
            tasks.spawn(async move {
                let guard = lock.acquire().await.expect("the lock is granted");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two tasks hold the lock");
                tokio::time::sleep(Duration::from_millis(20)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("it was held");
            });
            until_ids_in(&fleet, &key, number + 2).await;
        }

        // The owner now sees no subscribers. Each waiter still receives its messages through other
        // nodes.
        owner.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        held.release().await.expect("it was held");

        within(LONG, "all holds", async {
            while let Some(ended) = tasks.join_next().await {
                ended.expect("one at a time");
            }
        })
        .await;
    }
}
