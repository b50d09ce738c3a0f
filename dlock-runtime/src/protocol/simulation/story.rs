//! What happened, in words, where somebody wants to read it.

/// The lines of a story; telling costs nothing where nobody listens.
#[derive(Debug)]
pub(in crate::protocol) struct Story(Option<Vec<String>>);

impl Story {
    /// A story that nobody listens to.
    pub(in crate::protocol) const fn on_invalidations_missed() -> Self {
        Self(None)
    }

    pub(in crate::protocol) const fn told() -> Self {
        Self(Some(Vec::new()))
    }

    pub(in crate::protocol) const fn is_listened_to(&self) -> bool {
        self.0.is_some()
    }

    /// Tells what happens at `now`.
    pub(in crate::protocol) fn tell(&mut self, now: u64, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.0 {
            lines.push(format!("at {now} ms {}", what()));
        }
    }

    pub(in crate::protocol) fn lines(self) -> Vec<String> {
        self.0.unwrap_or_default()
    }
}
