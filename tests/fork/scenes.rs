//! Locks in a process that is forked after it has connected.
//!
//! Requests of the child fail immediately, without effects on its parent.
//!
//! `DLOCK_FORK_RUNS=10` repeats the scene in which three processes contend.

use std::cell::Cell;
use std::fs::File;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use dlock_runtime::scheduled::{Jobs, Schedule};
use dlock_runtime::{Error, LockGuard, LockManager, LossCause, OnLost, distributed_lock, with_manager};
use dlock_test_fork::{Child, fork, split};
use dlock_tests::acl::{BEHIND_SENTINELS, WITH_JOBS, WITH_RECORDS, documented_besides};
use dlock_tests::{Authority, ClusterFleet, QuorumFleet, RedisServer, within};
use futures_util::task::noop_waker;
use rustix::fs::{FlockOperation, flock};
use tokio::runtime::{Builder, Runtime};

/// A request that is rejected immediately takes microseconds, but the machine may be busy.
const AT_ONCE: Duration = Duration::from_millis(300);

const SOON: Duration = Duration::from_secs(10);

/// Renewed three times per second.
const LEASE: Duration = Duration::from_secs(1);

/// A lease whose end a test waits for.
const SHORT_LEASE: Duration = Duration::from_millis(500);

const REASON: &str = "this process was forked after the lock manager had connected; connect after the fork";

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
}

fn connect(runtime: &Runtime, url: &str) -> LockManager {
    runtime.block_on(LockManager::connect(url)).expect("it runs")
}

/// Acquires a free lock.
fn hold(runtime: &Runtime, locks: &LockManager, key: &str) -> LockGuard {
    let lock = locks.lock(key).lease(LEASE);
    runtime.block_on(lock.acquire()).expect("it is free")
}

/// Returns a URL for each kind of connection.
fn urls(server: &RedisServer) -> Vec<String> {
    let options = ["", "?layout=redisson", "?tracking=off"];
    let urls = options.map(|options| format!("{}{options}", server.url()));
    urls.into_iter().chain(["memory://".to_owned()]).collect()
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&noop_waker()))
}

/// Checks that a child has reported `ok`.
#[track_caller]
fn assert_ok(child: Child, scene: &str) {
    assert_eq!(child.report().trim(), "ok", "{scene}");
}

/// Checks that a request is rejected immediately with the reason for forked processes.
async fn refused<T: std::fmt::Debug>(what: &str, request: impl Future<Output = Result<T, Error>>) {
    let since = Instant::now();
    let refused = tokio::time::timeout(SOON, request).await.unwrap_or_else(|_| panic!("{what} does not end"));
    let took = since.elapsed();
    match refused {
        Err(Error::Unavailable { reason, .. }) => assert_eq!(&*reason, REASON, "{what}"),
        other => panic!("{what}: {other:?}"),
    }
    assert!(took < AT_ONCE, "{what} took {took:?}");
}

#[distributed_lock(key = "annotated", wait = "20s")]
async fn annotated() -> Result<(), Error> {
    panic!("a body starts")
}

/// Checks that every request about a record or a leader is rejected.
async fn refuses_records_and_leaders(locks: &LockManager) {
    let (call, job, leader) = (locks.idempotent("charge:7"), locks.job("report"), locks.leader("indexer"));
    refused("an idempotent call", call.run(async |_| -> Result<(), Error> { panic!("a body starts") })).await;
    let waiting = call.clone().wait(SOON);
    refused("a waiting one", waiting.run(async |_| -> Result<(), Error> { panic!("a body starts") })).await;
    refused("status", call.status()).await;
    refused("forget", call.forget()).await;
    refused("forget_unless_completed", call.forget_unless_completed()).await;
    refused("resolve", call.resolve(&7)).await;
    let schedule = Schedule::every(SOON).expect("a valid period");
    refused("a job", job.run(&schedule, async |_| -> Result<(), Error> { panic!("a body starts") })).await;
    refused("the status of a job", job.status()).await;
    refused("pause", job.pause()).await;
    refused("a leader", leader.lead(async |_| panic!("a body starts"))).await;
    refused("resign", leader.resign()).await;
    refused("a watch", leader.watch().changed()).await;
    assert!(!leader.is_leader() && locks.pending_results() == 0);
}

