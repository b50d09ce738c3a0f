//! J9: no error, log, or other output contains a secret of the test.

use super::Terms;
use crate::history::{View, What};

/// Returns the texts that contain a secret.
#[must_use]
pub fn violations(view: &View<'_>, terms: &Terms) -> Vec<String> {
    let mut seen = Vec::new();
    for event in view.history.events() {
        let (What::Outcome { text, .. } | What::Said { text } | What::Lost { cause: text, .. }) = &event.what
        else {
            continue;
        };
        if let Some(secret) = terms.secrets.iter().find(|secret| text.contains(secret.as_str())) {
            seen.push(format!("process {} discloses the secret `{secret}`: {text}", event.process));
        }
    }
    seen
}
