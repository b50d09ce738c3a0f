//! `#[derive(KeyPart)]` on other items, each used in a key, where it causes no second error.

use dlock_runtime::{Error, KeyPart, distributed_lock};

#[derive(KeyPart)]
enum Channel {
    Retail,
    Wholesale,
}

#[derive(KeyPart)]
enum Payer {
    Customer(u64),
}

#[derive(Clone, Copy, KeyPart)]
union Bits {
    signed: i32,
    unsigned: u32,
}

#[distributed_lock(key = "a:<channel>:<payer>:<bits>")]
async fn used(channel: Channel, payer: Payer, bits: Bits) -> Result<(), Error> {
    Ok(())
}

fn main() {}
