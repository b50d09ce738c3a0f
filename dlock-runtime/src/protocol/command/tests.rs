use super::*;

#[test]
fn only_commands_that_grant_ownership_wait_for_replicas() {
    let lease = Duration::from_secs(30);
    for (command, carries) in [
        (Command::Acquire { lease }, true),
        (Command::Enqueue { lease, mode: EnqueueMode::Join }, true),
        (Command::Enqueue { lease, mode: EnqueueMode::Recheck }, true),
        (Command::Enqueue { lease, mode: EnqueueMode::TryOnly }, true),
        (Command::Renew { lease }, true),
        (Command::Verify, false),
        (Command::SetTtl { ttl: lease }, false),
        (Command::RELEASE, false),
        (Command::Withdraw, false),
        (Command::Fence, false),
        (Command::Inspect, false),
        (Command::Ping, false),
    ] {
        assert_eq!(command.grants_ownership(), carries, "{command:?}");
    }
}

#[test]
fn only_renewals_and_verifications_maintain_a_hold() {
    let lease = Duration::from_secs(30);
    for (command, maintains) in [
        (Command::Renew { lease }, true),
        (Command::Verify, true),
        (Command::Acquire { lease }, false),
        (Command::Enqueue { lease, mode: EnqueueMode::Join }, false),
        (Command::SetTtl { ttl: lease }, false),
        (Command::RELEASE, false),
        (Command::Ping, false),
    ] {
        assert_eq!(command.is_renewal(), maintains, "{command:?}");
    }
}
