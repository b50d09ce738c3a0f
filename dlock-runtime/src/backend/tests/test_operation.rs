//! A store operation of the tests.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use crate::backend::Request;
use crate::backend::store_call::{StoreOperation, StoreScript, StoreSlot};
use crate::protocol::command::Command;
use crate::protocol::script_reply::ScriptReply;
use crate::sync::lock;
use crate::token::TokenSource;

/// Writes a value that ends at `expires`, and returns the value before, and the time of the store.
#[derive(Debug, Default)]
pub(crate) struct TestOperation {
    pub(crate) value: u64,
    pub(crate) expires: u64,
    pub(crate) wake: Vec<String>,
    pub(crate) needs_acks: bool,
    pub(crate) has_large_reply: bool,
    /// When the operation ran last, in milliseconds of the wall clock.
    pub(crate) ran_at: Mutex<u64>,
}

impl TestOperation {
    /// Returns a request that runs the operation.
    pub(crate) fn request(self: &Arc<Self>, key: &str) -> Request {
        let request = Request::new(key.into(), TokenSource::of_process(1).next(), Command::Call);
        Request { call: Some(Arc::clone(self) as Arc<dyn StoreOperation>), ..request }
    }
}

impl StoreOperation for TestOperation {
    fn script(&self) -> &'static StoreScript {
        static SCRIPT: StoreScript = StoreScript::new("return 1");
        &SCRIPT
    }

    fn arguments(&self) -> Vec<Cow<'_, [u8]>> {
        vec![Cow::Owned(self.value.to_string().into_bytes()), Cow::Borrowed(b"second")]
    }

    fn needs_acks(&self) -> bool {
        self.needs_acks
    }

    fn is_cleanup(&self) -> bool {
        false
    }

    fn has_large_reply(&self) -> bool {
        self.has_large_reply
    }

    fn apply(&self, slot: &mut StoreSlot, now: u64) -> ScriptReply {
        *lock(&self.ran_at) = now;
        let before = slot.value.as_ref().and_then(|value| value.downcast_ref::<u64>()).copied();
        *slot =
            StoreSlot { value: Some(Box::new(self.value)), expires: self.expires, wake: self.wake.clone() };
        before.map_or(ScriptReply::Nil, |before| ScriptReply::Int(before.try_into().unwrap_or(-1)))
    }
}
