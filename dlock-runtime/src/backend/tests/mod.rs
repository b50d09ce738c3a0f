//! Tests of requests and capabilities, and helpers that the tests of all backends share.

pub(crate) mod real_server;
pub(crate) mod recorded_events;
pub(crate) mod test_operation;

use super::*;
use crate::backend::tests::test_operation::TestOperation;
use crate::token::TokenSource;

#[test]
fn grants_are_proof_only_if_the_backend_says_so() {
    for is_proof in [true, false] {
        let release_notice = ReleaseNotice::Grant { is_proof };
        let rules = Capabilities { release_notice, ..Capabilities::SERVER }.apply_to(ProtocolConfig::DEFAULT);

        assert_eq!(rules.grants_are_proof, is_proof);
        assert!(rules.has_queue());
    }
}

#[test]
fn contenders_without_a_queue_retry_after_a_delay() {
    let jitter = Duration::from_millis(4);
    let release_notice = ReleaseNotice::Retry { jitter };
    let rules = Capabilities { release_notice, ..Capabilities::SERVER }.apply_to(ProtocolConfig::DEFAULT);

    assert_eq!(rules.wakeup_jitter, jitter);
    assert!(!rules.has_queue() && !rules.grants_are_proof);
}

#[test]
fn changes_are_tracked_only_if_wanted_and_reported() {
    for (wanted, reported) in [(true, true), (true, false), (false, true)] {
        let capabilities = Capabilities { reports_changes: reported, ..Capabilities::SERVER };
        let rules = capabilities.apply_to(ProtocolConfig { tracking: wanted, ..ProtocolConfig::DEFAULT });

        assert_eq!(rules.tracking, wanted && reported);
    }
}

#[test]
fn an_operation_decides_whether_its_reply_needs_acks() {
    for needs_acks in [true, false] {
        let operation = Arc::new(TestOperation { needs_acks, ..TestOperation::default() });
        let call = operation.request("a");

        assert_eq!(call.needs_acks(), needs_acks);
        let acquire = Command::Acquire { lease: Duration::from_secs(1) };
        assert_eq!(Request { command: acquire, ..call }.needs_acks(), needs_acks);
    }
    let needs_acks =
        |command| Request::new("a".into(), TokenSource::of_process(1).next(), command).needs_acks();
    assert!(needs_acks(Command::Renew { lease: Duration::from_secs(1) }));
    assert!(!needs_acks(Command::RELEASE));
}

#[test]
fn one_of_many_requests_has_the_operation_but_not_the_recipient() {
    let (caller, _receiver) = tokio::sync::oneshot::channel();
    let operation = Arc::new(TestOperation::default());
    let request = Request {
        recipient: Some(ReplyRecipient::Caller(caller)),
        is_tracked: true,
        ..operation.request("a")
    };

    let copy = request.for_one_of_many();

    assert_eq!((&*copy.key, copy.token, copy.command), ("a", request.token, request.command));
    assert!(copy.is_tracked && copy.call.is_some() && copy.recipient.is_none());
}
