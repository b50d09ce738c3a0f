use super::*;
use crate::protocol::scene::{LEASE, at};
use crate::token::TokenSource;

const GRANT_LEASE: Duration = Duration::from_secs(1);

fn tokens<const N: usize>() -> [Token; N] {
    let source = TokenSource::new();
    std::array::from_fn(|_| source.next())
}

/// Executes `command` at `ms`, with a subscriber for each grant.
fn run(record: &mut Record, token: Token, command: Command, ms: u64) -> Reply {
    record.run(token, command, at(ms), GRANT_LEASE, |_, _| true)
}

fn enqueue(mode: EnqueueMode) -> Command {
    Command::Enqueue { lease: LEASE, mode }
}

/// Returns a lock that `holder` acquired at 0 ms, for [`LEASE`], with `waiters` in the queue.
fn held(holder: Token, waiters: &[Token]) -> Record {
    let mut record = Record::default();
    let taken = run(&mut record, holder, Command::Acquire { lease: LEASE }, 0);
    assert!(matches!(taken, Reply::Owner), "{taken:?}");
    for waiter in waiters {
        let place = run(&mut record, *waiter, enqueue(EnqueueMode::Join), 0);
        assert!(matches!(place, Reply::Queued { ttl: Some(LEASE) }), "{place:?}");
    }
    record
}

#[test]
fn lock_is_free_once_its_lease_expires() {
    let [a, b, c] = tokens();

    for (ms, is_free) in [(0, false), (29_999, false), (30_000, true), (30_001, true)] {
        let mut record = held(a, &[b]);

        assert_eq!(record.is_empty(at(ms)), is_free, "{ms}");
        let there: &[Token] = if is_free { &[] } else { &[a, b] };
        assert_eq!(record.tokens(at(ms)), there, "{ms}");
        let reply = run(&mut record, c, Command::Acquire { lease: LEASE }, ms);
        assert_eq!(matches!(reply, Reply::Owner), is_free, "{ms}: {reply:?}");
        assert_eq!(matches!(reply, Reply::Contended), !is_free, "{ms}: {reply:?}");
        assert_eq!(record.tokens(at(ms)).first(), Some(if is_free { &c } else { &a }), "{ms}");
    }
    assert!(Record::default().is_empty(at(0)));
}

#[test]
fn recheck_never_acquires_a_free_lock() {
    let [a] = tokens();

    for command in
        [Command::Acquire { lease: LEASE }, enqueue(EnqueueMode::Join), enqueue(EnqueueMode::TryOnly)]
    {
        let mut record = Record::default();
        let reply = run(&mut record, a, command, 5);
        assert!(matches!(reply, Reply::Owner), "{command:?}: {reply:?}");
        assert_eq!(record.tokens(at(5)), [a], "{command:?}");
        assert_eq!(record.ends(), Some(at(5).plus(LEASE)), "{command:?}");
    }
    let mut record = Record::default();
    let again = run(&mut record, a, enqueue(EnqueueMode::Recheck), 5);
    assert!(matches!(again, Reply::Absent), "it would be granted twice: {again:?}");
    assert!(record.is_empty(at(5)));
}

#[test]
fn inspect_reports_holder_waiters_and_ttl() {
    let [a, b, c] = tokens();
    let [outsider] = tokens();
    let mut record = held(a, &[b, c]);

    let seen = run(&mut record, outsider, Command::Inspect, 10_000);

    let Reply::Info(Some(sight)) = seen else { panic!("{seen:?}") };
    let ttl = Some(Duration::from_secs(20));
    assert_eq!(sight, RecordInfo { holder: Some(a.process()), waiters: 2, ttl, fence: None });
    assert_eq!((record.tokens(at(10_000)), record.ends()), (vec![a, b, c], Some(at(30_000))));

    let nothing = run(&mut Record::default(), outsider, Command::Inspect, 0);
    assert!(matches!(nothing, Reply::Info(None)), "{nothing:?}");
}

#[test]
fn ping_is_answered_whatever_the_value() {
    let [a, outsider] = tokens();

    for mut record in [Record::default(), held(a, &[])] {
        let before = record.tokens(at(1));
        let answered = run(&mut record, outsider, Command::Ping, 1);
        assert!(matches!(answered, Reply::Owner), "{answered:?}");
        assert_eq!(record.tokens(at(1)), before);
    }
}