/// Checks that every kind of request is rejected.
async fn refuses_everything(locks: &LockManager, held: &LockGuard) {
    let lock = locks.lock("order:7").wait(Duration::from_secs(20));
    let retried = locks.lock("order:8").retry(100);
    refused("try_acquire", lock.try_acquire()).await;
    refused("acquire", lock.acquire()).await;
    refused("acquire with tries", retried.acquire()).await;
    refused("run", lock.run(async |_| panic!("a body starts"))).await;
    refused("an annotated function", with_manager(locks.clone(), annotated())).await;
    refused("inspect", locks.inspect("order:7")).await;
    refused("force_release", locks.force_release("order:7")).await;
    refused("ready", locks.ready()).await;
    refuses_records_and_leaders(locks).await;
    refused("check", async { held.check() }).await;
    refused("extend", held.extend(LEASE)).await;
    refused("fencing_token", held.fencing_token()).await;
    assert_eq!(held.remaining(), Duration::ZERO);
    assert_eq!(within(AT_ONCE, "the loss", held.lost()).await, LossCause::Forked);
    within(AT_ONCE, "the shutdown", locks.shutdown(SOON)).await;
    assert!(format!("{locks:?} {held:?}").contains("order:1"));
}

#[test]
fn a_child_is_rejected_with_a_hint_to_connect_after_the_fork() {
    let server = RedisServer::start();
    for url in urls(&server) {
        let runtime = runtime();
        let locks = connect(&runtime, &url);
        let mut held = Some(hold(&runtime, &locks, "order:1"));
        let child = fork(|| {
            self::runtime().block_on(refuses_everything(&locks, held.as_ref().expect("it is inherited")));
            let held = held.take().expect("it is inherited");
            self::runtime().block_on(refused("release", held.release()));
            "ok".to_owned()
        });

        assert_ok(child, &url);
        let held = held.take().expect("it is held here");
        runtime.block_on(held.release()).expect("it is held");
    }
}

/// A server, and a sentinel that reports it.
fn behind_a_sentinel() -> (String, [RedisServer; 2]) {
    let server = RedisServer::builder().also_allow(BEHIND_SENTINELS).start();
    let monitor = format!("sentinel monitor mymaster 127.0.0.1 {} 1", server.port());
    let sentinel = RedisServer::builder().sentinel().line(&monitor).start();
    let url = format!("redis+sentinel://{}127.0.0.1:{}/mymaster", server.access(), sentinel.port());
    (url, [server, sentinel])
}

/// A server with TLS, and the certificate of its authority.
fn over_tls() -> Option<(RedisServer, String)> {
    let authority = Authority::of_servers()?;
    let server = RedisServer::builder().tls(authority.sign("127.0.0.1"), &authority).start();
    Some((server, authority.pem()))
}

#[test]
fn a_child_is_rejected_in_every_deployment_and_its_child_too() {
    let runtime = runtime();
    let (quorum, cluster) = (runtime.block_on(QuorumFleet::start(3)), ClusterFleet::start());
    let ((sentinel_url, _servers), server) = (behind_a_sentinel(), RedisServer::start());
    let unix_url = format!("redis+unix://{}", server.socket().display());
    let mut managers = vec![runtime.block_on(quorum.manager(""))];
    managers.extend([cluster.url_with(""), sentinel_url, unix_url].map(|url| connect(&runtime, &url)));
    let over_tls = over_tls();
    if let Some((server, authority)) = &over_tls {
        let builder = LockManager::builder(&server.tls_url()).tls_ca_pem(authority);
        managers.push(runtime.block_on(builder.connect()).expect("its authority is trusted"));
    }
    let holds = managers.into_iter().map(|locks| (hold(&runtime, &locks, "order:1"), locks));
    let mut inherited: Option<Vec<_>> = Some(holds.collect());

    let child = fork(|| {
        for (held, locks) in inherited.iter().flatten() {
            self::runtime().block_on(refuses_everything(locks, held));
        }
        let grandchild = fork(|| {
            for (held, locks) in inherited.take().into_iter().flatten() {
                self::runtime().block_on(refuses_everything(&locks, &held));
            }
            "ok".to_owned()
        });
        drop(inherited.take());
        grandchild.report()
    });

    assert_ok(child, "all deployments");
    runtime.block_on(async {
        tokio::time::sleep(LEASE * 2).await; // each of the two leases needs renewals
        for (held, locks) in inherited.take().into_iter().flatten() {
            held.check().unwrap_or_else(|error| panic!("{locks:?}: {error}"));
            held.release().await.unwrap_or_else(|error| panic!("{locks:?}: {error}"));
        }
    });
}

