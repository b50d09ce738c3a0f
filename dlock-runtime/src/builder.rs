//! Configures a manager by methods.
//!
//! Not here: the options and their bounds (`config`), how a URL is read (`config::url`).

use std::error::Error as StdError;
use std::time::Duration;

#[cfg(feature = "tls")]
use crate::backend::redis;
use crate::config::certificates::Certificates;
#[cfg(feature = "tls")]
use crate::config::certificates::Pem;
use crate::config::config;
use crate::config::quorum::QuorumEndpoint;
use crate::config::url::{self, ConnectSpec, Endpoint};
use crate::credentials::{Credentials, CredentialsSource};
use crate::doctor::{self, Report};
use crate::error::Result;
use crate::io::Io;
use crate::layout::{Layout, Publish};
use crate::manager::LockManager;

/// Configures a manager; made by [`LockManager::builder`]. What is set here wins over the URL's parameters.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// let locks = dlock_runtime::LockManager::builder("memory://")
///     .namespace("shop")
///     .lease(Duration::from_secs(10))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect` is called"]
pub struct Builder {
    url: String,
    changes: Changes,
}

#[derive(Clone, Debug, Default)]
struct Changes {
    namespace: Option<String>,
    layout: Option<Layout>,
    publish: Option<Publish>,
    lease: Option<Duration>,
    response_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    grant_lease: Option<Duration>,
    handoff_budget: Option<Duration>,
    poll_interval: Option<Duration>,
    yield_to_foreign: Option<bool>,
    replica_acks: Option<u8>,
    tracking: Option<bool>,
    io: Option<Io>,
    certificates: Certificates,
    credentials: Option<CredentialsSource>,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), changes: Changes::default() }
    }

    /// Sets what stands before every key in Redis, with a `:` between. Default: `dlock`. Empty: nothing, for fleets whose other
    /// clients use bare names.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.changes.namespace = Some(namespace.into());
        self
    }

    /// Sets how locks stand in Redis. Default: [`Layout::Native`]. `memory://` has but one layout and goes by none.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.changes.layout = Some(layout);
        self
    }

    /// Sets by which command a release is told in [`Layout::Redisson`], and in no other layout. Default: [`Publish::Auto`].
    pub fn publish(mut self, publish: Publish) -> Self {
        self.changes.publish = Some(publish);
        self
    }

    /// Sets the lease of calls that name none. Default: 30 s. From 100 ms to 365 days.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.changes.lease = Some(lease);
        self
    }

    /// Sets how long the server may take for one answer; after that the outcome counts as unknown. Default: 500 ms. From
    /// 10 ms to 60 s.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.changes.response_timeout = Some(timeout);
        self
    }

    /// Sets how long one attempt to connect may take. Default: 2 s. From 10 ms to 60 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.changes.connect_timeout = Some(timeout);
        self
    }

    /// Sets how long a waiter that was handed the lock has it before it is confirmed, counted from when it asked last. Default: 1 s. From
    /// 100 ms to 60 s.
    pub fn grant_lease(mut self, lease: Duration) -> Self {
        self.changes.grant_lease = Some(lease);
        self
    }

    /// Sets how long tasks of this process may hand a lock to each other in memory before other processes get their turn. Default:
    /// 15 ms. Zero: every hand-over asks the server. At most 60 s.
    ///
    /// Whether others wait the server is asked in the second half of it, by a task that lets go, while the next one goes on; where nobody
    /// does they go on for another. With `layout=redisson` and over a quorum it cannot be asked, and the lock is free for a moment after each.
    pub fn handoff_budget(mut self, budget: Duration) -> Self {
        self.changes.handoff_budget = Some(budget);
        self
    }

    /// Sets how often a lock is looked at whose holder tells nobody of its release, such as a client of another library. Default:
    /// 100 ms, spread by half. From 5 ms to 60 s.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.changes.poll_interval = Some(interval);
        self
    }

    /// Sets whether waiters of this manager pause so that clients of other libraries, which poll, can acquire the lock. Default: `false`.
    ///
    /// If `true`, once managers have held a lock for 500 ms without a gap, the next release frees the lock, and their waiters do not
    /// contend for a random 100 to 300 ms. All managers of a fleet should have the same value. See [`docs::fleets`](crate::docs::fleets).
    #[doc(alias = "share")]
    pub fn yield_to_foreign(mut self, yield_to_foreign: bool) -> Self {
        self.changes.yield_to_foreign = Some(yield_to_foreign);
        self
    }

    /// Sets how many replicas must have acknowledged a lock, by `WAIT`, before its body starts, and each renewal before it counts.
    /// Default: 0, the master alone. Where fewer do so in two fifths of the response timeout, the call goes on trying within its limit and
    /// ends as [`Error::Unavailable`](crate::Error::Unavailable); a hold that cannot be renewed so ends at its deadline.
    ///
    /// Name all replicas that can become a master: then a lock is not lost by a fail-over. See [`docs::safety`](crate::docs::safety).
    pub fn replica_acks(mut self, replicas: u8) -> Self {
        self.changes.replica_acks = Some(replicas);
        self
    }

    /// Sets whether the server is asked to tell of changes of the locks that are held for longer than a tenth of a second, and of those that
    /// clients of other libraries hold while somebody here waits. Default: yes. Then a theft, a deletion or a flush is told within
    /// milliseconds; else, and where the server does not let us, at the next renewal. It takes a connection of its own.
    pub fn tracking(mut self, on: bool) -> Self {
        self.changes.tracking = Some(on);
        self
    }

    /// Sets where the connections are driven: on a thread of their own, or by tasks on the runtime that connects. Default:
    /// [`Io::Thread`]. [`Io::Runtime`] needs timers and i/o of that runtime, and says what blocking it costs. `memory://` has no
    /// connections: with it `Io::Runtime` is [`Error::Config`](crate::Error::Config).
    pub fn io(mut self, io: Io) -> Self {
        self.changes.io = Some(io);
        self
    }

    /// Sets the authorities, as PEM text, of which one must have signed the certificate of a `rediss://` server. Default: those of the
    /// system, or of the file that `SSL_CERT_FILE` names. The URL's `tls_ca` names a file instead.
    #[cfg(feature = "tls")]
    pub fn tls_ca(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.changes.certificates.ca = Some(Pem::Text(pem.as_ref().into()));
        self
    }

    /// Sets the certificate that we show to a `rediss://` server, with those between it and its authority, and its private key, as
    /// PEM texts. Default: none. The URL's `tls_cert` and `tls_key` name files instead, which are read anew for each connection.
    #[cfg(feature = "tls")]
    pub fn tls_client_certificate(mut self, cert_pem: impl AsRef<[u8]>, key_pem: impl AsRef<[u8]>) -> Self {
        self.changes.certificates.client = Some(Pem::Text(cert_pem.as_ref().into()));
        self.changes.certificates.key = Some(Pem::Text(key_pem.as_ref().into()));
        self
    }

    /// Sets a name that the certificate of a `rediss://` server may be for instead of the host that the server is reached by. Default:
    /// none. It is also the name that the server is asked for (SNI).
    ///
    /// Use it if a server is reached by an address, or if a cluster or Sentinel announces addresses, and the certificates are for a name
    /// that is not a host of the URL. The certificate is verified in all other respects.
    #[cfg(feature = "tls")]
    pub fn tls_name(mut self, name: impl Into<String>) -> Self {
        self.changes.certificates.name = Some(name.into());
        self
    }

    /// Sets what is asked for user and password in place of the URL's, for those that change, such as the tokens of a cloud.
    ///
    /// It is asked for each new connection: for the one for commands and for the one for messages, for those that
    /// [`tracking`](Self::tracking) and [`replica_acks`](Self::replica_acks) take, at the start and whenever one is made anew, and never
    /// while they are connected. It runs on a thread of its own, in the context of the runtime
    /// that drives the connections ([`io`](Self::io)), so it may block. It has the `connect_timeout`, and at most 64 calls run at a time. Where it fails, panics or is late there is no connection, which
    /// [`Error::Unavailable`](crate::Error::Unavailable) says with the text of its error, and it is asked again after a pause. Put no
    /// secret into that text. `memory://` does not ask it.
    ///
    /// ```no_run
    /// # async fn token_of_the_cloud() -> std::io::Result<String> { Ok(String::new()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
    /// use dlock_runtime::{Credentials, LockManager};
    ///
    /// let locks = LockManager::builder("rediss://cache.example:6379")
    ///     .credentials(|| async { Ok(Credentials::new("locks", token_of_the_cloud().await?)) })
    ///     .connect()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn credentials<F, Fut>(mut self, ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        self.changes.credentials = Some(CredentialsSource::new(ask));
        self
    }

    /// Connects, and returns the manager.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) for a URL or an option that cannot be used: it names the part, and never prints a password.
    /// With the part `server` it says that the server refuses the user or the password, or that this user may not do what locks need;
    /// with the part `tls`, that the two do not accept each other's certificates, and what to do about it.
    /// [`Error::Unavailable`](crate::Error::Unavailable) when the server cannot be reached, or is not ready.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the connection.
    pub async fn connect(self) -> Result<LockManager> {
        let target = self.target()?;
        #[cfg(feature = "tls")]
        redis::check_certificates(&target).await?;
        LockManager::open(target).await
    }

    /// Examines the servers that a manager with these settings would use, as [`doctor`](fn@crate::doctor) does.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) for a URL or an option that cannot be used. A server that cannot be reached, or refuses
    /// us, is in the report.
    ///
    /// # Cancel safety
    ///
    /// Dropping it ends the examination; its key ends with its time to live, within seconds.
    pub async fn doctor(self) -> Result<Report> {
        let target = self.target()?;
        #[cfg(feature = "tls")]
        redis::check_certificates(&target).await?;
        doctor::examine(target).await
    }

    /// Reads the URL, and sets what is set here.
    fn target(self) -> Result<ConnectSpec> {
        let mut target = url::parse(&self.url)?;
        let Changes {
            namespace,
            layout,
            publish,
            lease,
            response_timeout,
            connect_timeout,
            grant_lease,
            handoff_budget,
            poll_interval,
            yield_to_foreign,
            replica_acks,
            tracking,
            io,
            certificates,
            credentials,
        } = self.changes;
        let settings = &mut target.settings;
        set(&mut settings.namespace, namespace);
        set(&mut settings.layout, layout);
        set(&mut settings.publish, publish);
        set(&mut settings.lease, lease);
        set(&mut settings.rules.response_timeout, response_timeout);
        set(&mut settings.connect_timeout, connect_timeout);
        set(&mut settings.rules.grant_lease, grant_lease);
        set(&mut settings.rules.handoff_budget, handoff_budget);
        set(&mut settings.rules.poll_interval, poll_interval);
        set(&mut settings.rules.yield_to_foreign, yield_to_foreign);
        set(&mut settings.rules.replica_acks, replica_acks);
        set(&mut settings.rules.tracking, tracking);
        set(&mut settings.io, io);
        set(&mut settings.credentials, credentials.map(Some));
        let Certificates { ca, client, key, name, .. } = certificates;
        set(&mut settings.certificates.ca, ca.map(Some));
        set(&mut settings.certificates.client, client.map(Some));
        set(&mut settings.certificates.key, key.map(Some));
        set(&mut settings.certificates.name, name.map(Some));
        let (speaks_tls, cure) = match &target.place {
            Endpoint::Redis(server) if server.socket.is_some() => {
                (false, "a unix socket has no TLS: leave them out")
            }
            Endpoint::Redis(server) => (server.tls, "the URL asks for no TLS: write `rediss://`"),
            Endpoint::Sentinel(watched) => {
                (watched.master.tls, "the URL asks for no TLS: write `rediss+sentinel://`")
            }
            Endpoint::Cluster(seeds) => {
                (seeds.access.tls, "the URL asks for no TLS: write `rediss+cluster://`")
            }
            Endpoint::Quorum(QuorumEndpoint(servers)) => {
                (servers.iter().all(|server| server.tls), "the URL asks for no TLS: write `rediss+quorum://`")
            }
            Endpoint::Memory { .. } => (false, "`memory://` has no TLS: leave them out"),
        };
        if settings.certificates.are_given() && !speaks_tls {
            return Err(config("tls", format!("certificates are given, and {cure}")));
        }
        if settings.certificates.name.is_some() && !speaks_tls {
            return Err(config("tls_name", format!("it is for TLS, and {cure}")));
        }
        let replicas = match &target.place {
            Endpoint::Redis(_) | Endpoint::Sentinel(_) | Endpoint::Cluster(_) => Ok(()),
            Endpoint::Quorum(_) => Err("the servers of a quorum have none: leave it out"),
            Endpoint::Memory { .. } => Err("`memory://` has none: leave it out"),
        };
        if let (Err(problem), 1..) = (replicas, settings.rules.replica_acks) {
            return Err(config("replica_acks", problem));
        }
        if let (Endpoint::Memory { .. }, Io::Runtime) = (&target.place, settings.io) {
            return Err(config("io", "`memory://` has no connections: leave it out"));
        }
        if let Endpoint::Quorum(_) = target.place {
            if target.settings.layout == Layout::Redisson {
                return Err(config("layout", "a quorum has one of its own: leave it out"));
            }
            if target.settings.rules.yield_to_foreign {
                let problem =
                    "who waits for a quorum has no queue to come before those who poll: leave it out";
                return Err(config("yield_to_foreign", problem));
            }
        }
        target.settings = target.settings.checked()?;
        Ok(target)
    }
}

