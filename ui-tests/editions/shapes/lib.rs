//! Every shape of function under the attribute, in a crate with strict lints, once in each edition.
//!
//! Three packages share this source: `editions/2018`, `editions/2021`, and `editions/2024`. Each
//! shape that does something runs with locks in memory, and its test asserts the value and the key.
//! See `pass` for shapes that need `unsafe`.

#![forbid(unsafe_code)]
#![deny(
    warnings,
    missing_docs,
    unused,
    future_incompatible,
    nonstandard_style,
    let_underscore,
    rust_2018_idioms
)]
#![deny(unused_qualifications, unused_lifetimes, unreachable_pub, single_use_lifetimes, unused_results)]
#![deny(
    elided_lifetimes_in_paths,
    trivial_casts,
    trivial_numeric_casts,
    redundant_lifetimes,
    explicit_outlives_requirements
)]
#![deny(clippy::all, clippy::pedantic, clippy::nursery)]
// Lints that stricter crates enable, as far as the plain functions satisfy them.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unreachable
)]
#![deny(
    clippy::shadow_same,
    clippy::pattern_type_mismatch,
    clippy::unneeded_field_pattern,
    clippy::wildcard_enum_match_arm
)]
#![deny(
    clippy::let_underscore_must_use,
    clippy::let_underscore_untyped,
    clippy::missing_docs_in_private_items
)]
#![deny(
    clippy::semicolon_inside_block,
    clippy::semicolon_outside_block,
    clippy::used_underscore_items,
    clippy::str_to_string
)]
#![deny(
    clippy::as_conversions,
    clippy::clone_on_ref_ptr,
    clippy::redundant_type_annotations,
    clippy::unused_result_ok
)]

#[cfg(test)]
use std::future::Future;

#[cfg(test)]
use dlock_runtime::testing::TestLocks;

pub mod documented;

#[cfg(test)]
mod bodies;
#[cfg(test)]
mod contended;
#[cfg(test)]
mod drops;
#[cfg(test)]
mod generics;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod in_macros;
#[cfg(test)]
mod methods;
#[cfg(test)]
mod patterns;
#[cfg(test)]
mod results;
#[cfg(test)]
mod stacked;
#[cfg(test)]
mod traits;

/// Runs a call with locks in memory, checks that the lock of `key` was acquired once and released,
/// and returns its value.
#[cfg(test)]
async fn under<F: Future>(key: &str, call: F) -> F::Output {
    let locks = TestLocks::new();

    let value = locks.run(call).await;

    assert_eq!(locks.acquisitions(key), 1, "the lock of {key} was not acquired");
    assert!(!locks.is_held(key), "the lock was not released");
    value
}
