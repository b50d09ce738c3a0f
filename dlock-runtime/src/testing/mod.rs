//! Contention, loss and outages on command, for tests of code that takes locks; [the guide](crate::docs::testing) shows it at work.
//!
//! [`TestLocks`] is a world of locks in memory, as `memory://` is, and the hand that reaches into it. It comes with the feature
//! `testing`, which belongs into `[dev-dependencies]`.
//!
//! `installed` is who uses it, `outage` what one is, `ledger` what the world notes for it. Not here: how locks live in memory
//! (`backend::memory`).

pub(crate) mod installed;
pub(crate) mod ledger;
mod outage;

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

pub use installed::Installed;
pub use outage::Outage;

use crate::backend::memory::MemoryStore;
use crate::config::Settings;
use crate::config::url::{self, Endpoint};
use crate::global::with_manager;
use crate::guard::LockGuard;
use crate::key::{IntoLockKey, LockKey};
use crate::manager::LockManager;

/// A world of locks for one test: a manager for the code under test, and what happens to it on command.
///
/// Keys are those of the code under test, without its manager's namespace; for others see [`namespace`](Self::namespace). Cheap to clone; all clones are one world, and can be used from any
/// task and thread. Time is tokio's: pause it (`#[tokio::test(start_paused = true)]`) and leases, waits and outages take no time.
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
    /// What holds locks from elsewhere.
    elsewhere: LockManager,
}

impl TestLocks {
    /// Makes a world that nobody else is in, with the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::with_url("memory://")
    }

    /// Makes a world with the options of a URL, such as `memory://?namespace=shop&lease=5s`.
    ///
    /// With a name, as in `memory://shop`, it is the world of all managers of this process that connect to that name: for code under
    /// test that connects by itself, to a URL that it is given.
    ///
    /// # Panics
    ///
    /// Panics for a URL that cannot be used, or is none of `memory://`.
    #[must_use]
    #[track_caller]
    pub fn with_url(url: &str) -> Self {
        let (name, settings) =
            match url::parse(url).and_then(|target| Ok((target.place, target.settings.checked()?))) {
                Ok((Endpoint::Memory { name }, settings)) => (name, settings),
                Ok((Endpoint::Redis(server), _)) => {
                    panic!("the test kit works on `memory://` alone, not on a server ({server})")
                }
                Ok((Endpoint::Quorum(voters), _)) => {
                    panic!("the test kit works on `memory://` alone, not on a server ({voters})")
                }
                Ok((Endpoint::Sentinel(watched), _)) => {
                    panic!("the test kit works on `memory://` alone, not on a server ({watched})")
                }
                Ok((Endpoint::Cluster(seeds), _)) => {
                    panic!("the test kit works on `memory://` alone, not on a server ({seeds})")
                }
                Err(error) => panic!("{error}"),
            };
        let world = MemoryStore::of_name(name.as_deref());
        let manager = LockManager::in_memory(&world, &settings);
        let elsewhere = LockManager::in_memory(&world, &settings);
        world.ledger.is_elsewhere(elsewhere.engine().tokens.process());
        Self { world, settings, manager, elsewhere }
    }

    /// Returns the same world in another namespace: for functions that have a `namespace` of their own.
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
    ///
    /// # Panics
    ///
    /// Panics for what cannot be a namespace: one with white space, control characters, braces or angle brackets.
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

    /// Returns the manager of the code under test, for code that is given one.
    #[must_use]
    pub fn manager(&self) -> LockManager {
        self.manager.clone()
    }

    /// Connects one more manager to the world, as another process of the code under test would: its holds are counted and outages
    /// reach it too.
    #[must_use]
    pub fn another_manager(&self) -> LockManager {
        LockManager::in_memory(&self.world, &self.settings)
    }

    /// Runs `future` with these locks in place of the installed manager: [`with_manager`] with [`manager`](Self::manager).
    ///
    /// Tasks that `future` spawns do not inherit it: spawn `locks.run(..)`, or [`install`](Self::install) the locks.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `future`.
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        with_manager(self.manager(), future)
    }

    /// Gives all annotated functions on the current runtime these locks, in every task, until what it returns is dropped.
    ///
    /// Each `#[tokio::test]` has a runtime of its own, so it reaches what the code under test spawns, and no other test. Inside
    /// [`run`](Self::run) and [`with_manager`] theirs are used; where several are installed, the latest.
    ///
    /// # Panics
    ///
    /// Panics outside of a runtime.
    #[track_caller]
    pub fn install(&self) -> Installed {
        Installed::here(self.manager())
    }

    /// Takes the lock of `key` as another process would, and holds it until the guard is released or dropped. Outages do not reach
    /// the guard, and [`acquisitions`](Self::acquisitions) does not count it.
    ///
    /// # Panics
    ///
    /// Panics when somebody holds the lock already, and for a key that is not valid.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the lock as it was.
    #[track_caller]
    pub fn hold<K: IntoLockKey>(&self, key: K) -> impl Future<Output = LockGuard> + use<K> {
        let caller = Location::caller();
        let key = self.key(key);
        let lock = self.elsewhere.lock(&key);
        async move {
            match lock.try_acquire().await {
                Ok(Some(guard)) => guard,
                Ok(None) => panic!(
                    "{caller}: lock `{key}` is held already; let it go, or take it by `lose`, before `hold`"
                ),
                Err(error) => panic!("{caller}: {error}"),
            }
        }
    }

    /// Deletes the lock of `key`, and its holder notices at once: the body is dropped at its next await, and its call returns
    /// [`Error::Lost`](crate::Error::Lost) with [`LossCause::NotOwner`](crate::LossCause::NotOwner). Returns whether somebody held it.
    ///
    /// Nobody has it then, so the next to ask gets it.
    ///
    /// # Panics
    ///
    /// Panics for a key that is not valid.
    #[track_caller]
    pub fn lose(&self, key: impl IntoLockKey) -> bool {
        let key = self.key(key);
        self.world.delete(key.name(), self.manager.engine().now())
    }

    /// Cuts the code under test off from its locks until the outage is [ended](Outage::end) or dropped.
    ///
    /// Meanwhile nothing that it asks is done: who asks for a lock gets [`Error::Unavailable`](crate::Error::Unavailable), at once or when its `retry` and
    /// `wait` are used up; leases are not renewed, so bodies lose their locks when their leases end; what is released stays locked
    /// until the outage or the lease ends. What is [held elsewhere](Self::hold) stays held, and more can be.
    pub fn outage(&self) -> Outage {
        Outage::begin(self)
    }

    /// Returns how often somebody was let in under the lock of `key`: bodies and guards, but neither calls that joined the hold of
    /// their call chain nor what was [held elsewhere](Self::hold).
    ///
    /// # Panics
    ///
    /// Panics for a key that is not valid.
    #[must_use]
    #[track_caller]
    pub fn acquisitions(&self, key: impl IntoLockKey) -> u64 {
        self.world.ledger.admissions(self.key(key).name())
    }

    /// Returns whether somebody holds the lock of `key`, elsewhere or in the code under test.
    ///
    /// # Panics
    ///
    /// Panics for a key that is not valid.
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
    /// Panics for a key that is not valid.
    #[must_use]
    #[track_caller]
    pub fn waiting(&self, key: impl IntoLockKey) -> usize {
        let key = self.key(key);
        self.world.managers().iter().map(|manager| manager.waiting(key.name())).sum()
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
