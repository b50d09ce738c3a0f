//! [`Builder`], which configures and connects a manager.

use std::env::VarError;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tls")]
use crate::backend::redis;
use crate::config::call_overrides::{self, CallOverrides};
#[cfg(feature = "tls")]
use crate::config::certificates::Pem;
use crate::config::url::{self, ConnectSpec};
use crate::config::{Settings, config};
use crate::credentials::{Credentials, CredentialsProvider};
use crate::doctor::{self, Report};
use crate::error::Result;
use crate::layout::{Layout, Publish};
use crate::manager::LockManager;

/// Configures a manager. Returned by [`LockManager::builder`].
///
/// Options that are set here take precedence over the parameters of the URL.
///
/// # Examples
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
#[must_use = "a builder does nothing until `connect` or `connect_lazy` is called"]
pub struct Builder {
    url: String,
    /// The options that are set here.
    changes: Vec<SetOption>,
    /// The overrides of annotated functions, as text.
    call_overrides: String,
}

/// An option that is set on a builder.
#[derive(Clone)]
struct SetOption {
    name: &'static str,
    /// The value, as `Debug` shows it. Without one, it is secret.
    shown: Option<String>,
    /// The change to the settings of the URL.
    apply: Arc<dyn Fn(&mut Settings) + Send + Sync>,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), changes: Vec::new(), call_overrides: String::new() }
    }

    /// Sets the prefix of every key in Redis, which a `:` separates from the key. Default: `dlock`.
    ///
    /// An empty namespace adds no prefix, for deployments whose other clients use bare names.
    #[doc(alias = "prefix")]
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        let namespace = namespace.into();
        self.with("namespace", namespace.clone(), move |settings| settings.namespace.clone_from(&namespace))
    }

    /// Sets the name that operators see for this manager. Default: host and process, such as
    /// `web-1:4242`.
    ///
    /// It has 1 to 64 printable ASCII characters, and no spaces. [`LockInfo::owner`] returns it for
    /// locks of this manager, `CLIENT LIST` has it as the name of the manager's connections, and
    /// the event `dlock.connected` has it in its field `owner`. It need not be unique. Users of the
    /// server who may list clients or channels see it, so it must not contain a secret.
    ///
    /// [`LockInfo::owner`]: crate::LockInfo::owner
    #[doc(alias = "client_name")]
    pub fn owner(self, owner: impl AsRef<str>) -> Self {
        let owner: Arc<str> = owner.as_ref().into();
        self.with("owner", Arc::clone(&owner), move |settings| settings.owner = Arc::clone(&owner))
    }

    /// Sets how locks are stored in Redis. Default: [`Layout::Native`]. `memory://` ignores it.
    pub fn layout(self, layout: Layout) -> Self {
        self.with("layout", layout, move |settings| settings.layout = layout)
    }

    /// Sets the command that announces a release with [`Layout::Redisson`]. Default:
    /// [`Publish::Auto`].
    ///
    /// Other layouts do not allow it.
    pub fn publish(self, publish: Publish) -> Self {
        self.with("publish", publish, move |settings| settings.publish = publish)
    }

    /// Sets the lease of calls that set none. Default: 30 s. From 100 ms to 365 days.
    #[doc(alias = "ttl")]
    pub fn lease(self, lease: Duration) -> Self {
        self.with("lease", lease, move |settings| settings.lease = lease)
    }

    /// Sets how long to wait for one reply of the server. Default: 500 ms. From 10 ms to 60 s.
    ///
    /// After that time, the outcome of the command counts as unknown.
    #[doc(alias = "timeout")]
    pub fn response_timeout(self, timeout: Duration) -> Self {
        self.with("response_timeout", timeout, move |settings| settings.rules.response_timeout = timeout)
    }

    /// Sets the time limit for opening one connection. Default: 2 s. From 10 ms to 60 s.
    ///
    /// If the server closes the connection on a command that locks can do without, the attempt to
    /// connect opens another one without this command, unless this time has passed since the
    /// attempt began.
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        self.with("connect_timeout", timeout, move |settings| settings.connect_timeout = timeout)
    }

    /// Sets how long a granted lock is valid before the server confirms it. Default: 1 s.
    ///
    /// It applies to a waiter to which another process hands the lock off, and counts from the
    /// waiter's last answered request. If the two processes have different values, the smaller one
    /// counts. From 100 ms to 60 s.
    pub fn grant_lease(self, lease: Duration) -> Self {
        self.with("grant_lease", lease, move |settings| settings.rules.grant_lease = lease)
    }

    /// Sets how long tasks of this process may hand a lock off to each other in memory.
    ///
    /// Default: 15 ms. After that time, waiters of other processes get the lock. Zero: every
    /// hand-off goes through the server. At most 60 s.
    ///
    /// In the second half of the budget, a release asks the server in the background whether other
    /// processes wait. If none does, the budget starts again. With `layout=redisson` and with a
    /// quorum, the server cannot be asked, and each budget ends with a release.
    pub fn handoff_budget(self, budget: Duration) -> Self {
        self.with("handoff_budget", budget, move |settings| settings.rules.handoff_budget = budget)
    }

    /// Sets how long a fencing counter outlives its last use. Default: 7 days. From 1 minute to 365
    /// days.
    ///
    /// A counter takes about 130 bytes in the server. One that has expired restarts at the server's
    /// time, above every token that it issued, unless the server's clock has stepped back since.
    /// With [`Layout::Redisson`], counters do not expire, and it is an error.
    pub fn fence_ttl(self, ttl: Duration) -> Self {
        self.with("fence_ttl", ttl, move |settings| settings.fence_ttl = ttl)
    }

    /// Sets how often to check a lock whose holder does not announce its release. Default: 100 ms.
    ///
    /// An example is a lock that a client of another library holds. Each delay is random, from 50 %
    /// to 150 % of the interval. From 5 ms to 60 s.
    pub fn poll_interval(self, interval: Duration) -> Self {
        self.with("poll_interval", interval, move |settings| settings.rules.poll_interval = interval)
    }

    /// Sets whether waiters pause so that polling clients of other libraries can acquire.
    ///
    /// Default: `false`. If `true`, once managers have held a lock for 500 ms without a gap, the
    /// next release frees the lock, and their waiters do not contend for a random 100 to 300 ms.
    /// All managers of a fleet should have the same value. See
    /// [`docs::fleets`](crate::docs::fleets).
    #[doc(alias = "share")]
    pub fn yield_to_foreign(self, yield_to_foreign: bool) -> Self {
        self.with("yield_to_foreign", yield_to_foreign, move |settings| {
            settings.rules.yield_to_foreign = yield_to_foreign;
        })
    }

    /// Sets how many replicas must acknowledge a lock, by `WAIT`. Default: 0, the primary alone.
    ///
    /// They must acknowledge it before its body starts, and each renewal before it counts. If fewer
    /// replicas acknowledge within 2/5 of the response timeout, the call keeps trying within its
    /// limits and ends with [`Error::Unavailable`](crate::Error::Unavailable). A hold that cannot
    /// be renewed in this way ends at its deadline.
    ///
    /// Set it to the number of replicas that can become primary: then a failover loses no lock,
    /// with the exceptions that [`docs::safety`](crate::docs::safety#replicas-that-acknowledge)
    /// lists.
    pub fn replica_acks(self, replicas: u8) -> Self {
        self.with("replica_acks", replicas, move |settings| settings.rules.replica_acks = replicas)
    }

    /// Sets whether the server reports changes to held locks (`CLIENT TRACKING`). Default: `true`.
    ///
    /// It covers locks that are held for longer than 100 ms, and locks that clients of other
    /// libraries hold while a task of this manager waits. With it, the loss of a deleted, flushed,
    /// or overwritten lock is usually detected within milliseconds. Without it, or if the server
    /// does not allow it, the next renewal detects it. It takes one more connection.
    pub fn tracking(self, on: bool) -> Self {
        self.with("tracking", on, move |settings| settings.rules.tracking = on)
    }

    /// Sets the certificate authorities, as PEM text, for `rediss://` servers.
    ///
    /// One of them must have signed the server's certificate. Default: those of the system, or of
    /// the file that `SSL_CERT_FILE` names. The URL's `tls_ca` names a file instead.
    #[cfg(feature = "tls")]
    pub fn tls_ca_pem(self, pem: impl AsRef<[u8]>) -> Self {
        let pem = Pem::Text(pem.as_ref().into());
        self.with_secret("tls_ca_pem", move |settings| settings.certificates.ca = Some(pem.clone()))
    }

    /// Sets the client certificate for `rediss://` servers, and its private key, as PEM text.
    ///
    /// The certificate text includes the intermediate certificates. Default: none. The URL's
    /// `tls_cert` and `tls_key` name files instead, which are read again for each connection.
    #[cfg(feature = "tls")]
    pub fn tls_client_certificate_pem(self, cert_pem: impl AsRef<[u8]>, key_pem: impl AsRef<[u8]>) -> Self {
        let [client, key] = [cert_pem.as_ref(), key_pem.as_ref()].map(|pem| Pem::Text(pem.into()));
        self.with_secret("tls_client_certificate_pem", move |settings| {
            settings.certificates.client = Some(client.clone());
            settings.certificates.key = Some(key.clone());
        })
    }

    /// Sets a name that a server's certificate may have instead of the server's host.
    ///
    /// Default: none. It is also the server name that the client sends (SNI). Use it if the
    /// server's address is an IP address, or if a cluster or Sentinel announces addresses, and the
    /// certificates name a host that the URL does not contain. The certificate is verified in all
    /// other respects.
    #[cfg(feature = "tls")]
    pub fn tls_name(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.with("tls_name", name.clone(), move |settings| settings.certificates.name = Some(name.clone()))
    }

    /// Sets a callback that supplies the user and the password instead of the URL.
    ///
    /// It is for credentials that change, such as the tokens of a cloud. It is called for each new
    /// connection: the one for commands, the one for messages, and those for
    /// [`tracking`](Self::tracking) and [`replica_acks`](Self::replica_acks), when the manager
    /// connects and whenever it reconnects. It is not called while a connection lasts, and
    /// `memory://` does not call it.
    ///
    /// The callback runs on its own thread, in the context of a runtime of the manager, so it may
    /// block. It must finish within the `connect_timeout`, and at most 64 calls run at a time. If
    /// it fails, panics, or is late, there is no connection: calls get [`Error::Unavailable`](crate::Error::Unavailable) with the
    /// text of its error, and it is called again after a pause. That text must not contain a
    /// secret.
    ///
    /// # Examples
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
    pub fn credentials<F, Fut>(self, ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        let provider = CredentialsProvider::new(ask);
        self.with_secret("credentials", move |settings| settings.credentials = Some(provider.clone()))
    }

    /// Overrides parameters of functions with `#[distributed_lock]` by the functions' names,
    /// without a rebuild.
    ///
    /// The text is `name: option=value ..; name: ..`, with the options `lease`, `wait`, `retry`,
    /// `max_hold`, and `backoff`. The name is that of the parameter `name`, otherwise
    /// `module::function`, as in the spans. The variable `DLOCK_OVERRIDES` does the same for every
    /// manager of a process, and takes precedence. See
    /// [`docs::operating`](crate::docs::operating#overrides).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
    /// let locks = dlock_runtime::LockManager::builder("memory://")
    ///     .overrides("orders.place: lease=10s wait=2s; nightly: max_hold=2h")
    ///     .connect()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn overrides(mut self, text: impl Into<String>) -> Self {
        self.call_overrides = text.into();
        self
    }

    /// Sets the secret that keys the fingerprints of [idempotent](LockManager::idempotent) calls.
    /// Default: none.
    ///
    /// A record contains a hash of its call's payload. Without a secret, a reader of the server can
    /// guess a payload of few values and check the guess. All processes need the same secret.
    #[cfg(feature = "idempotent")]
    pub fn fingerprint_secret(self, secret: impl AsRef<[u8]>) -> Self {
        let secret: Arc<[u8]> = secret.as_ref().into();
        self.with_secret("fingerprint_secret", move |settings| {
            settings.fingerprint_secrets.current = Some(Arc::clone(&secret));
        })
    }

    /// Sets the secret that was used before [`fingerprint_secret`](Self::fingerprint_secret), so
    /// that the records of earlier calls are still found. Default: none.
    ///
    /// Keep it for one `ttl` after a change. To introduce a first secret, leave it out.
    #[cfg(feature = "idempotent")]
    pub fn previous_fingerprint_secret(self, secret: impl AsRef<[u8]>) -> Self {
        let secret: Arc<[u8]> = secret.as_ref().into();
        self.with_secret("previous_fingerprint_secret", move |settings| {
            settings.fingerprint_secrets.previous = Some(Arc::clone(&secret));
        })
    }

    /// Connects, and returns the manager.
    ///
    /// If the URL has `connect=lazy`, it does not wait for the connection, as
    /// [`connect_lazy`](Self::connect_lazy).
    ///
    /// # Errors
    ///
    /// - [`Error::Config`](crate::Error::Config) if the URL or an option is invalid. It names the
    ///   part, and never prints a password. Part `server`: the server rejects the user or the
    ///   password, or this user lacks a permission that locks need. Part `tls`: the client and the
    ///   server do not accept each other's certificates, and what to do about it.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the server is unreachable or not
    ///   ready.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    #[doc(alias = "build")]
    pub async fn connect(self) -> Result<LockManager> {
        let overrides = self.call_overrides()?;
        let mut target = self.target()?;
        target.settings.overrides = Arc::new(overrides);
        #[cfg(feature = "tls")]
        redis::check_certificates(&target).await?;
        LockManager::open(target).await
    }

    /// Returns a manager that connects in the background.
    ///
    /// A process can then start while its server is unreachable. Calls during the first attempt to
    /// connect wait for it, within their own limits and for at most one response timeout. After it
    /// has failed, calls get [`Error::Unavailable`](crate::Error::Unavailable), and the manager
    /// tries again every 10 ms to 1 s until the server is reachable. Calls with `wait` or `retry`
    /// continue within their limits. [`ready`](LockManager::ready) reports whether there is a
    /// connection. `memory://` needs no connection.
    ///
    /// If the server rejects the user or the password, or is unsuitable, the reason of that error
    /// says so. Prefer [`connect`](Self::connect) if a process that cannot lock must not start.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`](crate::Error::Config) if the URL or an option is invalid, or a
    ///   certificate cannot be read.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the manager's thread cannot be
    ///   created.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the manager.
    ///
    /// # Examples
    ///
    /// ```
    /// # use dlock_runtime::LockManager;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
    /// // No server has this port.
    /// let locks = LockManager::builder("redis://127.0.0.1:1").connect_lazy().await?;
    ///
    /// let refused = locks.lock("order:7").try_acquire().await;
    /// assert!(refused.is_err_and(|error| error.is_unavailable()));
    /// assert!(locks.ready().await.is_err());
    /// # Ok(()) }
    /// ```
    pub async fn connect_lazy(self) -> Result<LockManager> {
        self.with("connect", "lazy", |settings| settings.lazy = true).connect().await
    }

    /// Examines the servers that a manager with these settings would use, as
    /// [`doctor`](fn@crate::doctor) does.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) if the URL or an option is invalid. A server that is
    /// unreachable or refuses the connection is a finding in the report.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the examination. Its test keys expire within seconds.
    pub async fn doctor(self) -> Result<Report> {
        self.call_overrides()?; // a manager would not start with invalid ones
        let target = self.target()?;
        #[cfg(feature = "tls")]
        redis::check_certificates(&target).await?;
        doctor::examine(target).await
    }

    /// Parses the overrides of annotated functions, those of the variable last.
    fn call_overrides(&self) -> Result<CallOverrides> {
        let mut overrides = CallOverrides::default();
        overrides.add("overrides", &self.call_overrides)?;
        match std::env::var(call_overrides::VARIABLE) {
            Ok(text) => overrides.add(call_overrides::VARIABLE, &text)?,
            Err(VarError::NotPresent) => {}
            Err(VarError::NotUnicode(_)) => return Err(config(call_overrides::VARIABLE, "it is not UTF-8")),
        }
        Ok(overrides)
    }

    /// Sets an option.
    fn with(
        self,
        name: &'static str,
        value: impl std::fmt::Debug,
        apply: impl Fn(&mut Settings) + Send + Sync + 'static,
    ) -> Self {
        self.set(SetOption { name, shown: Some(format!("{value:?}")), apply: Arc::new(apply) })
    }

    /// Sets an option whose value is not printed.
    fn with_secret(self, name: &'static str, apply: impl Fn(&mut Settings) + Send + Sync + 'static) -> Self {
        self.set(SetOption { name, shown: None, apply: Arc::new(apply) })
    }

    fn set(mut self, option: SetOption) -> Self {
        self.changes.retain(|earlier| earlier.name != option.name);
        self.changes.push(option);
        self
    }

    /// Applies the options that are set here.
    fn change(&self, mut settings: Settings) -> Settings {
        self.changes.iter().for_each(|option| (option.apply)(&mut settings));
        settings
    }

    /// Parses the URL, and applies the options that are set here.
    fn target(self) -> Result<ConnectSpec> {
        let ConnectSpec { place, settings } = url::parse(&self.url)?;
        let settings = self.change(settings);
        place.check(&settings)?;
        Ok(ConnectSpec { place, settings: settings.checked()? })
    }
}

