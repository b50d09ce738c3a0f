//! Fencing tokens: issued while the lock is held, and rising from holder to holder.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::contract;
use dlock_tests::world::World;

use super::{LEASE, hold};

contract![
    fencing_tokens_rise_from_holder_to_holder,
    a_guard_returns_the_same_fencing_token_twice,
    a_lost_guard_gets_no_fencing_token,
    no_lock_is_the_fencing_counter_of_another,
];

async fn fencing_tokens_rise_from_holder_to_holder(world: World) {
    let managers = [world.manager().await, world.manager().await, world.manager().await];
    let mut tokens = Vec::new();

    for turn in 0..9 {
        let guard = hold(&managers[turn % 3], "order:7").await;
        tokens.push(guard.fencing_token().await.expect("it is held"));
        guard.release().await.expect("it was held");
    }

    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    assert!(tokens.iter().all(|token| token.get() < 1 << 53), "{tokens:?}");
}

async fn a_guard_returns_the_same_fencing_token_twice(world: World) {
    let manager = world.manager().await;
    let held = hold(&manager, "order:7").await;

    let first = held.fencing_token().await.expect("it is held");
    let second = held.fencing_token().await.expect("it is held");

    assert_eq!(first, second);
}

/// Each pair is a lock and a key that looks like the name of its fencing counter.
async fn no_lock_is_the_fencing_counter_of_another(world: World) {
    let manager = world.manager().await;
    for (key, item) in
        [("cart:{7}", "cart:{7}:token"), ("cart:8", "cart:8:token"), ("cart:{9}", "cart:{9}#token")]
    {
        let of_item = hold(&manager, item).await;
        let held = hold(&manager, key).await;
        let first = held.fencing_token().await.expect("it is held");
        let same = of_item.fencing_token().await;
        held.release().await.expect("it was held");
        let later = hold(&manager, key).await.fencing_token().await.expect("it is held");
        let kept = of_item.release().await;

        assert!(same.is_ok() && kept.is_ok(), "{item}: {same:?}, {kept:?}");
        assert!(later > first, "{key}: {later} after {first}");
    }
    for counter in ["cart:{7}##token", "{dlock:cart:8}##token"] {
        let refused = manager.lock(counter).acquire().await;
        assert!(matches!(refused, Err(Error::InvalidKey { .. })), "{counter}: {refused:?}");
    }
}

async fn a_lost_guard_gets_no_fencing_token(world: World) {
    let manager = world.manager().await;
    let expired =
        manager.lock("expired").lease(LEASE).renew(false).acquire().await.expect("the lock is free");
    let stolen = hold(&manager, "stolen").await;

    world.let_pass(LEASE + Duration::from_millis(20)).await;
    let _thief = world.steal("stolen").await;
    let (of_expired, of_stolen) = (expired.fencing_token().await, stolen.fencing_token().await);

    assert!(matches!(of_expired, Err(Error::Lost { .. })), "{of_expired:?}");
    assert!(matches!(of_stolen, Err(Error::Lost { .. })), "{of_stolen:?}");
}
