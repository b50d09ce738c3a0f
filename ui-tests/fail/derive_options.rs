//! Options that `#[derive(KeyPart)]` does not have.

use dlock_runtime::KeyPart;

#[derive(KeyPart)]
#[key_part(rename = "order")]
struct Renamed(u64);

#[derive(KeyPart)]
#[key_part(crate = dlock_runtime)]
struct Relative(u64);

#[derive(KeyPart)]
#[key_part(crate = ::dlock_runtime, crate = ::dlock_runtime)]
struct Twice(u64);

#[derive(KeyPart)]
struct Line {
    order: u64,
    #[key_part(skip)]
    note: String,
    #[key_part(hash)]
    token: String,
}

#[derive(KeyPart)]
#[key_part(separator = "-")]
struct TwoMistakes(u64, #[key_part(skip)] u64);

fn main() {}
