//! Names that are keywords.

use dlock_runtime::{Error, distributed_lock};

struct Event {
    r#type: String,
}

#[distributed_lock(key = "a:<type>:<r#match>")]
async fn r#loop(r#type: u8, r#match: u8) -> Result<u8, Error> {
    Ok(r#type + r#match)
}

#[distributed_lock(key = "a:<event.type>:<event.r#type>", guard = r#ref)]
async fn fields(event: Event) -> Result<Event, Error> {
    let _ = r#ref;
    Ok(event)
}

fn main() {}
