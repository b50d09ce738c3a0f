//! Outcomes other than an error, for every type that allows them.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", on_contended = skip)]
async fn skip_nothing() {
    std::future::ready(()).await;
}

#[distributed_lock(key = "a:<id>", on_contended = skip)]
async fn skip_early(id: u8) {
    if id == 0 {
        return;
    }
    panic!("not zero");
}

#[distributed_lock(key = "a", on_contended = skip)]
async fn skip_unit() -> () {
    std::future::ready(()).await
}

#[distributed_lock(key = "a", on_contended = skip)]
async fn skip_option() -> Option<String> {
    let first = [1].first().copied()?;
    Some(first.to_string())
}

#[allow(deprecated, reason = "it warns that a skipped call looks like success, and compiles")]
#[distributed_lock(key = "a", on_contended = skip)]
async fn skip_result() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_contended = skip)]
async fn skip_result_of_option() -> Result<Option<String>, Error> {
    Ok(None)
}

#[distributed_lock(key = "a", on_contended = return(0))]
async fn return_number() -> u64 {
    7
}

#[distributed_lock(key = "a", on_contended = return(Ok(Vec::new())))]
async fn return_in_a_result() -> Result<Vec<u8>, Error> {
    Ok(vec![7])
}

#[distributed_lock(key = "a", on_contended = return(Err("busy".to_owned())))]
async fn return_without_room_for_an_error() -> Result<u8, String> {
    Ok(7)
}

#[distributed_lock(key = "a:<id>", on_contended = return({ cached(id).await }))]
async fn return_what_is_awaited(id: u8) -> u8 {
    id
}

async fn cached(id: u8) -> u8 {
    id
}

struct Service;

impl Service {
    #[distributed_lock(key = "a:<id>:<text>", on_contended = fallback(Self::other))]
    async fn fallback_method(&mut self, id: u8, (text, mut rest): (String, Vec<u8>)) -> Result<Vec<u8>, Error> {
        rest.push(id);
        Ok([rest, text.into_bytes()].concat())
    }

    async fn other(&mut self, id: u8, given: (String, Vec<u8>)) -> Result<Vec<u8>, Error> {
        let _ = id;
        Ok(given.1)
    }
}

#[distributed_lock(key = "a:<id>", on_contended = fallback(other), on_lost = finish, guard = lock)]
async fn fallback_without_room_for_an_error(id: u8, name: String) -> String {
    format!("{id} {name} {lock:?}")
}

async fn other(_: u8, name: String) -> String {
    name
}

#[distributed_lock(key = "a", on_contended = fallback(generic::<T>))]
async fn fallback_generic<T: Default>() -> Result<T, Error> {
    Ok(T::default())
}

async fn generic<T: Default>() -> Result<T, Error> {
    Ok(T::default())
}

fn main() {}
