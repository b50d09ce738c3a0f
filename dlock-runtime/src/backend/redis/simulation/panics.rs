//! Records the panics of a run, including those that are caught.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// While it exists, panics of this thread are recorded instead of printed.
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

/// Returns the panics since recording started.
pub(super) fn seen() -> Vec<String> {
    SEEN.with_borrow_mut(|seen| seen.as_mut().map(std::mem::take)).unwrap_or_default()
}

impl Drop for Watch {
    fn drop(&mut self) {
        SEEN.set(None);
    }
}
