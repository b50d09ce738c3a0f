//! A test kit for code that uses locks: contention, lost locks, outages, and crashed processes on
//! demand. See [the guide](crate::docs::testing).
//!
//! [`TestLocks`] is a store of locks in memory, as `memory://` is, that a test controls. It needs
//! the feature `testing`, which belongs in `[dev-dependencies]`. [`errors`] returns lock errors for
//! tests of code that maps them.

#[cfg(feature = "idempotent")]
pub(crate) mod crash_point;
pub mod errors;
pub(crate) mod installed;
mod outage;
pub(crate) mod recorder;
mod replica;
pub(crate) mod replica_clock;

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

#[cfg(feature = "idempotent")]
pub use crash_point::CrashPoint;
pub use installed::Installed;
pub use outage::Outage;
pub use replica::Replica;

use crate::backend::memory::MemoryStore;
use crate::config::Settings;
use crate::config::endpoint::Endpoint;
use crate::config::url;
use crate::global::with_manager;
use crate::guard::LockGuard;
#[cfg(feature = "idempotent")]
use crate::idempotent::record_name;
use crate::key::{IntoLockKey, LockKey};
use crate::manager::LockManager;

/// A store of locks for one test: a manager for the code under test, and control over its locks.
///
/// Keys are those of the code under test, without its manager's namespace; for other namespaces,
/// see [`namespace`](Self::namespace). It is cheap to clone; all clones are one store, and can be
/// used from any task and thread. Time is tokio's: if it is paused
/// (`#[tokio::test(start_paused = true)]`), leases, waits, and outages take no real time.
///
/// # Examples
///
/// ```
/// use dlock_runtime::{Error, distributed_lock, testing::TestLocks};
///
/// #[distributed_lock(key = "order:<user_id>")]
/// async fn place_order(user_id: u64) -> Result<u64, Error> {
///     Ok(user_id)
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Error> {
/// let locks = TestLocks::new();
///
/// let elsewhere = locks.hold("order:7").await;
/// assert!(locks.run(place_order(7)).await.is_err_and(|error| error.is_contended()));
///
/// elsewhere.release().await?;
/// assert_eq!(locks.run(place_order(7)).await?, 7);
/// assert_eq!(locks.acquisitions("order:7"), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TestLocks {
    world: Arc<MemoryStore>,
    settings: Settings,
    manager: LockManager,
    /// The manager that holds locks for other processes.
    elsewhere: LockManager,
}