#[test]
fn jobs_end_in_a_child_with_the_reason() {
    let (runtime, schedule) = (runtime(), Schedule::every(SOON).expect("a valid period"));
    let locks = connect(&runtime, "memory://");

    let child = fork(|| {
        let jobs = Jobs::new(locks.clone());
        let jobs = jobs.add("report", schedule, async |_| -> Result<(), Error> { panic!("a body starts") });
        self::runtime().block_on(refused("a runner", jobs.run_until(std::future::pending())));
        "ok".to_owned()
    });

    assert_ok(child, "jobs");
}

/// Checks that the parent's lock is held, renewed, and released over the existing connections.
///
/// Also checks that waiters are woken in both directions.
fn parent_goes_on(runtime: &Runtime, url: &str, held: LockGuard, locks: &LockManager, server: &RedisServer) {
    let connections = server.call(&["CLIENT", "LIST"]);
    let other = self::runtime();
    let others = connect(&other, url);
    runtime.block_on(async {
        tokio::time::sleep(LEASE * 2).await; // each of the two leases needs renewals
        held.check().expect("it is renewed");
        assert!(locks.inspect("order:1").await.expect("the server replies").is_some(), "it is held");
        locks.ready().await.expect("the server replies");
    });
    // A wake-up by message, in each direction.
    let (waiter, (notify, acquired)) = (others.lock("order:1").wait(SOON), std::sync::mpsc::channel());
    let thread = std::thread::spawn(move || {
        other.block_on(async {
            let guard = waiter.acquire().await.expect("it is released");
            notify.send(Instant::now()).expect("the test listens");
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(guard);
            let _ = others.ready().await; // the release has been sent
        });
    });
    let (since, until) = runtime.block_on(async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        held.release().await.expect("it is held");
        let since = Instant::now();
        let again = locks.lock("order:1").wait(SOON).acquire().await.expect("it is released");
        again.release().await.expect("it is held");
        (since, Instant::now())
    });
    let woken = acquired.recv_timeout(SOON).expect("the waiter is woken").saturating_duration_since(since);
    thread.join().expect("it ends");
    assert!(woken < AT_ONCE, "{woken:?}");
    assert!(until - since < SOON / 2, "{:?}", until - since);
    // No connection was re-established meanwhile: ids of connections increase.
    let known = ids(&format!("{connections:?}"));
    let now = ids(&format!("{:?}", server.call(&["CLIENT", "LIST"])));
    assert!(known.iter().filter(|id| now.contains(id)).count() >= 2, "{known:?} {now:?}");
}

fn ids(list: &str) -> Vec<u64> {
    list.split("id=").filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
}

#[test]
fn a_child_that_drops_its_manager_keeps_parent_connections() {
    let server = RedisServer::start();
    let url = server.url();
    let runtime = runtime();
    let locks = connect(&runtime, &url);
    let held = hold(&runtime, &locks, "order:1");
    // The child also drops the runtime, which reads the replies.
    let (held, locks, runtime) = match split() {
        Ok(child) => {
            assert_ok(child, &url);
            (held, locks, runtime)
        }
        Err(reporter) => {
            drop(held);
            drop(locks);
            drop(runtime);
            reporter.exit("ok")
        }
    };

    parent_goes_on(&runtime, &url, held, &locks, &server);
}

#[test]
fn a_child_that_exits_keeps_parent_connections() {
    let server = RedisServer::start();
    let url = server.url();
    let runtime = runtime();
    let locks = connect(&runtime, &url);
    let held = hold(&runtime, &locks, "order:1");

    match split() {
        Ok(child) => assert_ok(child, &url),
        Err(reporter) => reporter.exit_as_a_program("ok"),
    }

    parent_goes_on(&runtime, &url, held, &locks, &server);
}

