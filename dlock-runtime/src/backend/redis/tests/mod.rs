//! Tests of [`Redis`], and what the tests of its modules share.

pub(super) mod resp;
pub(super) mod scripted_server;

use std::sync::mpsc::{self, RecvTimeoutError};

use futures_util::FutureExt;
use tokio::sync::Notify;

use super::*;
use crate::backend::redis::encoding::native::NativeEncoding;
use crate::backend::redis::encoding::redisson::RedissonEncoding;
use crate::backend::redis::node::test_node::acquire;
use crate::backend::redis::tests::scripted_server::LIMIT;
use crate::backend::tests::recorded_events::RecordedEvents;
use crate::config::endpoint::Endpoint;
use crate::config::url::{self, ConnectSpec};
use crate::layout::Publish;
use crate::protocol::command::Reply;
use crate::token::TokenSource;

/// Returns `true` if `notify` has been notified since the last check.
pub(super) fn is_notified(notify: &Notify) -> bool {
    notify.notified().now_or_never().is_some()
}

/// Returns the output of `future`, which must end within [`LIMIT`].
///
/// The limit is one of real time. A timer of a paused clock would not wait for a reply of a
/// [`ScriptedServer`](scripted_server::ScriptedServer).
pub(super) async fn within_limit<T>(what: &str, future: impl Future<Output = T>) -> T {
    let (_ended, has_ended) = mpsc::channel::<()>();
    let (expire, expired) = oneshot::channel();
    std::thread::spawn(move || {
        if has_ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            let _ = expire.send(());
        }
    });
    tokio::select! {
        output = future => output,
        _ = expired => panic!("{what}: not within {LIMIT:?}"),
    }
}

/// Returns the reply to a command that may have run.
pub(super) fn unknown() -> Reply {
    Reply::Unknown(Failure::new(FailureKind::Passing, "no reply"))
}

#[test]
fn grants_are_proof_only_if_the_primary_cannot_change() {
    let notice = |moves| capabilities_of(&NativeEncoding, moves).release_notice;

    assert_eq!(notice(false), ReleaseNotice::Grant { is_proof: true });
    assert_eq!(notice(true), ReleaseNotice::Grant { is_proof: false });
}

#[test]
fn contenders_retry_if_the_encoding_has_no_queue() {
    let redisson = RedissonEncoding::with_publish(Publish::Auto, true);

    for encoding in [&PlainEncoding as &dyn LockEncoding, redisson] {
        for moves in [false, true] {
            let notice = capabilities_of(encoding, moves).release_notice;
            assert!(matches!(notice, ReleaseNotice::Retry { jitter } if !jitter.is_zero()), "{encoding:?}");
        }
    }
}

/// Returns the backend of a URL.
fn of_url(url: &str) -> Arc<Redis> {
    let ConnectSpec { place, settings } = url::parse(url).expect("the URL is valid");
    let process = TokenSource::of_process(1).process();
    match place {
        Endpoint::Redis(server) => Redis::of_server(server, &settings, process),
        Endpoint::Cluster(seeds) => Redis::of_cluster(seeds, &settings, process),
        Endpoint::Quorum(voters) => Redis::of_quorum(voters, &settings, process),
        Endpoint::Sentinel(watched) => Redis::of_sentinels(watched, &settings, process),
        Endpoint::Memory { .. } => panic!("it is a server"),
    }
}

/// The URL of a port that no server listens on.
const SERVER: &str = "redis://127.0.0.1:1";
const QUORUM: &str = "redis+quorum://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";

#[test]
fn capabilities_are_those_of_the_deployment() {
    let grant = |is_proof| Some(ReleaseNotice::Grant { is_proof });
    for (url, notice, store_calls) in [
        (SERVER, grant(true), true),
        ("redis+sentinel://127.0.0.1:1/primary", grant(false), true),
        ("redis+cluster://127.0.0.1:1", grant(false), true),
        (QUORUM, None, false),
        ("redis://127.0.0.1:1?layout=redisson", None, true),
    ] {
        let capabilities = of_url(url).capabilities();

        let release_notice = capabilities.release_notice;
        let is_grant = matches!(release_notice, ReleaseNotice::Grant { .. });
        assert_eq!(is_grant.then_some(release_notice), notice, "{url}");
        assert_eq!(capabilities.store_calls, store_calls, "{url}");
        assert!(capabilities.keeps_time && capabilities.reports_changes);
    }
}