#[test]
fn only_the_holder_changes_the_ttl_or_the_fence() {
    let [a, b, outsider] = tokens();
    let minute = Duration::from_secs(60);
    let ends = |record: &Record| record.ends().expect("the key exists");

    for (command, then) in [
        (Command::Renew { lease: minute }, at(61_000)),
        (Command::Renew { lease: Duration::from_secs(1) }, at(30_000)),
        (Command::SetTtl { ttl: minute }, at(61_000)),
        (Command::SetTtl { ttl: Duration::from_secs(1) }, at(2_000)),
        (Command::Fence, at(30_000)),
        (Command::RaiseFence { fence: 7 }, at(30_000)),
    ] {
        let mut record = held(a, &[b]);
        for other in [b, outsider] {
            let refused = run(&mut record, other, command, 1_000);
            assert!(matches!(refused, Reply::NotOwner), "{command:?}: {refused:?}");
            assert_eq!(ends(&record), at(30_000), "{command:?}");
        }

        let done = run(&mut record, a, command, 1_000);
        assert!(
            match command {
                Command::RaiseFence { .. } => matches!(done, Reply::Fenced(7)),
                _ => matches!(done, Reply::Owner),
            },
            "{command:?}: {done:?}"
        );
        assert_eq!(ends(&record), then, "{command:?}");

        let late = run(&mut record, a, command, 100_000);
        assert!(matches!(late, Reply::NotOwner), "an expired hold is not revived: {command:?}: {late:?}");
        assert!(record.is_empty(at(100_000)), "{command:?}");
    }
}

#[test]
fn withdraw_releases_only_for_the_holder() {
    let [a, b, c, outsider] = tokens();
    let mut record = held(a, &[b, c]);

    let nowhere = run(&mut record, outsider, Command::Withdraw, 1_000);
    assert!(matches!(nowhere, Reply::NotOwner), "{nowhere:?}");
    let queued = run(&mut record, b, Command::Withdraw, 1_000);
    assert!(matches!(queued, Reply::Owner), "{queued:?}");
    assert_eq!((record.tokens(at(1_000)), record.ends()), (vec![a, c], Some(at(30_000))));

    let held = run(&mut record, a, Command::Withdraw, 1_000);
    assert!(matches!(held, Reply::Owner), "{held:?}");
    let granted = at(1_000).plus(GRANT_LEASE);
    assert_eq!((record.tokens(at(1_000)), record.ends()), (vec![c], Some(granted)), "c has yet to confirm");

    let last = run(&mut record, c, Command::Withdraw, 1_500);
    assert!(matches!(last, Reply::Owner), "{last:?}");
    assert!(record.is_empty(at(1_500)));
}

#[test]
fn without_waiters_a_release_frees_and_a_yield_keeps() {
    let [a, next] = tokens();
    let fleet_hold = FleetHold::NEW;

    for command in [
        Command::RELEASE,
        Command::Release { fleet_hold },
        Command::ReleaseWithoutHandoff,
        Command::ForceRelease,
    ] {
        let mut record = held(a, &[]);
        let freed = run(&mut record, a, command, 1_000);
        assert!(matches!(freed, Reply::Owner), "{command:?}: {freed:?}");
        assert!(record.is_empty(at(1_000)), "{command:?}");
    }
    let mut record = held(a, &[]);
    let kept = run(&mut record, a, Command::Yield { next, fleet_hold }, 1_000);
    assert!(matches!(kept, Reply::Owner), "{kept:?}");
    assert_eq!((record.tokens(at(1_000)), record.ends()), (vec![a], Some(at(30_000))));
}

#[test]
fn granted_waiter_holds_the_lock_for_a_grant_lease() {
    let [a, b, c, next] = tokens();
    let mut record = held(a, &[b, c]);

    let yielded = run(&mut record, a, Command::Yield { next, fleet_hold: FleetHold::NEW }, 1_000);

    assert!(matches!(yielded, Reply::Yielded), "{yielded:?}");
    assert_eq!((record.tokens(at(1_000)), record.ends()), (vec![b, c, next], Some(at(2_000))));
    let not_ours = run(&mut record, a, Command::RELEASE, 1_000);
    assert!(matches!(not_ours, Reply::NotOwner), "{not_ours:?}");
}

#[test]
fn only_releases_and_yields_announce_the_fleet_hold() {
    let [a, b, next] = tokens();
    let fleet_hold = FleetHold::of(Duration::from_millis(300));

    for (command, announced) in [
        (Command::Release { fleet_hold }, fleet_hold),
        (Command::Yield { next, fleet_hold }, fleet_hold),
        (Command::RELEASE, FleetHold::UNKNOWN),
        (Command::ForceRelease, FleetHold::UNKNOWN),
    ] {
        let mut grants = Vec::new();
        held(a, &[b]).run(a, command, at(1), GRANT_LEASE, |waiter, grant| {
            grants.push((waiter, grant));
            true
        });
        assert_eq!(grants, [(b, Grant { lease: GRANT_LEASE, fleet_hold: announced })], "{command:?}");
    }
}
