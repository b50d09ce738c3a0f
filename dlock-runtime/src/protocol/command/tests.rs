//! Unit tests of `command`.

use super::*;

fn key() -> LockKey {
    LockKey::new("orders:7").expect("a valid key")
}

#[test]
fn each_kind_of_failure_becomes_the_error_that_says_what_is_to_be_done() {
    let error = |kind| Failure::new(kind, "it said no").into_error(key());

    let wrong = error(FailureKind::WrongKind);
    assert!(
        matches!(&wrong, Error::WrongKind { key: of, found } if *of == key() && &**found == "it said no"),
        "{wrong:?}"
    );
    let invalid = error(FailureKind::InvalidKey);
    assert!(
        matches!(&invalid, Error::InvalidKey { template, problem }
            if &**template == key().as_str() && &**problem == "it said no"),
        "{invalid:?}"
    );
    let spent = error(FailureKind::FencingCounter);
    assert!(
        matches!(&spent, Error::FencingCounter { key: of, problem } if *of == key() && &**problem == "it said no"),
        "{spent:?}"
    );
    let passing = error(FailureKind::Passing);
    assert!(
        matches!(&passing, Error::Unavailable { key: Some(of), reason, .. }
            if *of == key() && &**reason == "it said no"),
        "{passing:?}"
    );
    for (kind, part_of_it) in [(FailureKind::Lasting, "server"), (FailureKind::Untrusted, "tls")] {
        let lasting = error(kind);
        assert!(
            matches!(&lasting, Error::Config { part, problem } if &**part == part_of_it && &**problem == "it said no"),
            "{lasting:?}"
        );
    }
}

#[test]
fn replicas_are_waited_for_where_a_body_starts_or_goes_on_and_not_where_somebody_only_asks() {
    let lease = Duration::from_secs(30);
    for (command, carries) in [
        (Command::Acquire { lease }, true),
        (Command::Enqueue { lease, mode: EnqueueMode::Join }, true),
        (Command::Enqueue { lease, mode: EnqueueMode::Recheck }, true),
        (Command::Enqueue { lease, mode: EnqueueMode::TryOnly }, true),
        (Command::Renew { lease }, true),
        (Command::Verify, false),
        (Command::SetTtl { ttl: lease }, false),
        (Command::Release, false),
        (Command::Withdraw, false),
        (Command::Fence, false),
        (Command::Inspect, false),
        (Command::Ping, false),
    ] {
        assert_eq!(command.grants_ownership(), carries, "{command:?}");
    }
}
