//! Other libraries as contenders, and those that are not available here.

use std::path::Path;

use dlock_bench_rivals::{IDEMPOTENT_RIVALS, RIVALS, Release, Tells};

use crate::Failure;
use crate::contenders::{Contender, Kind};

/// A library that is not available on this machine.
#[derive(Debug)]
pub(crate) struct Skipped {
    pub(crate) name: &'static str,
    pub(crate) why: String,
}

/// Installs the libraries in `names` below `target`, or all if it is empty.
///
/// Returns the commands that start them.
pub(crate) fn all(target: &Path, names: &[String]) -> Result<Vec<Result<Contender, Skipped>>, Failure> {
    let rivals = || RIVALS.iter().chain(&IDEMPOTENT_RIVALS);
    if let Some(unknown) = names.iter().find(|name| !rivals().any(|rival| rival.name == **name)) {
        let known = rivals().map(|rival| rival.name).collect::<Vec<_>>().join(", ");
        return Err(format!("unknown library `{unknown}`; the libraries are {known}").into());
    }
    let wanted = rivals().filter(|rival| names.is_empty() || names.iter().any(|name| name == rival.name));
    let contenders = wanted.map(|rival| {
        let kind = match rival.release {
            _ if IDEMPOTENT_RIVALS.contains(rival) => Kind::IdempotentRival,
            Release::Background => Kind::BackgroundRival,
            Release::Awaited if rival.tells_of_loss == Tells::AtOnce => Kind::TrackingRival,
            Release::Awaited => Kind::Rival,
        };
        match rival.command(target) {
            Ok(command) => Ok(Contender::rival(rival.name, kind, &command)),
            Err(why) => Err(Skipped { name: rival.name, why }),
        }
    });
    Ok(contenders.collect())
}
