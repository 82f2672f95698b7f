//! Bugs planted in the program itself (`faults::planted`), each of which the simulation must find:
//! a suite that cannot fail proves nothing.

use super::simulate_all;

/// Each with the place where it is planted.
const BUGS: &[&str] = &[
    // actors/job.rs
    "ack before commit",
    "effects before commit",
    "answer before commit",
    "rejected replies acknowledged at once",
    "rejected replies not acknowledged",
    "retry timer lost",
    "caller answered before commit",
    // actors/journal.rs
    "last record of a group left out",
    "no retry after a full disk",
    // actors/router.rs
    "known ids not looked up",
    "unknown replies sent back",
    // actors/supervisor.rs
    "panicked actors not rebuilt",
    // journal/sqlite/status.rs
    "only the first statuses of a group written",
    // journal/recover.rs
    "ended children unheard",
    // engine/job.rs
    "later dependency wins the merge",
    "second reply settles again",
    "confirms forgotten",
    "missing queues ignored",
    "late failures count",
    "cancelWhen ignored",
    // engine/fanout.rs
    "fan-in one short",
    "last child to end decides",
    "window filled once",
    "tolerance off by one",
];

#[test]
fn every_planted_bug_is_found() {
    let missed: Vec<&str> = BUGS.iter().copied().filter(|bug| !is_found(bug)).collect();
    assert!(missed.is_empty(), "not found within {} seeds: {missed:?}", super::SEEDS);
}

fn is_found(bug: &'static str) -> bool {
    let (_, found) = simulate_all(0..super::SEEDS, Some(bug));
    if let Some((seed, outcome)) = &found {
        eprintln!("{bug}: seed {seed}: {}", outcome.violation.as_deref().unwrap_or_default());
    }
    found.is_some()
}
