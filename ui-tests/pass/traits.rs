//! `async fn` in traits: default bodies and implementations.

use dlock_runtime::{Error, distributed_lock};

#[allow(async_fn_in_trait)]
trait Store {
    fn name(&self) -> &str;

    #[distributed_lock(key = "store:<self.name()>")]
    async fn flush(&self) -> Result<u8, Error> {
        Ok(1)
    }

    async fn put(&mut self, id: u64) -> Result<(), Error>;
}

struct Memory(Vec<u64>);

impl Store for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    #[distributed_lock(key = "put:<id>")]
    async fn put(&mut self, id: u64) -> Result<(), Error> {
        self.0.push(id);
        Ok(())
    }
}

fn main() {}
