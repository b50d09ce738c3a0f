//! All that is left to chance in a schedule.
//!
//! Each choice has a name: what is chosen, for whom, and for the how manieth time. What comes out depends on the seed and that name
//! alone, so one choice can be taken away and all others stay as they were. Nought is always the mild choice: no delay, no loss.
//!
//! Not here: what there is to choose (`lanes`, `quorum::simulation`).

use std::collections::BTreeMap;

/// The choices of one schedule.
#[derive(Debug)]
pub(in crate::protocol) struct Chance {
    seed: u64,
    /// How often each thing was chosen for each one.
    counts: [[u32; SUBJECTS]; THINGS],
    notes: Option<Notes>,
}

/// One choice: what, for whom, and the how manieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::protocol) struct Choice {
    thing: usize,
    subject: usize,
    nth: u32,
}

/// What came out otherwise than the seed has it.
pub(in crate::protocol) type Instead = BTreeMap<Choice, u64>;

#[derive(Debug, Default)]
struct Notes {
    instead: Instead,
    made: Vec<(Choice, u64)>,
}

const SUBJECTS: usize = 16;
const THINGS: usize = 32;

impl Chance {
    /// The choices of `seed`.
    pub(in crate::protocol) fn new(seed: u64) -> Self {
        Self { seed, counts: [[0; SUBJECTS]; THINGS], notes: None }
    }

    /// The same, but for some; which choices are made is noted.
    pub(in crate::protocol) fn but(seed: u64, instead: Instead) -> Self {
        Self { notes: Some(Notes { instead, made: Vec::new() }), ..Self::new(seed) }
    }

    /// Returns the choices that were made and are not mild.
    pub(in crate::protocol) fn made(self) -> Vec<(Choice, u64)> {
        self.notes.map(|notes| notes.made).unwrap_or_default()
    }

    /// Chooses a number up to `bound`.
    pub(in crate::protocol) fn up_to(&mut self, thing: usize, subject: usize, bound: u64) -> u64 {
        let count = &mut self.counts[thing][subject];
        let nth = *count;
        *count += 1;
        let name = (thing as u64) << 56 | (subject as u64) << 48 | u64::from(nth);
        let drawn = mix(self.seed ^ mix(name)) % (bound + 1);
        let Some(notes) = &mut self.notes else { return drawn };
        let choice = Choice { thing, subject, nth };
        let chosen = notes.instead.get(&choice).map_or(drawn, |instead| *instead.min(&bound));
        if chosen > 0 {
            notes.made.push((choice, chosen));
        }
        chosen
    }

    /// Chooses whether what happens to `percent` in a hundred happens.
    pub(in crate::protocol) fn happens(&mut self, thing: usize, subject: usize, percent: u64) -> bool {
        percent > 0 && self.up_to(thing, subject, 99) + percent >= 100
    }
}

/// A number that looks random (splitmix64; Steele, Lea and Flood, OOPSLA 2014).
pub(in crate::protocol) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn a_choice_that_is_taken_away_leaves_the_others_as_they_were() {
    let row = |chance: &mut Chance| [0, 1, 0, 1].map(|subject| chance.up_to(3, subject, 1_000_000));
    let plain = row(&mut Chance::new(7));
    let mut noted = Chance::but(7, Instead::new());
    assert_eq!(row(&mut noted), plain);
    let made = noted.made();

    let less = row(&mut Chance::but(7, [(made[1].0, 0)].into()));

    assert_eq!(less, [plain[0], 0, plain[2], plain[3]]);
}
