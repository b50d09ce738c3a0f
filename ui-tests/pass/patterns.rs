//! Parameters that are patterns.

use dlock_runtime::{Error, distributed_lock};

struct Path<T>(T);
struct State<T>(T);
struct Order {
    id: u64,
    lines: Vec<u64>,
}

#[distributed_lock(key = "order:<id>")]
async fn a_wrapper(Path(id): Path<u64>, State(_): State<String>, _: Vec<u8>) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<id>:<b>:<name>")]
async fn deep(
    Order { id, lines: mut rest }: Order,
    (a, (b, ..)): (String, (u8, u8)),
    Path((ref name, _)): Path<(String, String)>,
) -> Result<usize, Error> {
    rest.push(id);
    Ok(rest.len() + a.len() + usize::from(b) + name.len())
}

#[distributed_lock(key = "order:<id>:<text>")]
async fn references(&id: &u64, &(ref text, _): &(String, u8), [first, .., last]: [u8; 4]) -> Result<u64, Error> {
    Ok(id + u64::from(first) + u64::from(last) + text.len() as u64)
}

#[distributed_lock(key = "order:<whole.0>")]
async fn a_whole_and_its_part(whole @ Path(_): Path<u64>, ref other: String, mut count: u8) -> Result<u64, Error> {
    count += 1;
    Ok(whole.0 + other.len() as u64 + u64::from(count))
}

fn main() {}
