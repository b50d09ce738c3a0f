// cargo run -p dlock-examples --example flash_sale
//! A flash sale: 30 buyers at three tills compete for the last five pieces. The stock is read and
//! written in two steps.
//!
//! With `DLOCK_URL=redis://..`, the stock is a plain key in that Redis, read by GET and written by
//! SET, which is deliberately not atomic. Otherwise it is a number in memory. Only the lock keeps
//! two buyers from reading the same number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::{LockManager, distributed_lock};
use redis::AsyncCommands;
use tokio::task::JoinSet;

/// A till. In a real shop it is a separate process, so it has its own lock manager.
struct Till {
    locks: LockManager,
    stock: Stock,
}

impl Till {
    /// Sells one piece of `article`. Returns `false` if none is left.
    #[distributed_lock(key = "stock:<article>", lease = "5s", wait = "20s", manager = self.locks)]
    async fn sell(&self, article: &str) -> Result<bool, SaleError> {
        let left = self.stock.read().await?;
        if left == 0 {
            return Ok(false);
        }
        // Long enough for every other buyer to read the same number.
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.stock.write(left - 1).await?;
        Ok(true)
    }
}

#[derive(Debug, thiserror::Error)]
enum SaleError {
    #[error(transparent)]
    Lock(#[from] dlock_runtime::Error),
    #[error(transparent)]
    Redis(#[from] redis::RedisError),
}

/// The number of pieces that are left.
#[derive(Clone)]
enum Stock {
    Memory(Arc<AtomicU32>),
    Redis(redis::aio::MultiplexedConnection, String),
}

impl Stock {
    async fn open(url: &str) -> Result<Self, SaleError> {
        if url.starts_with("memory:") {
            return Ok(Self::Memory(Arc::default()));
        }
        // The options after the `?` are for the lock manager.
        let address = url.split('?').next().unwrap_or(url);
        let connection = redis::Client::open(address)?.get_multiplexed_async_connection().await?;
        Ok(Self::Redis(connection, format!("flash_sale:{}:stock", std::process::id())))
    }

    async fn read(&self) -> Result<u32, SaleError> {
        match self {
            Self::Memory(left) => Ok(left.load(Ordering::SeqCst)),
            Self::Redis(connection, key) => Ok(connection.clone().get(key).await?),
        }
    }

    async fn write(&self, left: u32) -> Result<(), SaleError> {
        match self {
            Self::Memory(stock) => stock.store(left, Ordering::SeqCst),
            Self::Redis(connection, key) => connection.clone().set_ex::<_, _, ()>(key, left, 60).await?,
        }
        Ok(())
    }
}

const PIECES: u32 = 5;
const BUYERS: usize = 30;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let url = dlock_examples::shared_url("flash_sale");
    let stock = Stock::open(&url).await?;
    stock.write(PIECES).await?;
    let mut tills = Vec::new();
    for _ in 0..3 {
        let locks = LockManager::connect(&url).await?;
        tills.push(Arc::new(Till { locks, stock: stock.clone() }));
    }

    println!("{BUYERS} buyers at {} tills want one of {PIECES} pieces", tills.len());
    let mut buyers = JoinSet::new();
    for till in tills.iter().cycle().take(BUYERS) {
        let till = Arc::clone(till);
        buyers.spawn(async move { till.sell("lamp").await });
    }
    let (mut sold, mut sold_out) = (0, 0);
    while let Some(answer) = buyers.join_next().await {
        if answer?? {
            sold += 1;
        } else {
            sold_out += 1;
        }
    }

    let left = stock.read().await?;
    println!("{sold} sold, {sold_out} came too late, {left} left");
    assert_eq!((sold, left), (PIECES, 0), "what was sold is what there was");
    Ok(())
}
