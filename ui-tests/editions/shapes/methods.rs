//! All forms of `self`.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use dlock_runtime::{Error, LockManager, distributed_lock, testing::TestLocks};

use crate::under;

#[derive(Clone)]
struct Account {
    id: u64,
    balance: u64,
}

impl Account {
    const KIND: &'static str = "account";

    const fn id(&self) -> u64 {
        self.id
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_reference(&self, amount: u64) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        Ok(self.balance + amount)
    }

    #[distributed_lock(key = "account:<self.id()>", guard = lock)]
    async fn by_unique_reference(&mut self, amount: u64) -> Result<&mut u64, Error> {
        assert_eq!(lock.key().as_str(), "account:7");
        tokio::task::yield_now().await;
        self.balance += amount;
        Ok(&mut self.balance)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_value(self) -> Result<Self, Error> {
        tokio::task::yield_now().await;
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_mutable_value(mut self) -> Result<Self, Error> {
        tokio::task::yield_now().await;
        self.balance = 0;
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_box(self: Box<Self>) -> Result<Box<Self>, Error> {
        tokio::task::yield_now().await;
        Ok(self)
    }

    #[distributed_lock(key = "account:<self.id()>")]
    async fn by_arc(self: Arc<Self>) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        Ok(self.balance)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_arc_reference(self: &Arc<Self>) -> Result<Arc<Self>, Error> {
        tokio::task::yield_now().await;
        Ok(Self::clone_of(self))
    }

    #[expect(clippy::future_not_send, reason = "it is not `Send` without the attribute either")]
    #[distributed_lock(key = "account:<self.id>")]
    async fn by_rc(self: Rc<Self>) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        Ok(self.balance)
    }

    #[distributed_lock(key = "account:<self.id>")]
    async fn by_pin(mut self: Pin<&mut Self>) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        self.balance += 1;
        Ok(self.balance)
    }

    #[distributed_lock(key = "<Self::KIND>:<id>")]
    async fn without(id: u64) -> Result<Self, Error> {
        tokio::task::yield_now().await;
        Ok(Self { id, balance: 0 })
    }

    fn clone_of(this: &Arc<Self>) -> Arc<Self> {
        Arc::clone(this)
    }
}

struct Service {
    locks: LockManager,
    name: &'static str,
}

impl Service {
    #[distributed_lock(key = "service:<self.name>", manager = self.locks)]
    async fn own_manager(&self) -> Result<&'static str, Error> {
        tokio::task::yield_now().await;
        Ok(self.name)
    }

    #[distributed_lock(key = "service:<name>", manager = locks)]
    async fn given_manager(name: &str, locks: &LockManager) -> Result<usize, Error> {
        tokio::task::yield_now().await;
        Ok(name.len())
    }
}

const ACCOUNT: Account = Account { id: 7, balance: 1 };

#[tokio::test]
async fn each_form_of_self_names_the_lock_and_is_there_in_the_body() {
    let mut account = ACCOUNT;
    let shared = Arc::new(ACCOUNT);

    assert_eq!(under("account:7", account.by_reference(2)).await.ok(), Some(3));
    assert_eq!(under("account:7", account.by_unique_reference(2)).await.ok(), Some(&mut 3));
    assert_eq!(under("account:7", Pin::new(&mut account).by_pin()).await.ok(), Some(4));
    assert_eq!(under("account:7", account.by_value()).await.ok().map(|account| account.balance), Some(4));
    assert_eq!(under("account:7", ACCOUNT.by_mutable_value()).await.ok().map(|a| a.balance), Some(0));
    assert_eq!(under("account:7", Box::new(ACCOUNT).by_box()).await.ok().map(|a| a.balance), Some(1));
    assert_eq!(under("account:7", shared.by_arc_reference()).await.ok().map(|a| a.balance), Some(1));
    assert_eq!(under("account:7", shared.by_arc()).await.ok(), Some(1));
    assert_eq!(under("account:7", Rc::new(ACCOUNT).by_rc()).await.ok(), Some(1));
    assert_eq!(under("account:7", Account::without(7)).await.ok().map(|account| account.balance), Some(0));
}

#[tokio::test]
async fn a_manager_comes_from_self_or_from_an_argument() {
    let locks = TestLocks::new();
    let service = Service { locks: locks.manager(), name: "a" };

    assert_eq!(service.own_manager().await.ok(), Some("a"));
    assert_eq!(Service::given_manager("a", &locks.manager()).await.ok(), Some(1));

    assert_eq!(locks.acquisitions("service:a"), 2);
}
