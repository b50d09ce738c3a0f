//! J9: planted secrets are never said, by errors, logs, or anything else that is printed.

use super::Terms;
use crate::history::{View, What};

/// Returns what says a secret.
#[must_use]
pub fn violations(view: &View<'_>, terms: &Terms) -> Vec<String> {
    let mut seen = Vec::new();
    for event in view.history.events() {
        let (What::Outcome { text, .. } | What::Said { text } | What::Lost { cause: text, .. }) = &event.what
        else {
            continue;
        };
        if let Some(secret) = terms.secrets.iter().find(|secret| text.contains(secret.as_str())) {
            seen.push(format!("process {} says the secret `{secret}`: {text}", event.process));
        }
    }
    seen
}
