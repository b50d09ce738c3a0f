//! `replica_acks`: a grant or renewal counts only after the replicas have acknowledged it.

mod beside;
mod granting;
mod pair;
mod refusals;
mod renewing;
