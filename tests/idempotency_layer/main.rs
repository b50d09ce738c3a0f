//! `IdempotencyLayer` around real services of axum and hyper, over memory and over Redis.
//!
//! | file | contents |
//! |---|---|
//! | `table` | pairs of requests, and the exact answer to the second one |
//! | `shop` | the service of the tests |
//! | `responses` | what is stored, replayed, and sent as it is |
//! | `options` | options that are out of bounds |
//! | `requests` | bodies that are too long, end early, or never end |
//! | `cancellation` | clients that disconnect, panics, and outages |
//! | `composition` | timeouts, compression, CORS, and hyper |
//! | `processes` | many callers over several processes, and a process that is killed |

mod cancellation;
mod composition;
mod options;
mod processes;
mod requests;
mod responses;
mod shop;
mod table;