/// Polls a future until `waits` returns `true`.
fn poll_until_it_waits<F: Future + ?Sized>(
    runtime: &Runtime,
    mut future: Pin<&mut F>,
    waits: impl Fn() -> bool,
) {
    let since = Instant::now();
    while !waits() {
        assert!(since.elapsed() < SOON, "it does not wait");
        runtime.block_on(async {
            assert!(poll(future.as_mut()).is_pending());
            tokio::time::sleep(Duration::from_millis(5)).await;
        });
    }
}

#[test]
fn a_call_waiting_at_the_fork_is_granted_only_in_the_parent() {
    let server = RedisServer::start();
    for url in urls(&server) {
        let runtime = runtime();
        let locks = connect(&runtime, &url);
        let held = hold(&runtime, &locks, "order:1");
        let started = Cell::new(false);
        let lock = locks.lock("order:1").wait(SOON);
        let mut waiting = Box::pin(lock.run(async |_| started.set(true)));
        runtime.block_on(async { assert!(poll(waiting.as_mut()).is_pending()) });

        let (mut held, mut waiting) = (Some(held), Some(waiting));
        let child = fork(|| {
            let runtime = self::runtime();
            held.take(); // without a hand-off
            let mut waiting = waiting.take().expect("it is inherited");
            let polled = runtime.block_on(async { poll(waiting.as_mut()) });
            let Poll::Ready(Err(error)) = polled else { panic!("it goes on in the child") };
            assert!(error.to_string().contains(REASON), "{error}");
            assert!(!started.get(), "a body starts");
            drop(waiting);
            "ok".to_owned()
        });

        assert_ok(child, &url);
        runtime.block_on(async {
            held.take().expect("it is held here").release().await.expect("it is held");
            within(SOON, "the lock", waiting.take().expect("it waits here")).await.expect("it is granted");
        });
        assert!(started.get());
    }
}

