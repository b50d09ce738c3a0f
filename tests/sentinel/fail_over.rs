//! Masters that fall while locks are in use.

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::sentinel::End;
use dlock_tests::world::name;
use dlock_tests::{RedisServer, SentinelFleet};

use crate::judge::{self, FailOver};
use crate::work::Work;

const MANAGERS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_outlive_fail_overs_and_every_overlap_is_fenced() {
    let count = std::env::var("DLOCK_FAIL_OVERS").map_or(3, |count| count.parse().expect("a number"));
    let mut fleet = SentinelFleet::start().await;
    let mut managers = Vec::new();
    for _ in 0..MANAGERS {
        let manager = LockManager::connect(&fleet.url_with("")).await;
        managers.push(manager.expect("the sentinels name a master that takes managers"));
    }
    let work = Work::start(&managers);

    let mut fail_overs = Vec::new();
    for (number, end) in [End::Kill, End::Pause, End::Order].into_iter().cycle().take(count).enumerate() {
        work.until_entered(MANAGERS, dlock_tests::Moment::now(), 50).await;
        let broken = fleet.break_master(end);
        let switch = fleet.switched().await;
        work.until_entered(MANAGERS, switch.at, 0).await;
        if end != End::Kill {
            if end == End::Pause {
                fleet.resume(switch.from);
            }
            no_write_goes_to(&fleet, switch.from, &work, &managers, number).await;
        }
        fleet.heal(switch.from);
        println!("{end:?}: {:?} until the switch, {:?} in all", switch.at.since(broken), broken.elapsed());
        fail_overs.push(FailOver { end, broken, switched: switch.at });
    }
    let history = work.end().await;

    judge::no_call_takes_longer_than_its_limit(&history);
    judge::every_refusal_has_its_type(&history);
    let ended = judge::nothing_is_believed_beyond_its_lease(&history, &fail_overs);
    let overlaps = judge::overlaps_only_across_a_fail_over(&history, &fail_overs);
    judge::tokens_rise(&history);
    let holds = history.holds.len();
    println!("{count} fail-overs, {holds} holds, {ended} ended with a silent master, {overlaps} overlaps");
    for fail_over in fail_overs {
        let took = judge::work_goes_on_within_a_second(&history, fail_over, MANAGERS);
        let down = fail_over.switched.since(fail_over.broken);
        println!("{:?}: switched after {down:?}, work after another {took:?}", fail_over.end);
    }
}

/// An old master that is there again, and believes that it is one, gets nothing of ours while work goes on.
async fn no_write_goes_to(
    fleet: &SentinelFleet,
    port: u16,
    work: &Work,
    managers: &[LockManager],
    number: usize,
) {
    let stale = fleet.server(port);
    assert_eq!(role(stale), "master", "the sentinels give it seconds before they demote it");
    // What lay in its sockets while it stood still has been read by now: it answers in turn.
    let before = writes(stale);

    let key = format!("after:{number}");
    let guard = managers[0].lock(&*key).acquire().await.expect("the new master takes locks");
    work.until_entered(MANAGERS, dlock_tests::Moment::now(), 100).await;

    let exists = |server: &RedisServer| server.call(&["EXISTS", &name(&key)]);
    assert_eq!((exists(stale), exists(fleet.master())), (Reply::Integer(0), Reply::Integer(1)));
    let after = writes(stale);
    assert_eq!(role(stale), "master", "else what is counted may be replicated");
    assert_eq!(after, before, "writes to an old master");
    drop(guard);
}

fn role(server: &RedisServer) -> String {
    server.call(&["ROLE"]).texts().swap_remove(0)
}

fn writes(server: &RedisServer) -> u64 {
    ["set", "eval", "evalsha"].map(|command| server.command_count(command)).into_iter().sum()
}
