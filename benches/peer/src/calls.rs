//! Idempotent calls, one after the other and at one time.

use std::fmt;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::library::{Called, Library, Result};

/// The ends of some calls, and their total time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    ran: u64,
    replayed: u64,
    refused: u64,
    time: Duration,
}

impl Calls {
    fn count(&mut self, called: Called) {
        *match called {
            Called::Ran => &mut self.ran,
            Called::Replayed => &mut self.replayed,
            Called::Refused => &mut self.refused,
        } += 1;
    }
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ran, replayed, refused, time } = self;
        write!(f, "called {ran} {replayed} {refused} {}", time.as_nanos())
    }
}

/// Makes a call with an empty body for each key, one after the other.
pub(crate) async fn one_by_one<L: Library>(library: &L, keys: impl Iterator<Item = String>) -> Result<Calls> {
    let (mut calls, begun) = (Calls::default(), Instant::now());
    for key in keys {
        calls.count(library.call(&key, Duration::ZERO).await?);
    }
    calls.time = begun.elapsed();
    Ok(calls)
}

/// Makes `count` calls with one key at one time, each in its own task.
pub(crate) async fn at_once<L: Library>(library: &L, key: &str, count: u64, body: Duration) -> Result<Calls> {
    let (mut calls, begun) = (Calls::default(), Instant::now());
    let mut running = JoinSet::new();
    for _ in 0..count {
        let (library, key) = (library.clone(), key.to_owned());
        running.spawn(async move { library.call(&key, body).await });
    }
    while let Some(called) = running.join_next().await {
        calls.count(called??);
    }
    calls.time = begun.elapsed();
    Ok(calls)
}
