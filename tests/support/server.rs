//! A real Redis or Valkey with its own folder, which can be frozen, killed, and restarted.
//!
//! The binary is that of `DLOCK_REDIS_SERVER`, or otherwise the `redis-server` in `PATH`. A start
//! takes about 20 ms, so each test has its own server and does not see other tests' keys. All
//! methods except [`raw`](RedisServer::raw) block, and therefore work under paused time.
//!
//! With `DLOCK_TEST_ACL=1`, a server without a password or users of its own has the user of the
//! operating guide, and its URL uses that user. Thus locks have only the permissions that the guide
//! recommends. Commands of the test itself run as the default user.
//! user.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::acl;
use crate::authority::{Authority, Identity};
use crate::child::OwnChild;
use crate::port::ReservedPort;
use crate::resp::{Client, Reply};
use crate::wall_clock::WallClock;

/// A server on a free port of 127.0.0.1. It is killed on drop.
#[derive(Debug)]
pub struct RedisServer {
    binary: PathBuf,
    lines: Vec<String>,
    kind: Kind,
    password: Option<String>,
    /// The part of the URL for locks before the host.
    access: String,
    clock: Option<Arc<WallClock>>,
    port: u16,
    tls_port: Option<u16>,
    process: Option<OwnChild>,
    _ports: Vec<ReservedPort>,
    // After the process, so that the folder is removed last.
    dir: TempDir,
}

