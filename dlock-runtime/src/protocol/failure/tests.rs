use super::*;
use crate::error::Error;
use crate::key::LockKey;

fn key() -> LockKey {
    LockKey::new("orders:7").expect("a valid key")
}

#[test]
fn each_failure_kind_becomes_its_error() {
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
