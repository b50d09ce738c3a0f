//! Helpers of the examples: the URL of the locks, and a client for services.

use std::env;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns the URL of the locks: `DLOCK_URL`, or `memory://`.
#[must_use]
pub fn url() -> String {
    env::var("DLOCK_URL").unwrap_or_else(|_| "memory://".to_owned())
}

/// Returns a URL that several managers can share.
///
/// It is [`url`], but with `name` for a `memory://` without one, because each manager that connects
/// to a nameless one has a separate store.
#[must_use]
pub fn shared_url(name: &str) -> String {
    let url = url();
    match url.strip_prefix("memory://") {
        Some(rest) if rest.is_empty() || rest.starts_with('?') => format!("memory://{name}{rest}"),
        _ => url,
    }
}

/// Sends `POST path` to `address` without a body, and returns the status and the body of the reply.
///
/// # Errors
///
/// Fails if the connection fails, or the reply does not start with a status.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub async fn post(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    post_json(address, path, "").await
}

/// Sends `POST path` to `address` with a body, and returns the status and the body of the reply. A
/// minimal HTTP/1.1 client.
///
/// # Errors
///
/// Fails if the connection fails, or the reply does not start with a status.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub async fn post_json(address: SocketAddr, path: &str, body: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("the answer has no status"))?;
    Ok((status, body.to_owned()))
}

/// Compiles every snippet of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles every snippet of the README of the published package.
#[cfg(doctest)]
#[doc = include_str!("../dlock-runtime/README.md")]
struct PackageReadme;
