//! [`LockManager`], which owns the connections and the engine for all locks of a process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::memory::MemoryStore;
use crate::backend::redis::Redis;
use crate::backend::{Backend, OwnerSource};
use crate::builder::Builder;
use crate::clock::Clock;
use crate::config::Settings;
use crate::config::call_overrides::CallOverrides;
#[cfg(any(feature = "idempotent", feature = "scheduled"))]
use crate::config::config;
use crate::config::endpoint::Endpoint;
#[cfg(feature = "idempotent")]
use crate::config::fingerprint_secrets::FingerprintSecrets;
use crate::config::url::ConnectSpec;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::guard::{answered, usable};
#[cfg(feature = "idempotent")]
use crate::idempotent::duplicates::Duplicates;
use crate::key::{IntoLockKey, LockKey};
use crate::leader::elections::Elections;
use crate::lock::Lock;
use crate::lock_info::LockInfo;
use crate::options::Options;
use crate::protocol::command::{Command, Failure, FailureKind, RecordInfo, Reply};
use crate::protocol::deadline::BootInstant;
#[cfg(feature = "scheduled")]
use crate::scheduled::server_clock::ServerClock;
use crate::telemetry;
use crate::timer;
use crate::token::{ProcessId, TokenSource};

/// Owns the connections and the engine for all locks of a process.
///
/// It is cheap to clone; all clones are one manager. One manager serves any number of tasks, keys,
/// and runtimes.
///
/// - **Connections:** replies are read on the tokio runtime that connects, while it makes progress;
///   those of a quorum, on the manager's thread. That separate thread renews leases, also while the
///   application's threads are blocked and after that runtime has ended. `memory://` has no thread:
///   it runs inside the tasks that use it, with tokio's clock.
/// - **Fork:** a manager belongs to the process that connected. After `fork`, connect again in the
///   child.
/// - **End:** when the last clone and the last guard are dropped, the manager sends what is queued
///   and ends. A process that exits immediately can cut that short, so call
///   [`shutdown`](Self::shutdown) first.
#[derive(Clone)]
pub struct LockManager {
    shared: Arc<ManagerInner>,
}

#[derive(Clone)]
struct ManagerInner {
    engine: Arc<Engine>,
    namespace: String,
    place: String,
    owner: Arc<str>,
    overrides: Arc<CallOverrides>,
    /// The terms of this process as a leader.
    elections: Arc<Elections>,
    #[cfg(feature = "scheduled")]
    server_clock: Arc<ServerClock>,
    #[cfg(feature = "idempotent")]
    idempotency: Arc<Idempotency>,
}

/// The state that the idempotent calls of a manager share.
#[cfg(feature = "idempotent")]
pub(crate) struct Idempotency {
    pub(crate) secrets: FingerprintSecrets,
    pub(crate) duplicates: Arc<Duplicates>,
    /// Has a clone for each call whose end the server has not confirmed.
    pub(crate) pending: Arc<()>,
}

/// Has no implementation: its message is for users who write `LockManager::new`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`LockManager` has no `new`, since it connects: write `LockManager::connect(url).await?`",
    label = "there is no manager without a connection",
    note = "with options, write `LockManager::builder(url).lease(..).connect().await?`, and `connect_lazy` to start before the server; for annotated functions, write `dlock_runtime::init(url).await?`, once"
)]
pub trait ConnectsInNew {
    /// Would connect.
    fn connect(self) -> LockManager;
}

impl LockManager {
    /// Connects to `url`, and returns a manager without installing it.
    ///
    /// It is for `manager = ..`, for [`with_manager`](crate::with_manager), and for tests.
    ///
    /// # Errors
    ///
    /// As [`Builder::connect`]: [`Error::Config`] if the URL is invalid or the server rejects the
    /// user or the password; [`Error::Unavailable`] if the server is unreachable.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    #[doc(alias = "new")]
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Leads to a message of the compiler that says what to write instead.
    #[doc(hidden)]
    pub fn new<U: ConnectsInNew>(url: U) -> Self {
        url.connect()
    }

