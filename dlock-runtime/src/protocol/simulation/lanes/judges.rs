//! What these worlds are judged by.
//!
//! ```text
//! J1  no two believe in the lock at once, and nobody is let in beside the body of a hold that was ours when it ended
//! J2  nobody is let in at or after the deadline, and no body goes on after it
//! J3  fencing tokens rise in the order of holding
//! J5  while somebody waits and nobody holds, somebody is let in before long, once the weather is calm
//! J6  in the end nothing is left, and what the dead leave ends by itself
//! J8  every task is told one thing, once
//! J10 no hold is lost while nothing goes wrong, however far away the server is, if its lease has room for three round trips
//! ```
//!
//! Beside these: nobody is let in before the `min_hold` of another turn is over, and tasks of one process are let in in their order.
//! Where a fault is beyond what can be promised, J1 counts instead: who was granted the lock by a server that has forgotten it may
//! believe beside others, and nobody else.

use std::collections::BTreeMap;

use super::seen::Seen;
use super::weather::{Beyond, PROCESSES, TASKS, Weather};
use crate::error::LossCause;
use crate::protocol::deadline::BootInstant;
use crate::protocol::simulation::tally::Tally;
use crate::protocol::simulation::{Wrong, wrong};
use crate::token::Token;

/// A task that believes in the lock. Times are of its own process's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) process: usize,
    pub(super) token: Token,
    pub(super) until: BootInstant,
    pub(super) deadline: BootInstant,
    pub(super) ends: BootInstant,
    pub(super) lost: bool,
    /// The how manieth turn it is.
    pub(super) turn: u32,
}

/// How far a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Told {
    #[default]
    NotThere,
    WaitGraph {
        since: u64,
    },
    Admitted,
    Refused,
    /// It does not want to know any more.
    ResidualHold,
    Dead,
}

#[derive(Debug, Default)]
pub(super) struct Judges {
    pub(super) holds: [Option<Hold>; TASKS as usize],
    pub(super) told: [Told; TASKS as usize],
    /// By process: its tasks in the order in which they came, and in that in which they were let in.
    orders: [(Vec<u32>, Vec<u32>); PROCESSES as usize],
    turns: u32,
    /// Under which token, until when and in which life of the server the lock is kept.
    pub(super) kept: Option<(Token, u64, u32)>,
    /// When somebody was let in under a token last.
    admitted_at: BTreeMap<Token, u64>,
    /// In which life of the server a token was first said to have the lock: what it was told there a later one may not know.
    pub(super) granted_in: BTreeMap<Token, u32>,
    /// Turns and the tokens they were given.
    fences: Vec<(u32, u64)>,
    /// Since when nobody has held.
    idle_since: u64,
    /// From when on no more faults happen.
    pub(super) calm_from: u64,
}

impl Judges {
    pub(super) fn new(calm_from: u64) -> Self {
        Self { calm_from, ..Self::default() }
    }

    pub(super) fn joins(&mut self, acquisition: u32, process: usize, now: u64) {
        self.told[acquisition as usize] = Told::WaitGraph { since: now };
        self.orders[process].0.push(acquisition);
    }

    /// J8.
    fn tells(&mut self, acquisition: u32, what: Told) -> Result<u64, Box<Wrong>> {
        match self.told[acquisition as usize] {
            Told::WaitGraph { since } => {
                self.told[acquisition as usize] = what;
                Ok(since)
            }
            before => wrong(
                "J8 one outcome",
                format!("task {acquisition} is told that it is {what:?}, but was {before:?}"),
            ),
        }
    }

    /// J5.
    fn judge_the_wait(
        &self,
        acquisition: u32,
        since: u64,
        now: u64,
        weather: &Weather,
    ) -> Result<(), Box<Wrong>> {
        let since = since.max(self.idle_since).max(self.calm_from);
        if self.holds.iter().all(Option::is_none) && now > since + weather.longest_gap() {
            return wrong(
                "J5 no lost wake-up",
                format!("nobody had the lock for {} ms, and task {acquisition} waited for it", now - since),
            );
        }
        Ok(())
    }

    pub(super) fn refused(
        &mut self,
        acquisition: u32,
        now: u64,
        weather: &Weather,
    ) -> Result<(), Box<Wrong>> {
        let since = self.tells(acquisition, Told::Refused)?;
        self.judge_the_wait(acquisition, since, now, weather)
    }

