//! Name lookup on threads of its own.
//!
//! The system's lookup blocks its thread, for ten seconds and more if a name server does not reply.
//! On the blocking threads of a runtime it would delay the shutdown of that runtime, which waits
//! for them.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::{Semaphore, oneshot};

use crate::fork::PerProcess;

/// Returns the addresses of a host, without a timeout. If it is dropped, the lookup continues.
pub(super) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = host.to_owned();
    lookup(LOOKUPS.get(), move || Ok((host.as_str(), port).to_socket_addrs()?.collect())).await
}

/// Runs `find` on a thread of its own, once fewer than [`MOST_LOOKUPS`] are in progress.
async fn lookup<T: Send + 'static>(
    slots: &LookupSlots,
    find: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let place = Arc::clone(&slots.0).acquire_owned().await.map_err(io::Error::other)?;
    let (tell, found) = oneshot::channel();
    std::thread::Builder::new().name("dlock-lookup".to_owned()).spawn(move || {
        let _place = place;
        let _ = tell.send(find());
    })?;
    found.await.unwrap_or_else(|_| Err(io::Error::other("the name lookup panicked")))
}

/// A permit for each lookup that may be in progress. Its thread holds the permit.
struct LookupSlots(Arc<Semaphore>);

impl Default for LookupSlots {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_LOOKUPS)))
    }
}

/// The lookups of this process.
static LOOKUPS: PerProcess<LookupSlots> = PerProcess::new();

/// A name server that does not reply must not cost one thread per attempt to connect.
const MOST_LOOKUPS: usize = 32;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_runtime_ends_while_a_lookup_is_without_an_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (answer, silent) = mpsc::channel::<()>();
        let slots = LookupSlots::default();

        let found = runtime.block_on(async {
            let found = lookup(&slots, move || silent.recv_timeout(LONG).map_err(io::Error::other));
            tokio::time::timeout(Duration::from_millis(10), found).await
        });
        let ends = Instant::now();
        drop(runtime);

        assert!(found.is_err() && ends.elapsed() < LONG / 4, "{:?}", ends.elapsed());
        assert_eq!(slots.0.available_permits(), MOST_LOOKUPS - 1, "its thread goes on");
        drop(answer);
    }

    #[test]
    fn a_lookup_needs_no_blocking_thread_of_the_runtime() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().expect("a runtime");
        let (end, is_over) = mpsc::channel::<()>();

        let found = runtime.block_on(async {
            let busy = tokio::task::spawn_blocking(move || is_over.recv_timeout(LONG));
            let found = tokio::time::timeout(LONG / 4, resolve("localhost", 6379)).await;
            drop(end);
            busy.await.expect("no panic").expect_err("nothing is sent");
            found
        });

        assert!(found.is_ok_and(|found| found.is_ok_and(|found| !found.is_empty())));
    }

    #[tokio::test]
    async fn lookups_without_an_answer_are_bounded() {
        crate::bounds::assert_listed("name lookups in progress", &MOST_LOOKUPS.to_string());
        let (slots, mut answers) = (LookupSlots::default(), Vec::new());
        let mut lookups: Vec<_> = (0..MOST_LOOKUPS)
            .map(|_| {
                let (answer, silent) = mpsc::channel::<()>();
                answers.push(answer);
                Box::pin(lookup(&slots, move || Ok(silent.recv_timeout(LONG).is_err())))
            })
            .collect();
        for lookup in &mut lookups {
            assert!(lookup.now_or_never().is_none());
        }

        let mut next = Box::pin(lookup(&slots, || Ok(false)));
        assert!((&mut next).now_or_never().is_none());
        assert_eq!(slots.0.available_permits(), 0);
        drop(answers);
        for lookup in lookups {
            assert!(lookup.await.expect("it ends"));
        }
        assert!(!next.await.expect("there is room again"));
    }

    #[tokio::test]
    async fn a_burst_of_lookups_succeeds() {
        let slots = LookupSlots::default();
        let lookups = (0..3 * MOST_LOOKUPS).map(|_| {
            lookup(&slots, || {
                std::thread::sleep(Duration::from_millis(50));
                Ok(())
            })
        });

        let found = join_all(lookups).await;

        assert!(found.iter().all(Result::is_ok), "{found:?}");
    }

    #[tokio::test]
    async fn addresses_are_taken_as_they_are() {
        for (host, address) in
            [("127.0.0.1", "127.0.0.1:6379"), ("::1", "[::1]:6379"), ("[::1]", "[::1]:6379")]
        {
            let found = resolve(host, 6379).await.expect("an address");
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [address]);
        }
        assert!(resolve("localhost", 6379).await.is_ok_and(|found| !found.is_empty()));
    }
}
