//! The random choices of a schedule.
//!
//! Each choice has a name: its kind, its subject, and how often that pair was chosen before. The
//! result depends only on the seed and that name, so one choice can be overridden and all others
//! stay the same. Zero is always the harmless result: no delay, no loss.

use std::collections::BTreeMap;

/// Makes the choices of one schedule.
#[derive(Debug)]
pub(in crate::protocol) struct ChoiceSource {
    seed: u64,
    /// The number of choices made, by kind and subject.
    counts: [[u32; SUBJECTS]; KINDS],
    recording: Option<Recording>,
}

/// The name of one choice: kind, subject, and sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::protocol) struct Choice {
    kind: usize,
    subject: usize,
    nth: u32,
}

/// Results that replace those of the seed.
pub(in crate::protocol) type Overrides = BTreeMap<Choice, u64>;

#[derive(Debug, Default)]
struct Recording {
    overrides: Overrides,
    made: Vec<(Choice, u64)>,
}

const SUBJECTS: usize = 16;
const KINDS: usize = 32;

impl ChoiceSource {
    /// Returns the choices of `seed`.
    pub(in crate::protocol) fn new(seed: u64) -> Self {
        Self { seed, counts: [[0; SUBJECTS]; KINDS], recording: None }
    }

    /// Returns the choices of `seed` with some results replaced, and records the choices made.
    pub(in crate::protocol) fn with_overrides(seed: u64, overrides: Overrides) -> Self {
        Self { recording: Some(Recording { overrides, made: Vec::new() }), ..Self::new(seed) }
    }

    /// Returns the recorded choices whose result is not zero.
    pub(in crate::protocol) fn made(self) -> Vec<(Choice, u64)> {
        self.recording.map(|recording| recording.made).unwrap_or_default()
    }

    /// Chooses a number from 0 to `bound`, inclusive.
    pub(in crate::protocol) fn up_to(&mut self, kind: usize, subject: usize, bound: u64) -> u64 {
        let count = &mut self.counts[kind][subject];
        let nth = *count;
        *count += 1;
        let name = (kind as u64) << 56 | (subject as u64) << 48 | u64::from(nth);
        let drawn = mix(self.seed ^ mix(name)) % (bound + 1);
        let Some(recording) = &mut self.recording else { return drawn };
        let choice = Choice { kind, subject, nth };
        let chosen = recording.overrides.get(&choice).map_or(drawn, |value| *value.min(&bound));
        if chosen > 0 {
            recording.made.push((choice, chosen));
        }
        chosen
    }

    /// Returns `true` with a probability of `percent` in 100.
    pub(in crate::protocol) fn happens(&mut self, kind: usize, subject: usize, percent: u64) -> bool {
        percent > 0 && self.up_to(kind, subject, 99) + percent >= 100
    }
}

/// Returns a pseudorandom number (splitmix64; Steele, Lea, and Flood, OOPSLA 2014).
pub(in crate::protocol) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn an_overridden_choice_leaves_the_others_unchanged() {
    let results =
        |choices: &mut ChoiceSource| [0, 1, 0, 1].map(|subject| choices.up_to(3, subject, 1_000_000));
    let plain = results(&mut ChoiceSource::new(7));
    let mut recorded = ChoiceSource::with_overrides(7, Overrides::new());
    assert_eq!(results(&mut recorded), plain);
    let made = recorded.made();

    let overridden = results(&mut ChoiceSource::with_overrides(7, [(made[1].0, 0)].into()));

    assert_eq!(overridden, [plain[0], 0, plain[2], plain[3]]);
}
