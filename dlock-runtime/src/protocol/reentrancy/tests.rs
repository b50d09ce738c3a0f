use std::time::Duration;

use super::*;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Reply};
use crate::protocol::retry_state::RetryLimits;
use crate::protocol::scene::{LIMITS, RULES, TERMS, at, happen, held, waiter};
use crate::token::Token;

/// Adds a call on level `depth` at `ms` to the hold of acquisition 1.
fn join(
    key_state: &mut KeyState<u32>,
    ms: u64,
    depth: usize,
    acquisition: u32,
    wait: Option<Duration>,
) -> Vec<Action<u32>> {
    let retry_state = RetryState::new(at(ms), RetryLimits { wait, ..LIMITS }, acquisition);
    happen(key_state, ms, |key_state, ctx| key_state.join_nested(&1, depth, acquisition, retry_state, ctx))
}

/// Returns a hold with the nested call 2, its sibling 3, which waits for 100 ms, and its sibling 4,
/// which waits as long as it may.
fn siblings() -> (KeyState<u32>, Token) {
    let (mut key_state, token) = held(TERMS);
    assert!(matches!(join(&mut key_state, 10, 0, 2, None)[..], [Action::JoinNested { acquisition: 2 }]));
    assert!(join(&mut key_state, 10, 0, 3, Some(Duration::from_millis(100))).is_empty());
    assert!(join(&mut key_state, 10, 0, 4, None).is_empty());
    (key_state, token)
}

#[test]
fn siblings_run_in_order_and_an_inner_call_at_once() {
    let (mut key_state, _) = siblings();

    assert!(matches!(join(&mut key_state, 20, 1, 5, None)[..], [Action::JoinNested { acquisition: 5 }]));
    let mut ends = |acquisition| {
        happen(&mut key_state, 30, |key_state, ctx| assert!(key_state.leave(&acquisition, ctx)))
    };

    assert!(ends(5).is_empty());
    assert!(matches!(ends(2)[..], [Action::JoinNested { acquisition: 3 }]));
    assert!(matches!(ends(3)[..], [Action::JoinNested { acquisition: 4 }]));
    assert!(ends(4).is_empty());
}

#[test]
fn sibling_that_stopped_waiting_does_not_join() {
    let (mut key_state, _) = siblings();

    assert!(happen(&mut key_state, 20, |key_state, ctx| assert!(key_state.leave(&3, ctx))).is_empty());
    let next = happen(&mut key_state, 30, |key_state, ctx| assert!(key_state.leave(&2, ctx)));

    assert!(matches!(next[..], [Action::JoinNested { acquisition: 4 }]), "{next:?}");
    assert!(
        happen(&mut key_state, 40, |key_state, ctx| assert!(!key_state.leave(&3, ctx), "it is gone"))
            .is_empty()
    );
}

#[test]
fn a_sibling_waits_at_most_its_wait_or_a_lease() {
    let (mut key_state, token) = siblings();
    let mut refused = |ms| {
        let actions = happen(&mut key_state, ms, |key_state, ctx| {
            let renew = Command::Renew { lease: TERMS.lease() };
            key_state.on_reply(token, renew, at(ms), Reply::Owner, ctx); // the hold continues
            key_state.on_timeout(ctx);
        });
        let refused = actions.into_iter().filter_map(|action| match action {
            Action::Reject {
                acquisition,
                refusal: AcquireFailure::Contended { attempts: 1, waited, ttl: None },
            } => Some((acquisition, waited)),
            _ => None,
        });
        refused.collect::<Vec<_>>()
    };

    assert!(refused(109).is_empty());
    assert_eq!(refused(110), [(3, Duration::from_millis(100))]);
    assert!(refused(30_009).is_empty());
    assert_eq!(refused(30_010), [(4, TERMS.lease())]);
}

#[test]
fn key_state_is_due_at_the_end_of_a_siblings_wait() {
    assert_eq!(siblings().0.next_timeout(), at(110));
}

#[test]
fn ended_hold_rejects_nested_calls() {
    for is_lost in [false, true] {
        let (mut key_state, _) = siblings();

        let over = happen(&mut key_state, 20, |key_state, ctx| {
            if is_lost {
                key_state.mark_all_lost(crate::error::LossCause::NotOwner, ctx);
            } else {
                key_state.release(&1, ctx);
            }
        });
        let refused_late = join(&mut key_state, 30, 0, 6, None);

        let refused = over.iter().chain(&refused_late).filter_map(|action| match action {
            Action::Reject { acquisition, refusal: AcquireFailure::ParentLost } => Some(*acquisition),
            _ => None,
        });
        assert_eq!(refused.collect::<Vec<_>>(), [3, 4, 6], "{over:?} {refused_late:?}");
    }
}

#[test]
fn nested_call_does_not_join_the_hold_of_the_next_task() {
    let (mut key_state, _) = held(TERMS);
    happen(&mut key_state, 10, |key_state, ctx| key_state.join(waiter(7, TERMS), ctx));
    let rules = ProtocolConfig { handoff_budget: Duration::from_secs(1), ..RULES };
    happen(&mut key_state, 20, |key_state, ctx| {
        let mut ctx = ctx.under(&rules);
        key_state.release(&1, &mut ctx);
    });
    assert!(key_state.token_of(&7).is_some(), "{key_state:?}");

    let actions = join(&mut key_state, 30, 0, 2, None);

    assert!(
        matches!(actions[..], [Action::Reject { acquisition: 2, refusal: AcquireFailure::ParentLost }]),
        "{actions:?}"
    );
}