    /// Returns a builder of a manager for `url`.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    pub(crate) async fn open(target: ConnectSpec) -> Result<Self> {
        let ConnectSpec { place, settings } = target;
        let shown = place.to_string();
        let tokens = TokenSource::new();
        let backend = match place {
            Endpoint::Memory { name } => {
                timer::check_runtime()?;
                telemetry::in_process_only(name.as_deref());
                return Ok(Self::in_memory(&MemoryStore::of_name(name.as_deref()), &settings));
            }
            Endpoint::Redis(server) => Redis::of_server(server, &settings, tokens.process()),
            Endpoint::Cluster(seeds) => Redis::of_cluster(seeds, &settings, tokens.process()),
            Endpoint::Quorum(voters) => Redis::of_quorum(voters, &settings, tokens.process()),
            Endpoint::Sentinel(watched) => Redis::of_sentinels(watched, &settings, tokens.process()),
        };
        let port = Arc::clone(&backend) as Arc<dyn Backend>;
        let engine = Engine::over(port, Clock::Boot, tokens, settings.rules, settings.lease);
        backend.connect().await?;
        Ok(Self::with_engine(engine, &settings, shown))
    }

    /// Returns a manager of a new store in memory, with default settings.
    #[cfg(test)]
    pub(crate) fn in_new_memory() -> Self {
        Self::in_memory(&MemoryStore::of_name(None), &Settings::default())
    }

    /// Returns a manager of a store in memory.
    pub(crate) fn in_memory(world: &Arc<MemoryStore>, settings: &Settings) -> Self {
        let tokens = TokenSource::new();
        let backend =
            world.join(tokens.process(), (settings.rules.grant_lease, settings.fence_ttl), &settings.owner);
        let engine = Engine::over(backend, world.clock(), tokens, settings.rules, settings.lease);
        Self::with_engine(engine, settings, "memory".to_owned())
    }

    /// Returns a manager of an engine that a test has created.
    #[cfg(test)]
    pub(crate) fn over(engine: Arc<Engine>) -> Self {
        Self::with_engine(engine, &Settings::default(), "a test".to_owned())
    }

    fn with_engine(engine: Arc<Engine>, settings: &Settings, place: String) -> Self {
        let inner = ManagerInner {
            engine,
            namespace: settings.namespace.clone(),
            place,
            owner: Arc::clone(&settings.owner),
            overrides: Arc::clone(&settings.overrides),
            elections: Arc::default(),
            #[cfg(feature = "scheduled")]
            server_clock: Arc::default(),
            #[cfg(feature = "idempotent")]
            idempotency: Arc::new(Idempotency {
                secrets: settings.fingerprint_secrets.clone(),
                duplicates: Arc::default(),
                pending: Arc::default(),
            }),
        };
        Self { shared: Arc::new(inner) }
    }

    /// Returns the same manager with another namespace.
    #[cfg(feature = "testing")]
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        let shared = ManagerInner { namespace: namespace.to_owned(), ..ManagerInner::clone(&self.shared) };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the lock of `key` in this manager's namespace. It is not held yet.
    ///
    /// An invalid key is reported when the lock is acquired.
    #[doc(alias("acquire", "mutex"))]
    pub fn lock(&self, key: impl IntoLockKey) -> Lock {
        Lock::new(self.clone(), key.into_lock_key(self.namespace()), Options::new())
    }

    /// Releases the lock of `key`, whichever process holds it. Returns `true` if it was held.
    ///
    /// The next waiter is granted the lock. It is for an operator who knows that the holder is gone
    /// and does not want to wait for its lease to expire. A holder that is alive is notified
    /// immediately, or detects the loss at its next renewal if the server sends no notifications.
    /// Until then, two bodies may run.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`]; [`Error::Unavailable`] if the server is unavailable;
    /// [`Error::WrongKind`] if the key holds a value that is not a lock of this layout.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not be released.
    pub async fn force_release(&self, key: impl IntoLockKey) -> Result<bool> {
        let key = key.into_lock_key(self.namespace())?;
        let engine = self.engine();
        engine.in_own_process(Some(&key))?;
        engine.uses(key.namespace());
        let answer = engine.request(key.name(), engine.tokens.next(), Command::ForceRelease);
        let reply = usable(&key, engine.reply(answer).await)?;
        Ok(matches!(reply, Reply::Owner))
    }

    /// Returns the state of the lock of `key`, or `None` if it is free.
    ///
    /// It changes nothing and costs one round trip, and another one for the
    /// [owner](LockInfo::owner) if another manager holds the lock. The owner is `None` if it is not
    /// known twice the `response_timeout` after the call. See
    /// [`docs::operating`](crate::docs::operating).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`]; [`Error::Unavailable`] if the server is unavailable;
    /// [`Error::WrongKind`] if the key holds a value that cannot be a lock, such as a list.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    #[doc(alias = "is_locked")]
    pub async fn inspect(&self, key: impl IntoLockKey) -> Result<Option<LockInfo>> {
        let key = key.into_lock_key(self.namespace())?;
        let engine = self.engine();
        engine.in_own_process(Some(&key))?; // before any mutex
        let latest = engine.now().plus(engine.rules.response_timeout * 2);
        let Some(seen) = self.record_of(&key).await? else { return Ok(None) };
        let kept = engine.is_kept(key.name());
        let owner = match seen.holder {
            Some(holder) => self.owner_of(holder, &key, latest).await,
            None => None,
        };
        Ok(Some(LockInfo::new(seen, owner, engine.tokens.process(), kept)))
    }

    /// Returns what the server knows of the lock of `key`; `None` if it is free.
    pub(crate) async fn record_of(&self, key: &LockKey) -> Result<Option<RecordInfo>> {
        let engine = self.engine();
        engine.in_own_process(Some(key))?;
        match usable(key, engine.query(key.name(), Command::Inspect).await)? {
            Reply::Info(seen) => Ok(seen),
            _ => Ok(None),
        }
    }

    /// Checks that this manager can keep records of `what` now. `part` names the feature in an
    /// error.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] over a quorum; [`Error::Shutdown`]; [`Error::Unavailable`] in a forked
    /// process.
    #[cfg(any(feature = "idempotent", feature = "scheduled"))]
    pub(crate) fn check_records(&self, key: &LockKey, part: &str, what: &str) -> Result<()> {
        let engine = self.engine();
        engine.in_own_process(Some(key))?;
        if engine.is_closed() {
            return Err(Error::Shutdown { key: Some(key.clone()) });
        }
        self.check_store(part, what)
    }

    /// Checks that the store of this manager can keep records of `what`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] over a quorum.
    #[cfg(any(feature = "idempotent", feature = "scheduled"))]
    pub(crate) fn check_store(&self, part: &str, what: &str) -> Result<()> {
        if !self.engine().capabilities.store_calls {
            let problem =
                format!("a quorum keeps no records of {what}: use one server, Sentinel, or a cluster");
            return Err(config(part, problem));
        }
        Ok(())
    }

    /// Returns the owner of the manager that holds the lock of `key`, if it can be found until
    /// `latest`.
    pub(crate) async fn owner_of(
        &self,
        holder: ProcessId,
        key: &LockKey,
        latest: BootInstant,
    ) -> Option<String> {
        let engine = self.engine();
        if holder == engine.tokens.process() {
            return Some(self.owner().to_owned());
        }
        match engine.backend.owner_of(holder, key.namespace()) {
            OwnerSource::Unknown => None,
            OwnerSource::Known(owner) => Some(String::from(&*owner)),
            OwnerSource::Server(..) if engine.now() >= latest => None,
            OwnerSource::Server(lookup, owner_in) => tokio::select! {
                biased;
                reply = engine.call(key.name(), &lookup) => owner_in(&reply.ok()?),
                () = engine.backend.sleep(latest.since(engine.now())) => None,
            },
        }
    }

    /// Checks that the server replies to a `PING` on the connection that locks use.
    ///
    /// It waits at most one response timeout. While there is no connection, it fails immediately,
    /// unless one of the first two attempts to replace a lost connection is in progress. In a
    /// cluster, it checks one primary in use, and a disconnected one first. `memory://` is always
    /// ready, except during an outage that a test simulates.
    ///
    /// Use it as a readiness probe, not as a liveness probe: restarting the process does not make
    /// the server reachable.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the server is unavailable, with the reason; [`Error::Config`] if
    /// the server does not allow this user to send commands; [`Error::Shutdown`] after
    /// [`shutdown`](Self::shutdown). None of them names a key.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn ready(&self) -> Result<()> {
        let engine = self.engine();
        engine.in_own_process(None)?;
        if self.is_shut_down() {
            return Err(Error::Shutdown { key: None });
        }
        let name = self.namespace().into();
        let answer = tokio::select! {
            biased;
            answer = engine.query(&name, Command::Ping) => answered(answer),
            () = async { engine.backend.sleep(engine.rules.response_timeout).await } => {
                let limit = engine.rules.response_timeout.as_millis();
                let reason = format!("no reply from the server within {limit} ms");
                Err(Failure::new(FailureKind::Passing, reason))
            }
        };
        answer.map(drop).map_err(Failure::of_the_server)
    }

    /// Returns the ID of this manager, which is random.
    ///
    /// [`LockInfo::holder`] returns it for locks of this manager, and the event `dlock.connected`
    /// has it in its field `manager`.
    #[must_use]
    pub fn id(&self) -> String {
        self.engine().tokens.process().shown()
    }

    /// Returns the [owner](Builder::owner) of this manager: the name that operators see.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.shared.owner
    }

    /// Rejects new requests and releases all locks.
    ///
    /// 1. Waiting calls and all later calls get [`Error::Shutdown`] immediately. A process that
    ///    [leads](Self::leader) resigns.
    /// 2. Holders, idempotent calls, and runs of jobs may finish for the time `grace`, and
    ///    results that the server has not confirmed are sent again. Then the bodies are dropped at
    ///    their next await, and their locks are released.
    /// 3. One response timeout later, all remaining locks are released, even if a body or code with
    ///    a guard is still running.
    /// 4. Releases that are in flight have one more response timeout to be confirmed. If a
    ///    connection was lost shortly before with requests in flight, or if the server is
    ///    unreachable, that takes 1 s longer: a late request may still take effect, and is cleaned
    ///    up then.
    ///
    /// A lock whose release is not confirmed is free when its lease expires. Call it before the
    /// process ends, so that other processes need not wait for leases to expire.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the manager still rejects new requests, and holds last until they
    /// are released or the process ends. Call it again to finish.
    #[doc(alias = "close")]
    pub async fn shutdown(&self, grace: Duration) {
        self.engine().shutdown(grace).await;
        if !self.engine().is_forked() {
            self.shared.overrides.take_unused().for_each(telemetry::override_unused);
        }
    }

    /// Returns `true` if [`shutdown`](Self::shutdown) was called.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.engine().is_closed()
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.shared.namespace
    }

    /// Returns the options of annotated functions that differ from their attributes.
    pub(crate) fn overrides(&self) -> &CallOverrides {
        &self.shared.overrides
    }

    #[cfg(feature = "idempotent")]
    pub(crate) fn idempotency(&self) -> &Idempotency {
        &self.shared.idempotency
    }

    pub(crate) fn elections(&self) -> &Elections {
        &self.shared.elections
    }

    #[cfg(feature = "scheduled")]
    pub(crate) fn server_clock(&self) -> &ServerClock {
        &self.shared.server_clock
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ManagerInner { namespace, place, owner, .. } = &*self.shared;
        f.debug_struct("LockManager")
            .field("id", &self.id())
            .field("owner", owner)
            .field("place", place)
            .field("namespace", namespace)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "idempotent", feature = "scheduled"))]
    #[tokio::test]
    async fn records_need_a_store_and_a_manager_that_is_not_shut_down() {
        let locks = LockManager::in_new_memory();
        let key = LockKey::new("order:7").expect("a key");
        assert!(locks.check_records(&key, "job", "jobs").is_ok());

        locks.shutdown(Duration::ZERO).await;

        let refused = locks.check_records(&key, "job", "jobs");
        assert!(matches!(&refused, Err(Error::Shutdown { key: Some(of) }) if *of == key), "{refused:?}");
        assert!(locks.check_store("job", "jobs").is_ok(), "it is still one server");
    }

    #[tokio::test]
    async fn debug_shows_what_an_operator_needs() {
        let builder = LockManager::builder("memory://").owner("web-1").namespace("shop");
        let locks = builder.connect().await.expect("no server is needed");

        let shown = format!("{locks:?}");

        assert!(shown.contains(&locks.id()) && shown.contains("web-1") && shown.contains("shop"), "{shown}");
    }

    #[cfg(feature = "testing")]
    #[tokio::test]
    async fn a_manager_in_another_namespace_is_the_same_manager() {
        let locks = LockManager::in_new_memory();

        let other = locks.in_namespace("shop");

        let held = other.lock("order:7").acquire().await.expect("it is free");
        assert_eq!((held.key().full_name(), other.id()), ("shop:order:7", locks.id()));
        assert!(locks.lock("order:7").try_acquire().await.expect("memory replies").is_some(), "another lock");
    }
}