#[test]
fn an_owner_is_found_at_a_server_but_not_at_a_quorum() {
    let process = TokenSource::of_process(2).process();

    assert!(matches!(of_url(SERVER).owner_of(process, "dlock"), OwnerSource::Server(..)));
    assert!(matches!(of_url(QUORUM).owner_of(process, "dlock"), OwnerSource::Unknown));
}

#[test]
fn events_of_the_engine_reach_the_driver() {
    let redis = of_url(SERVER);
    let is_woken = || is_notified(&redis.shared.wake);
    let mut effects = EventEffects::default();
    let _events = RecordedEvents::attach(|events| redis.attach(events));
    assert!(redis.events.get().is_some());
    redis.use_namespace("shop");
    assert_eq!(&**redis.shared.namespaces.of_key("shop:7").name(), "shop");

    redis.submit(acquire("a"));
    assert!(redis.shared.has_queued() && !is_woken());
    redis.flush(BootInstant::START, &mut effects);
    assert!(is_woken());
    redis.shared.mark_asleep(BootInstant::NEVER);
    redis.due_earlier(BootInstant::START);
    assert!(is_woken());
    redis.close();

    assert!(is_woken());
}

#[tokio::test]
async fn a_backend_is_settled_after_the_last_reply_or_the_time_limit() {
    let redis = of_url("redis://127.0.0.1:1?response_timeout=50ms");
    redis.shared.runtimes.set_own(tokio::runtime::Handle::current());
    redis.settle().await;
    redis.submit(acquire("a"));
    let mut settled = redis.settle();
    assert!((&mut settled).now_or_never().is_none());

    redis.shared.answered(1);
    assert!(settled.now_or_never().is_some());
    redis.submit(acquire("b"));
    let begun = tokio::time::Instant::now();
    redis.settle().await;

    assert!(begun.elapsed().as_millis() >= 50);
}

#[tokio::test]
async fn only_a_lazy_start_succeeds_without_a_server() {
    let failed = of_url(SERVER).connect().await.expect_err("there is no server");
    assert!(failed.to_string().contains("127.0.0.1:1"), "{failed}");
    let lazy = of_url(&format!("{SERVER}?connect=lazy"));
    assert!(lazy.connect().await.is_ok());

    lazy.close();
}

/// With a quorum, a caller that has not read the end of a connection yet would lose a vote.
#[tokio::test]
async fn callers_write_to_one_server_but_not_to_a_quorum() {
    for (url, is_written) in [(SERVER, true), (QUORUM, false)] {
        let redis = of_url(&format!("{url}?connect=lazy"));

        redis.connect().await.expect("a lazy start needs no server");

        assert_eq!(redis.shared.runtimes.uses_callers(), is_written, "{url}");
        redis.close();
    }
}

#[tokio::test]
async fn tasks_and_sleeps_run_on_the_managers_own_thread() {
    let redis = of_url(SERVER);
    let mut own = tokio::runtime::Builder::new_multi_thread();
    let own = own.worker_threads(1).thread_name("own").enable_time().build();
    let own = own.expect("a runtime can be made");
    redis.shared.runtimes.set_own(own.handle().clone());
    let (ran, runs) = oneshot::channel();

    redis.spawn(Box::pin(async {
        let thread = std::thread::current().name().map(str::to_owned);
        ran.send(thread).expect("the test waits");
    }));
    let thread = runs.await;
    let begun = tokio::time::Instant::now();
    redis.sleep(Duration::from_millis(5)).await;
    own.shutdown_background(); // a drop would panic here

    assert_eq!(thread.expect("it runs").as_deref(), Some("own"));
    assert!(begun.elapsed() >= Duration::from_millis(5));
}
