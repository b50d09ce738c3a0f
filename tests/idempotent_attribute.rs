//! `#[idempotent]`: what each parameter does when the function is called.
//!
//! See the contract for the records themselves, and `ui-tests` for the forms of functions.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, idempotent, with_manager};
use dlock_tests::world::World;
use dlock_tests::{RedisServer, until, within};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};

const LIMIT: Duration = Duration::from_secs(20);

/// Counts the runs of bodies.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicUsize>);

impl Runs {
    fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

async fn in_memory() -> LockManager {
    World::in_memory().manager().await
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
enum ShopError {
    Declined(usize),
    Busy(usize),
    Dlock(String),
}

impl From<Error> for ShopError {
    fn from(error: Error) -> Self {
        let text = format!("{error:?}");
        Self::Dlock(text.split(':').next().unwrap_or_default().to_owned())
    }
}

fn dlock(name: &str) -> ShopError {
    ShopError::Dlock(name.to_owned())
}

struct Charge {
    key: &'static str,
    cents: u64,
}

#[idempotent(key = "charge:<tenant>:<charge.key>", fingerprint = charge.cents)]
async fn charge(tenant: u64, charge: Charge, runs: Runs) -> Result<String, ShopError> {
    Ok(format!("tenant {tenant}, {} cents, run {}", charge.cents, runs.next()))
}

#[tokio::test]
async fn a_repeated_call_gets_the_first_result() {
    let redis = RedisServer::start();
    for url in [World::in_memory().url(), &redis.url()] {
        let manager = LockManager::connect(url).await.expect("the store is reachable");
        let runs = Runs::default();
        let call = |tenant, key, cents| {
            with_manager(manager.clone(), charge(tenant, Charge { key, cents }, runs.clone()))
        };

        let first = call(7, "a", 100).await;
        let again = call(7, "a", 100).await;
        let other_payload = call(7, "a", 101).await;
        let other_tenant = call(8, "a", 101).await;

        assert_eq!(first.as_deref(), Ok("tenant 7, 100 cents, run 1"), "{url}");
        assert_eq!(again, first, "{url}");
        assert_eq!(other_payload, Err(dlock("KeyReused")), "{url}");
        assert_eq!(other_tenant.as_deref(), Ok("tenant 8, 101 cents, run 2"), "{url}");
    }
}

#[idempotent(key = "import:<file>", scope = tenant, fingerprint = none)]
async fn import(tenant: u64, file: &'static str, runs: Runs) -> Result<usize, ShopError> {
    let _ = (tenant, file);
    Ok(runs.next())
}

#[tokio::test]
async fn a_scope_separates_equal_keys() {
    let (manager, runs) = (in_memory().await, Runs::default());
    let call = |tenant| with_manager(manager.clone(), import(tenant, "a", runs.clone()));

    assert_eq!([call(7).await, call(8).await, call(7).await], [Ok(1), Ok(2), Ok(1)]);
}

#[idempotent(key = "slow:<id>", scope = everyone, fingerprint = none, name = "slow")]
async fn refusing(id: u8, gate: Arc<Gate>) -> Result<u8, ShopError> {
    gate.pass().await;
    Ok(id)
}

#[idempotent(key = "slow:<id>", scope = everyone, fingerprint = none, on_duplicate = wait("20s"), name = "slow")]
async fn waiting(id: u8, gate: Arc<Gate>) -> Result<u8, ShopError> {
    gate.pass().await;
    Ok(id)
}

#[idempotent(key = "skip:<id>", scope = everyone, fingerprint = none, on_duplicate = skip)]
async fn skipping(id: u8, gate: Arc<Gate>) -> Result<Option<u8>, ShopError> {
    gate.pass().await;
    Ok(Some(id))
}

/// Stops a body until the test lets it continue.
#[derive(Default)]
struct Gate {
    entered: Notify,
    open: Notify,
}

impl Gate {
    async fn pass(&self) {
        self.entered.notify_one();
        self.open.notified().await;
    }
}

#[tokio::test]
async fn on_duplicate_decides_what_a_duplicate_gets() {
    let (manager, gate) = (in_memory().await, Arc::new(Gate::default()));
    let first = tokio::spawn(with_manager(manager.clone(), refusing(7, Arc::clone(&gate))));
    gate.entered.notified().await;

    let refused = with_manager(manager.clone(), refusing(7, Arc::clone(&gate))).await;
    let waits = tokio::spawn(with_manager(manager.clone(), waiting(7, Arc::clone(&gate))));
    gate.open.notify_one();

    assert_eq!(refused, Err(dlock("InProgress")));
    assert_eq!(first.await.expect("no panic"), Ok(7));
    assert_eq!(within(LIMIT, "it is woken", waits).await.expect("no panic"), Ok(7));
}

#[tokio::test]
async fn a_skipped_duplicate_returns_none_and_a_later_one_the_result() {
    let (manager, gate) = (in_memory().await, Arc::new(Gate::default()));
    let first = tokio::spawn(with_manager(manager.clone(), skipping(7, Arc::clone(&gate))));
    gate.entered.notified().await;

    let skipped = with_manager(manager.clone(), skipping(7, Arc::clone(&gate))).await;
    gate.open.notify_one();
    let first = first.await.expect("no panic");
    let later = with_manager(manager, skipping(7, gate)).await;

    assert_eq!((skipped, first, later), (Ok(None), Ok(Some(7)), Ok(Some(7))));
}

fn is_final(error: &ShopError) -> bool {
    matches!(error, ShopError::Declined(_))
}

#[idempotent(key = "pay:<id>", scope = everyone, fingerprint = none, on_error = remember_if(is_final))]
async fn pay(id: u8, runs: Runs) -> Result<(), ShopError> {
    let run = runs.next();
    Err(if id == 0 { ShopError::Declined(run) } else { ShopError::Busy(run) })
}

#[idempotent(key = "pay-all:<id>", scope = everyone, fingerprint = none, on_error = remember)]
async fn remembering(id: u8, runs: Runs) -> Result<(), ShopError> {
    let _ = id;
    Err(ShopError::Busy(runs.next()))
}

#[idempotent(key = "pay-none:<id>", scope = everyone, fingerprint = none)]
async fn forgetting(id: u8, runs: Runs) -> Result<(), ShopError> {
    let _ = id;
    Err(ShopError::Declined(runs.next()))
}

#[tokio::test]
async fn only_the_chosen_errors_are_replayed() {
    let (manager, runs) = (in_memory().await, Runs::default());
    let in_it = |call| with_manager(manager.clone(), call);

    for _ in 0..2 {
        assert_eq!(in_it(pay(0, runs.clone())).await, Err(ShopError::Declined(1)), "it is final");
    }
    assert_eq!(in_it(pay(1, runs.clone())).await, Err(ShopError::Busy(2)));
    assert_eq!(in_it(pay(1, runs.clone())).await, Err(ShopError::Busy(3)), "it is not");
    for _ in 0..2 {
        assert_eq!(
            with_manager(manager.clone(), remembering(0, runs.clone())).await,
            Err(ShopError::Busy(4))
        );
    }
    for run in 5..7 {
        let forgotten = with_manager(manager.clone(), forgetting(0, runs.clone())).await;
        assert_eq!(forgotten, Err(ShopError::Declined(run)));
    }
}

#[idempotent(key = "steps:<id>", scope = everyone, fingerprint = none, on_crash = resume, record = record)]
async fn with_steps(id: u8, steps: Runs, keys: Arc<std::sync::Mutex<Vec<String>>>) -> Result<u32, ShopError> {
    let _ = id;
    record.step("charge", async || Ok::<_, ShopError>(steps.next())).await?;
    keys.lock().expect("no panic under it").push(record.child_key("ship"));
    assert!(record.attempt() > 1, "this panic is part of the test");
    record.step("ship", async || Ok::<_, ShopError>(steps.next())).await?;
    Ok(record.attempt())
}

#[idempotent(key = "crash:<id>", scope = everyone, fingerprint = none)]
async fn crashing(id: u8, runs: Runs) -> Result<u8, ShopError> {
    runs.next();
    panic!("this panic of call {id} is part of the test");
}

/// Runs a call whose body panics, and waits until the panic is in the record.
async fn crashed<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) {
    assert!(tokio::spawn(call).await.is_err_and(|failed| failed.is_panic()), "the body panics");
}

#[tokio::test]
async fn a_crashed_call_resumes_after_its_completed_steps() {
    let (manager, steps, keys) = (in_memory().await, Runs::default(), Arc::default());
    let call = || with_manager(manager.clone(), with_steps(7, steps.clone(), Arc::clone(&keys)));
    crashed(call()).await;

    let resumed = Box::pin(until_not_running(call)).await;

    assert_eq!((resumed, steps.count()), (Ok(2), 2), "each step ran once");
    let keys = keys.lock().expect("no panic under it");
    assert!(matches!(&keys[..], [first, second] if first == second), "one child key: {keys:?}");
}

#[tokio::test]
async fn a_crashed_call_is_unknown_by_default() {
    let (manager, runs) = (in_memory().await, Runs::default());
    let call = || with_manager(manager.clone(), crashing(7, runs.clone()));
    crashed(call()).await;

    assert_eq!(until_not_running(call).await, Err(dlock("OutcomeUnknown")));
    assert_eq!(runs.count(), 1);
}

/// Repeats a call until the end of the crashed one has reached the store.
async fn until_not_running<T, F: Future<Output = Result<T, ShopError>>>(
    call: impl Fn() -> F,
) -> Result<T, ShopError> {
    let mut ended = None;
    until("the running call ends", async || {
        let is_running = |result: &_| matches!(result, Err(error) if *error == dlock("InProgress"));
        ended = Some(call().await).filter(|result| !is_running(result));
        ended.is_some()
    })
    .await;
    ended.expect("the condition is met")
}

#[idempotent(key = "job:<id>:<part>", on_missing = run, fingerprint = none, record = record)]
async fn maybe(id: Option<u64>, part: u8, runs: Runs) -> Result<(usize, String), ShopError> {
    let _ = (id, part);
    Ok((runs.next(), record.child_key("a")))
}

#[idempotent(key = "job:<id>:<part>", fingerprint = none)]
async fn required(id: Option<u64>, part: u8) -> Result<u8, ShopError> {
    let _ = id;
    Ok(part)
}

#[tokio::test]
async fn a_call_without_its_key_runs_only_if_allowed() {
    let (manager, runs) = (in_memory().await, Runs::default());
    let call = |id| with_manager(manager.clone(), maybe(id, 1, runs.clone()));

    let with_key = [call(Some(7)).await, call(Some(7)).await].map(|result| result.expect("it runs"));
    let without = [call(None).await, call(None).await].map(|result| result.expect("it runs"));
    let refused = with_manager(manager.clone(), required(None, 1)).await;

    assert_eq!((with_key[0].0, with_key[1].0, without[0].0, without[1].0), (1, 1, 2, 3));
    assert_ne!(without[0].1, without[1].1, "two calls without a key are two payments");
    assert_eq!(refused, Err(dlock("InvalidKey")));
}

#[idempotent(key = "slow:<id>", scope = everyone, fingerprint = none, on_duplicate = wait("20s"))]
async fn detached(id: u8, gate: Arc<Gate>, runs: Runs) -> Result<usize, ShopError> {
    let _ = id;
    gate.pass().await;
    Ok(runs.next())
}

#[idempotent(key = "attached:<id>", detached = false, fingerprint = none, lease = "1s", scope = everyone)]
async fn attached(id: &u8, entered: oneshot::Sender<oneshot::Sender<Infallible>>) -> Result<u8, ShopError> {
    let (alive, _dropped) = oneshot::channel();
    let _ = entered.send(alive);
    pending::<()>().await;
    Ok(*id)
}

#[tokio::test]
async fn a_caller_that_hangs_up_changes_nothing_if_detached() {
    let (manager, gate, runs) = (in_memory().await, Arc::new(Gate::default()), Runs::default());
    let call = || with_manager(manager.clone(), detached(7, Arc::clone(&gate), runs.clone()));
    let first = tokio::spawn(call());
    gate.entered.notified().await;
    first.abort();
    let _ = first.await;

    let retry = tokio::spawn(call());
    gate.open.notify_one();
    let retry = within(LIMIT, "the first body ends", retry).await.expect("no panic");

    assert_eq!((retry, runs.count()), (Ok(1), 1));
}

#[tokio::test]
async fn a_caller_that_hangs_up_leaves_an_unknown_outcome_if_attached() {
    let manager = in_memory().await;
    let (entered, has_entered) = oneshot::channel();
    let first = tokio::spawn(with_manager(manager.clone(), async move { attached(&7, entered).await }));
    let _alive = has_entered.await.expect("the body starts");
    first.abort();
    let _ = first.await;

    let (entered, _) = oneshot::channel();
    let running = with_manager(manager.clone(), attached(&7, entered)).await;
    let later = until_not_running(|| with_manager(manager.clone(), attached(&7, oneshot::channel().0))).await;

    assert_eq!((running, later), (Err(dlock("InProgress")), Err(dlock("OutcomeUnknown"))));
}

mod version_1 {
    #[dlock_runtime::idempotent(key = "typed:<id>", scope = everyone, name = "typed", version = 1)]
    pub(super) async fn typed(id: u8) -> Result<u8, super::ShopError> {
        Ok(id)
    }
}

mod version_2 {
    #[dlock_runtime::idempotent(key = "typed:<id>", scope = everyone, name = "typed", version = 2)]
    pub(super) async fn typed(id: u8) -> Result<u8, super::ShopError> {
        Ok(id)
    }
}

mod other_type {
    #[dlock_runtime::idempotent(key = "typed:<id>", scope = everyone, name = "typed", version = 1)]
    pub(super) async fn typed(id: u8) -> Result<String, super::ShopError> {
        Ok(id.to_string())
    }
}

mod other_function {
    #[dlock_runtime::idempotent(key = "typed:<id>", scope = everyone, name = "another", version = 1)]
    pub(super) async fn typed(id: u8) -> Result<u8, super::ShopError> {
        Ok(id)
    }
}

#[tokio::test]
async fn a_result_of_another_version_type_or_function_is_not_replayed() {
    let manager = in_memory().await;
    let in_it = |call| with_manager(manager.clone(), call);

    assert_eq!(in_it(version_1::typed(7)).await, Ok(7));
    assert_eq!(with_manager(manager.clone(), version_2::typed(7)).await, Err(dlock("Undecodable")));
    assert_eq!(with_manager(manager.clone(), other_type::typed(7)).await, Err(dlock("Undecodable")));
    assert_eq!(with_manager(manager.clone(), other_function::typed(7)).await, Err(dlock("KeyReused")));
}

mod renamed {
    use super::ShopError as Failure;

