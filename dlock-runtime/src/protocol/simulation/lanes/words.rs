//! Commands and answers in plain words.

use crate::protocol::command::{Command, Enqueue, Reply};

/// What a process does by a command.
pub(super) fn asks(command: Command) -> &'static str {
    match command {
        Command::Acquire { .. } => "asks for the lock",
        Command::Enqueue { mode: Enqueue::First, .. } => "asks for a place in the queue",
        Command::Enqueue { mode: Enqueue::Again, .. } => "asks whether it is its turn",
        Command::Enqueue { mode: Enqueue::Peek, .. } => "asks when it might have the lock",
        Command::Renew { .. } => "renews the lock",
        Command::Check => "asks whether it still has the lock",
        Command::Keep { .. } => "has the lock kept",
        Command::Release | Command::PassOn { .. } => "lets go",
        Command::Free => "frees the lock",
        Command::Leave => "takes back what it asked for",
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
        (Command::Acquire { .. } | Command::Enqueue { .. }, Reply::Ours) => format!("grants it{}", until()),
        (Command::Renew { .. } | Command::Keep { .. }, Reply::Ours) => format!("has it last{}", until()),
        (Command::Yield { .. }, Reply::Ours) => "leaves it with it: nobody waits".to_owned(),
        (_, Reply::Ours) => "hears that".to_owned(),
        (_, Reply::Taken | Reply::NotQueued { .. }) => format!("says that it is taken{}", until()),
        (_, Reply::Queued { .. }) => format!("has it wait: the lock is taken{}", until()),
        (_, Reply::Gone) => "does not know that it waits".to_owned(),
        (_, Reply::NotOwner) => "says that it has nothing".to_owned(),
        (_, Reply::Yielded) => "has it wait for its next turn".to_owned(),
        (_, Reply::Seen(sight)) => format!("says that {} wait", sight.map_or(0, |sight| sight.waiters)),
        (_, Reply::Fenced(number)) => format!("gives it {}", number % 1_000_000_000),
        (_, Reply::Refused(_)) => "is down".to_owned(),
        _ => "says nothing".to_owned(),
    }
}
