//! The manager of all locks of a process.
//!
//! Not here: which manager an annotated function uses (`global`), what it does with a lock (`engine`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::memory::MemoryStore;
use crate::backend::redis;
use crate::builder::Builder;
use crate::config::Settings;
use crate::config::url::{ConnectSpec, Endpoint};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::guard::{answered, usable};
use crate::key::IntoLockKey;
use crate::lock::Lock;
use crate::lock_info::LockInfo;
use crate::options::Options;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::timer;

/// Holds the connection and the engine for all locks of a process. Cheap to clone; all clones are one manager.
///
/// One manager serves any number of tasks, keys and runtimes. Unless [`Io`](crate::Io) says otherwise, its connections live on a thread of their own, so that leases are
/// renewed while the application's threads are busy, and after the runtime that made it has ended. (`memory://` has no thread: it
/// runs inside the tasks that use it, under tokio's clock.) It belongs to the process that connected: after `fork`, connect again in the
/// child. When its last clone and the last guard are gone it sends what is left to
/// send and ends; a process that exits at once may cut that short, so call [`shutdown`](Self::shutdown) first.
#[derive(Clone)]
pub struct LockManager {
    shared: Arc<ManagerInner>,
}

struct ManagerInner {
    engine: Arc<Engine>,
    namespace: String,
    place: String,
}