    #[dlock_runtime::idempotent(key = "typed:<id>", scope = everyone, name = "typed", version = 1)]
    pub(super) async fn without_result_type(id: u8) -> Result<u8, Failure> {
        Ok(id + 1)
    }

    #[dlock_runtime::idempotent(key = "typed:<id>", scope = everyone, name = "typed", version = 1,
                                result_type = "Result<u8,super::ShopError>")]
    pub(super) async fn with_the_old_type(id: u8) -> Result<u8, Failure> {
        Ok(id + 1)
    }
}

#[tokio::test]
async fn a_renamed_type_replays_results_of_its_result_type() {
    let manager = in_memory().await;
    let in_it = |call| with_manager(manager.clone(), call);

    let first = in_it(version_1::typed(7)).await;
    let without = with_manager(manager.clone(), renamed::without_result_type(7)).await;
    let with = with_manager(manager.clone(), renamed::with_the_old_type(7)).await;

    assert_eq!((first, without, with), (Ok(7), Err(dlock("Undecodable")), Ok(7)));
}

#[idempotent(key = "named:<id>", scope = everyone, name = "named", result_type = "receipt")]
async fn named(id: u8) -> Result<u8, ShopError> {
    Ok(id)
}

#[idempotent(key = "named:<id>", scope = everyone, name = "named", result_type = "receipt")]
async fn named_and_qualified(id: u8) -> std::result::Result<u8, ShopError> {
    Ok(id + 1)
}