impl std::fmt::Debug for Builder {
    /// Only what is set here is printed: a URL may hold a password, and its options are parsed when
    /// the manager connects.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = f.debug_struct("Builder");
        for SetOption { name, shown, .. } in &self.changes {
            fields.field(name, &format_args!("{}", shown.as_deref().unwrap_or("..")));
        }
        if !self.call_overrides.is_empty() {
            fields.field("overrides", &self.call_overrides);
        }
        fields.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    type Set = fn(Builder, Duration) -> Builder;

    /// The options that are times, and the minimum of each, in milliseconds.
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

    #[test]
    fn debug_shows_what_the_builder_has_set() {
        let of_url = LockManager::builder("redis://:hunter2@host?lease=10s");
        assert_eq!(format!("{of_url:?}"), "Builder { .. }");

        let set = of_url
            .lease(Duration::from_secs(30))
            .namespace("shop")
            .lease(Duration::from_secs(20))
            .credentials(|| async { Ok(Credentials::new("locks", "hunter2")) })
            .overrides("orders.place: lease=10s");
        assert_eq!(
            format!("{set:?}"),
            r#"Builder { namespace: "shop", lease: 20s, credentials: .., overrides: "orders.place: lease=10s", .. }"#
        );
    }

    #[tokio::test]
    async fn times_are_accepted_at_both_bounds() {
        for (option, least, of) in TIMES {
            for time in [Duration::from_millis(least), Duration::from_secs(60)] {
                let taken = set(of, time).await;
                assert!(taken.is_ok(), "{option} {time:?}: {taken:?}");
            }
        }
    }

