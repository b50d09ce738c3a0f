//! 4: a plain `fn`, written that way or changed by an attribute above.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a")]
fn plain() -> Result<(), Error> {
    Ok(())
}

#[tokio::test]
#[distributed_lock(key = "a")]
async fn under_test() -> Result<(), Error> {
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
#[distributed_lock(key = "a")]
async fn main() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a")]
fn by_hand(id: u64) -> impl std::future::Future<Output = Result<u64, Error>> {
    async move { Ok(id) }
}

mod program {
    #[dlock_runtime::distributed_lock(key = "a")]
    #[tokio::main(flavor = "current_thread")]
    async fn main() -> Result<(), dlock_runtime::Error> {
        Ok(())
    }
}