#[test]
fn a_body_running_at_the_fork_continues_only_in_the_parent() {
    let server = RedisServer::start();
    for url in urls(&server) {
        for on_lost in [OnLost::Abort, OnLost::Finish] {
            let runtime = runtime();
            let locks = connect(&runtime, &url);
            let (polled, go_on) = (AtomicU32::new(0), AtomicBool::new(false));
            let lock = locks.lock("order:1").lease(LEASE).on_lost(on_lost);
            let mut call = Box::pin(lock.run(async |_| {
                std::future::poll_fn(|_| {
                    polled.fetch_add(1, Ordering::SeqCst);
                    if go_on.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            }));
            poll_until_it_waits(&runtime, call.as_mut(), || polled.load(Ordering::SeqCst) > 0);
            let before = polled.load(Ordering::SeqCst);
            let mut call = Some(call);

            let child = fork(|| {
                let runtime = self::runtime();
                go_on.store(true, Ordering::SeqCst);
                let mut call = call.take().expect("it is inherited");
                let ended = runtime.block_on(async { poll(call.as_mut()) });
                let body_polls = polled.load(Ordering::SeqCst) - before;
                match (on_lost, ended) {
                    (OnLost::Finish, Poll::Ready(Ok(()))) => assert_eq!(body_polls, 1),
                    (OnLost::Abort, Poll::Ready(Err(Error::Lost { cause: LossCause::Forked, .. }))) => {
                        assert_eq!(body_polls, 0, "the body is polled");
                    }
                    (_, ended) => panic!("{ended:?}"),
                }
                drop(call);
                "ok".to_owned()
            });

            assert_ok(child, &format!("{url}, {on_lost:?}"));
            go_on.store(true, Ordering::SeqCst);
            runtime.block_on(async {
                within(SOON, "the body", call.take().expect("it runs here")).await.expect("it has its lock");
                let next = locks.lock("order:1").wait(SOON).acquire().await.expect("it was released");
                next.release().await.expect("it is held");
            });
        }
    }
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// Starts a call with a record, or a leader, whose body waits in `step`.
fn with_record<'a>(kind: &str, locks: &'a LockManager, step: impl Fn() -> Poll<()> + Copy + 'a) -> Call<'a> {
    let body = move || std::future::poll_fn(move |_| step());
    let name = "the same name";
    match kind {
        "idempotent" => Box::pin(async move {
            let call = locks.idempotent(name).lease(SHORT_LEASE);
            let ran = call.run_attached(async |_| {
                body().await;
                Ok::<_, Error>(7)
            });
            ran.await.map(drop)
        }),
        "job" => Box::pin(async move {
            let schedule =
                Schedule::every(Duration::from_secs(3_600)).expect("a valid period").lease(SHORT_LEASE);
            let job = locks.job(name);
            let ran = job.run(&schedule, async |_| {
                body().await;
                Ok::<_, Error>(())
            });
            ran.await.map(|ran| ran.expect("its tick is due"))
        }),
        _ => {
            Box::pin(async move { locks.leader(name).lease(SHORT_LEASE).lead(async |_| body().await).await })
        }
    }
}

#[test]
fn a_body_with_a_record_continues_only_in_the_parent() {
    let server = RedisServer::start();
    server.allow(documented_besides(WITH_RECORDS));
    server.allow(documented_besides(WITH_JOBS));
    for url in [server.url(), "memory://".to_owned()] {
        for kind in ["idempotent", "job", "leader"] {
            let runtime = runtime();
            let locks = connect(&runtime, &url);
            let (polled, go_on) = (AtomicU32::new(0), AtomicBool::new(false));
            let step = || {
                polled.fetch_add(1, Ordering::SeqCst);
                if go_on.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
            };
            let mut call = Some(with_record(kind, &locks, step));
            poll_until_it_waits(&runtime, call.as_mut().expect("it is there").as_mut(), || {
                polled.load(Ordering::SeqCst) > 0
            });
            let before = polled.load(Ordering::SeqCst);

            let child = fork(|| {
                let runtime = self::runtime();
                go_on.store(true, Ordering::SeqCst);
                let mut call = call.take().expect("it is inherited");
                let ended = runtime.block_on(async { tokio::time::timeout(SOON, call.as_mut()).await });
                let refused = ended.unwrap_or_else(|_| panic!("it does not end"));
                assert!(
                    matches!(refused, Err(Error::Unavailable { .. } | Error::Lost { .. })),
                    "{refused:?}"
                );
                assert_eq!(polled.load(Ordering::SeqCst), before, "the body is polled");
                drop(call);
                "ok".to_owned()
            });

            assert_ok(child, &format!("{url}, {kind}"));
            let mut call = call.take().expect("it runs here");
            runtime.block_on(async {
                if url.starts_with("redis") {
                    // Longer than the lease: the child has not ended it, and this process renews.
                    let ended = tokio::time::timeout(SHORT_LEASE * 3 / 2, call.as_mut()).await;
                    assert!(ended.is_err(), "{kind}: {ended:?}");
                }
                go_on.store(true, Ordering::SeqCst);
                let shutdown = async {
                    if kind == "leader" {
                        locks.shutdown(SOON).await; // a leader leads until then
                    }
                };
                let (ended, ()) = within(SOON, "the body", async { tokio::join!(call, shutdown) }).await;
                ended.unwrap_or_else(|error| panic!("{url}, {kind}: {error}"));
            });
        }
    }
}

#[test]
fn a_body_that_forks_is_lost_in_the_child_only() {
    let server = RedisServer::start();
    for url in urls(&server) {
        let runtime = runtime();
        let locks = connect(&runtime, &url);
        let lock = locks.lock("order:1").lease(LEASE).wait(SOON);
        let (side, nested) = (Cell::new(None), Cell::new(None));
        let mut call = Box::pin(lock.run(async |_| {
            side.set(Some(split()));
            nested.set(Some(lock.run(async |_| ()).await));
        }));
        let since = Instant::now();
        let ended = loop {
            // Polled manually: in the child, the runtime would wait on the parent's epoll instance.
            if let Poll::Ready(ended) = runtime.block_on(async { poll(call.as_mut()) }) {
                break ended;
            }
            assert!(since.elapsed() < SOON, "{url}");
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(2)).await });
        };
        let nested = nested.take().expect("the body has run");
        match side.take().expect("the body has forked") {
            Ok(child) => {
                assert_ok(child, &url);
                ended.expect("it has its lock");
                nested.expect("it joins");
            }
            Err(reporter) => {
                let is_lost = matches!(ended, Err(Error::Lost { cause: LossCause::Forked, .. }));
                let is_refused = nested.is_err_and(|error| error.is_unavailable());
                drop((call, locks));
                reporter.exit(if is_lost && is_refused { "ok" } else { "it goes on in the child" })
            }
        }
    }
}

