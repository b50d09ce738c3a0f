//! Commands and answers in plain words.

use crate::protocol::command::{Command, EnqueueMode, Reply};

/// What a process does by a command.
pub(super) fn asks(command: Command) -> &'static str {
    match command {
        Command::Acquire { .. } => "asks for the lock",
        Command::Enqueue { mode: EnqueueMode::Join, .. } => "asks for a place in the queue",
        Command::Enqueue { mode: EnqueueMode::Recheck, .. } => "asks whether it is its turn",
        Command::Enqueue { mode: EnqueueMode::TryOnly, .. } => "asks when it might have the lock",
        Command::Renew { .. } => "renews the lock",
        Command::Verify => "asks whether it still has the lock",
        Command::SetTtl { .. } => "has the lock kept",
        Command::Release | Command::ReleaseWithFleetHold { .. } => "lets go",
        Command::ReleaseWithoutHandoff => "frees the lock",
        Command::Withdraw => "takes back what it asked for",
        Command::Yield { .. } => "offers the lock to others",
        Command::Fence => "asks for a fencing token",
        Command::Inspect => "asks who waits",
        _ => "asks something",
    }
}

/// What the server makes of it; what stands there then stands until `until`.
pub(super) fn answers(command: Command, reply: &Reply, until: Option<u64>) -> String {
    let until = || until.map(|until| format!(" until {until} ms")).unwrap_or_default();
    match (command, reply) {
        (Command::Acquire { .. } | Command::Enqueue { .. }, Reply::Owner) => format!("grants it{}", until()),
        (Command::Renew { .. } | Command::SetTtl { .. }, Reply::Owner) => format!("has it last{}", until()),
        (Command::Yield { .. }, Reply::Owner) => "leaves it with it: nobody waits".to_owned(),
        (_, Reply::Owner) => "hears that".to_owned(),
        (_, Reply::Contended | Reply::NotQueued { .. }) => format!("says that it is taken{}", until()),
        (_, Reply::Queued { .. }) => format!("has it wait: the lock is taken{}", until()),
        (_, Reply::Absent) => "does not know that it waits".to_owned(),
        (_, Reply::NotOwner) => "says that it has nothing".to_owned(),
        (_, Reply::Yielded) => "has it wait for its next turn".to_owned(),
        (_, Reply::Info(sight)) => format!("says that {} wait", sight.map_or(0, |sight| sight.waiters)),
        (_, Reply::Fenced(number)) => format!("gives it {}", number % 1_000_000_000),
        (_, Reply::Refused(_)) => "is down".to_owned(),
        _ => "says nothing".to_owned(),
    }
}