#[tokio::test]
async fn functions_of_one_result_type_replay_each_other() {
    let manager = in_memory().await;

    let first = with_manager(manager.clone(), named(7)).await;
    let again = with_manager(manager.clone(), named_and_qualified(7)).await;
    let by_builder = manager
        .idempotent("named:7")
        .name("named")
        .result_type("receipt")
        .run(async |_| Ok::<u8, ShopError>(9))
        .await;

    assert_eq!((first, again), (Ok(7), Ok(7)));
    assert_eq!(
        by_builder.map(dlock_runtime::idempotent::Outcome::into_value),
        Ok(7),
        "the attribute names it likewise"
    );
}

#[idempotent(key = "open:<id>", scope = everyone, on_unavailable = run, fingerprint = none)]
async fn open(id: u8, runs: Runs) -> Result<usize, ShopError> {
    let _ = id;
    Ok(runs.next())
}

#[tokio::test]
async fn an_outage_runs_the_body_only_if_allowed() {
    let mut redis = RedisServer::start();
    let manager = LockManager::connect(&redis.url()).await.expect("the server is reachable");
    let runs = Runs::default();
    redis.kill();

    let ran = with_manager(manager.clone(), open(7, runs.clone())).await;
    let refused = with_manager(manager, forgetting(7, runs.clone())).await;

    assert_eq!((ran, refused, runs.count()), (Ok(1), Err(dlock("Unavailable")), 1));
}

