//! A Redis server on a free port, and its statistics.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::Failure;

/// A running server. Dropping it stops the server.
#[derive(Debug)]
pub(crate) struct Server {
    process: Child,
    port: u16,
    folder: PathBuf,
}

/// The result of starting a server.
pub(crate) enum Start {
    Running(Server),
    /// There is no server on this machine, with the reason.
    Missing(String),
}

impl Start {
    /// Returns the server, or an error if there is none.
    pub(crate) fn running(self) -> Result<Server, Failure> {
        match self {
            Self::Running(server) => Ok(server),
            Self::Missing(reason) => Err(reason.into()),
        }
    }
}

impl Server {
    /// Starts a server that keeps nothing on disk.
    pub(crate) async fn start() -> Result<Start, Failure> {
        Self::start_with(free_port()?, &[]).await
    }

    /// Starts a server that is a cluster of one node.
    pub(crate) async fn start_cluster() -> Result<Start, Failure> {
        let mut port = free_port()?;
        while port.checked_add(10_000).is_none() {
            port = free_port()?; // the cluster bus uses the port plus 10,000
        }
        let started = Self::start_with(port, &["--cluster-enabled", "yes"]).await?;
        if let Start::Running(server) = &started {
            let mut connection = server.connect().await?;
            redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16_383).exec_async(&mut connection).await?;
            let is_up = async || -> Result<bool, Failure> {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(&mut connection).await?;
                Ok(info.contains("cluster_state:ok"))
            };
            until(is_up).await?;
        }
        Ok(started)
    }

    async fn start_with(port: u16, more: &[&str]) -> Result<Start, Failure> {
        let binary = std::env::var("DLOCK_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let folder = std::env::temp_dir().join(format!("dlock-benches-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let started = Command::new(&binary)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(&folder)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let process = match started {
            Ok(process) => process,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                std::fs::remove_dir_all(&folder)?;
                return Ok(Start::Missing(format!(
                    "`{binary}` does not start ({error}): install redis, or name it in DLOCK_REDIS_SERVER"
                )));
            }
            Err(error) => return Err(error.into()),
        };
        let mut server = Self { process, port, folder };
        for _ in 0..200 {
            if let Some(status) = server.process.try_wait()? {
                return Err(format!("`{binary}` ended at once: {status}").into());
            }
            if server.connect().await.is_ok() {
                return Ok(Start::Running(server));
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        Err(format!("`{binary}` did not start within 5 s").into())
    }

    /// Returns the host and port.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Stops the process with SIGSTOP: its connections stay open, and it does not reply.
    pub(crate) fn freeze(&self) -> Result<(), Failure> {
        let pid = i32::try_from(self.process.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or("a running process has an id")?;
        Ok(rustix::process::kill_process(pid, rustix::process::Signal::STOP)?)
    }

    /// Returns the key of the held lock `name`, whatever prefix or suffix the library adds.
    pub(crate) async fn lock_of(
        &self,
        connection: &mut MultiplexedConnection,
        name: &str,
    ) -> Result<String, Failure> {
        let mut keys: Vec<String> =
            redis::cmd("KEYS").arg(format!("*{name}*")).query_async(connection).await?;
        // Some libraries keep additional keys, which have longer names.
        keys.sort_by_key(String::len);
        Ok(keys.into_iter().next().ok_or_else(|| format!("no key has `{name}` in its name"))?)
    }

    /// Connects to the server.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        connect(&self.address()).await
    }
}

/// Connects like the floor: with `TCP_NODELAY`, one connection for all tasks.
pub(crate) async fn connect(address: &str) -> Result<MultiplexedConnection, Failure> {
    use redis::IntoConnectionInfo;
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let url = format!("redis://{address}");
    let client = redis::Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
    Ok(client.get_multiplexed_async_connection().await?)
}

/// Waits for something to come true, ten seconds at most.
async fn until(mut is: impl AsyncFnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    for _ in 0..400 {
        if is().await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    Err("the cluster did not start within 10 s".into())
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors cannot be handled here. The folder is in the temporary directory, where leftovers
        // are harmless.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The work of a server since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Processor time, in user and in kernel mode.
    pub(crate) cpu: Duration,
    /// The number of commands, including those of scripts, without `INFO`.
    pub(crate) commands: u64,
    /// The number of scripts called by hash.
    pub(crate) scripts: u64,
}

impl Work {
    pub(crate) async fn of(connection: &mut MultiplexedConnection) -> Result<Self, Failure> {
        let info: String = redis::cmd("INFO").arg("cpu").arg("commandstats").query_async(connection).await?;
        let mut work = Self { cpu: Duration::ZERO, commands: 0, scripts: 0 };
        for line in info.lines() {
            let Some((name, value)) = line.trim().split_once(':') else { continue };
            if let "used_cpu_user" | "used_cpu_sys" = name {
                work.cpu += Duration::from_secs_f64(value.parse()?);
            } else if let Some(command) = name.strip_prefix("cmdstat_") {
                let calls = value.split(',').find_map(|field| field.strip_prefix("calls="));
                let calls: u64 = calls.ok_or("a line of INFO commandstats has no calls")?.parse()?;
                if command != "info" {
                    work.commands += calls;
                }
                if command == "evalsha" {
                    work.scripts += calls;
                }
            }
        }
        Ok(work)
    }

    /// Returns the work since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            commands: self.commands.saturating_sub(before.commands),
            scripts: self.scripts.saturating_sub(before.scripts),
        }
    }
}

/// Counts the commands that clients send, with MONITOR. Commands of scripts are not counted.
#[derive(Debug)]
pub(crate) struct Wire {
    counting: JoinHandle<Result<u64, Failure>>,
    connection: MultiplexedConnection,
}

impl Wire {
    /// Starts counting, which slows down the server.
    pub(crate) async fn listen(server: &Server) -> Result<Self, Failure> {
        let connection = server.connect().await?; // before, so that its own commands are not counted
        let mut stream = BufReader::new(TcpStream::connect(server.address()).await?);
        stream.write_all(b"MONITOR\r\n").await?;
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let counting = tokio::spawn(async move {
            let mut count = 0;
            loop {
                line.clear();
                if stream.read_line(&mut line).await? == 0 {
                    return Err("the server ended".into());
                }
                if line.contains(END) {
                    return Ok(count);
                }
                // +1700000000.000000 [0 127.0.0.1:50000] "SET" .., and of a script: [0 lua]
                let client = line.split_once(']').map_or("", |(client, _)| client);
                count += u64::from(!client.ends_with(" lua"));
            }
        });
        Ok(Self { counting, connection })
    }

    /// Returns the number of commands.
    pub(crate) async fn count(mut self) -> Result<u64, Failure> {
        redis::cmd("ECHO").arg(END).exec_async(&mut self.connection).await?;
        self.counting.await?
    }
}

/// The argument of the `ECHO` that ends the count.
const END: &str = "dlock-benches: it was the last";
