//! Other lock libraries as contenders: those of `dlock_bench_rivals` that were asked for, and which of them cannot be had here.

use std::path::Path;

use dlock_bench_rivals::{RIVALS, Release, Tells};

use crate::Failure;
use crate::contenders::{Contender, Kind};

/// A rival that cannot be had on this machine.
#[derive(Debug)]
pub(crate) struct Skipped {
    pub(crate) name: &'static str,
    pub(crate) why: String,
}

/// Installs those of `names` below `target`, or all where there is none, and returns how they are started.
pub(crate) fn all(target: &Path, names: &[String]) -> Result<Vec<Result<Contender, Skipped>>, Failure> {
    if let Some(unknown) = names.iter().find(|name| !RIVALS.iter().any(|rival| rival.name == **name)) {
        let known = RIVALS.map(|rival| rival.name).join(", ");
        return Err(format!("no rival is called `{unknown}`; there are {known}").into());
    }
    let wanted =
        RIVALS.iter().filter(|rival| names.is_empty() || names.iter().any(|name| name == rival.name));
    let contenders = wanted.map(|rival| {
        let kind = match rival.release {
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