impl RedisServer {
    /// Starts a server without persistence and without a password.
    ///
    /// # Panics
    ///
    /// Panics if there is no server binary, or if the server does not start. The message includes
    /// its log.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder for a server with other settings.
    #[must_use]
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// Returns the URL for locks, with user and password, if any.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}", self.access, self.port)
    }

    /// Returns the part of the URL before the host, such as `:sesame@`.
    #[must_use]
    pub fn access(&self) -> &str {
        &self.access
    }

    /// Returns the URL followed by `suffix`, such as `?namespace=shop`.
    #[must_use]
    pub fn url_with(&self, suffix: &str) -> String {
        format!("{}{}", self.url(), suffix)
    }

    /// Returns the URL of the TLS port. The certificate must be valid for 127.0.0.1.
    ///
    /// # Panics
    ///
    /// Panics if the server was started without TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("rediss://{}127.0.0.1:{}", self.access, self.tls_port.expect("the server speaks TLS"))
    }

    /// Returns the port for other servers of a cluster: the TLS port, if there is one.
    #[must_use]
    pub fn known_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Returns the path of the Unix socket on which the server also listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }

    /// Returns the folder of the server's files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces the certificate of the server, which takes effect at the next
    /// [`restart`](Self::restart).
    ///
    /// # Panics
    ///
    /// Panics if the folder cannot be written to.
    pub fn show(&self, identity: &Identity) {
        identity.save(&self.dir.path().join(CERTIFICATE), &self.dir.path().join(KEY));
    }

    /// Replaces the authority for client certificates, which takes effect at the next
    /// [`restart`](Self::restart).
    ///
    /// # Panics
    ///
    /// Panics if the folder cannot be written to.
    pub fn trust(&self, authority: &Authority) {
        std::fs::write(self.dir.path().join(AUTHORITY), authority.pem())
            .expect("its folder can be written to");
    }

    /// Returns the port of the server.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the process id.
    ///
    /// # Panics
    ///
    /// Panics after [`kill`](Self::kill).
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Freezes the server with SIGSTOP, and returns when it is stopped.
    ///
    /// Its connections stay open, and it does not reply.
    ///
    /// # Panics
    ///
    /// Panics after [`kill`](Self::kill).
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Resumes a frozen server with SIGCONT.
    ///
    /// # Panics
    ///
    /// Panics after [`kill`](Self::kill).
    pub fn resume(&self) {
        self.process().resume();
    }

    /// Resumes the server with SIGCONT, if it has not been killed.
    pub fn try_resume(&self) {
        if let Some(process) = &self.process {
            process.resume();
        }
    }

    /// Kills the server with SIGKILL, and returns when it has ended. [`restart`](Self::restart)
    /// restarts it.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Restarts the server on the same port and in the same folder. Kills it first if it is
    /// running.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start. The message includes its log.
    pub fn restart(&mut self) {
        self.kill();
        let clock = self.clock.as_deref();
        match launch(&self.binary, &self.lines, self.kind, clock, self.dir.path(), self.port) {
            Ok(process) => self.process = Some(process),
            Err(failure) => panic!("the server did not start again: {}", failure.log),
        }
    }

    /// Allows the documented user keys of further patterns, for tests of other namespaces.
    ///
    /// # Panics
    ///
    /// Panics if the server rejects this.
    pub fn allow_keys(&self, patterns: &[&str]) {
        let patterns: Vec<_> = patterns.iter().map(|pattern| format!("~{pattern}")).collect();
        self.allow(patterns.iter().map(String::as_str));
    }

    /// Gives the documented user further rules of `ACL SETUSER`.
    ///
    /// Does nothing if the URL for locks does not use that user.
    ///
    /// # Panics
    ///
    /// Panics if the server rejects a rule.
    pub fn allow<'a>(&self, words: impl Iterator<Item = &'a str>) {
        if !self.access.starts_with(acl::USER) {
            // The user does not exist, and Redis 6.2 rejects rules for channels of a new user,
            // which has all channels.
            return;
        }
        let words: Vec<_> = ["ACL", "SETUSER", acl::USER].into_iter().chain(words).collect();
        assert_eq!(self.call(&words), Reply::Status("OK".to_owned()));
    }

    /// Opens an asynchronous connection of redis-rs on the current runtime.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn raw(&self) -> redis::aio::MultiplexedConnection {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        redis::Client::open(format!("redis://{password}127.0.0.1:{}", self.port))
            .expect("the URL of the server is valid")
            .get_multiplexed_async_connection()
            .await
            .expect("the server takes connections")
    }

    /// Sends one command on a new connection, and returns the reply. Blocks.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply within 10 s.
    pub fn call<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        self.try_call(words, CALL_LIMIT).expect("the server replies")
    }

    /// Sends one command like [`call`](Self::call), with `limit` for each wait.
    ///
    /// # Errors
    ///
    /// Fails if the server does not reply within `limit`.
    pub fn try_call<W: AsRef<[u8]>>(&self, words: &[W], limit: Duration) -> std::io::Result<Reply> {
        let mut client = Client::connect(self.port, limit)?;
        if let Some(password) = &self.password {
            client.call(&["AUTH", password])?;
        }
        client.call(words)
    }

    /// Returns the major version of Redis whose features the server has. Valkey names one too.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn redis_version(&self) -> u32 {
        let reply = self.call(&["INFO", "server"]);
        let text = reply.text().expect("INFO answers text");
        let version = text.lines().find_map(|line| line.strip_prefix("redis_version:"));
        version.and_then(|version| version.split('.').next()?.parse().ok()).expect("a server has a version")
    }

    /// Returns the number of keys that have no time to live.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn keys_without_expiry(&self) -> i64 {
        const COUNT: &str = "
            local count = 0
            for _, key in ipairs(redis.call('KEYS', '*')) do
              if redis.call('PTTL', key) < 0 then count = count + 1 end
            end
            return count";
        self.call(&["EVAL", COUNT, "0"]).integer().expect("a count")
    }

    /// Returns how often the server has run the command `name` (`set`, `evalsha`), including calls
    /// by scripts.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn command_count(&self, name: &str) -> u64 {
        self.commands().remove(&name.to_lowercase()).unwrap_or_default()
    }

    /// Returns the number of commands since the start, except `INFO` and `AUTH`, which this query
    /// uses.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn command_total(&self) -> u64 {
        self.commands()
            .into_iter()
            .filter(|(name, _)| name != "info" && name != "auth")
            .map(|(_, calls)| calls)
            .sum()
    }

    /// Returns how often the server has run each command since its start, including calls by
    /// scripts.
    ///
    /// The names are like `set` and `client|tracking`.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn commands(&self) -> BTreeMap<String, u64> {
        let reply = self.call(&["INFO", "commandstats"]);
        let lines = reply.text().expect("INFO answers text").lines();
        let calls = lines.filter_map(|line| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), figures.split(',').next()?.parse().ok()?))
        });
        calls.collect()
    }

    fn process(&self) -> &OwnChild {
        self.process.as_ref().expect("the server has not been killed")
    }
}

/// The settings of a server that has not been started.
#[derive(Debug, Default)]
pub struct RedisServerBuilder {
    lines: Vec<String>,
    kind: Kind,
    password: Option<String>,
    tls: Option<(Identity, String)>,
    has_bus: bool,
    clock: Option<Arc<WallClock>>,
    besides: Vec<&'static str>,
}

