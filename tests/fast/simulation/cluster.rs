//! Managers of one name on one database, in turn: one is active, the others stand by. A process can
//! be killed, stopped for a while or for long, also in the middle of a commit, hang, or leave in
//! order. Whoever was stopped goes on later beside its successor, and must change nothing then.
//!
//! Each process has a thread of its own, but only one runs at a time: the scheduler hands a baton
//! around, so a seed still decides everything. The database is a journal in a file behind a fence
//! (`FencedJournal`) that works like the one in PostgreSQL: a commit locks the row of its process,
//! a takeover waits for that lock and marks the row dead.

pub(super) mod database;
pub(super) mod scheduler;

use super::world::lock;
use super::{Outcome, PANICS, SEEDS, listen_to_panics, number, simulate_seeds};
use scheduler::Scheduler;

/// Seeds in every test run.
const CLUSTER_SEEDS: u64 = 250;

/// The bugs that only several managers show, each of which must be found.
const CLUSTER_BUGS: &[&str] = &[
    // the fence
    "no fence",
    "fence of another process",
    "release before the last commit",
    "resent under new keys",
    // the takeover
    "beats by timestamps",
    "takeover tried once",
    "beat of a process that hangs",
    // of any manager, here at the one that has taken over
    "ack before commit",
    "unknown replies acknowledged at once",
    "unconfirmed steps not dispatched after a restart",
];

/// Runs a seed with several managers, with a planted bug or without.
pub(crate) fn simulate_cluster(seed: u64, bug: Option<&'static str>) -> Outcome {
    listen_to_panics();
    PANICS.with(|kept| *kept.borrow_mut() = Some(Vec::new()));
    let folder = super::temporary_folder();
    let mut scheduler = Scheduler::new(seed, folder.journal.path(), bug);
    scheduler.run();
    let world = scheduler.finish();
    PANICS.with(|kept| *kept.borrow_mut() = None);
    super::take_outcome(&mut lock(&world))
}

/// `SIMULATION_SEEDS`, `SIMULATION_FIRST`, `SIMULATION_SEED` and `SIMULATION_BUG` say which, as for
/// one manager.
#[test]
fn nothing_is_lost_by_managers_that_take_over() {
    if let Some(seed) = number("SIMULATION_SEED") {
        let bug = std::env::var("SIMULATION_BUG").ok();
        let bug = bug.map(|name| *CLUSTER_BUGS.iter().find(|bug| **bug == name).expect("a bug"));
        let outcome = simulate_cluster(seed, bug);
        eprintln!("{}\n{:?}", outcome.trace.join("\n"), outcome.counts);
        assert!(outcome.violation.is_none(), "seed {seed}: {:?}", outcome.violation);
        return;
    }
    let first = number("SIMULATION_FIRST").unwrap_or_default();
    let seeds = first..first + number("SIMULATION_SEEDS").unwrap_or(CLUSTER_SEEDS);
    let (counts, bad) = simulate_seeds(seeds.clone(), |seed| simulate_cluster(seed, None));
    eprintln!("seeds {seeds:?}: {counts:?}");
    if let Some((seed, Outcome { trace, violation, .. })) = bad {
        let end = &trace[trace.len().saturating_sub(80)..];
        panic!("seed {seed}: {}\n{}", violation.unwrap_or_default(), end.join("\n"));
    }
    assert!(
        counts.takeovers > counts.jobs / 4 && counts.fenced > counts.jobs / 20,
        "the faults did not come to pass: {counts:?}"
    );
}

#[test]
fn a_seed_decides_everything_that_managers_do() {
    for seed in 0..10 {
        let (once, again) = (simulate_cluster(seed, None), simulate_cluster(seed, None));
        assert_eq!(once.trace, again.trace, "seed {seed}");
    }
}

#[test]
fn every_planted_bug_of_a_cluster_is_found() {
    let is_missed = |bug: &&'static str| {
        let (_, found) = simulate_seeds(0..SEEDS, |seed| simulate_cluster(seed, Some(bug)));
        if let Some((seed, outcome)) = &found {
            eprintln!("{bug}: seed {seed}: {}", outcome.violation.as_deref().unwrap_or_default());
        }
        found.is_none()
    };
    let missed: Vec<&str> = CLUSTER_BUGS.iter().copied().filter(is_missed).collect();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
