//! The future is `Send` exactly if that of the plain function is, and needs no `Clone`.

use std::cell::Cell;
use std::rc::Rc;

use dlock_runtime::{Error, distributed_lock};

struct NotClone(Cell<u8>);

#[distributed_lock(key = "a:<id>:<other>", guard = lock, lease = "1s")]
async fn sendable(id: u64, other: String, not_sync: NotClone) -> Result<u8, Error> {
    std::future::ready(()).await;
    let _ = (id, other, lock);
    Ok(not_sync.0.get())
}

#[distributed_lock(key = "a:<id>", on_contended = return(7))]
async fn returning(id: u64, not_sync: NotClone) -> u8 {
    std::future::ready(()).await;
    not_sync.0.get()
}

#[distributed_lock(key = "a:<id>", on_contended = fallback(sendable_too), on_lost = finish)]
async fn falling_back(id: u64, not_sync: NotClone) -> u8 {
    sendable_too(id, not_sync).await
}

async fn sendable_too(_: u64, not_sync: NotClone) -> u8 {
    std::future::ready(()).await;
    not_sync.0.get()
}

#[distributed_lock(key = "a:<id>")]
async fn bound_to_its_thread(id: Rc<str>) -> Result<Rc<str>, Error> {
    Ok(id)
}

fn is_send(_: impl Send) {}

fn main() {
    let make = || NotClone(Cell::new(1));
    let _not_run = || {
        is_send(sendable(7, String::new(), make()));
        is_send(returning(7, make()));
        is_send(falling_back(7, make()));
        drop(bound_to_its_thread("a".into()));
    };
}