impl RedisServerBuilder {
    /// Gives the documented user, if tests use it, the rules of [`acl::documented_besides`].
    #[must_use]
    pub fn also_allow(mut self, who: &str) -> Self {
        self.besides.extend(acl::documented_besides(who));
        self
    }

    /// Adds a line of `redis.conf`, such as `maxmemory 2mb` or `user worker on >pw ~dlock:* +@all`.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Sets a password of letters and digits, which is part of the server's URL.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.lines.push(format!("requirepass {password}"));
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a TLS port with this certificate.
    ///
    /// The server requires no client certificate. With the line `tls-auth-clients yes`, it requires
    /// one that `authority` has signed.
    #[must_use]
    pub fn tls(mut self, identity: Identity, authority: &Authority) -> Self {
        self.tls = Some((identity, authority.pem()));
        self.line("tls-auth-clients no")
    }

    /// Gives the server a clock that the test can step.
    #[must_use]
    pub fn wall_clock(mut self, clock: &Arc<WallClock>) -> Self {
        self.clock = Some(Arc::clone(clock));
        self
    }

    /// Makes this a sentinel. Its lines are those of `sentinel.conf`, and its password applies to
    /// it, too.
    #[must_use]
    pub fn sentinel(mut self) -> Self {
        self.kind = Kind::Sentinel;
        self
    }

    /// Makes this a server of a cluster, which considers other servers failed after `node_timeout`.
    #[must_use]
    pub fn of_a_cluster(mut self, node_timeout: Duration) -> Self {
        self.has_bus = true;
        self.line("cluster-enabled yes").line(&format!("cluster-node-timeout {}", node_timeout.as_millis()))
    }

    /// Starts the server, and returns when it replies.
    ///
    /// # Panics
    ///
    /// Panics if there is no server binary, or if the server does not start. The message includes
    /// its log.
    #[must_use]
    pub fn start(self) -> RedisServer {
        let says_who = |line: &String| line.starts_with("user ") || line.starts_with("requirepass ");
        let is_open_to_all = matches!(self.kind, Kind::Server) && !self.lines.iter().any(says_who);
        let Self { mut lines, kind, password, tls, has_bus, clock, besides } = self;
        let mut access = password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        if is_open_to_all && acl::is_asked_for() {
            let words: Vec<_> = acl::documented_user(acl::USER).chain(besides).collect();
            lines.push(format!("user {}", words.join(" ")));
            access = format!("{}:{}@", acl::USER, acl::PASSWORD);
        }
        let binary = find_binary();
        let dir = tempfile::Builder::new()
            .prefix("dlock-redis-")
            .tempdir()
            .expect("a temporary folder can be made");

        if let Some((identity, authority)) = &tls {
            identity.save(&dir.path().join(CERTIFICATE), &dir.path().join(KEY));
            std::fs::write(dir.path().join(AUTHORITY), authority)
                .expect("the server's folder can be written to");
            for (option, file) in [("cert", CERTIFICATE), ("key", KEY), ("ca-cert", AUTHORITY)] {
                lines.push(format!("tls-{option}-file \"{}\"", dir.path().join(file).display()));
            }
        }
        let free = if has_bus { ReservedPort::with_bus } else { ReservedPort::new };
        let mut log = String::new();
        for _ in 0..PORTS_TO_TRY {
            let reserved: Vec<_> = std::iter::once(free()).chain(tls.is_some().then(free)).collect();
            let (port, tls_port) = (reserved[0].number(), reserved.get(1).map(ReservedPort::number));
            let mut lines = lines.clone();
            lines.extend(tls_port.map(|port| format!("tls-port {port}")));
            match launch(&binary, &lines, kind, clock.as_deref(), dir.path(), port) {
                Ok(process) => {
                    let process = Some(process);
                    return RedisServer {
                        binary,
                        lines,
                        kind,
                        password,
                        access,
                        clock,
                        port,
                        tls_port,
                        process,
                        _ports: reserved,
                        dir,
                    };
                }
                Err(failure) if failure.port_was_taken => log = failure.log,
                Err(failure) => panic!("{} did not start: {}", binary.display(), failure.log),
            }
        }
        panic!("{} found no free port in {PORTS_TO_TRY} tries: {log}", binary.display());
    }
}

/// The mode in which the binary is started.
#[derive(Clone, Copy, Debug, Default)]
enum Kind {
    #[default]
    Server,
    Sentinel,
}

impl Kind {
    fn argument(self) -> Option<&'static str> {
        matches!(self, Self::Sentinel).then_some("--sentinel")
    }

    /// Returns a part of the log that shows that the process is ready.
    fn is_ready(self) -> &'static str {
        match self {
            Self::Server => "eady to accept connections",
            Self::Sentinel => "Sentinel ID is",
        }
    }
}