impl LockManager {
    /// Connects to `url`, for `manager = ..`, for [`with_manager`](crate::with_manager) and for tests; installs nothing.
    ///
    /// # Errors
    ///
    /// As [`Builder::connect`]: [`Error::Config`] for a URL that cannot be used and for a server that refuses
    /// the user or the password, [`Error::Unavailable`] for a server that cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the connection.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Starts a manager for `url` whose options are set by methods.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    pub(crate) async fn open(target: ConnectSpec) -> Result<Self> {
        let ConnectSpec { place, settings } = target;
        match place {
            Endpoint::Memory { name } => {
                timer::check_runtime()?;
                tracing::warn!(
                    name: "dlock.in_process_only",
                    target: "dlock",
                    world = name.as_deref(),
                    scope = "this process alone",
                    "dlock.in_process_only"
                );
                Ok(Self::in_memory(&MemoryStore::of_name(name.as_deref()), &settings))
            }
            Endpoint::Redis(server) => {
                let place = server.to_string();
                Ok(Self::new(redis::connect(server, &settings).await?, &settings, place))
            }
            Endpoint::Cluster(seeds) => {
                let place = seeds.to_string();
                Ok(Self::new(redis::connect_to_cluster(seeds, &settings).await?, &settings, place))
            }
            Endpoint::Quorum(voters) => {
                let place = voters.to_string();
                Ok(Self::new(redis::connect_to_quorum(voters, &settings).await?, &settings, place))
            }
            Endpoint::Sentinel(watched) => {
                let place = watched.to_string();
                Ok(Self::new(redis::connect_by_sentinels(watched, &settings).await?, &settings, place))
            }
        }
    }

    /// Joins a world in memory.
    pub(crate) fn in_memory(world: &Arc<MemoryStore>, settings: &Settings) -> Self {
        Self::new(world.join(settings), settings, "memory".to_owned())
    }

    /// A manager over an engine that a test has made.
    #[cfg(test)]
    pub(crate) fn over(engine: Arc<Engine>) -> Self {
        Self::new(engine, &Settings::default(), "a test".to_owned())
    }

    fn new(engine: Arc<Engine>, settings: &Settings, place: String) -> Self {
        let namespace = settings.namespace.clone();
        Self { shared: Arc::new(ManagerInner { engine, namespace, place }) }
    }

    /// The same manager for another namespace.
    #[cfg(feature = "testing")]
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        let ManagerInner { engine, place, .. } = &*self.shared;
        let shared = ManagerInner {
            engine: Arc::clone(engine),
            namespace: namespace.to_owned(),
            place: place.clone(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the lock of `key`, in this manager's namespace; nothing is held yet. A key that is not valid is reported when the
    /// lock is asked for.
    pub fn lock(&self, key: impl IntoLockKey) -> Lock {
        Lock::new(self.clone(), key.into_lock_key(self.namespace()), Options::new())
    }

    /// Takes the lock of `key` from whoever holds it, as if he had released it: the next waiter gets it. Returns whether somebody
    /// held it.
    ///
    /// For the operator who knows that the holder is gone for good and does not want to wait for the lease. A holder that lives is
    /// told at once, or finds out at its next renewal where the server does not tell; until then two bodies may run.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`], [`Error::Unavailable`] when the server cannot be
    /// asked, and [`Error::WrongKind`] when something that is no lock of this kind stands under the name.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may or may not take the lock.
    pub async fn force_release(&self, key: impl IntoLockKey) -> Result<bool> {
        let key = key.into_lock_key(self.namespace())?;
        let engine = self.engine();
        engine.in_own_process(Some(&key))?;
        engine.uses(key.namespace());
        let answer = engine.ask(key.name(), engine.tokens.next(), Command::ForceRelease);
        let reply = usable(&key, engine.reply(answer).await)?;
        Ok(matches!(reply, Reply::Owner))
    }

    /// Looks at the lock of `key` and returns what stands there; `None` when nobody holds it. It changes nothing and costs one round
    /// trip. See [`docs::operating`](crate::docs::operating).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`], [`Error::Unavailable`] when the server cannot be asked, and [`Error::WrongKind`] when something that
    /// cannot be a lock stands under the name, such as a list.
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing.
    pub async fn inspect(&self, key: impl IntoLockKey) -> Result<Option<LockInfo>> {
        let key = key.into_lock_key(self.namespace())?;
        let engine = self.engine();
        engine.in_own_process(Some(&key))?;
        match usable(&key, engine.query(key.name(), Command::Inspect).await)? {
            Reply::Info(sight) => Ok(sight.map(|sight| LockInfo::new(sight, engine.tokens.process()))),
            _ => Ok(None),
        }
    }

    /// Returns whether locks can be asked for now: the server answers a `PING`, over the connection that locks use. It waits no longer
    /// than the response timeout, and not at all while there is no connection, unless the first attempt to replace a lost one is under
    /// way; in a cluster, to any of its masters. `memory://` is always ready, but for an outage that a test makes.
    ///
    /// It is for a readiness probe, not for one of liveness: a process that is started anew reaches a server that is away no better.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when the server cannot be asked, with the reason; [`Error::Config`] when it will not let this user ask;
    /// [`Error::Shutdown`] after [`shutdown`](Self::shutdown). None names a key.
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing.
    pub async fn ready(&self) -> Result<()> {
        let engine = self.engine();
        engine.in_own_process(None)?;
        if engine.is_closed() {
            return Err(Error::Shutdown { key: None });
        }
        let name = self.namespace().into();
        let answer = tokio::select! {
            biased;
            answer = engine.query(&name, Command::Ping) => answered(answer),
            () = async { engine.backend.sleep(engine.rules.response_timeout).await } => {
                let limit = engine.rules.response_timeout.as_millis();
                let reason = format!("no answer from the server within {limit} ms");
                Err(Failure::new(FailureKind::Passing, reason))
            }
        };
        answer.map(drop).map_err(Failure::of_the_server)
    }

    /// Returns what [`LockInfo::holder`] shows for the locks of this manager, and the event `dlock.connected` in its field
    /// `manager`. It is drawn at random for each manager.
    #[must_use]
    pub fn id(&self) -> String {
        self.engine().tokens.process().shown()
    }

    /// Releases everything and takes no new work.
    ///
    /// Who waits gets [`Error::Shutdown`] at once, and so does everybody who comes later. Who holds a lock
    /// may finish until `deadline` has passed; then bodies are dropped at their next await and their locks released, and a response
    /// timeout later what is still held is released though a body, or the code with a guard, may be at work. Releases that are on their
    /// way then have one more response timeout to be confirmed. Where a connection was lost a moment ago with an answer under way, and
    /// where the server is away, that takes a second longer: what was asked for may arrive late, and is given back then. What is not
    /// confirmed is free after its lease.
    /// Call it when the process is told to stop: others need not wait for the leases then.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the manager refusing new work; holds go on until they are released or their process ends. Call it again
    /// to finish.
    pub async fn shutdown(&self, deadline: Duration) {
        self.shared.engine.shutdown(deadline).await;
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.shared.namespace
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ManagerInner { namespace, place, .. } = &*self.shared;
        f.debug_struct("LockManager")
            .field("id", &self.id())
            .field("place", place)
            .field("namespace", namespace)
            .finish_non_exhaustive()
    }
}
