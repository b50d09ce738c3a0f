//! What locks promise, over a cluster that is whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, LossCause};
use dlock_tests::handover::{allow_namespaces, assert_handed_over_in_each_namespace};
use dlock_tests::resp::Reply;
use dlock_tests::world::{FOREIGN, ids_in, name};
use dlock_tests::{ClusterFleet, Moment, within};
use tokio::sync::mpsc;

const LONG: Duration = Duration::from_secs(30);
/// What a wake-up may take on a busy machine, far below every look of these tests.
const PROMPT: Duration = Duration::from_millis(500);
/// Nobody looks by himself before a test is over: who is woken was told.
const NEVER_LOOKS: &str = "?grant_lease=30s&poll_interval=30s";

async fn manager_of(fleet: &ClusterFleet, options: &str) -> LockManager {
    LockManager::connect(&fleet.url_with(options)).await.expect("the cluster takes managers")
}

pub(crate) async fn until_ids_in(fleet: &ClusterFleet, key: &str, count: usize) {
    let server = fleet.server(fleet.owner(fleet.slot(key)));
    let queued = async {
        while server.call(&["GET", &name(key)]).text().map_or(0, ids_in) != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "the places in the queue", queued).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_in_each_namespace_on_every_master() {
    let fleet = ClusterFleet::start();
    fleet.servers().iter().for_each(allow_namespaces);
    let (ours, theirs) = (manager_of(&fleet, NEVER_LOOKS).await, manager_of(&fleet, NEVER_LOOKS).await);

    // Four keys in three namespaces are on every master, or nearly.
    for number in 0..4 {
        assert_handed_over_in_each_namespace(&ours, &theirs, &format!("order:{number}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_several_managers_are_told_of_their_turn_on_every_master() {
    let fleet = ClusterFleet::start();
    let first = manager_of(&fleet, NEVER_LOOKS).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(manager_of(&fleet, NEVER_LOOKS).await);
    }

    for key in fleet.keys_on_each("order") {
        let held = first.lock(&*key).lease(LONG).acquire().await.expect("the lock is free");
        let (tell, mut told) = mpsc::unbounded_channel();
        for (number, other) in others.iter().enumerate() {
            let (lock, tell) = (other.lock(&*key).lease(LONG).wait(LONG), tell.clone());
            tokio::spawn(async move {
                let guard = lock.acquire().await.expect("its turn comes");
                let fence = guard.fencing_token().await.expect("it is held");
                tell.send((number, fence)).expect("the test listens");
                guard.release().await.expect("it was held");
            });
            until_ids_in(&fleet, &key, number + 2).await;
        }
        let before = held.fencing_token().await.expect("it is held");
        let released = Moment::now();
        held.release().await.expect("it was held");
        let mut turns = Vec::new();
        for _ in &others {
            turns.push(within(LONG, "a turn", told.recv()).await.expect("every waiter is served"));
        }

        assert!(released.elapsed() < PROMPT, "`{key}`: {:?}", released.elapsed());
        assert_eq!(turns.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        let fences: Vec<_> = std::iter::once(before).chain(turns.iter().map(|(_, fence)| *fence)).collect();
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_can_be_looked_at_freed_stolen_and_no_longer_waited_for_on_every_master() {
    let fleet = ClusterFleet::start();
    let (ours, theirs) = (manager_of(&fleet, "").await, manager_of(&fleet, "").await);
    ours.ready().await.expect("all masters are there");

    for key in fleet.keys_on_each("order") {
        let held = ours.lock(&*key).lease(LONG).acquire().await.expect("the lock is free");
        let refused = theirs.lock(&*key).acquire().await;
        assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
        let seen = theirs.inspect(&*key).await.expect("it can be asked").expect("it is held");
        assert_eq!(seen.holder(), Some(&*ours.id()));

        let lock = theirs.lock(&*key).lease(LONG).wait(LONG);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        until_ids_in(&fleet, &key, 2).await;
        waiter.abort();
        until_ids_in(&fleet, &key, 1).await;

        assert!(theirs.force_release(&*key).await.expect("it can be asked"));
        let taken = theirs.lock(&*key).lease(LONG).acquire().await.expect("it was freed");
        assert!(held.release().await.is_err_and(|error| error.is_lost()));
        taken.release().await.expect("it is theirs");

        let stolen = ours.lock(&*key).lease(Duration::from_millis(600)).acquire().await;
        let stolen = stolen.expect("the lock is free");
        let server = fleet.server(fleet.owner(fleet.slot(&key)));
        server.call(&["SET", &name(&key), FOREIGN, "PX", "60000"]);
        assert_eq!(within(LONG, "the loss", stolen.lost()).await, LossCause::NotOwner);
    }
}

/// What stands in a slot that is half-way from one master to another is where it was, and what is new is where it will be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_had_held_and_handed_on_while_their_slot_is_between_two_masters() {
    let fleet = ClusterFleet::start();
    let (ours, theirs) = (manager_of(&fleet, NEVER_LOOKS).await, manager_of(&fleet, NEVER_LOOKS).await);
    let old = fleet.key_in(0, "order");
    let new = format!("new{{{}}}", name(&old)); // in one slot with the other, by its tag
    let (slot, to) = (fleet.slot(&old), fleet.masters()[1]);
    // A manager that does not use the new master yet is passed over there, and asks again later.
    drop(theirs.lock(fleet.key_in(1, "order")).acquire().await.expect("the lock is free"));
    let held = ours.lock(&*old).lease(LONG).acquire().await.expect("the lock is free");
    let lock = theirs.lock(&*old).lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_ids_in(&fleet, &old, 2).await;

    fleet.begin_to_move(slot, to);
    let fresh = ours.lock(&*new).lease(LONG).acquire().await.expect("the lock is free");
    let keys = fleet.server(to).call(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
    // The lock is here, and its counter, which there is not yet, would be there: no server has both.
    let between = held.fencing_token().await;
    let moving = Moment::now();
    let finish = async { tokio::task::block_in_place(|| fleet.finish_the_move(slot, to)) };
    let (fence, ()) = tokio::join!(held.fencing_token(), finish);
    let fence = fence.expect("it has moved with its lock, while it was asked for");
    held.release().await.expect("it has moved");
    let granted = within(LONG, "the turn", waiter).await.expect("no panic").expect("its turn comes");

    assert_eq!(keys, Reply::Integer(1));
    assert!(between.as_ref().is_err_and(Error::is_unavailable), "{between:?}");
    assert!(moving.elapsed() < PROMPT, "{:?}", moving.elapsed());
    assert!(granted.fencing_token().await.expect("it is held") > fence);
    fresh.release().await.expect("it has moved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_passed_over_does_not_believe_what_another_server_handed_on() {
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
                let guard = lock.acquire().await.expect("its turn comes");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold at once");
                tokio::time::sleep(Duration::from_millis(20)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("it was held");
            });
            until_ids_in(&fleet, &key, number + 2).await;
        }

        // Nobody is heard there to listen, while each still hears at the other servers what that one says.
        owner.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        held.release().await.expect("it was held");

        within(LONG, "their turns", async {
            while let Some(ended) = tasks.join_next().await {
                ended.expect("one at a time");
            }
        })
        .await;
    }
}
