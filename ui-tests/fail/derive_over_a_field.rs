//! Fields that cannot be part of a key, and another type that is named `PhantomData`.

use dlock_runtime::{Error, KeyPart, distributed_lock};

#[derive(KeyPart)]
struct Amount(f64);

struct Address {
    street: String,
}

#[derive(KeyPart)]
struct Delivery {
    order: u64,
    address: Address,
    weights: Option<Vec<u16>>,
}

mod other {
    pub struct PhantomData<T>(pub T);
}

#[derive(KeyPart)]
struct Left {
    order: u64,
    out: other::PhantomData<u64>,
}

#[derive(KeyPart)]
struct Scoped<T> {
    tenant: u32,
    id: T,
}

#[distributed_lock(key = "a:<id>")]
async fn used(id: Scoped<f32>) -> Result<(), Error> {
    Ok(())
}

fn main() {}
