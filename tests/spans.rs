//! The spans and events of a call: their fixed names and their fields.
//!
//! This is a separate program, as it installs the log of the whole process. Each test uses its own
//! key.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use dlock_runtime::idempotent::{IdempotentRecord, OnCrash, OnUnavailable};
use dlock_runtime::scheduled::{Jobs, Schedule};
use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockManager, distributed_lock};
use dlock_tests::filter::{FilterProxy, Lack};
use dlock_tests::resp::Reply;
use dlock_tests::world::name;
use dlock_tests::{Answer, HostileServer, Moment, Proxy, RedisServer, acl, until, within};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The fields of one span or event. The field `name` contains its name.
type Fields = BTreeMap<String, String>;

/// All records in order: spans when they close, and events when they occur. An event's field `call`
/// contains the key of the span that encloses it.
fn logged() -> MutexGuard<'static, Vec<Fields>> {
    static LOGGED: OnceLock<Mutex<Vec<Fields>>> = OnceLock::new();
    let logged = LOGGED.get_or_init(|| {
        let log = tracing_subscriber::registry().with(Recorder);
        tracing::subscriber::set_global_default(log).expect("no other log is installed");
        Mutex::default()
    });
    logged.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the records of a name and a key.
fn logged_under(name: &str, key: &str) -> Vec<Fields> {
    let is_it =
        |fields: &&Fields| fields["name"] == name && fields.get("lock.key").is_some_and(|of| of == key);
    logged().iter().filter(is_it).cloned().collect()
}

struct Recorder;

struct FieldReader<'a>(&'a mut Fields);

impl Visit for FieldReader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::from([("name".to_owned(), attributes.metadata().name().to_owned())]);
        attributes.record(&mut FieldReader(&mut fields));
        context.span(id).expect("the span exists").extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).expect("the span is open");
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(&mut FieldReader(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::from([
            ("name".to_owned(), metadata.name().to_owned()),
            ("level".to_owned(), metadata.level().to_string()),
        ]);
        event.record(&mut FieldReader(&mut fields));
        let span = context.event_span(event);
        let call = span.and_then(|span| span.extensions().get::<Fields>()?.get("lock.key").cloned());
        fields.extend(call.map(|key| ("call".to_owned(), key)));
        logged().push(fields);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let fields = context.span(&id).and_then(|span| span.extensions_mut().remove::<Fields>());
        logged().extend(fields);
    }
}

async fn in_memory() -> LockManager {
    drop(logged());
    LockManager::connect("memory://").await.expect("the in-memory backend connects")
}

#[distributed_lock(key = "order:<id>", manager = locks)]
async fn place_order(locks: &LockManager, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "stock:<article>", manager = locks)]
async fn count(locks: &LockManager, article: u64) -> Result<u64, axum::http::StatusCode> {
    Ok(article)
}

#[distributed_lock(key = "mail:<address|hash>", manager = locks)]
async fn write_to(locks: &LockManager, address: &str) -> Result<usize, Error> {
    Ok(address.len())
}

#[distributed_lock(key = "slow:<id>", lease = "100ms", renew = false, manager = locks)]
async fn outlive(locks: &LockManager, id: u64) -> Result<u64, Error> {
    tokio::time::sleep(Duration::from_secs(9)).await;
    Ok(id)
}

#[tokio::test(start_paused = true)]
async fn call_span_records_its_outcome() {
    let locks = in_memory().await;

    place_order(&locks, 1).await.expect("the lock is free");

    let spans = logged_under("dlock.hold", "order:1");
    assert_eq!(spans.len(), 1, "{spans:?}");
    let field = |name: &str| spans[0].get(name).map(String::as_str);
    assert_eq!(field("lock.name"), Some("spans::place_order"));
    assert_eq!((field("lock.attempts"), field("lock.wait_ms")), (Some("1"), Some("0")));
    assert_eq!(field("lock.outcome"), Some("released"));
    assert_eq!(logged_under("dlock.acquired", "order:1").len(), 1);
}

#[distributed_lock(key = "unlocked:<id>", on_unavailable = run)]
async fn whatever_happens(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[tokio::test(start_paused = true)]
async fn run_without_lock_is_logged_at_error_level() {
    drop(logged());
    let locks = TestLocks::new();
    let _outage = locks.outage();

    locks.run(whatever_happens(1)).await.expect("it runs");

    let events = logged_under("dlock.ran_without_lock", "unlocked:1");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].get("level").map(String::as_str), Some("ERROR"));
    let outcome = logged_under("dlock.hold", "unlocked:1")[0].get("lock.outcome").cloned();
    assert_eq!(outcome.as_deref(), Some("ran_without_lock"));
}