    #[tokio::test]
    async fn times_beyond_the_bounds_are_refused_with_the_range() {
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
    async fn leases_beyond_the_bounds_are_refused() {
        for lease in [Duration::ZERO, Duration::from_millis(99), Duration::MAX] {
            assert_refused(set(Builder::lease, lease).await, "lease", "between 100 ms and 365 days");
        }
    }

    #[tokio::test]
    async fn fencing_counters_that_live_too_short_or_too_long_are_refused() {
        for ttl in [Duration::from_secs(59), Duration::MAX] {
            let allowed = "between 1 minute and 365 days";
            assert_refused(set(Builder::fence_ttl, ttl).await, "fence_ttl", allowed);
        }
        for ttl in [Duration::from_secs(60), Duration::from_secs(365 * 24 * 60 * 60)] {
            assert!(set(Builder::fence_ttl, ttl).await.is_ok(), "{ttl:?}");
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
    fn inapplicable_options_are_refused_with_a_remedy() {
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
                ("publish=spublish", "publish", &PLACES),
                ("fence_ttl=1h", "fence_ttl", &[]),
                ("layout=redisson&fence_ttl=1h", "", &PLACES),
                ("layout=redisson&yield_to_foreign=on", "", &PLACES),
                ("tls_ca=ca.pem", "tls", &PLACES),
                ("namespace=%7Ba%7D", "namespace", &PLACES),
            ] {
                let url = format!("{place}?{option}");
                let refused = refusal(&url);
                assert_eq!(refused.is_some(), not_of.contains(&place), "{url}: {refused:?}");
                if let Some(told) = refused {
                    let has_advice =
                        ["leave", "write `rediss", "allowed"].iter().any(|advice| told.contains(advice));
                    assert!(told.starts_with(part) && has_advice, "{url}: {told}");
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

    #[test]
    fn each_method_changes_its_setting() {
        let second = Duration::from_secs(1);
        let settings = LockManager::builder("redis://h")
            .namespace("shop")
            .owner("web-1")
            .lease(11 * second)
            .response_timeout(12 * second)
            .connect_timeout(13 * second)
            .grant_lease(14 * second)
            .handoff_budget(15 * second)
            .poll_interval(16 * second)
            .fence_ttl(170 * second)
            .yield_to_foreign(true)
            .replica_acks(2)
            .tracking(false)
            .target()
            .expect("they are valid")
            .settings;

        assert_eq!((&*settings.namespace, &*settings.owner), ("shop", "web-1"));
        assert_eq!((settings.lease, settings.connect_timeout), (11 * second, 13 * second));
        assert_eq!(settings.fence_ttl, 170 * second);
        let rules = settings.rules;
        assert_eq!((rules.response_timeout, rules.grant_lease), (12 * second, 14 * second));
        assert_eq!((rules.handoff_budget, rules.poll_interval), (15 * second, 16 * second));
        assert_eq!((rules.yield_to_foreign, rules.replica_acks, rules.tracking), (true, 2, false));

        // Not every setting above is valid with this layout.
        let builder = LockManager::builder("redis://h");
        let redisson = builder.layout(Layout::Redisson).publish(Publish::Both);
        let settings = redisson.target().expect("they are valid").settings;
        assert_eq!((settings.layout, settings.publish), (Layout::Redisson, Publish::Both));
    }

    #[tokio::test]
    async fn overrides_are_parsed_when_the_manager_connects() {
        let with = |text: &str| LockManager::builder("memory://").overrides(text).connect();

        let locks = with("orders.place: wait=2s").await.expect("it is valid");
        assert!(locks.overrides().changes("orders.place").is_some());
        assert!(locks.overrides().changes("orders.cancel").is_none());

        let invalid = "orders.place: speed=2s";
        let examined = LockManager::builder("memory://").overrides(invalid).doctor().await;
        for refused in [with(invalid).await.err(), examined.err()] {
            assert!(
                matches!(&refused, Some(Error::Config { part, .. }) if part.contains("overrides")),
                "{refused:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_manager_has_the_owner_and_the_namespace_that_were_set() {
        let builder = LockManager::builder("memory://").owner("web-1").namespace("shop");
        let locks = builder.connect().await.expect("no server is needed");
        let (first, second) = (locks.lock("order:7"), locks.clone());
        assert_eq!((locks.owner(), locks.namespace()), ("web-1", "shop"));
        assert!(second.id() == locks.id() && locks.id().len() > 8);

        let held = first.acquire().await.expect("it is free");

        let seen = locks.inspect("order:7").await.expect("memory replies").expect("it is held");
        assert_eq!((seen.owner(), seen.holder()), (Some("web-1"), Some(&*locks.id())));
        assert_eq!(held.key().full_name(), "shop:order:7");
        drop(held);
        assert!(locks.inspect("order:7").await.expect("memory replies").is_none());
    }
}