    /// A task is let in; `local` is the time of its process.
    pub(super) fn admitted(
        &mut self,
        acquisition: u32,
        mut hold: Hold,
        (now, local, life): (u64, BootInstant, u32),
        weather: &Weather,
    ) -> Result<u32, Box<Wrong>> {
        let since = self.tells(acquisition, Told::Admitted)?;
        self.judge_the_wait(acquisition, since, now, weather)?;
        if local >= hold.until {
            return wrong(
                "J2 no entry after the deadline",
                format!("task {acquisition} is let in after its deadline"),
            );
        }
        let is_kept = |(token, until, of)| token != hold.token && now < until && of == life;
        // A server that has forgotten a grant keeps nobody out for it, and not its holder for who came later.
        let forgotten = self.granted_in.get(&hold.token).is_some_and(|of| *of < life);
        if weather.beyond != Beyond::Drift && !forgotten && self.kept.is_some_and(is_kept) {
            return wrong(
                "min_hold",
                format!("task {acquisition} is let in before the `min_hold` of another turn is over"),
            );
        }
        self.admitted_at.insert(hold.token, now);
        self.orders[hold.process].1.push(acquisition);
        self.turns += 1;
        hold.turn = self.turns;
        self.holds[acquisition as usize] = Some(hold);
        Ok(self.turns)
    }

    /// J1: judges that nobody but the task believes in the lock, by the clocks of the processes.
    pub(super) fn believes(
        &self,
        acquisition: u32,
        clocks: impl Fn(usize) -> BootInstant,
        (life, beyond): (u32, Beyond),
        tally: &mut Tally,
    ) -> Result<(), Box<Wrong>> {
        let Some(mine) = self.holds[acquisition as usize].filter(|mine| clocks(mine.process) < mine.until)
        else {
            return Ok(());
        };
        for (other, hold) in self.holds.iter().enumerate() {
            let Some(hold) = hold else { continue };
            if other == acquisition as usize || clocks(hold.process) >= hold.until {
                continue;
            }
            let forgotten = [mine.token, hold.token]
                .iter()
                .any(|token| self.granted_in.get(token).is_some_and(|of| *of < life));
            match beyond {
                Beyond::Drift => tally.note(Seen::OverlapDrift as usize),
                Beyond::Empty if forgotten => tally.note(Seen::OverlapForgotten as usize),
                Beyond::Promotion(_) if forgotten => tally.note(Seen::OverlapPromoted as usize),
                _ => {
                    return wrong(
                        "J1 no two believe in the lock",
                        format!("task {acquisition} believes in the lock, and so does task {other}"),
                    );
                }
            }
        }
        Ok(())
    }

    pub(super) fn ends(&mut self, acquisition: u32, now: u64) -> Option<Hold> {
        let hold = self.holds[acquisition as usize].take();
        if hold.is_some() {
            self.idle_since = now;
        }
        hold
    }

    /// J10: the rules say that a hold is lost.
    pub(super) fn judge_the_loss(
        acquisition: u32,
        cause: LossCause,
        weather: &Weather,
    ) -> Result<(), Box<Wrong>> {
        if weather.keeps_holds_of(acquisition) && !matches!(cause, LossCause::MaxHold | LossCause::Shutdown) {
            return wrong(
                "J10 no loss while nothing goes wrong",
                format!("task {acquisition} is told that its lock is lost, by {cause:?}"),
            );
        }
        Ok(())
    }

    /// J2: a body ends, so long after its deadline or since its process could notice that.
    pub(super) fn judge_the_body(acquisition: u32, hold: &Hold, late: u64) -> Result<(), Box<Wrong>> {
        if !hold.lost && late > 50 {
            return wrong(
                "J2 no body goes on after its deadline",
                format!("task {acquisition} goes on for {late} ms after its deadline"),
            );
        }
        Ok(())
    }

    /// A lock is kept until then.
    pub(super) fn keeps(&mut self, token: Token, asked: u64, min_hold: u64, life: u32) {
        let admitted = self.admitted_at.get(&token).map_or(0, |at| at + min_hold);
        self.kept = Some((token, admitted.min(asked), life));
    }

    /// J3: a task that holds was given a fencing token.
    pub(super) fn fenced(&mut self, acquisition: u32, number: u64) -> Result<(), Box<Wrong>> {
        let Some(hold) = self.holds[acquisition as usize].filter(|hold| !hold.lost) else { return Ok(()) };
        let out_of_order = |&&(turn, other): &&(u32, u64)| (turn < hold.turn) != (other < number);
        if let Some((turn, other)) =
            self.fences.iter().filter(|(turn, _)| *turn != hold.turn).find(out_of_order)
        {
            return wrong(
                "J3 fencing tokens rise",
                format!("turn {turn} was given {other}, and turn {} {number}", hold.turn),
            );
        }
        self.fences.push((hold.turn, number));
        Ok(())
    }

    /// J6 and J8 for the living, at the end.
    pub(super) fn judge_the_end(&self, alive: [bool; PROCESSES as usize]) -> Result<(), Box<Wrong>> {
        for ((joined, admitted), _) in self.orders.iter().zip(alive).filter(|(_, alive)| *alive) {
            let order = joined.iter().filter(|acquisition| admitted.contains(acquisition));
            if !order.eq(admitted) {
                return wrong("order", "tasks of one process were not let in in their order");
            }
        }
        match self.told.iter().position(|told| matches!(told, Told::WaitGraph { .. })) {
            Some(acquisition) => wrong("J8 one outcome", format!("task {acquisition} is told nothing")),
            None => Ok(()),
        }
    }
}
