//! Rows that affect some of three servers.

use super::{Broken, Kind, Row};
use crate::ground::{Ground, LEASE};
use crate::stage::Stage;

const QUORUM: &[Ground] = &[Ground::Quorum];

pub(crate) const ROWS: &[Row] = &[
    Row { name: "S4", kind: Kind::Server, grounds: QUORUM, begin: minority },
    Row { name: "S5", kind: Kind::Server, grounds: QUORUM, begin: back_empty },
    Row { name: "S5c", kind: Kind::Server, grounds: QUORUM, begin: majority_forgets },
    Row { name: "S6", kind: Kind::Server, grounds: QUORUM, begin: majority_down },
    Row { name: "N8", kind: Kind::Network, grounds: QUORUM, begin: cut_from_the_majority },
    Row { name: "N9", kind: Kind::Network, grounds: QUORUM, begin: different_majorities },
];

fn one(stage: &mut Stage) -> usize {
    usize::try_from(stage.dice.below(3)).unwrap_or_default()
}

fn minority(stage: &mut Stage) -> Broken {
    let at = one(stage);
    stage.fault("S4", "one of three is frozen", &format!("server {at}"));
    stage.servers[at].pause();
    Broken::until(stage.dice.millis(100, 1_200), move |stage| stage.servers[at].try_resume())
}

/// One of three servers is killed and comes back empty. Its vote does not count for a lease.
fn back_empty(stage: &mut Stage) -> Broken {
    let at = one(stage);
    stage.fault("S5", "one of three is killed", &format!("server {at}"));
    stage.servers[at].kill();
    Broken::until(stage.dice.millis(0, 500), move |stage| {
        stage.servers[at].restart();
        // The next server to fail must be the only one whose vote does not count.
        std::thread::sleep(Ground::Quorum.age());
    })
}

/// More servers than a quorum can spare lose their data within one lease.
fn majority_forgets(stage: &mut Stage) -> Broken {
    let spared = one(stage);
    stage.fault("S5c", "two of three forget all keys", &format!("all but server {spared}"));
    for at in (0..3).filter(|at| *at != spared) {
        stage.order(at, &["FLUSHALL"]);
    }
    Broken::over_after(LEASE)
}

fn majority_down(stage: &mut Stage) -> Broken {
    let left = one(stage);
    stage.fault("S6", "two of three are frozen", &format!("all but server {left}"));
    let down: Vec<_> = (0..3).filter(|at| *at != left).collect();
    for at in &down {
        stage.servers[*at].pause();
    }
    Broken::until(stage.dice.millis(200, 1_000), move |stage| {
        for at in down {
            stage.servers[at].try_resume();
        }
    })
}

fn cut_from_the_majority(stage: &mut Stage) -> Broken {
    let (who, left) = (stage.anybody(), one(stage));
    stage.fault("N8", "cut from all servers but one", &stage.crew[who].pid().to_string());
    cut(stage, who, |at| at != left);
    heal_after(stage, vec![who])
}

fn different_majorities(stage: &mut Stage) -> Broken {
    stage.fault("N9", "each is cut from another server", "all processes");
    for who in 0..stage.crew.len() {
        cut(stage, who, |at| at == who % 3);
    }
    let all = (0..stage.crew.len()).collect();
    heal_after(stage, all)
}

fn cut(stage: &Stage, who: usize, is_cut: impl Fn(usize) -> bool) {
    for (_, way) in stage.crew[who].ways.iter().enumerate().filter(|(at, _)| is_cut(*at)) {
        way.black_hole();
    }
}

fn heal_after(stage: &mut Stage, whose: Vec<usize>) -> Broken {
    Broken::until(stage.dice.millis(200, 1_200), move |stage| {
        for who in whose {
            for way in &stage.crew[who].ways {
                way.pass();
            }
        }
    })
}
