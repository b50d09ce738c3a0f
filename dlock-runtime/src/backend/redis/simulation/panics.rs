//! Panics of a run: those that somebody catches count as well.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Panics of this thread are noted, and not printed, until this is dropped.
#[derive(Debug)]
pub(super) struct Watch(());

pub(super) fn watch() -> Watch {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_noted =
                SEEN.with_borrow_mut(|seen| seen.as_mut().map(|seen| seen.push(panic.to_string())));
            if is_noted.is_none() {
                before(panic);
            }
        }));
    });
    SEEN.set(Some(Vec::new()));
    Watch(())
}

/// Returns the panics since it is watched.
pub(super) fn seen() -> Vec<String> {
    SEEN.with_borrow_mut(|seen| seen.as_mut().map(std::mem::take)).unwrap_or_default()
}

impl Drop for Watch {
    fn drop(&mut self) {
        SEEN.set(None);
    }
}
