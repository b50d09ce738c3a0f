//! All forms of `self`.

use std::pin::Pin;
use std::sync::Arc;

use dlock_runtime::{Error, distributed_lock};

struct Account {
    id: u64,
    balance: i64,
}

impl Account {
    const KIND: &'static str = "account";

    fn id(&self) -> u64 {
        self.id
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_reference(&self, amount: i64) -> Result<i64, Error> {
        Ok(self.balance + amount)
    }

    #[distributed_lock(key = "account:<self.id()>")]
    async fn by_unique_reference(&mut self, amount: i64) -> Result<&mut i64, Error> {
        self.balance += amount;
        Ok(&mut self.balance)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_value(self) -> Result<Self, Error> {
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_mutable_value(mut self) -> Result<Self, Error> {
        self.balance = 0;
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_box(self: Box<Self>) -> Result<Box<Self>, Error> {
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id()>")]
    async fn by_arc(self: Arc<Self>) -> Result<u64, Error> {
        Ok(self.id)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_pin(self: Pin<&mut Self>) -> Result<u64, Error> {
        Ok(self.id)
    }

    #[distributed_lock(key = "<Self::KIND>:<id>")]
    async fn without(id: u64) -> Result<Self, Error> {
        Ok(Self { id, balance: 0 })
    }
}

fn main() {}