#[tokio::test]
async fn a_call_without_a_manager_is_not_installed() {
    assert_eq!(version_1::typed(7).await, Err(dlock("NotInstalled")));
}

struct Ledger {
    locks: LockManager,
    runs: Runs,
}

impl Ledger {
    #[idempotent(key = "post:<entry>", scope = everyone, manager = self.locks, namespace = "ledger")]
    async fn post(self: Arc<Self>, entry: u64) -> Result<usize, Error> {
        let _ = entry;
        Ok(self.runs.next())
    }

    #[idempotent(key = "post:<entry>", scope = everyone, manager = self.locks, detached = false,
                 namespace = "ledger", name = "attached")]
    async fn post_attached(&self, entry: &str) -> Result<usize, Error> {
        let _ = entry;
        Ok(self.runs.next())
    }
}

#[tokio::test]
async fn methods_have_their_own_manager_and_namespace() {
    let ledger = Arc::new(Ledger { locks: in_memory().await, runs: Runs::default() });

    for _ in 0..2 {
        assert_eq!(Arc::clone(&ledger).post(7).await.expect("it runs"), 1);
    }
    for _ in 0..2 {
        assert_eq!(ledger.post_attached("8").await.expect("it runs"), 2);
    }
    let status =
        ledger.locks.idempotent(dlock_runtime::KeyBuilder::new("ledger").text("post:7")).status().await;
    assert!(status.expect("the store is reachable").is_some(), "the namespace is the attribute's");
}

struct Cart;
struct Order;

impl Cart {
    #[idempotent(key = "pay:<id>", scope = everyone, name = "Cart::pay")]
    async fn pay(self: Arc<Self>, id: u64) -> Result<u64, ShopError> {
        Ok(id)
    }
}

impl Order {
    #[idempotent(key = "pay:<id>", scope = everyone, name = "Order::pay")]
    async fn pay(self: Arc<Self>, id: u64) -> Result<u64, ShopError> {
        Ok(id + 1)
    }
}

/// Without names, they would be one function: the attribute does not know the type of an `impl`.
#[tokio::test]
async fn methods_with_names_are_two_functions() {
    let manager = in_memory().await;

    assert_eq!(with_manager(manager.clone(), Arc::new(Cart).pay(7)).await, Ok(7));
    assert_eq!(with_manager(manager, Arc::new(Order).pay(7)).await, Err(dlock("KeyReused")));
}
