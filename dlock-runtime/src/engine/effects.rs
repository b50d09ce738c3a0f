//! The effects of one event or call on the engine itself, next to those on tasks.

use crate::backend::event_effects::EventEffects;
use crate::engine::acquisition::Wakers;
use crate::key::Name;
use crate::protocol::deadline::BootInstant;
use crate::token::Token;

/// The effects of one event or call, which apply once no lock is held.
pub(super) struct Effects<'a> {
    /// Tasks to wake and replies to deliver.
    pub(super) tasks: &'a mut EventEffects,
    /// The number of grants minus the number of releases.
    pub(super) holders: i64,
    /// The last holder has released.
    pub(super) drained: bool,
    /// Commands whose outcome is unknown and whose callers have gone.
    pub(super) orphaned: Vec<(Name, Token)>,
    /// The next deadline of the engine has become earlier.
    pub(super) earlier: Option<BootInstant>,
}

impl<'a> Effects<'a> {
    pub(super) fn new(tasks: &'a mut EventEffects) -> Self {
        Self { tasks, holders: 0, drained: false, orphaned: Vec::new(), earlier: None }
    }

    pub(super) fn wakes(&mut self, wakers: Wakers) {
        let Wakers { own, observers } = wakers;
        if let Some(own) = own {
            self.tasks.wake_later(own);
        }
        if let Some(observers) = observers {
            for observer in observers.into_values() {
                self.tasks.wake_later(observer);
            }
        }
    }

    pub(super) fn due(&mut self, due: BootInstant) {
        self.earlier = Some(self.earlier.map_or(due, |earlier| earlier.min(due)));
    }
}