/// Records that a body runs, with a file lock that a second body at the same time does not acquire.
fn body(file: &File, overlaps: &AtomicU32, bodies: &AtomicU32) {
    bodies.fetch_add(1, Ordering::SeqCst);
    if flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        overlaps.fetch_add(1, Ordering::SeqCst);
        return;
    }
    std::thread::sleep(Duration::from_micros(300));
    flock(file, FlockOperation::Unlock).expect("it is locked");
}

/// Contends for one lock with four tasks for `time`.
///
/// Returns the number of bodies that ran, and the number of those that overlapped with another.
fn contend(locks: &LockManager, path: &std::path::Path, time: Duration) -> (u32, u32) {
    let file = File::options().write(true).open(path).expect("the file is there");
    let (bodies, overlaps, until) = (AtomicU32::new(0), AtomicU32::new(0), Instant::now() + time);
    let task = || async {
        while Instant::now() < until {
            let lock = locks.lock("hot").lease(LEASE).wait(Duration::from_millis(500));
            let ran = lock.run(async |_| body(&file, &overlaps, &bodies)).await;
            match ran {
                Ok(()) | Err(Error::Contended { .. }) => tokio::task::yield_now().await,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    };
    runtime().block_on(async { tokio::join!(task(), task(), task(), task()) });
    (bodies.into_inner(), overlaps.into_inner())
}

#[test]
fn no_body_runs_under_the_lock_of_another_process() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("resource");
    File::create(&path).expect("the file can be made");
    let runs = std::env::var("DLOCK_FORK_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(1);
    for run in 0..runs {
        let runtime = runtime();
        let locks = connect(&runtime, &server.url());
        let time = Duration::from_secs(if runs > 1 { 3 } else { 2 });
        // The connections are in use at the fork.
        let mut warm = (0, 0);
        for _ in 0..50 {
            let more = contend(&locks, &path, Duration::from_millis(100));
            warm = (warm.0 + more.0, warm.1 + more.1);
            if warm.0 > 5 {
                break;
            }
        }
        let inherits = fork(|| format!("{:?}", contend(&locks, &path, time)));
        // This process connects after the fork.
        let third = fork(|| {
            let runtime = self::runtime();
            let locks = connect(&runtime, &server.url());
            format!("{:?}", contend(&locks, &path, time))
        });
        let (bodies, overlaps) = contend(&locks, &path, time);

        assert_eq!(inherits.report().trim(), "(0, 0)", "run {run}: no body starts in the child");
        let third = third.report();
        let (of_third, overlaps_of_third) =
            third.trim().trim_matches(['(', ')']).split_once(", ").expect(&third);
        let of_third: u32 = of_third.parse().expect(&third);
        assert!(warm.0 > 5 && bodies > 50 && of_third > 50, "run {run}: {warm:?} {bodies} {of_third}");
        assert_eq!((overlaps, overlaps_of_third), (0, "0"), "run {run}: bodies under a foreign lock");
    }
}

#[test]
fn a_child_is_rejected_whatever_mutexes_other_threads_held() {
    const FORKS: u32 = 40;
    let server = RedisServer::start();
    let busy = Builder::new_multi_thread().worker_threads(3).enable_all().build().expect("a runtime");
    for url in [server.url(), "memory://busy".to_owned()] {
        let locks = busy.block_on(LockManager::connect(&url)).expect("it runs");
        let mut held = Some(busy.block_on(locks.lock("order:1").acquire()).expect("it is free"));
        let mut inherited = Some(locks.clone());
        let polled = AtomicU32::new(0);
        let step = || {
            polled.fetch_add(1, Ordering::SeqCst);
            Poll::Pending
        };
        let under_lock: Call<'_> = Box::pin(async {
            let run = locks.lock("inherited").run(async |_| std::future::poll_fn(|_| step()).await);
            run.await
        });
        let mut calls = Some([with_record("idempotent", &locks, step), under_lock]);
        for (count, call) in (0..).zip(calls.iter_mut().flatten()) {
            poll_until_it_waits(&busy, call.as_mut(), || polled.load(Ordering::SeqCst) > count);
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..12_u32)
            .map(|number| {
                let (locks, is_over) = (locks.clone(), Arc::clone(&is_over));
                busy.spawn(async move {
                    while !is_over.load(Ordering::Relaxed) {
                        let lock = locks.lock(format!("hot:{}", number % 3)).wait(SOON);
                        lock.run(async |_| tokio::task::yield_now().await)
                            .await
                            .expect("the lock is granted");
                        drop(LockManager::connect("memory://busy").await);
                        let call = locks.idempotent(format!("call:{number}"));
                        let ran = call.run_attached(async |_| {
                            tokio::task::yield_now().await;
                            Ok::<_, Error>(())
                        });
                        ran.await.expect("the body succeeds");
                        call.forget().await.expect("the store replies");
                        assert!(!locks.leader("indexer").is_leader());
                    }
                })
            })
            .collect();
        for _ in 0..FORKS {
            let child = fork(|| {
                runtime().block_on(async {
                    for number in 0..3 {
                        let lock = locks.lock(format!("hot:{number}")).wait(SOON);
                        refused("acquire", lock.acquire()).await;
                    }
                    refused("check", async { held.as_ref().expect("it is inherited").check() }).await;
                    refused("inspect", locks.inspect("hot:1")).await;
                    refuses_records_and_leaders(&locks).await;
                    let own = LockManager::connect("memory://busy").await.expect("no server is needed");
                    own.lock("hot:0")
                        .acquire()
                        .await
                        .expect("a separate store")
                        .release()
                        .await
                        .expect("it is held");
                });
                drop((held.take(), inherited.take(), calls.take()));
                "ok".to_owned()
            });
            assert_ok(child, &url);
        }
        drop(calls);
        is_over.store(true, Ordering::Relaxed);
        busy.block_on(async {
            for task in tasks {
                within(SOON, "a task", task).await.expect("no panic");
            }
            held.take().expect("it is held here").release().await.expect("it is held");
        });
    }
}

