//! `replica_acks`: what replicas have not acknowledged is not believed.

mod beside;
mod granting;
mod pair;
mod refusals;
mod renewing;
