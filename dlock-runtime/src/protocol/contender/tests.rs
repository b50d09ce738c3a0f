use super::*;
use crate::protocol::ProtocolConfig;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::Action;
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::scene::{
    ACQUIRE, LIMITS, TERMS, at, enqueue, failure, happen, happen_where, queued, waiter,
};

/// Returns a key state whose head tries once, with the acquire in flight since 0 ms, and the token
/// of the acquire.
fn trying_once(try_only: bool) -> (KeyState<u32>, Token) {
    let retry_state = RetryState::new(at(0), RetryLimits { try_only, ..LIMITS }, 1);
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, |key_state, ctx| {
        key_state.join(QueueEntry { retry_state, ..waiter(1, TERMS) }, ctx);
    });
    let Some(&Contender { token, .. }) = key_state.contender() else { panic!("{key_state:?}") };
    (key_state, token)
}

#[test]
fn try_only_call_ends_with_its_reply_and_the_next_enqueues() {
    let (mut key_state, token) = trying_once(true);
    happen(&mut key_state, 1, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    let answered = happen(&mut key_state, 2, |key_state, ctx| {
        key_state.on_reply(token, ACQUIRE, at(0), Reply::Contended, ctx);
    });

    assert!(
        matches!(
            &answered[..],
            [
                Action::Reject { acquisition: 1, refusal: AcquireFailure::Contended { .. } },
                Action::Send { command: Command::Enqueue { mode: EnqueueMode::Join, .. }, .. }
            ]
        ),
        "{answered:?}"
    );
}

#[test]
fn try_only_call_sends_one_command() {
    let (mut key_state, token) = trying_once(true);

    let answered = happen(&mut key_state, 2, |key_state, ctx| {
        key_state.on_reply(token, ACQUIRE, at(0), Reply::Contended, ctx);
    });

    assert!(matches!(&answered[..], [Action::Reject { acquisition: 1, .. }]), "{answered:?}");
    assert!(key_state.is_idle());
}

#[test]
fn waiter_contends_after_a_single_try_before_it_ends() {
    let (mut key_state, token) = trying_once(false);
    happen(&mut key_state, 1, |key_state, ctx| {
        key_state.on_reply(token, ACQUIRE, at(0), Reply::Contended, ctx);
    });
    happen(&mut key_state, 2, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    happen(&mut key_state, 3, |key_state, ctx| {
        key_state.leave(&1, ctx);
    });

    let try_only = Command::Enqueue { lease: TERMS.lease(), mode: EnqueueMode::TryOnly };
    let held = Reply::NotQueued { ttl: Some(TERMS.lease()) };
    let answered =
        happen(&mut key_state, 4, |key_state, ctx| key_state.on_reply(token, try_only, at(1), held, ctx));

    assert!(matches!(&answered[..], [Action::Send { command: ACQUIRE, .. }]), "{answered:?}");
}

#[test]
fn queued_contender_withdraws_on_a_permanent_failure() {
    let (mut key_state, token) = queued(waiter(1, TERMS));

    let forbidden = Reply::Unknown(Failure::new(FailureKind::Lasting, "no permission"));
    let actions = happen(&mut key_state, 600, |key_state, ctx| {
        key_state.on_reply(token, enqueue(EnqueueMode::Recheck), at(500), forbidden, ctx);
    });

    assert!(
        matches!(
            actions[..],
            [
                Action::Send { command: Command::Withdraw, .. },
                Action::Reject { refusal: AcquireFailure::Failed(_), .. }
            ]
        ),
        "{actions:?}"
    );
}

#[test]
fn absent_token_is_never_queued_again() {
    let (mut key_state, dead) = queued(waiter(1, TERMS));

    let again = enqueue(EnqueueMode::Recheck);
    let actions = happen(&mut key_state, 600, |key_state, ctx| {
        key_state.on_reply(dead, again, at(500), Reply::Absent, ctx);
    });

    let first = enqueue(EnqueueMode::Join);
    assert!(
        matches!(actions[..], [Action::Send { token, command }] if token != dead && command == first),
        "{actions:?}"
    );
}

#[test]
fn queued_contender_acquires_by_a_recheck() {
    let (mut key_state, queued) = queued(waiter(1, TERMS));

    assert_eq!(key_state.next_timeout(), at(1).plus(ProtocolConfig::DEFAULT.grant_lease / 2));
    let sent = happen(&mut key_state, 501, KeyState::on_timeout);

    let again = enqueue(EnqueueMode::Recheck);
    assert!(
        matches!(sent[..], [Action::Send { token, command }] if token == queued && command == again),
        "{sent:?}"
    );
}

#[test]
fn rejected_waiter_gets_the_last_observation() {
    let (mut key_state, token) = queued(waiter(1, TERMS));

    let ended = happen(&mut key_state, 60_000, KeyState::on_timeout);
    let Action::Reject { refusal, .. } = &ended[0] else { panic!("{ended:?}") };

    assert!(matches!(refusal, AcquireFailure::Contended { ttl: Some(TERMS_LEASE), .. }), "{refusal:?}");
    assert!(
        matches!(ended[1..], [Action::Send { token: of, command: Command::Withdraw }] if of == token),
        "{ended:?}"
    );
}

#[test]
fn single_try_behind_a_contender_ends_once_a_reply_is_known() {
    let once = || QueueEntry { retry_state: RetryState::new(at(0), LIMITS, 2), ..waiter(2, TERMS) };
    let (mut key_state, _) = queued(waiter(1, TERMS));
    let mut unanswered = KeyState::new();
    happen(&mut unanswered, 0, |key_state, ctx| key_state.join(waiter(1, TERMS), ctx));

    let rejected = happen(&mut key_state, 10, |key_state, ctx| key_state.join(once(), ctx));
    let pending = happen(&mut unanswered, 10, |key_state, ctx| key_state.join(once(), ctx));

    assert!(
        matches!(
            rejected[..],
            [Action::Reject { acquisition: 2, refusal: AcquireFailure::Contended { .. } }]
        ),
        "{rejected:?}"
    );
    assert!(pending.is_empty() && unanswered.head() == Some(&1), "{pending:?}");
}

const TERMS_LEASE: Duration = TERMS.lease();

/// Returns a key state whose head waits for up to 60 s, with the acquire in flight since 0 ms, and
/// the token of the acquire.
fn trying() -> (KeyState<u32>, Token) {
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, |key_state, ctx| key_state.join(waiter(1, TERMS), ctx));
    let Some(&Contender { token, .. }) = key_state.contender() else { panic!("{key_state:?}") };
    (key_state, token)
}

/// Returns a key state whose head was not queued at 2 ms. The server reported `ttl` for the held
/// lock.
fn not_queued(head: QueueEntry<u32>, ttl: Option<Duration>) -> KeyState<u32> {
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, |key_state, ctx| key_state.join(head, ctx));
    let Some(&Contender { token, .. }) = key_state.contender() else { panic!("{key_state:?}") };
    happen(&mut key_state, 1, |key_state, ctx| {
        key_state.on_reply(token, ACQUIRE, at(0), Reply::Contended, ctx);
    });
    happen(&mut key_state, 2, |key_state, ctx| {
        key_state.on_reply(token, enqueue(EnqueueMode::Join), at(1), Reply::NotQueued { ttl }, ctx);
    });
    key_state
}

