//! Describes commands and replies in a trace.

use crate::protocol::command::{Command, EnqueueMode, Reply};

/// Describes the command that a process sends.
pub(super) fn command(command: Command) -> &'static str {
    match command {
        Command::Acquire { .. } => "sends ACQUIRE",
        Command::Enqueue { mode: EnqueueMode::Join, .. } => "sends ENQUEUE (join)",
        Command::Enqueue { mode: EnqueueMode::Recheck, .. } => "sends ENQUEUE (recheck)",
        Command::Enqueue { mode: EnqueueMode::TryOnly, .. } => "sends ENQUEUE (try only)",
        Command::Renew { .. } => "sends RENEW",
        Command::Verify => "sends VERIFY",
        Command::SetTtl { .. } => "sends SET TTL",
        Command::Release { .. } => "sends RELEASE",
        Command::ReleaseWithoutHandoff => "sends RELEASE (without hand-off)",
        Command::Withdraw => "sends WITHDRAW",
        Command::Yield { .. } => "sends YIELD",
        Command::Fence => "sends FENCE",
        Command::Inspect => "sends INSPECT",
        _ => "sends another command",
    }
}

/// Describes the server's reply. The state of the key then lasts until `until`, in milliseconds.
pub(super) fn reply(command: Command, reply: &Reply, until: Option<u64>) -> String {
    let until = || until.map(|until| format!(" until {until} ms")).unwrap_or_default();
    match (command, reply) {
        (Command::Acquire { .. } | Command::Enqueue { .. }, Reply::Owner) => format!("grants it{}", until()),
        (Command::Renew { .. } | Command::SetTtl { .. }, Reply::Owner) => format!("extends it{}", until()),
        (Command::Yield { .. }, Reply::Owner) => "keeps the holder: no other process waits".to_owned(),
        (_, Reply::Owner) => "confirms it".to_owned(),
        (_, Reply::Contended | Reply::NotQueued { .. }) => format!("replies: held{}", until()),
        (_, Reply::Queued { .. }) => format!("replies: queued, held{}", until()),
        (_, Reply::Absent) => "replies: not queued".to_owned(),
        (_, Reply::NotOwner) => "replies: not the owner".to_owned(),
        (_, Reply::Yielded) => "replies: yielded and queued again".to_owned(),
        (_, Reply::Info(info)) => format!("replies: {} waiters", info.map_or(0, |info| info.waiters)),
        (_, Reply::Fenced(number)) => format!("replies: fencing token {}", number % 1_000_000_000),
        (_, Reply::Refused(_)) => "is down".to_owned(),
        _ => "does not reply".to_owned(),
    }
}