#[distributed_lock(key = "named:<id>", name = "reports.nightly", manager = locks)]
async fn nightly(locks: &LockManager, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[tokio::test(start_paused = true)]
async fn name_parameter_sets_the_lock_name() {
    let locks = in_memory().await;

    nightly(&locks, 1).await.expect("the lock is free");

    let spans = logged_under("dlock.hold", "named:1");
    assert_eq!(spans[0].get("lock.name").map(String::as_str), Some("reports.nightly"));
}

#[tokio::test(start_paused = true)]
async fn contention_is_logged_as_event_and_outcome() {
    let locks = in_memory().await;
    let _held = locks.lock("order:2").acquire().await.expect("the lock is free");

    let refused = place_order(&locks, 2).await;

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert_eq!(logged_under("dlock.contended", "order:2").len(), 1);
    let outcomes: Vec<_> = logged_under("dlock.hold", "order:2")
        .iter()
        .filter_map(|span| span.get("lock.outcome").cloned())
        .collect();
    assert_eq!(outcomes, ["guarded", "contended"]);
}

#[tokio::test(start_paused = true)]
async fn error_hidden_from_a_web_client_is_logged() {
    let locks = in_memory().await;
    let _held = locks.lock("stock:5").acquire().await.expect("the lock is free");

    let refused = count(&locks, 5).await;

    assert_eq!(refused, Err(axum::http::StatusCode::CONFLICT));
    let answered = logged_under("dlock.error_response", "stock:5");
    assert_eq!(answered.len(), 1, "{answered:?}");
    let text = answered[0].get("error");
    assert!(text.is_some_and(|text| text.starts_with("lock `stock:5` is held by another call")), "{text:?}");
}

#[tokio::test(start_paused = true)]
async fn loss_is_logged_once_as_event_and_outcome() {
    let locks = in_memory().await;

    let lost = outlive(&locks, 3).await;

    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    assert_eq!(logged_under("dlock.lost", "slow:3").len(), 1);
    assert_eq!(logged_under("dlock.hold", "slow:3")[0].get("lock.outcome").map(String::as_str), Some("lost"));
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_max_hold_ends_is_logged_as_such() {
    let locks = in_memory().await;
    let limit = Duration::from_secs(1);

    let lock = locks.lock("bounded:1").max_hold(limit);
    let lost = lock.run(async |_guard| std::future::pending::<()>().await).await;

    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    let [reached] = &logged_under("dlock.max_hold_reached", "bounded:1")[..] else {
        panic!("it is logged once")
    };
    assert_eq!(reached.get("level").map(String::as_str), Some("WARN"));
    assert!(logged_under("dlock.lost", "bounded:1").is_empty(), "no lock was lost to another call");
    assert_eq!(
        logged_under("dlock.hold", "bounded:1")[0].get("lock.outcome").map(String::as_str),
        Some("lost")
    );
}

#[distributed_lock(key = "late:<id>", lease = "100ms", renew = false, manager = locks)]
async fn complete_late(locks: &LockManager, id: u64) -> Result<u64, Error> {
    let _ = tokio::time::advance(Duration::from_secs(9)).now_or_never(); // like a body that blocks its thread
    Ok(id)
}

#[tokio::test(start_paused = true)]
async fn a_loss_under_a_completed_body_is_logged_once_and_returned() {
    let locks = in_memory().await;

    let lost = complete_late(&locks, 3).await;

    assert!(matches!(lost, Err(Error::Lost { completed: true, .. })), "{lost:?}");
    assert_eq!(logged_under("dlock.lost", "late:3").len(), 1);
    assert_eq!(logged_under("dlock.hold", "late:3")[0].get("lock.outcome").map(String::as_str), Some("lost"));
}

#[tokio::test(start_paused = true)]
async fn dropped_guard_logs_the_loss_of_its_lock() {
    let locks = in_memory().await;
    let lock = locks.lock("slow:4").lease(Duration::from_millis(100)).renew(false);
    let guard = lock.acquire().await.expect("the lock is free");

    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(guard);

    assert_eq!(logged_under("dlock.lost", "slow:4").len(), 1);
}

#[distributed_lock(key = "background:<id>", manager = locks, release = background)]
async fn leave(locks: &LockManager, id: u8, meanwhile: impl FnOnce()) -> Result<u64, Error> {
    meanwhile();
    Ok(7)
}

/// Waits for a record of a name and a key, and returns the last.
async fn record_of(name: &str, key: &str) -> Fields {
    let written = async {
        loop {
            if let Some(record) = logged_under(name, key).pop() {
                return record;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(Duration::from_secs(10), name, written).await
}

/// Waits for the span of a call, which closes when its release has a reply or has timed out.
async fn span_of_release(key: &str) -> Fields {
    record_of("dlock.hold", key).await
}

#[tokio::test]
async fn background_release_outcome_is_logged_for_its_call() {
    drop(logged());
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = LockManager::connect(&proxy.url_with("?response_timeout=200ms")).await.expect("it is open");
    let delete = |key: &str| drop(server.call(&["DEL", &name(key)]));

    let well = leave(&locks, 1, || {}).await;
    let stolen = leave(&locks, 2, || delete("background:2")).await;
    let unconfirmed = leave(&locks, 3, || proxy.swallow_replies()).await;

    assert_eq!((well.ok(), stolen.ok(), unconfirmed.ok()), (Some(7), Some(7), Some(7)));
    for (key, outcome) in
        [("background:1", "released"), ("background:2", "lost"), ("background:3", "release_failed")]
    {
        let span = span_of_release(key).await;
        assert_eq!(span.get("lock.outcome").map(String::as_str), Some(outcome), "{key}");
    }
    let lost = logged_under("dlock.lost", "background:2");
    assert!(matches!(&lost[..], [logged] if logged["lock.cause"] == "NotOwner"), "{lost:?}");
    assert_eq!(lost[0].get("call").map(String::as_str), Some("background:2"), "{lost:?}");
    assert_eq!(logged_under("dlock.release_failed", "background:3").len(), 1);
    assert!(logged_under("dlock.lost", "background:1").is_empty());
}

#[tokio::test]
async fn loss_found_after_the_managers_drop_is_logged() {
    drop(logged());
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = LockManager::connect(&proxy.url()).await.expect("it is open");
    let meanwhile = || {
        drop(server.call(&["DEL", &name("background:4")]));
        proxy.hold_replies();
    };

    leave(&locks, 4, meanwhile).await.expect("the lock is free");
    drop(locks);
    proxy.pass();

    assert_eq!(span_of_release("background:4").await["lock.outcome"], "lost");
    let lost = logged_under("dlock.lost", "background:4");
    assert!(matches!(&lost[..], [logged] if logged["call"] == "background:4"), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn hashed_value_is_never_logged() {
    let locks = in_memory().await;

    write_to(&locks, "somebody@example.org").await.expect("the lock is free");

    let everything = format!("{:?}", *logged());
    assert!(!everything.contains("somebody") && !everything.contains("mail:"), "{everything}");
}

#[tokio::test(start_paused = true)]
async fn repeated_failures_are_logged_once_per_second() {
    const CALLS: usize = 1_000;
    let key = "flood:1";
    drop(logged());
    let (locks, others) = (TestLocks::new(), TestLocks::new());
    let (_outage, _of_others) = (locks.outage(), others.outage());
    let fail = async |locks: &TestLocks, count: usize| {
        for _ in 0..count {
            let failed = locks.manager().lock(key).acquire().await;
            assert!(failed.as_ref().is_err_and(Error::is_unavailable), "{failed:?}");
        }
    };
    let suppressed = || {
        let logged = logged_under("dlock.unavailable", key);
        logged.iter().map(|event| event["suppressed"].clone()).collect::<Vec<_>>()
    };

    fail(&locks, CALLS).await;
    assert_eq!(suppressed(), ["0"], "the first");
    tokio::time::advance(Duration::from_secs(1)).await;
    fail(&locks, CALLS).await;
    assert_eq!(suppressed(), ["0", "999"]);
    fail(&others, CALLS).await;
    assert_eq!(suppressed(), ["0", "999", "0"], "each manager counts separately");
}

/// The number of calls is unlimited: each is rejected at once while the server is away.
#[tokio::test]
async fn an_outage_under_many_callers_is_logged_once_per_second() {
    let key = "away:1";
    drop(logged());
    let mut server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("the server accepts connections");
    let port = format!(":{}", server.port());
    server.kill();
    let away = Moment::now();
    let has_been_logged = Cell::new(false);

    let callers = (0..50).map(|_| async {
        let mut calls = 0_usize;
        while !has_been_logged.get() {
            let failed = locks.lock(key).acquire().await;
            assert!(failed.as_ref().is_err_and(Error::is_unavailable), "{failed:?}");
            calls += 1;
            tokio::task::yield_now().await;
        }
        calls
    });
    let three_times = async {
        while logged_under("dlock.unavailable", key).len() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        has_been_logged.set(true);
    };
    let all = async { tokio::join!(join_all(callers), three_times).0 };
    let calls: usize = within(Duration::from_secs(20), "three events", all).await.into_iter().sum();

    let seconds = usize::try_from(away.elapsed().as_secs()).expect("a few seconds");
    let (mut unavailable, mut disconnected) = (Vec::new(), 0);
    for event in logged().iter().filter(|event| event.get("level").is_some_and(|level| level == "WARN")) {
        match &*event["name"] {
            "dlock.unavailable" if event.get("lock.key").is_some_and(|of| of == key) => {
                unavailable.push(event["suppressed"].parse::<usize>().expect("a number"));
            }
            "dlock.disconnected" if event["reason"].contains(&port) => disconnected += 1,
            _ => assert!(!format!("{event:?}").contains(&port), "{event:?}"),
        }
    }
    assert!((3..=1 + seconds).contains(&unavailable.len()), "{seconds} s: {unavailable:?}");
    assert_eq!((unavailable[0], disconnected), (0, 1));
    let counted = unavailable.len() + unavailable.iter().sum::<usize>();
    assert!(counted > calls / 4 && counted <= calls, "{counted} of {calls} calls");
}

#[distributed_lock(key = "flood:<number>", on_contended = skip)]
async fn stands_in(number: u32) -> Option<()> {
    Some(())
}

#[tokio::test(start_paused = true)]
async fn suppressed_errors_are_logged_once_per_second() {
    drop(logged());
    let locks = TestLocks::new();
    let outage = locks.outage();
    let suppressed = || {
        let of = |fields: &&Fields| {
            fields["name"] == "dlock.error_suppressed"
                && fields.get("call").is_some_and(|call| call == "flood:2")
        };
        logged().iter().filter(of).map(|event| event["suppressed"].clone()).collect::<Vec<_>>()
    };

    for _ in 0..100 {
        let stood_in = locks.run(stands_in(2)).await;
        assert_eq!(stood_in, None);
    }
    assert_eq!(suppressed(), ["0"]);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(locks.run(stands_in(2)).await, None);
    assert_eq!(suppressed(), ["0", "99"]);
    drop(outage);
}

#[distributed_lock(key = "order:<id>", namespace = "overlap:eu", manager = locks)]
async fn in_a_namespace_of_its_own(locks: &LockManager, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[tokio::test(start_paused = true)]
async fn overlapping_namespaces_are_named_once_per_manager() {
    drop(logged());
    let events = || -> Vec<_> {
        let logged = logged();
        let of_this = logged.iter().filter(|fields| {
            fields["name"] == "dlock.namespaces_overlap" && fields["namespace"].starts_with("overlap")
        });
        of_this
            .map(|fields| (fields["level"].clone(), fields["namespace"].clone(), fields["other"].clone()))
            .collect()
    };
    let pair = ("INFO".to_owned(), "overlap".to_owned(), "overlap:eu".to_owned());
    for managers in 1..=2 {
        let locks = LockManager::connect("memory://?namespace=overlap")
            .await
            .expect("the in-memory backend connects");
        for id in 20..23 {
            place_order(&locks, id).await.expect("the lock is free");
            in_a_namespace_of_its_own(&locks, id).await.expect("the lock is free");
        }

        assert_eq!(events(), vec![pair.clone(); managers]);
    }
    let apart = LockManager::connect("memory://?namespace=overlapping")
        .await
        .expect("the in-memory backend connects");
    place_order(&apart, 20).await.expect("the lock is free");
    in_a_namespace_of_its_own(&apart, 20).await.expect("the lock is free");
    assert_eq!(events().len(), 2);
}

#[distributed_lock(key = "order:<id>", namespace = "refused:eu", manager = locks)]
async fn in_a_refused_namespace(locks: &LockManager, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[tokio::test]
async fn a_refused_channel_is_logged_once_per_namespace() {
    drop(logged());
    let server = HostileServer::answering(&["SUBSCRIBE"], &Answer::Error("NOPERM no access to the channel"));
    let proxy = Proxy::start(server.port());
    let url = proxy.url_with("?namespace=refused");
    let locks = LockManager::connect(&url).await.expect("the handshake succeeds");
    let refused = || -> Vec<_> {
        let logged = logged();
        let of_this = logged.iter().filter(|fields| {
            fields["name"] == "dlock.subscribe_failed" && fields["namespace"].starts_with("refused")
        });
        of_this.map(|fields| (fields["level"].clone(), fields["namespace"].clone())).collect()
    };

    for connections in 1..=3 {
        in_a_refused_namespace(&locks, 30).await.expect("the server grants every lock");
        // Both namespaces are tried on each connection.
        let tried = async {
            while server.count("SUBSCRIBE") < 2 * connections || refused().len() < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(Duration::from_secs(20), "both subscriptions", tried).await;
        proxy.reset_all();
        let lost = async {
            while locks.ready().await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(Duration::from_secs(20), "a new connection", lost).await;
    }

    let of = |name: &str| ("INFO".to_owned(), name.to_owned());
    assert_eq!(refused(), [of("refused"), of("refused:eu")]);
}

#[tokio::test]
async fn each_missing_command_is_reported_once() {
    drop(logged());
    let server = RedisServer::start();
    let commands = ["CLIENT SETINFO", "CLIENT SETNAME", "EVALSHA", "SCRIPT LOAD"];
    for lack in [Lack::Unknown, Lack::Forbidden] {
        for command in commands {
            let proxy = FilterProxy::in_front_of(&server, &[(command, lack)]);
            let locks = LockManager::connect(&proxy.url_with("")).await.expect("the command is optional");
            for _ in 0..3 {
                let lock = locks.lock("order:missing").wait(Duration::from_secs(20));
                lock.run(async |_| ()).await.expect("the command is optional");
                server.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }

            let port = format!(":{}", proxy.port());
            let of_proxy = |fields: &&Fields| {
                fields["name"] == "dlock.command_unsupported"
                    && fields["server"].ends_with(&port)
                    && fields["command"] == command
            };
            let reported: Vec<_> = logged().iter().filter(of_proxy).cloned().collect();
            let [reported] = &reported[..] else { panic!("{command}, {lack:?}: {reported:?}") };
            assert!(reported["level"] == "INFO" && !reported["reason"].is_empty(), "{reported:?}");
        }
    }
}

/// Otherwise the channels of all locks of the process would stay in the server unnoticed.
#[tokio::test]
async fn a_refused_unsubscribe_is_reported_once() {
    drop(logged());
    let server = RedisServer::start();
    let rules: Vec<_> = acl::documented_for_redisson().filter(|rule| *rule != "+unsubscribe").collect();
    acl::give_user(&server, acl::USER, &[], &rules);
    let proxy = FilterProxy::in_front_of(&server, &[]);
    let of_holder = acl::as_user(&server.url_with("?layout=redisson"));
    let of_waiter = acl::as_user(&proxy.url_with("?layout=redisson"));
    let holder = LockManager::connect(&of_holder).await.expect("the server takes managers");
    let waiter = LockManager::connect(&of_waiter).await.expect("the command is optional");
    for unsubscribed in 1..=2 {
        let key = format!("order:subscribed:{unsubscribed}");
        let _held = holder.lock(&*key).acquire().await.expect("the lock is free");
        let refused = waiter.lock(&*key).wait(Duration::from_millis(50)).acquire().await;
        assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
        until("the end of the subscription", async || proxy.count("UNSUBSCRIBE") >= unsubscribed).await;
    }
    let reported = || -> Vec<_> {
        let logged = logged();
        let of_this = logged.iter().filter(|fields| {
            fields["name"] == "dlock.command_unsupported" && fields["command"] == "UNSUBSCRIBE"
        });
        of_this.map(|fields| fields["level"].clone()).collect()
    };
    until("the event", async || !reported().is_empty()).await;
    assert_eq!(reported(), ["INFO"]);
}

#[tokio::test]
async fn a_connection_is_logged_with_its_manager_and_owner() {
    drop(logged());
    let server = RedisServer::start();
    let locks = LockManager::builder(&server.url()).owner("web-1").connect().await;
    let id = locks.expect("the server accepts connections").id();
    let owner = || {
        let logged = logged();
        let connected = logged
            .iter()
            .find(|fields| fields["name"] == "dlock.connected" && fields.get("manager") == Some(&id));
        connected.map(|fields| fields["owner"].clone())
    };

    let written = async {
        loop {
            if let Some(owner) = owner() {
                break owner;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };

    assert_eq!(within(Duration::from_secs(20), "the event", written).await, "web-1");
}

/// Returns the level of the only event of a name and a key, and one of its fields.
fn only_event(name: &str, key: &str, field: &str) -> (String, String) {
    let events = logged_under(name, key);
    let [event] = &events[..] else { panic!("{name}: {events:?}") };
    (event["level"].clone(), event.get(field).cloned().unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn a_late_result_is_an_error_event_and_overwrites_nothing() {
    drop(logged());
    let locks = TestLocks::new();
    let call = locks.manager().idempotent("charge:late").lease(Duration::from_secs(5));
    let operator = locks.another_manager().idempotent("charge:late");

    let late = call.run_attached(async |_| {
        let outage = locks.outage();
        tokio::time::sleep(Duration::from_secs(20)).await;
        outage.end();
        assert!(operator.resolve(&41).await.expect("the store is there again"), "the lease is over");
        Ok::<_, Error>(7)
    });
    let late = late.await.expect("the caller gets its value").into_value();
    let again = operator.run(async |_| Ok::<_, Error>(8)).await.expect("it is replayed");

    assert_eq!((late, *again.value(), again.is_replayed()), (7, 41, true));
    let reason = "another attempt or an operator owns the record";
    assert_eq!(
        only_event("dlock.result_lost", "charge:late", "lock.reason"),
        ("ERROR".to_owned(), reason.to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn a_result_that_waits_for_the_server_is_an_event() {
    drop(logged());
    let locks = TestLocks::new();
    let call = locks.manager().idempotent("charge:pending");
    let mut outage = None;

    let ran = call.run_attached(async |_| {
        outage = Some(locks.outage());
        Ok::<_, Error>(7)
    });
    ran.await.expect("the caller gets its value");

    assert_eq!(
        only_event("dlock.result_pending", "charge:pending", "lock.pending"),
        ("WARN".to_owned(), "1".to_owned())
    );
    drop(outage);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(locks.manager().pending_results(), 0);
    assert!(logged_under("dlock.result_lost", "charge:pending").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_is_an_error_event() {
    let locks = in_memory().await;
    let call = locks.idempotent("charge:large");
    let large = || "x".repeat(65 << 10);

    let body = async |record: IdempotentRecord| {
        record.step("pages", async || Ok::<_, Error>(large())).await?;
        Ok::<_, Error>(())
    };
    call.run_attached(body).await.expect("it runs");
    locks
        .idempotent("charge:larger")
        .run(async |_| Ok::<_, Error>("x".repeat(65 << 10)))
        .await
        .expect("it runs");

    assert_eq!(
        only_event("dlock.result_not_stored", "charge:large", "lock.step"),
        ("ERROR".to_owned(), "pages".to_owned())
    );
    let (level, step) = only_event("dlock.result_not_stored", "charge:larger", "lock.step");
    assert_eq!((level.as_str(), step.as_str()), ("ERROR", ""));
}

#[tokio::test(start_paused = true)]
async fn the_span_of_an_idempotent_call_says_whether_it_was_replayed() {
    let locks = in_memory().await;
    let charge = |amount: u8| locks.idempotent("charge:span").name("charge").fingerprint(&amount);

    for amount in [1, 1, 2] {
        let ran = charge(amount).run(async |_| Ok::<_, Error>(7)).await;
        assert_eq!(ran.is_ok(), amount == 1, "{ran:?}");
    }

    let spans = logged_under("dlock.idempotent", "charge:span");
    let outcomes: Vec<_> = spans.iter().map(|span| (&*span["lock.name"], &*span["lock.outcome"])).collect();
    assert_eq!(outcomes, [("charge", "started"), ("charge", "replayed"), ("charge", "key_reused")]);
}

#[tokio::test(start_paused = true)]
async fn run_without_record_is_logged_at_error_level() {
    drop(logged());
    let locks = TestLocks::new();
    let _outage = locks.outage();
    let call = locks.manager().idempotent("charge:open").on_unavailable(OnUnavailable::Run);

    call.run(async |_| Ok::<_, Error>(7)).await.expect("it runs");

    let (level, reason) = only_event("dlock.ran_without_record", "charge:open", "lock.reason");
    assert!(level == "ERROR" && !reason.is_empty(), "{level}: {reason}");
}

#[tokio::test]
async fn a_schedule_in_a_forged_record_is_logged_up_to_a_bound() {
    drop(logged());
    let server = RedisServer::builder().also_allow(dlock_tests::acl::WITH_JOBS).start();
    let locks = LockManager::connect(&server.url()).await.expect("it is open");
    let job = locks.job("long");
    let once = async |period| {
        let schedule = Schedule::every(Duration::from_millis(period)).expect("a valid period");
        job.run(&schedule, async |_| Ok::<_, Error>(())).await.expect("the record is valid")
    };
    once(3_600_000).await;
    let Reply::List(keys) = server.call(&["KEYS", "*##job"]) else { panic!("a list of keys") };
    let record = keys[0].text().expect("the name of a key");
    server.call(&["HSET", record, "sp", &"x".repeat(200_000)]);
    once(1_000).await;

    let events = logged_under("dlock.schedule_mismatched", "job:long");
    let longest = events.iter().flat_map(|fields| fields.values()).map(String::len).max();
    assert!(longest.is_some_and(|longest| longest < 1_000), "{longest:?}");
}

/// Another client writes what no script writes while the body runs.
#[tokio::test]
async fn the_end_of_a_run_that_the_server_refuses_is_logged() {
    drop(logged());
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let schedule = Schedule::every(Duration::from_secs(3_600)).expect("a valid period");
    let forged = async |_| {
        let Reply::List(keys) = server.call(&["KEYS", "*##job"]) else { panic!("a list of keys") };
        server.call(&["HSET", keys[0].text().expect("the name of a key"), "cr", "abc"]);
        Ok::<_, Error>(())
    };

    manager.job("forged").run(&schedule, forged).await.expect("the body has succeeded");

    let is_logged = async || !logged_under("dlock.job_end_ignored", "job:forged").is_empty();
    until("the event", is_logged).await;
    let (level, reason) = only_event("dlock.job_end_ignored", "job:forged", "lock.reason");
    assert!(level == "ERROR" && reason.contains("WRONGTYPE"), "{level}: {reason}");
}

/// An operator resets the job, and the call is dropped while its body runs.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_dropped_run_that_was_replaced_is_logged() {
    let manager = in_memory().await;
    let job = manager.job("dropped");
    let schedule = Schedule::every(Duration::from_secs(3_600)).expect("a valid period");
    let body = async |_| {
        job.reset().await?;
        std::future::pending::<Result<(), Error>>().await
    };

    let dropped = tokio::time::timeout(Duration::from_secs(1), job.run(&schedule, body)).await;

    assert!(dropped.is_err(), "{dropped:?}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        only_event("dlock.job_end_ignored", "job:dropped", "lock.reason"),
        ("ERROR".to_owned(), "another run or an operator has replaced it".to_owned())
    );
}

/// Another client replaces the record while a step runs.
#[tokio::test]
async fn the_result_of_a_step_that_the_server_refuses_is_logged() {
    drop(logged());
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let body = async |record: IdempotentRecord| {
        let forged = async || {
            let Reply::List(keys) = server.call(&["KEYS", "*##idem"]) else { panic!("a list of keys") };
            let record = keys[0].text().expect("the name of a key");
            server.call(&["DEL", record]);
            server.call(&["RPUSH", record, "x"]);
            Ok::<_, Error>(())
        };
        record.step("pay", forged).await?;
        let is_logged = async || !logged_under("dlock.result_lost", "charge:forged").is_empty();
        until("the event", is_logged).await;
        let step = only_event("dlock.result_lost", "charge:forged", "lock.step");
        assert_eq!(step, ("ERROR".to_owned(), "pay".to_owned()));
        let (_, reason) = only_event("dlock.result_lost", "charge:forged", "lock.reason");
        assert!(reason.contains("WRONGTYPE"), "{reason}");
        Ok::<_, Error>(())
    };

    manager.idempotent("charge:forged").run_attached(body).await.expect("the body has succeeded");
}

/// The server's clock stepped back after a tick. A tick can start up to 10 s early in any case.
#[tokio::test]
async fn a_job_whose_last_tick_is_far_ahead_is_logged_at_error_level() {
    drop(logged());
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (job, period) = (manager.job("ahead"), Duration::from_secs(3_600));
    let schedule = Schedule::every(period).expect("a valid period");
    let run = async || job.run(&schedule, async |_| Ok::<_, Error>(())).await.expect("the record is valid");
    run().await;
    let Reply::List(keys) = server.call(&["KEYS", "*##job"]) else { panic!("a list of keys") };
    let record = keys[0].text().expect("the name of a key");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970");
    for (ahead, expected) in [(Duration::from_secs(9), 0), (period / 2, 1)] {
        server.call(&["HSET", record, "s", &(now + ahead).as_millis().to_string()]);

        run().await;

        let events = logged_under("dlock.job_slot_ahead", "job:ahead");
        assert_eq!(events.len(), expected, "{ahead:?}: {events:?}");
        assert!(events.iter().all(|fields| fields["level"] == "ERROR"));
    }
}

const NO_REPLICAS: &str = "NOREPLICAS";

fn refuse_writes(server: &RedisServer) {
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
}

/// The lease of a test whose renewals are refused. It has time for several.
const REFUSED_LEASE: Duration = Duration::from_secs(3);

/// Checks that a loss quotes the server, and that its refused renewals were one event.
fn assert_reason(server: &RedisServer, lost: &str) {
    assert!(lost.contains("the last renewal failed") && lost.contains(NO_REPLICAS), "{lost}");
    let replied = format!(":{} replied: {NO_REPLICAS}", server.port());
    let is_it = |fields: &&Fields| {
        fields["name"] == "dlock.renewal_failed" && fields["lock.reason"].contains(&replied)
    };
    let refused: Vec<_> = logged().iter().filter(is_it).cloned().collect();
    let [event] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!(event["level"], "WARN", "{event:?}");
}

#[tokio::test]
async fn a_loss_after_refused_renewals_has_the_reason() {
    drop(logged());
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("it is open");
    let lock = locks.lock("order:renewals").lease(REFUSED_LEASE);

    let ran = lock.run(async |guard| {
        refuse_writes(&server);
        (guard.lost().await, guard.check())
    });
    let lost = ran.await.expect_err("no renewal succeeds").to_string();

    assert_reason(&server, &lost);
    let (level, reason) = only_event("dlock.lost", "order:renewals", "lock.reason");
    assert!(level == "ERROR" && reason.contains(NO_REPLICAS), "{level}: {reason}");
}

#[tokio::test]
async fn a_lost_guard_has_the_reason_of_its_refused_renewals() {
    drop(logged());
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("it is open");
    let guard = locks.lock("order:guarded").lease(REFUSED_LEASE).acquire().await;
    let guard = guard.expect("the lock is free");

    refuse_writes(&server);
    guard.lost().await;

    assert_reason(&server, &guard.check().expect_err("it is lost").to_string());
    drop(guard);
    let (_, reason) = only_event("dlock.lost", "order:guarded", "lock.reason");
    assert!(reason.contains(NO_REPLICAS), "{reason}");
}

#[tokio::test]
async fn a_lost_call_has_the_reason_of_its_refused_renewals() {
    drop(logged());
    let server = RedisServer::builder().also_allow(dlock_tests::acl::WITH_RECORDS).start();
    let locks = LockManager::connect(&server.url()).await.expect("it is open");
    let call = locks.idempotent("charge:renewals").lease(REFUSED_LEASE).on_crash(OnCrash::Rerun);

    let ran = call.run_attached(async |_| {
        refuse_writes(&server);
        std::future::pending::<Result<u8, Error>>().await
    });
    let lost = ran.await.expect_err("no renewal succeeds").to_string();

    assert_reason(&server, &lost);
    let (_, reason) = only_event("dlock.lost", "charge:renewals", "lock.reason");
    assert!(reason.contains(NO_REPLICAS), "{reason}");
}

#[tokio::test]
async fn a_lost_job_has_the_reason_of_its_refused_renewals() {
    drop(logged());
    let server = RedisServer::builder().also_allow(dlock_tests::acl::WITH_JOBS).start();
    let locks = LockManager::connect(&server.url()).await.expect("it is open");
    let schedule = Schedule::every(Duration::from_secs(3_600)).expect("a valid period");
    let schedule = schedule.lease(REFUSED_LEASE);

    let job = locks.job("renewals");
    let ran = job.run(&schedule, async |_| {
        refuse_writes(&server);
        std::future::pending::<Result<(), Error>>().await
    });
    let lost = ran.await.expect_err("no renewal succeeds").to_string();

    assert_reason(&server, &lost);
    let (_, error) = only_event("dlock.job_finished", "job:renewals", "job.error");
    assert!(error.contains(NO_REPLICAS), "{error}");
}

#[tokio::test]
async fn a_result_that_the_server_refuses_is_pending_for_a_reason() {
    drop(logged());
    let server = RedisServer::builder().also_allow(dlock_tests::acl::WITH_RECORDS).start();
    let locks = LockManager::connect(&server.url()).await.expect("it is open");

    let call = locks.idempotent("charge:refused");
    let ran = call.run_attached(async |_| {
        refuse_writes(&server);
        Ok::<_, Error>(7)
    });
    ran.await.expect("the caller gets its value");

    let (level, reason) = only_event("dlock.result_pending", "charge:refused", "lock.reason");
    assert!(level == "WARN" && reason.contains(NO_REPLICAS), "{level}: {reason}");
}

#[tokio::test]
async fn a_runner_of_jobs_that_the_server_refuses_reports_the_reason() {
    drop(logged());
    let server = RedisServer::builder().also_allow(dlock_tests::acl::WITH_JOBS).start();
    let locks = LockManager::connect(&server.url()).await.expect("it is open");
    refuse_writes(&server);
    let schedule = Schedule::every(Duration::from_secs(3_600)).expect("a valid period");
    let jobs = Jobs::new(locks).add("refused", schedule, async |_| Ok::<_, Error>(()));

    let mut event = None;
    let reported = async { event = Some(record_of("dlock.unavailable", "job:refused").await) };
    jobs.run_until(reported).await.expect("it may pass");

    let event = event.expect("it was reported");
    assert!(event["level"] == "WARN" && event["lock.reason"].contains(NO_REPLICAS), "{event:?}");
}

#[tokio::test]
async fn a_leader_without_its_number_reports_the_reason() {
    drop(logged());
    let misconf = "MISCONF Redis is unable to persist to disk";
    let server = HostileServer::answering(&["EVAL", "EVALSHA"], &Answer::Error(misconf));
    let locks = LockManager::connect(&server.url()).await.expect("the handshake succeeds");

    let leadership = locks.leader("unnumbered");
    let event = tokio::select! {
        led = leadership.lead(async |_| ()) => panic!("{led:?}"),
        event = record_of("dlock.unavailable", "leader:unnumbered") => event,
    };

    assert!(event["level"] == "WARN" && event["lock.reason"].contains(misconf), "{event:?}");
}

#[tokio::test]
async fn the_refused_release_of_a_dropped_guard_is_an_event() {
    drop(logged());
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("it is open");
    let guard = locks.lock("order:dropped").acquire().await.expect("the lock is free");

    refuse_writes(&server);
    drop(guard);

    let event = record_of("dlock.release_failed", "order:dropped").await;
    assert!(event["level"] == "WARN" && event["lock.reason"].contains(NO_REPLICAS), "{event:?}");
    locks.ready().await.expect("it replies");
    assert_eq!(logged_under("dlock.release_failed", "order:dropped").len(), 1);
}

#[tokio::test]
async fn a_loss_that_the_release_of_a_dropped_guard_finds_is_an_event() {
    drop(logged());
    let server = RedisServer::start();
    let url = server.url_with("?tracking=off");
    let locks = LockManager::connect(&url).await.expect("it is open");
    let guard = locks.lock("order:stolen").acquire().await.expect("the lock is free");

    server.call(&["DEL", &name("order:stolen")]);
    drop(guard);

    let event = record_of("dlock.lost", "order:stolen").await;
    assert_eq!(event["lock.cause"], "NotOwner", "{event:?}");
}