#[test]
fn acquire_that_no_call_waits_for_serves_the_next_call() {
    let (mut key_state, token) = trying();

    let left = happen(&mut key_state, 1, |key_state, ctx| assert!(key_state.leave(&1, ctx)));
    let joined = happen(&mut key_state, 2, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    let acquired = happen(&mut key_state, 3, |key_state, ctx| {
        key_state.on_reply(token, ACQUIRE, at(0), Reply::Owner, ctx);
    });

    assert!(left.is_empty() && joined.is_empty(), "{left:?} {joined:?}");
    assert!(
        matches!(acquired[..], [Action::Grant { acquisition: 2, token: of, .. }] if of == token),
        "{acquired:?}"
    );
}

#[test]
fn polling_ends_without_a_command() {
    let mut key_state = not_queued(waiter(1, TERMS), Some(TERMS_LEASE));

    let left = happen(&mut key_state, 3, |key_state, ctx| assert!(key_state.leave(&1, ctx)));

    assert!(left.is_empty(), "the server knows no token: {left:?}");
    assert!(key_state.is_idle());
}

#[test]
fn failed_try_is_cleaned_up_if_it_may_have_run() {
    for (reply, may_have_run) in [(Reply::Refused(failure()), false), (Reply::Unknown(failure()), true)] {
        let (mut key_state, token) = trying_once(false);

        let mut actions =
            happen(&mut key_state, 2, |key_state, ctx| key_state.on_reply(token, ACQUIRE, at(0), reply, ctx));

        let rejected = actions.pop();
        assert!(
            matches!(rejected, Some(Action::Reject { acquisition: 1, refusal: AcquireFailure::Failed(_) })),
            "{may_have_run}: {rejected:?}"
        );
        let undone = matches!(actions[..], [Action::Orphan { token: of }] if of == token);
        assert!(
            undone == may_have_run && actions.len() == usize::from(undone),
            "{may_have_run}: {actions:?}"
        );
        assert!(key_state.is_idle());
    }
}

/// Returns the token of an acquire that follows the withdrawal of `old`.
fn retry_token(old: Token, actions: &[Action<u32>]) -> Token {
    match actions {
        [
            Action::Orphan { token: given_up },
            Action::Send { token: left, command: Command::Withdraw },
            Action::Send { token, command },
        ] if *given_up == old && *left == old && *token != old && *command == ACQUIRE => *token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn single_try_retries_once_after_a_lost_connection() {
    let (mut key_state, first) = trying_once(false);
    let mut lose = |ms, token| {
        let lost = Reply::Unknown(failure().with_connection_lost());
        happen(&mut key_state, ms, |key_state, ctx| key_state.on_reply(token, ACQUIRE, at(0), lost, ctx))
    };

    let second = retry_token(first, &lose(2, first));
    let ended = lose(3, second);

    assert!(
        matches!(ended[..], [Action::Orphan { token }, Action::Reject { acquisition: 1, refusal: AcquireFailure::Failed(_) }] if token == second),
        "{ended:?}"
    );
    assert!(key_state.is_idle());
}

#[test]
fn single_try_acquires_under_its_second_token() {
    let (mut key_state, first) = trying_once(false);
    let lost = Reply::Unknown(failure().with_connection_lost());
    let actions =
        happen(&mut key_state, 2, |key_state, ctx| key_state.on_reply(first, ACQUIRE, at(0), lost, ctx));
    let second = retry_token(first, &actions);

    let stale = happen(&mut key_state, 3, |key_state, ctx| {
        key_state.on_reply(first, ACQUIRE, at(0), Reply::Owner, ctx);
    });
    let held = happen(&mut key_state, 4, |key_state, ctx| {
        key_state.on_reply(second, ACQUIRE, at(2), Reply::Owner, ctx);
    });

    assert!(
        matches!(stale[..], [Action::Send { token, command: Command::Withdraw }] if token == first),
        "{stale:?}"
    );
    assert!(matches!(held[..], [Action::Grant { acquisition: 1, token, .. }] if token == second), "{held:?}");
}

#[test]
fn single_try_past_its_limit_does_not_retry() {
    let (mut key_state, token) = trying_once(false);
    let lost = Reply::Unknown(failure().with_connection_lost());

    let ended =
        happen(&mut key_state, 30_000, |key_state, ctx| key_state.on_reply(token, ACQUIRE, at(0), lost, ctx));

    assert!(matches!(ended[..], [Action::Orphan { .. }, Action::Reject { acquisition: 1, .. }]), "{ended:?}");
}

#[test]
fn each_waiting_single_try_retries_once() {
    let (mut key_state, first) = trying_once(false);
    let once = |acquisition| QueueEntry {
        retry_state: RetryState::new(at(0), LIMITS, acquisition),
        ..waiter(acquisition, TERMS)
    };
    happen(&mut key_state, 1, |key_state, ctx| key_state.join(once(2), ctx));
    let lose = |key_state: &mut KeyState<u32>, ms, token| {
        let lost = Reply::Unknown(failure().with_connection_lost());
        happen(key_state, ms, |key_state, ctx| key_state.on_reply(token, ACQUIRE, at(0), lost, ctx))
    };
    let second = retry_token(first, &lose(&mut key_state, 2, first));
    happen(&mut key_state, 3, |key_state, ctx| key_state.join(once(3), ctx));

    let mut actions = lose(&mut key_state, 4, second);

    let refused: Vec<_> = actions
        .iter()
        .filter_map(
            |action| if let Action::Reject { acquisition, .. } = action { Some(*acquisition) } else { None },
        )
        .collect();
    assert_eq!(refused, [1, 2], "they have retried");
    actions.retain(|action| !matches!(action, Action::Reject { .. }));
    let third = retry_token(second, &actions);
    let ended = lose(&mut key_state, 5, third);
    assert!(matches!(ended[..], [Action::Orphan { .. }, Action::Reject { acquisition: 3, .. }]), "{ended:?}");
}

#[test]
fn failed_attempt_is_cleaned_up_once_despite_a_second_reply() {
    let (mut key_state, token) = trying();
    let mut fails = |ms| {
        happen(&mut key_state, ms, |key_state, ctx| {
            key_state.on_reply(token, ACQUIRE, at(0), Reply::Unknown(failure()), ctx);
        })
    };

    let (first, second) = (fails(2), fails(3));

    assert!(matches!(first[..], [Action::Orphan { token: of }] if of == token), "{first:?}");
    assert!(second.is_empty(), "{second:?}");
}

#[test]
fn acquire_of_a_task_that_has_left_is_renewed_or_repeated_for_the_next_task() {
    for (lease, repeats) in [(TERMS.lease() * 2, false), (TERMS.lease() / 2, true)] {
        let mut key_state = KeyState::new();
        let sent = happen(&mut key_state, 0, |key_state, ctx| key_state.join(waiter(1, TERMS), ctx));
        let [Action::Send { token, command: ACQUIRE }] = sent[..] else { panic!("{sent:?}") };
        happen(&mut key_state, 1, |key_state, ctx| {
            key_state.join(waiter(2, HoldTerms::of_lease(lease)), ctx);
            key_state.leave(&1, ctx);
        });

        let actions = happen(&mut key_state, 2, |key_state, ctx| {
            key_state.on_reply(token, ACQUIRE, at(0), Reply::Owner, ctx);
        });

        // A renewal does not shorten the time to live.
        match actions[..] {
            [Action::Send { token: of, command: Command::Renew { lease: to } }] => {
                assert!(!repeats && of == token && to == lease, "{actions:?}");
            }
            [
                Action::Send { token: of, command: Command::RELEASE },
                Action::Send { token: another, command: Command::Acquire { lease: to } },
            ] => assert!(repeats && of == token && another != token && to == lease, "{actions:?}"),
            _ => panic!("{actions:?}"),
        }
    }
}

/// The first task asks for twice the lease, by a confirmation or by a recheck. There is no reply,
/// so the server may have set that time to live.
#[test]
fn lock_that_may_outlive_the_lease_of_the_next_task_is_released() {
    let long = TERMS.lease() * 2;
    for (is_confirmed, next) in [(true, TERMS.lease()), (true, long), (false, TERMS.lease()), (false, long)] {
        let (mut key_state, token) = queued(waiter(1, HoldTerms::of_lease(long)));
        let rules = ProtocolConfig { grants_are_proof: !is_confirmed, ..ProtocolConfig::DEFAULT };
        let mut happens = |ms, event: &dyn Fn(&mut KeyState<u32>, &mut EventContext<'_, u32>)| {
            happen(&mut key_state, ms, |key_state, ctx| event(key_state, &mut ctx.under(&rules)))
        };
        let message = Grant { lease: rules.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        let recheck = |lease| Command::Enqueue { lease, mode: EnqueueMode::Recheck };
        let (sent, unanswered) = if is_confirmed {
            let sent = happens(501, &|key_state, ctx| assert!(key_state.on_grant(token, message, ctx)));
            (sent, Command::Renew { lease: long })
        } else {
            (happens(501, &KeyState::on_timeout), recheck(long))
        };
        assert!(matches!(sent[..], [Action::Send { command, .. }] if command == unanswered), "{sent:?}");

        happens(510, &|key_state, ctx| {
            key_state.on_reply(token, unanswered, at(501), Reply::Unknown(failure()), ctx);
            key_state.join(waiter(2, HoldTerms::of_lease(next)), ctx);
            key_state.leave(&1, ctx);
        });
        let mut actions = if is_confirmed {
            happens(640, &KeyState::on_timeout)
        } else {
            happens(640, &|key_state, ctx| assert!(key_state.on_grant(token, message, ctx)))
        };
        if let [Action::Send { command, .. }] = actions[..] {
            let expected = if is_confirmed { recheck(next) } else { Command::Renew { lease: next } };
            assert_eq!(command, expected);
            actions = happens(642, &|key_state, ctx| {
                key_state.on_reply(token, command, at(640), Reply::Owner, ctx);
            });
        }

        let is_long = next == long;
        assert!(
            match actions[..] {
                [Action::Grant { acquisition: 2, token: of, .. }] => is_long && of == token,
                [
                    Action::Send { token: of, command: Command::RELEASE },
                    Action::Send { token: another, command: Command::Acquire { lease } },
                ] => !is_long && of == token && another != token && lease == next,
                _ => false,
            },
            "{is_confirmed}, {next:?}: {actions:?}"
        );
    }
}

/// The recheck was sent for the first task, which has left. Its reply arrives after the grant.
#[test]
fn lock_with_a_longer_recheck_in_flight_at_the_grant_is_released() {
    let long = TERMS.lease() * 2;
    for (next, reply) in [
        (TERMS.lease(), Reply::Owner),
        (TERMS.lease(), Reply::Unknown(failure())),
        (long, Reply::Owner),
        (long, Reply::Unknown(failure())),
    ] {
        let (mut key_state, token) = rechecked(HoldTerms::of_lease(long), HoldTerms::of_lease(next));

        let granted = grant(&mut key_state, token, 520);
        let recheck = Command::Enqueue { lease: long, mode: EnqueueMode::Recheck };
        let mut actions = happen(&mut key_state, 530, |key_state, ctx| {
            key_state.on_reply(token, recheck, at(501), reply.clone(), ctx);
        });

        if next == long {
            assert!(
                matches!(granted[..], [Action::Grant { acquisition: 2, token: of, .. }] if of == token),
                "{reply:?}: {granted:?}"
            );
            continue;
        }
        let renew = Command::Renew { lease: next };
        assert!(
            matches!(granted[..], [Action::Send { token: of, command }] if of == token && command == renew),
            "{reply:?}: {granted:?}"
        );
        if actions.is_empty() {
            actions = happen(&mut key_state, 540, |key_state, ctx| {
                key_state.on_reply(token, renew, at(520), Reply::Owner, ctx);
            });
        }
        assert!(
            matches!(
                actions[..],
                [
                    Action::Send { token: of, command: Command::RELEASE },
                    Action::Send { token: another, command: Command::Acquire { lease } },
                ] if of == token && another != token && lease == next
            ),
            "{reply:?}: {actions:?}"
        );
    }
}

/// The reply shows that the server has not extended the key.
#[test]
fn lock_with_a_longer_recheck_answered_queued_is_granted() {
    let longer = HoldTerms::of_lease(TERMS.lease() * 2);
    let (mut key_state, token) = rechecked(longer, TERMS);
    let recheck = Command::Enqueue { lease: longer.lease(), mode: EnqueueMode::Recheck };
    happen(&mut key_state, 515, |key_state, ctx| {
        key_state.on_reply(token, recheck, at(501), Reply::Queued { ttl: Some(TERMS_LEASE) }, ctx);
    });

    let granted = grant(&mut key_state, token, 520);

    assert!(
        matches!(granted[..], [Action::Grant { acquisition: 2, token: of, .. }] if of == token),
        "{granted:?}"
    );
}

/// The recheck of the second task is answered while the renewal for the first one is in flight.
#[test]
fn lock_with_a_longer_renewal_in_flight_is_released() {
    let longer = HoldTerms::of_lease(TERMS.lease() * 2);
    let (mut key_state, token) = rechecked(TERMS, longer);
    let rules = ProtocolConfig { grants_are_proof: false, ..ProtocolConfig::DEFAULT };
    let confirmed = happen(&mut key_state, 520, |key_state, ctx| {
        let grant = Grant { lease: rules.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        assert!(key_state.on_grant(token, grant, &mut ctx.under(&rules)));
        key_state.join(waiter(3, TERMS), ctx);
        key_state.leave(&2, ctx);
    });
    let renew = Command::Renew { lease: longer.lease() };
    assert!(matches!(confirmed[..], [Action::Send { command, .. }] if command == renew), "{confirmed:?}");

    let actions = happen(&mut key_state, 530, |key_state, ctx| {
        key_state.on_reply(token, enqueue(EnqueueMode::Recheck), at(501), Reply::Owner, ctx);
    });

    assert!(
        matches!(
            actions[..],
            [Action::Send { token: of, command: Command::RELEASE }, Action::Send { token: another, .. }]
                if of == token && another != token
        ),
        "{actions:?}"
    );
}

/// Returns a queued key state with a recheck of `first` in flight since 501 ms. Its task has left,
/// and the head is task 2 with `next`.
fn rechecked(first: HoldTerms, next: HoldTerms) -> (KeyState<u32>, Token) {
    let (mut key_state, token) = queued(waiter(1, first));
    let sent = happen(&mut key_state, 501, KeyState::on_timeout);
    let recheck = Command::Enqueue { lease: first.lease(), mode: EnqueueMode::Recheck };
    assert!(matches!(sent[..], [Action::Send { command, .. }] if command == recheck), "{sent:?}");
    happen(&mut key_state, 510, |key_state, ctx| {
        key_state.join(waiter(2, next), ctx);
        key_state.leave(&1, ctx);
    });
    (key_state, token)
}

#[test]
fn reply_later_than_the_lease_starts_no_body() {
    let deadline = 30_000 - 302;
    for (ms, is_late) in [(deadline - 1, false), (deadline, true)] {
        let (mut key_state, token) = trying();

        let actions = happen(&mut key_state, ms, |key_state, ctx| {
            key_state.on_reply(token, ACQUIRE, at(0), Reply::Owner, ctx);
        });

        assert!(
            match actions[..] {
                [Action::Grant { acquisition: 1, token: of, .. }] => !is_late && of == token,
                [Action::Send { token: of, command: Command::RELEASE }] => is_late && of == token,
                _ => false,
            },
            "{ms}: {actions:?}"
        );
        assert_eq!(key_state.head(), is_late.then_some(&1), "a waiter without a grant keeps waiting");
    }
}

#[test]
fn grant_is_used_unconfirmed_only_if_its_message_is_proof() {
    for (grants_are_proof, replica_acks, is_proof) in
        [(true, 0, true), (true, 1, false), (false, 0, false), (false, 1, false)]
    {
        let (mut key_state, token) = queued(waiter(1, TERMS));
        let rules = ProtocolConfig { replica_acks, grants_are_proof, ..ProtocolConfig::DEFAULT };

        let actions = happen(&mut key_state, 10, |key_state, ctx| {
            let mut ctx = ctx.under(&rules);
            let message = Grant { lease: rules.grant_lease, fleet_hold: FleetHold::UNKNOWN };
            assert!(key_state.on_grant(token, message, &mut ctx));
        });

        assert!(
            match actions[..] {
                [Action::Grant { acquisition: 1, token: of, .. }] => is_proof && of == token,
                [Action::Send { token: of, command: Command::Renew { .. } }] => !is_proof && of == token,
                _ => false,
            },
            "{grants_are_proof}, {replica_acks}: {actions:?}"
        );
    }
}

#[test]
fn invalidation_does_not_recheck_a_queued_contender() {
    let (mut key_state, _) = queued(waiter(1, TERMS));

    assert!(happen(&mut key_state, 10, KeyState::on_invalidation).is_empty(), "a grant notifies it");
    assert!(happen(&mut key_state, 500, KeyState::on_timeout).is_empty(), "a grant notifies it");

    assert_eq!(happen(&mut key_state, 501, KeyState::on_timeout).len(), 1);
}

#[test]
fn failed_recheck_is_repeated_and_reported_when_the_wait_ends() {
    for reply in [Reply::Refused(failure()), Reply::Unknown(failure())] {
        let (mut key_state, token) = queued(waiter(1, TERMS));
        happen(&mut key_state, 501, KeyState::on_timeout);

        let again = enqueue(EnqueueMode::Recheck);
        let actions = happen(&mut key_state, 1_001, |key_state, ctx| {
            key_state.on_reply(token, again, at(501), reply, ctx);
        });

        assert!(actions.is_empty(), "it stays queued: {actions:?}");
        assert_eq!(key_state.next_timeout(), at(1_001).plus(ProtocolConfig::DEFAULT.grant_lease / 8));
        let sent = happen(&mut key_state, 1_126, KeyState::on_timeout);
        assert!(
            matches!(sent[..], [Action::Send { token: of, command }] if of == token && command == again),
            "{sent:?}"
        );
        let ended = happen(&mut key_state, 60_000, KeyState::on_timeout);
        assert!(matches!(ended[0], Action::Reject { refusal: AcquireFailure::Failed(_), .. }), "{ended:?}");
    }
}

#[test]
fn polls_of_unqueued_contenders_are_spread() {
    let polls: Vec<_> = (0..20).map(|_| not_queued(waiter(1, TERMS), None).next_timeout()).collect();

    let poll = ProtocolConfig::DEFAULT.poll_interval;
    let (soonest, latest) = (at(2).plus(poll / 2), at(2).plus(poll / 2).plus(poll));
    assert!(polls.iter().all(|poll| (soonest..=latest).contains(poll)), "{polls:?}");
    assert!(polls.iter().any(|poll| *poll != polls[0]), "{polls:?}");
}

#[test]
fn unqueued_contender_with_retries_waits_for_its_next_try() {
    let backoff = crate::retry::RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(1));
    let retry_state = RetryState::new(at(0), RetryLimits { retries: 3, backoff, ..LIMITS }, 1);
    let mut key_state =
        not_queued(QueueEntry { retry_state, ..waiter(1, TERMS) }, Some(Duration::from_millis(5)));

    let due = key_state.next_timeout();
    assert!((at(102)..=at(1_002)).contains(&due), "a delay of its policy: {due:?}");
    assert!(happen(&mut key_state, 101, KeyState::on_timeout).is_empty());
    let sent = happen(&mut key_state, 1_002, KeyState::on_timeout);

    assert!(matches!(sent[..], [Action::Send { command: ACQUIRE, .. }]), "{sent:?}");
}

/// Returns the first command of a call when the lock is `contended` or not, with the key state and
/// the token.
fn first_command(contended: bool, waiter: QueueEntry<u32>) -> (KeyState<u32>, Token, Command) {
    let mut key_state = KeyState::new();
    let sent =
        happen_where(&mut { contended }, &mut key_state, 0, |key_state, ctx| key_state.join(waiter, ctx));
    let [Action::Send { token, command }] = sent[..] else { panic!("{sent:?}") };
    (key_state, token, command)
}

#[test]
fn waiter_enqueues_at_once_if_the_lock_is_contended() {
    let once = QueueEntry { retry_state: RetryState::new(at(0), LIMITS, 1), ..waiter(1, TERMS) };

    assert_eq!(first_command(true, waiter(1, TERMS)).2, enqueue(EnqueueMode::Join));
    assert_eq!(first_command(true, once).2, ACQUIRE);
    assert_eq!(first_command(false, waiter(1, TERMS)).2, ACQUIRE);
}

#[test]
fn last_enqueue_decides_whether_a_lock_is_contended() {
    let not_queued = Reply::NotQueued { ttl: None };
    for (before, reply, after) in [
        (false, Reply::Queued { ttl: None }, true),
        (true, Reply::Queued { ttl: None }, true),
        (true, Reply::Owner, false),
        (false, not_queued.clone(), false),
        (true, not_queued, false),
    ] {
        let (mut key_state, token, command) = first_command(true, waiter(1, TERMS));

        let mut contended = before;
        let said = reply.clone();
        happen_where(&mut contended, &mut key_state, 2, |key_state, ctx| {
            key_state.on_reply(token, command, at(1), said, ctx);
        });

        assert_eq!(contended, after, "{before}, {reply:?}");
    }
}

/// A backend that cannot deliver grants never queues a token.
#[test]
fn unqueued_contender_starts_with_an_acquire() {
    let (mut key_state, token, command) = first_command(true, waiter(1, TERMS));
    let (mut contended, not_queued) = (true, Reply::NotQueued { ttl: None });
    happen_where(&mut contended, &mut key_state, 2, |key_state, ctx| {
        key_state.on_reply(token, command, at(1), not_queued, ctx);
    });

    let sent = happen_where(&mut contended, &mut key_state, 1_000, KeyState::on_timeout);

    assert!(matches!(sent[..], [Action::Send { command: ACQUIRE, .. }]), "{sent:?}");
}

/// Returns a key state whose head enqueued at 1 ms and was queued at `answered` ms, and its token.
fn queued_at_distance(answered: u64) -> (KeyState<u32>, Token) {
    let (mut key_state, token) = trying();
    happen(&mut key_state, 1, |key_state, ctx| {
        key_state.on_reply(token, ACQUIRE, at(0), Reply::Contended, ctx);
    });
    let queued = Reply::Queued { ttl: None };
    happen(&mut key_state, answered, |key_state, ctx| {
        key_state.on_reply(token, enqueue(EnqueueMode::Join), at(1), queued, ctx);
    });
    (key_state, token)
}

fn grant(key_state: &mut KeyState<u32>, token: Token, ms: u64) -> Vec<Action<u32>> {
    let message = Grant { lease: ProtocolConfig::DEFAULT.grant_lease, fleet_hold: FleetHold::UNKNOWN };
    happen(key_state, ms, |key_state, ctx| assert!(key_state.on_grant(token, message, ctx)))
}

const RENEW: Command = Command::Renew { lease: TERMS_LEASE };

#[test]
fn grant_with_little_time_left_is_confirmed_first() {
    let deadline = 1 + 1_000 - 12;
    for (round_trip, left, is_confirmed_first) in [
        (300, 600, false),
        (300, 599, true),
        (100, 200, false),
        (100, 199, true),
        (480, 508, true),
        (1, 2, false),
    ] {
        let (mut key_state, token) = queued_at_distance(1 + round_trip);

        let actions = grant(&mut key_state, token, deadline - left);

        assert!(
            match actions[..] {
                [Action::Grant { is_unconfirmed, .. }] => !is_confirmed_first && is_unconfirmed,
                [Action::Send { token: of, command: RENEW }] => is_confirmed_first && of == token,
                _ => false,
            },
            "{round_trip} ms, {left} ms left: {actions:?}"
        );
    }
}

#[test]
fn grant_that_is_confirmed_first_counts_from_its_confirmation() {
    let (mut key_state, token) = queued_at_distance(481);
    grant(&mut key_state, token, 500);

    let actions = happen(&mut key_state, 980, |key_state, ctx| {
        key_state.on_reply(token, RENEW, at(500), Reply::Owner, ctx);
    });

    let until = Deadline::of_lease(at(500), TERMS_LEASE);
    let is_let_in = |action: &Action<u32>| matches!(action, Action::Grant { deadline, is_unconfirmed: false, .. } if *deadline == until);
    assert!(actions.len() == 1 && is_let_in(&actions[0]), "{actions:?}");
}

/// The grant was forged, came from another server, or has expired. No body ran under it.
#[test]
fn denied_grant_keeps_the_contender_queued() {
    let far = || queued_at_distance(481);
    let near = || queued(waiter(1, TERMS));
    for ((mut key_state, token), rules) in [
        (far(), ProtocolConfig::DEFAULT),
        (near(), ProtocolConfig { grants_are_proof: false, ..ProtocolConfig::DEFAULT }),
        (near(), ProtocolConfig { replica_acks: 1, ..ProtocolConfig::DEFAULT }),
    ] {
        let mut happens = |ms, event: &dyn Fn(&mut KeyState<u32>, &mut EventContext<'_, u32>)| {
            happen(&mut key_state, ms, |key_state, ctx| event(key_state, &mut ctx.under(&rules)))
        };
        let message = Grant { lease: rules.grant_lease, fleet_hold: FleetHold::UNKNOWN };

        happens(500, &|key_state, ctx| assert!(key_state.on_grant(token, message, ctx)));
        let denied =
            happens(510, &|key_state, ctx| key_state.on_reply(token, RENEW, at(500), Reply::NotOwner, ctx));
        let again = enqueue(EnqueueMode::Recheck);
        assert!(
            matches!(denied[..], [Action::Send { token: of, command }] if of == token && command == again),
            "{denied:?}"
        );
        let queued = happens(520, &|key_state, ctx| {
            key_state.on_reply(token, again, at(510), Reply::Queued { ttl: None }, ctx);
        });
        let granted = happens(530, &|key_state, ctx| assert!(key_state.on_grant(token, message, ctx)));
        let confirmed =
            happens(540, &|key_state, ctx| key_state.on_reply(token, RENEW, at(530), Reply::Owner, ctx));

        assert!(queued.is_empty(), "it stays queued: {queued:?}");
        let is_let_in = |action: &Action<u32>| matches!(action, Action::Grant { acquisition: 1, .. });
        assert!(granted.iter().chain(&confirmed).any(is_let_in), "{granted:?} {confirmed:?}");
    }
}