struct LaunchFailure {
    port_was_taken: bool,
    log: String,
}

/// Starts the binary, and waits until it replies on `port`.
fn launch(
    binary: &Path,
    lines: &[String],
    kind: Kind,
    clock: Option<&WallClock>,
    dir: &Path,
    port: u16,
) -> Result<OwnChild, LaunchFailure> {
    let log = dir.join("server.log");
    // The log of the previous start must not be taken for the new one.
    let _ = std::fs::rename(&log, dir.join("server.last.log"));
    let config = dir.join("redis.conf");
    std::fs::write(&config, configuration(lines, dir, &log, port))
        .expect("the server's folder can be written to");
    let output =
        std::fs::File::create(dir.join("output.log")).expect("the server's folder can be written to");

    let mut command = Command::new(binary);
    let errors = output.try_clone().expect("a file can be opened twice");
    command.arg(&config).args(kind.argument()).stdin(Stdio::null()).stdout(output).stderr(errors);
    if let Some(clock) = clock {
        clock.give_to(&mut command);
    }
    let mut process = OwnChild::spawn(&mut command, Some(dir))
        .map_err(|error| LaunchFailure { port_was_taken: false, log: error.to_string() })?;

    let started = Instant::now();
    let ended = loop {
        if answers(port) && log_says(&log, kind.is_ready()) {
            return Ok(process);
        }
        if let Some(status) = process.ended() {
            break format!("it ended with {status}");
        }
        if started.elapsed() > START_LIMIT {
            break format!("it did not reply within {START_LIMIT:?}");
        }
        std::thread::sleep(POLL);
    };

    let mut text = ended;
    for file in ["output.log", "server.log"] {
        let content = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        let _ = write!(text, "\n--- {file}\n{content}");
    }
    Err(LaunchFailure { port_was_taken: text.contains("Address already in use"), log: text })
}

fn configuration(lines: &[String], dir: &Path, log: &Path, port: u16) -> String {
    let mut text = format!(
        "port {port}\nbind 127.0.0.1\nunixsocket \"{}\"\ndir \"{}\"\nlogfile \"{}\"\nsave \"\"\nappendonly no\ndaemonize no\n",
        dir.join(SOCKET).display(),
        dir.display(),
        log.display()
    );
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Returns `true` if a loaded Redis replies on `port`. A request for a password is a reply, too.
fn answers(port: u16) -> bool {
    let reply = Client::connect(port, CALL_LIMIT).and_then(|mut client| client.call(&["PING"]));
    matches!(reply.as_ref().map(Reply::text), Ok(Some(text)) if !text.starts_with("LOADING"))
}

/// Returns `true` if the log shows that this server is ready.
///
/// A server whose port was taken by another process never writes this line.
fn log_says(log: &Path, ready: &str) -> bool {
    std::fs::read_to_string(log).is_ok_and(|text| text.contains(ready))
}

/// Returns `true` if the binary was built with TLS.
///
/// With a port for TLS and no certificate, each build ends before it listens. Only a build with TLS
/// looks for the certificate: the others know no such setting, or ignore it if the port is 0.
pub(crate) fn speaks_tls() -> bool {
    static SPEAKS: OnceLock<bool> = OnceLock::new();
    *SPEAKS.get_or_init(|| {
        let ended = Command::new(find_binary()).args(["--port", "0", "--tls-port", "1"]).output();
        let output = ended.expect("there is a server binary");
        [output.stdout, output.stderr]
            .iter()
            .any(|text| String::from_utf8_lossy(text).contains("Failed to configure TLS"))
    })
}

fn find_binary() -> PathBuf {
    if let Some(named) = std::env::var_os("DLOCK_REDIS_SERVER").filter(|named| !named.is_empty()) {
        return PathBuf::from(named);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("redis-server")).find(|file| file.is_file());
    found.expect(
        "no `redis-server` in PATH: run the tests with `bash tests/run.sh`, which finds or installs one, \
         or name a binary in DLOCK_REDIS_SERVER",
    )
}

const SOCKET: &str = "redis.sock";
const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";
const AUTHORITY: &str = "authority.crt";
const PORTS_TO_TRY: u32 = 5;
const START_LIMIT: Duration = Duration::from_secs(10);
/// Long enough for a server on a busy machine that was just resumed.
const CALL_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(3);
