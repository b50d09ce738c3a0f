//! Inside of `macro_rules!`, where names have contexts of their own.

use dlock_runtime::{Error, distributed_lock};

macro_rules! jobs {
    ($($name:ident ($argument:ident : $type:ty) -> $output:ty { key: $key:literal, lease: $lease:expr, body: $body:expr })*) => {$(
        #[distributed_lock(key = $key, lease = $lease)]
        async fn $name($argument: $type) -> $output {
            $body
        }
    )*};
}

jobs! {
    first(id: u64) -> Result<u64, Error> { key: "first:<id>", lease: "30s", body: Ok(id) }
    second(name: &str) -> Result<usize, Error> { key: "second:<name>", lease: "1h", body: Ok(name.len()) }
}

macro_rules! hygienic {
    ($name:ident, $body:expr) => {
        #[distributed_lock(key = "hygienic:<id>:<self.0>", guard = lock)]
        async fn $name(&self, id: u64) -> Result<String, Error> {
            let _ = $body;
            Ok(format!("{id} {} {lock:?}", self.0))
        }
    };
}

mod reexports {
    pub use dlock_runtime as dlock;
}

macro_rules! from_elsewhere {
    ($name:ident) => {
        #[distributed_lock(key = "elsewhere", crate = $crate::reexports::dlock)]
        async fn $name() -> Result<(), Error> {
            Ok(())
        }
    };
}

from_elsewhere!(fourth);

struct Holder(u8);

impl Holder {
    hygienic!(third, 7);
}

fn main() {}
