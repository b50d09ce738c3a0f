//! `replica_acks`: a grant or renewal counts only after the replicas have acknowledged it.

mod grants;
mod records;
mod renewals;
mod replica_pair;
mod unsupported;
mod without_acks;