#[distributed_lock(key = "installed", wait = "5s")]
async fn under_the_installed_manager() -> Result<u32, Error> {
    tokio::task::yield_now().await;
    Ok(7)
}

#[test]
fn a_child_can_connect_and_install_its_own_manager() {
    let server = RedisServer::start();
    let (runtime, url) = (runtime(), server.url());
    runtime.block_on(dlock_runtime::init(&url)).expect("it runs");

    let child = fork(|| {
        let runtime = self::runtime();
        runtime.block_on(async {
            refused("under the parent's", under_the_installed_manager()).await;
            let own = dlock_runtime::init(&url).await.expect("the server is there");
            assert_eq!(under_the_installed_manager().await.expect("it is connected"), 7);
            own.shutdown(SOON).await;
        });
        "ok".to_owned()
    });

    assert_ok(child, "a child");
    runtime.block_on(async {
        assert_eq!(under_the_installed_manager().await.expect("it is connected"), 7);
        dlock_runtime::manager().expect("it is installed").ready().await.expect("the server replies");
    });
}

#[test]
fn an_in_memory_store_is_not_shared_with_a_child() {
    let runtime = runtime();
    let locks = connect(&runtime, "memory://shared-by-name");
    let _held = hold(&runtime, &locks, "order:1");

    let child = fork(|| {
        let runtime = self::runtime();
        let own = connect(&runtime, "memory://shared-by-name");
        let second = connect(&runtime, "memory://shared-by-name");
        let guard = hold(&runtime, &own, "order:1");
        let other = runtime.block_on(second.lock("order:1").try_acquire()).expect("no server is needed");
        assert!(other.is_none(), "one store for all managers that connect to its name");
        drop(guard);
        "ok".to_owned()
    });

    assert_ok(child, "memory");
}

#[test]
fn a_child_that_connects_has_its_own_tokens() {
    let runtime = runtime();
    let locks = connect(&runtime, "memory://");

    let child = fork(|| connect(&self::runtime(), "memory://").id());

    let of_child = child.report();
    assert!(of_child.trim().len() == locks.id().len() && of_child.trim() != locks.id(), "{of_child}");
}