impl TestLocks {
    /// Returns a separate store with the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::with_url("memory://")
    }

    /// Returns a store with the options of a URL, such as `memory://?namespace=shop&lease=5s`.
    ///
    /// With a name, as in `memory://shop`, it is the store of all managers of this process that
    /// connect to that name: for code under test that connects to a URL by itself.
    ///
    /// # Panics
    ///
    /// Panics if the URL is invalid, or its scheme is not `memory`.
    #[must_use]
    #[track_caller]
    pub fn with_url(url: &str) -> Self {
        let (name, settings) =
            match url::parse(url).and_then(|target| Ok((target.place, target.settings.checked()?))) {
                Ok((Endpoint::Memory { name }, settings)) => (name, settings),
                Ok((place, _)) => panic!("the test kit supports only `memory://`, not a server ({place})"),
                Err(error) => panic!("{error}"),
            };
        let world = MemoryStore::of_name(name.as_deref());
        let manager = LockManager::in_memory(&world, &settings);
        let elsewhere = LockManager::in_memory(&world, &settings);
        world.recorder.is_elsewhere(elsewhere.engine().tokens.process());
        Self { world, settings, manager, elsewhere }
    }

    /// Returns the same store in another namespace, for functions with a `namespace` of their own.
    ///
    /// # Panics
    ///
    /// Panics if the namespace contains white space, control characters, braces, or angle brackets,
    /// or ends with a `:`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use dlock_runtime::{Error, distributed_lock, testing::TestLocks};
    /// #[distributed_lock(key = "order:<user_id>", namespace = "shop")]
    /// async fn place_order(user_id: u64) -> Result<u64, Error> {
    ///     Ok(user_id)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let locks = TestLocks::new();
    /// let _elsewhere = locks.namespace("shop").hold("order:7").await;
    ///
    /// assert!(locks.run(place_order(7)).await.is_err_and(|error| error.is_contended()));
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn namespace(&self, namespace: &str) -> Self {
        let settings = Settings { namespace: namespace.to_owned(), ..self.settings.clone() };
        let settings = match settings.checked() {
            Ok(settings) => settings,
            Err(error) => panic!("{error}"),
        };
        let manager = self.manager.in_namespace(namespace);
        Self { settings, manager, ..self.clone() }
    }

    /// Returns the manager of the code under test, for code that takes one as an argument.
    #[must_use]
    pub fn manager(&self) -> LockManager {
        self.manager.clone()
    }

    /// Connects one more manager to the store, as another process of the code under test would.
    ///
    /// Its holds are counted, and outages affect it.
    #[must_use]
    pub fn another_manager(&self) -> LockManager {
        LockManager::in_memory(&self.world, &self.settings)
    }

    /// Starts a fleet of `count` processes of the code under test over this store.
    ///
    /// Each has a manager and a wall clock of its own, and can crash. A process whose clock is not
    /// set has the clock of the store.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "scheduled")] mod with_scheduled {
    /// # use std::time::Duration;
    /// # use dlock_runtime::{Error, scheduled::Schedule, testing::TestLocks};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # pub async fn main() -> Result<(), Error> {
    /// let (locks, hourly) = (TestLocks::new(), Schedule::cron("0 * * * *")?);
    /// let fleet = locks.fleet(3);
    /// fleet[1].set_clock_ahead(Duration::from_secs(4));
    /// fleet[2].set_clock_behind(Duration::from_secs(4));
    ///
    /// let each = fleet.iter().map(async |replica| {
    ///     replica.sleep_until_tick(&hourly).await;
    ///     replica.manager().job("report").run(&hourly, async |_| Ok::<_, Error>(())).await
    /// });
    /// let ran = futures_util::future::try_join_all(each).await?;
    ///
    /// // Two, if the test starts within 4 s of the hour: then the tick of a fast clock is the next.
    /// assert!((1..=2).contains(&ran.iter().flatten().count()));
    /// # Ok(()) } }
    /// # fn main() { #[cfg(feature = "scheduled")] with_scheduled::main().unwrap() }
    /// ```
    #[must_use]
    pub fn fleet(&self, count: usize) -> Vec<Replica> {
        (0..count).map(|_| Replica::of(self)).collect()
    }

    /// Runs `future` with these locks instead of the installed manager.
    ///
    /// It is [`with_manager`] with [`manager`](Self::manager). Tasks that `future` spawns do not
    /// inherit it: spawn `locks.run(..)`, or [`install`](Self::install) the locks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `future`.
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        with_manager(self.manager(), future)
    }

    /// Installs these locks for all annotated functions on the current runtime.
    ///
    /// They apply to every task of the runtime until the returned value is dropped. Each
    /// `#[tokio::test]` has its own runtime, so they reach the tasks that the code under test
    /// spawns, and no other test. Inside [`run`](Self::run) and [`with_manager`], those locks take
    /// precedence. If several are installed, the latest applies.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    #[track_caller]
    pub fn install(&self) -> Installed {
        Installed::here(self.manager())
    }

    /// Acquires the lock of `key` as another process would, and returns its guard.
    ///
    /// Outages do not affect the guard, and [`acquisitions`](Self::acquisitions) does not count it.
    ///
    /// # Panics
    ///
    /// Panics if the lock is held already, or the key is invalid.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lock as it was.
    #[track_caller]
    pub fn hold<K: IntoLockKey>(&self, key: K) -> impl Future<Output = LockGuard> + use<K> {
        let caller = Location::caller();
        let key = self.key(key);
        let lock = self.elsewhere.lock(&key);
        async move {
            match lock.try_acquire().await {
                Ok(Some(guard)) => guard,
                Ok(None) => panic!(
                    "{caller}: lock `{key}` is held already; release it, or call `lose`, before `hold`"
                ),
                Err(error) => panic!("{caller}: {error}"),
            }
        }
    }

    /// Deletes the lock of `key`, and notifies its holder. Returns `true` if it was held.
    ///
    /// The holder's body is dropped at its next await, and its call returns
    /// [`Error::Lost`](crate::Error::Lost) with
    /// [`LossCause::NotOwner`](crate::LossCause::NotOwner). The lock is free then, and the next
    /// caller acquires it.
    ///
    /// # Panics
    ///
    /// Panics if the key is invalid.
    #[track_caller]
    pub fn lose(&self, key: impl IntoLockKey) -> bool {
        let key = self.key(key);
        self.world.delete(key.name(), self.manager.engine().now())
    }

    /// Cuts the code under test off from its locks until the outage is [ended](Outage::end) or
    /// dropped.
    ///
    /// During the outage, all its requests fail:
    ///
    /// - Calls get [`Error::Unavailable`](crate::Error::Unavailable), immediately or when `retry`
    ///   and `wait` are used up.
    /// - Leases are not renewed, so bodies lose their locks when their leases expire.
    /// - A released lock stays held until the outage ends or its lease expires.
    ///
    /// Locks that are [held elsewhere](Self::hold) stay held, and more can be acquired there.
    pub fn outage(&self) -> Outage {
        Outage::begin(self)
    }

    /// Has the next attempt of the idempotent call with `key` crash at `point`, as if its process
    /// ended there.
    ///
    /// The body is dropped, and the call gets [`Error::Lost`](crate::Error::Lost); a step in which
    /// the attempt crashes returns nothing to the body. The lease of the
    /// attempt is over at once, so the next call does what
    /// [`OnCrash`](crate::idempotent::OnCrash) says.
    ///
    /// # Panics
    ///
    /// Panics if the key is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use dlock_runtime::{Error, idempotent::OnCrash, testing::{CrashPoint, TestLocks}};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Error> {
    /// let locks = TestLocks::new();
    /// let call = locks.manager().idempotent("charge:7").on_crash(OnCrash::Resume);
    /// locks.crash_at("charge:7", CrashPoint::BeforeResult);
    ///
    /// let crashed = call.run(async |record| record.step("psp", async || Ok::<_, Error>(1)).await).await;
    /// let resumed = call.run(async |record| record.step("psp", async || Ok::<_, Error>(2)).await).await?;
    ///
    /// assert!(crashed.is_err_and(|error| error.is_lost()));
    /// assert_eq!(resumed.into_value(), 1);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "idempotent")]
    #[track_caller]
    pub fn crash_at(&self, key: impl IntoLockKey, point: CrashPoint) {
        self.world.recorder.crash_at(record_name(&self.key(key)), point);
    }

    /// Returns how often the code under test has acquired the lock of `key`.
    ///
    /// It counts bodies and guards, but neither calls that joined a hold of their call chain nor
    /// locks that were [held elsewhere](Self::hold).
    ///
    /// # Panics
    ///
    /// Panics if the key is invalid.
    #[must_use]
    #[track_caller]
    pub fn acquisitions(&self, key: impl IntoLockKey) -> u64 {
        self.world.recorder.admissions(self.key(key).name())
    }

    /// Returns `true` if the lock of `key` is held, by the code under test or elsewhere.
    ///
    /// # Panics
    ///
    /// Panics if the key is invalid.
    #[must_use]
    #[track_caller]
    pub fn is_held(&self, key: impl IntoLockKey) -> bool {
        let key = self.key(key);
        self.world.is_held(key.name(), self.manager.engine().now())
    }

    /// Returns how many calls wait for the lock of `key` now.
    ///
    /// # Panics
    ///
    /// Panics if the key is invalid.
    #[must_use]
    #[track_caller]
    pub fn waiting(&self, key: impl IntoLockKey) -> usize {
        let key = self.key(key);
        self.world.waiting(key.name())
    }

    #[track_caller]
    fn key(&self, key: impl IntoLockKey) -> LockKey {
        match key.into_lock_key(&self.settings.namespace) {
            Ok(key) => key,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Default for TestLocks {
    fn default() -> Self {
        Self::new()
    }
}
