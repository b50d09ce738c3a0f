//! Public items of a library, with documentation and all attributes that documentation needs.

use dlock_runtime::{Error, distributed_lock};

/// A shop.
#[derive(Debug, Default)]
pub struct Shop {
    /// The customer who is being served.
    pub served: u64,
}

impl Shop {
    /// Serves a customer.
    ///
    /// # Errors
    ///
    /// Any error that keeps the lock from being acquired.
    #[inline]
    #[distributed_lock(key = "shop:<customer>", lease = "5s", wait = "1s", backoff = "10ms..1s", retry = 2)]
    pub async fn serve(&mut self, customer: u64) -> Result<u64, Error> {
        self.served += 1;
        tokio::task::yield_now().await;
        Ok(customer + self.served)
    }

    /// Counts, or returns `None` while another caller does.
    #[must_use = "it was counted for this"]
    #[distributed_lock(key = "shop:count", on_contended = skip, max_hold = "1m")]
    pub async fn count(&self) -> Option<u64> {
        tokio::task::yield_now().await;
        Some(self.served)
    }
}

/// Greets.
///
/// # Errors
///
/// Any error that keeps the lock from being acquired.
#[doc(alias = "hello")]
#[distributed_lock(key = "greet:<name>", name = "greeting", namespace = "shop")]
pub async fn greet(name: &str) -> Result<String, Error> {
    tokio::task::yield_now().await;
    Ok(["hello ", name].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::under;

    #[tokio::test]
    async fn public_functions_hold_their_keys() {
        let mut shop = Shop::default();

        assert_eq!(under("shop:7", shop.serve(7)).await.ok(), Some(8));
        assert_eq!(under("shop:count", shop.count()).await, Some(1));
    }

    #[tokio::test]
    async fn a_namespace_of_its_own_is_not_the_managers() {
        let locks = dlock_runtime::testing::TestLocks::with_url("memory://?namespace=shop");

        let greeting = locks.run(greet("you")).await;

        assert_eq!(greeting.ok().as_deref(), Some("hello you"));
        assert_eq!(locks.acquisitions("greet:you"), 1);
    }
}