impl std::fmt::Debug for Builder {
    /// The URL is not printed: it may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("changes", &self.changes).finish_non_exhaustive()
    }
}

fn set<T>(setting: &mut T, change: Option<T>) {
    if let Some(change) = change {
        *setting = change;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    type Set = fn(Builder, Duration) -> Builder;

    /// The options that are times, with the least that each allows in milliseconds.
    const TIMES: [(&str, u64, Set); 5] = [
        ("response_timeout", 10, Builder::response_timeout),
        ("connect_timeout", 10, Builder::connect_timeout),
        ("grant_lease", 100, Builder::grant_lease),
        ("handoff_budget", 0, Builder::handoff_budget),
        ("poll_interval", 5, Builder::poll_interval),
    ];

    async fn set(set: Set, time: Duration) -> Result<LockManager> {
        set(LockManager::builder("memory://"), time).connect().await
    }

    #[track_caller]
    fn assert_refused(refused: Result<LockManager>, option: &str, allowed: &str) {
        match refused {
            Err(Error::Config { part, problem }) => {
                assert!(&*part == option && problem.ends_with(allowed), "{option}: {part}: {problem}");
            }
            other => panic!("{option}: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_time_is_taken_at_both_ends_of_what_is_allowed() {
        for (option, least, of) in TIMES {
            for time in [Duration::from_millis(least), Duration::from_secs(60)] {
                let taken = set(of, time).await;
                assert!(taken.is_ok(), "{option} {time:?}: {taken:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_time_beyond_either_end_is_refused_and_told_what_is_allowed() {
        for (option, least, of) in TIMES {
            let allowed = format!("between {least} ms and 60 s");
            for time in [Duration::from_millis(60_001), Duration::from_secs(u64::MAX), Duration::MAX] {
                assert_refused(set(of, time).await, option, &allowed);
            }
            if let Some(less) = Duration::from_millis(least).checked_sub(Duration::from_nanos(1)) {
                assert_refused(set(of, less).await, option, &allowed);
            }
            let url = format!("memory://?{option}=2m");
            assert_refused(LockManager::connect(&url).await, option, &allowed);
        }
    }

    #[tokio::test]
    async fn a_lease_beyond_either_end_is_refused() {
        for lease in [Duration::ZERO, Duration::from_millis(99), Duration::MAX] {
            assert_refused(set(Builder::lease, lease).await, "lease", "between 100 ms and 365 days");
        }
    }

    const PLACES: [&str; 6] = [
        "redis://h",
        "redis+unix:///run/redis.sock",
        "redis+sentinel://h1,h2/m",
        "redis+cluster://h1,h2",
        "redis+quorum://h1,h2,h3",
        "memory://",
    ];

    fn refusal(url: &str) -> Option<String> {
        let Err(error) = LockManager::builder(url).target() else { return None };
        let Error::Config { part, problem } = &error else { panic!("{url}: {error:?}") };
        Some(format!("{part}: {problem}"))
    }

    #[test]
    fn an_option_is_refused_with_its_cure_just_where_it_means_nothing() {
        const QUORUM: &str = "redis+quorum://h1,h2,h3";
        for place in PLACES {
            for (option, part, not_of) in [
                ("tracking=off", "tracking", &[][..]),
                ("layout=native&yield_to_foreign=off&publish=auto&replica_acks=0", "layout", &[]),
                ("layout=redisson", "layout", &[QUORUM]),
                ("layout=redisson&publish=both", "layout", &[QUORUM]),
                ("yield_to_foreign=on", "yield_to_foreign", &[QUORUM]),
                ("replica_acks=2", "replica_acks", &[QUORUM, "memory://"]),
                ("layout=redisson&replica_acks=2", "", &[QUORUM, "memory://"]),
                ("io=thread", "io", &[]),
                ("io=runtime", "io", &["memory://"]),
                ("publish=spublish", "publish", &PLACES),
                ("layout=redisson&yield_to_foreign=on", "", &PLACES),
                ("tls_ca=ca.pem", "tls", &PLACES),
                ("namespace=%7Ba%7D", "namespace", &PLACES),
            ] {
                let url = format!("{place}?{option}");
                let refused = refusal(&url);
                assert_eq!(refused.is_some(), not_of.contains(&place), "{url}: {refused:?}");
                if let Some(told) = refused {
                    let has_cure =
                        ["leave", "write `rediss", "allowed"].iter().any(|cure| told.contains(cure));
                    assert!(told.starts_with(part) && has_cure, "{url}: {told}");
                }
            }
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn certificates_are_for_every_scheme_with_tls() {
        for place in PLACES.iter().filter(|place| !place.contains("unix") && !place.starts_with("memory")) {
            let url = format!("{}?tls_ca=ca.pem", place.replacen("redis", "rediss", 1));
            assert_eq!(refusal(&url), None, "{url}");
        }
    }
}
