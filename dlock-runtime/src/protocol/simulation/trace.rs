//! The readable record of a schedule.

/// The lines of a trace. A disabled trace formats nothing, so it costs nothing.
#[derive(Debug)]
pub(in crate::protocol) struct Trace(Option<Vec<String>>);

impl Trace {
    pub(in crate::protocol) const fn disabled() -> Self {
        Self(None)
    }

    pub(in crate::protocol) const fn enabled() -> Self {
        Self(Some(Vec::new()))
    }

    pub(in crate::protocol) const fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Records an event that happens at `now`, in milliseconds.
    pub(in crate::protocol) fn record(&mut self, now: u64, event: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.0 {
            lines.push(format!("at {now} ms {}", event()));
        }
    }

    pub(in crate::protocol) fn lines(self) -> Vec<String> {
        self.0.unwrap_or_default()
    }
}
