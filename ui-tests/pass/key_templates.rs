//! Every form of placeholder, and text that is none.

use std::borrow::Cow;
use std::sync::Arc;

use dlock_runtime::{Error, KeyPart, PartWriter, Written, distributed_lock};

const REGION: &str = "eu";

mod config {
    pub const SHARD: u8 = 3;
}

struct OrderId(u64);

impl KeyPart for OrderId {
    fn write_part(&self, out: PartWriter<'_>) -> Written {
        self.0.write_part(out)
    }
}

struct Line {
    number: u32,
}

struct Order {
    id: OrderId,
    lines: (Line, Line),
    note: Option<String>,
}

impl Order {
    fn customer(&self) -> &str {
        "c"
    }

    fn first(&self) -> &Line {
        &self.lines.0
    }
}

#[distributed_lock(key = "order")]
async fn no_hole() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "order:<id>:<name>:<raw>")]
async fn parameters(id: u64, name: &str, mut raw: Vec<u8>) -> Result<usize, Error> {
    raw.push(1);
    Ok(raw.len() + name.len() + usize::try_from(id).unwrap_or_default())
}

#[distributed_lock(key = "order:<order.id>:<order.lines.1.number>:<order.customer()>:<order.first().number>")]
async fn places(order: Order) -> Result<Order, Error> {
    Ok(order)
}

#[distributed_lock(key = "order:<REGION>:<config::SHARD>:<crate::config::SHARD>:<N>:<id>")]
async fn constants<const N: usize>(id: Cow<'_, str>) -> Result<(), Error> {
    drop(id);
    Ok(())
}

#[distributed_lock(key = "<<a>>{<id>}:b-<name|hash>:<order.note|opt>:<path|raw>")]
async fn modifiers(id: Arc<str>, name: Box<str>, order: &Order, path: Option<&'static str>) -> Result<(), Error> {
    let _ = (id, name, order, path);
    Ok(())
}

#[distributed_lock(key = "größe:<größe>")]
async fn letters_beyond_ascii(größe: u8) -> Result<(), Error> {
    let _ = größe;
    Ok(())
}

#[distributed_lock(key = "unused:<id>")]
async fn an_argument_that_only_the_key_uses(id: u8) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a:<token|hash>-<id>:<REGION>-<id>")]
async fn a_hash_and_a_constant_need_no_separator(token: String, id: u8) -> Result<(), Error> {
    Ok(())
}

fn main() {
    let _ = constants::<3>("7".into());
}
