//! A store operation of the tests.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::backend::Request;
use crate::backend::store_call::{StoreOperation, StoreScript, StoreSlot};
use crate::protocol::command::Command;
use crate::protocol::script_reply::ScriptReply;
use crate::token::TokenSource;

/// The effect of an operation in memory, at a time in milliseconds of the wall clock.
type Effect = dyn Fn(&mut StoreSlot, u64) -> ScriptReply + Send + Sync;

/// An operation whose effect in memory a test chooses. By default, it has none.
pub(crate) struct TestOperation {
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) needs_acks: bool,
    pub(crate) has_large_reply: bool,
    pub(crate) is_repeatable: bool,
    pub(crate) effect: Box<Effect>,
}

impl TestOperation {
    pub(crate) fn with_effect(
        effect: impl Fn(&mut StoreSlot, u64) -> ScriptReply + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { effect: Box::new(effect), ..Self::default() })
    }

    /// Returns a request that runs the operation.
    pub(crate) fn request(self: &Arc<Self>, key: &str) -> Request {
        let request = Request::new(key.into(), TokenSource::of_process(1).next(), Command::Call);
        Request { call: Some(Arc::clone(self) as Arc<dyn StoreOperation>), ..request }
    }
}

impl Default for TestOperation {
    fn default() -> Self {
        Self {
            arguments: Vec::new(),
            needs_acks: false,
            has_large_reply: false,
            is_repeatable: true,
            effect: Box::new(|_, _| ScriptReply::Nil),
        }
    }
}

impl fmt::Debug for TestOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestOperation").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

impl StoreOperation for TestOperation {
    fn script(&self) -> &'static StoreScript {
        static SCRIPT: StoreScript = StoreScript::new("return 1");
        &SCRIPT
    }

    fn arguments(&self) -> Vec<Cow<'_, [u8]>> {
        self.arguments.iter().map(|argument| argument.as_slice().into()).collect()
    }

    fn needs_acks(&self) -> bool {
        self.needs_acks
    }

    fn is_repeatable(&self) -> bool {
        self.is_repeatable
    }

    fn is_cleanup(&self) -> bool {
        false
    }

    fn has_large_reply(&self) -> bool {
        self.has_large_reply
    }

    fn apply(&self, slot: &mut StoreSlot, now: u64) -> ScriptReply {
        (self.effect)(slot, now)
    }
}
