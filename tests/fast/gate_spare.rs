//! The places that the gate hands out in advance: no more than are free, to nobody while somebody
//! waits, and none is lost.

use crate::gate::Random;
use std::collections::BTreeMap;
use std::sync::Arc;
use workflow_manager::engine::{
    ClaimState, ClaimedPlace, Demand, Gate, JobId, LimitSetting, Millis, Rate, SparePlaces,
    StepClaim, StepIndex, Timestamp,
};

const STEP: StepIndex = StepIndex(0);
const NOW: Timestamp = Timestamp(0);
const NOBODY: [i64; 0] = [];

fn concurrency(max: u32) -> LimitSetting {
    LimitSetting { concurrency: Some(max), ..LimitSetting::default() }
}

fn demand(ticket: u64, since: i64, limits: &[&str], state: ClaimState) -> Demand {
    let place = |limit: &&str| ClaimedPlace { limit: (*limit).into(), key: None, fair: None };
    let places = limits.iter().map(place).collect();
    let since = Timestamp(since);
    let claim = StepClaim { ticket, since, places, state };
    Demand { claim, made: since, priority: 0 }
}

fn tell(gate: &mut Gate, job: i64, demand: Option<&Demand>) {
    let id = JobId(uuid::Uuid::from_u128(job.unsigned_abs().into()));
    gate.demand((job, id, STEP), demand, Arc::clone);
}

fn wait(gate: &mut Gate, job: i64, limits: &[&str]) {
    tell(gate, job, Some(&demand(1, job, limits, ClaimState::Waiting)));
}

fn advance(gate: &mut Gate) -> Vec<i64> {
    gate.advance(NOW).into_iter().map(|admission| admission.job).collect()
}

/// Tells the gate that a job holds the place that it took.
fn hold_taken(gate: &mut Gate, job: i64, limit: &str) {
    gate.settle(limit);
    tell(gate, job, Some(&demand(2, job, &[limit], ClaimState::Holding)));
}

fn gate(max: u32) -> (Gate, Arc<SparePlaces>) {
    let mut gate = Gate::default();
    gate.configure(&"a".into(), concurrency(max));
    let spare = gate.spare_places(&"a".into());
    assert_eq!(advance(&mut gate), NOBODY);
    (gate, spare)
}

fn take_all(spare: &SparePlaces) -> usize {
    std::iter::from_fn(|| spare.take().then_some(())).count()
}

#[test]
fn what_is_free_is_to_spare_and_what_is_taken_counts_as_held() {
    let (mut gate, spare) = gate(3);
    assert!(spare.take());
    assert_eq!(gate.count()[0].held, 1, "also before the gate is told who took it");
    hold_taken(&mut gate, 1, "a");
    assert_eq!(advance(&mut gate), NOBODY);
    assert_eq!((gate.count()[0].held, gate.held("a", "")), (1, 1));
    assert_eq!(take_all(&spare), 2, "no more than are left");
    assert_eq!(gate.count()[0].held, 3);
    tell(&mut gate, 1, None);
    assert_eq!(advance(&mut gate), NOBODY);
    assert_eq!(take_all(&spare), 1, "what is released is to spare again");
    for _ in 0..3 {
        gate.settle("a");
    }
    assert_eq!(advance(&mut gate), NOBODY);
    assert_eq!(take_all(&spare), 3, "so is what nothing followed from");
}

#[test]
fn nothing_is_to_spare_while_somebody_waits() {
    let (mut gate, spare) = gate(1);
    wait(&mut gate, 1, &["a"]);
    assert!(!spare.take(), "it is taken back with the demand");
    assert_eq!(advance(&mut gate), [1]);
    wait(&mut gate, 2, &["a"]);
    tell(&mut gate, 1, None);
    assert!(!spare.take());
    assert_eq!(advance(&mut gate), [2], "who waits is first");
    assert!(!spare.take());
    tell(&mut gate, 2, None);
    assert_eq!(advance(&mut gate), NOBODY);
    assert!(spare.take());
    wait(&mut gate, 3, &["a"]);
    assert_eq!(advance(&mut gate), NOBODY, "the place is taken, although the gate knows nobody");
    gate.settle("a");
    assert_eq!(advance(&mut gate), [3], "nothing follows from the taking");
}

#[test]
fn who_claims_several_places_takes_the_spare_ones_of_each_back() {
    let (mut gate, spare) = gate(1);
    gate.configure(&"b".into(), concurrency(1));
    let other = gate.spare_places(&"b".into());
    assert_eq!(advance(&mut gate), NOBODY);
    assert!(other.take());
    wait(&mut gate, 1, &["a", "b"]);
    assert!(!spare.take());
    assert_eq!(advance(&mut gate), NOBODY);
    assert!(!spare.take(), "it is kept for who waits at the other");
    gate.settle("b");
    assert_eq!(advance(&mut gate), [1]);
}

#[test]
fn a_pause_and_a_lower_bound_take_back_what_is_to_spare() {
    let (mut gate, spare) = gate(3);
    gate.configure(&"a".into(), LimitSetting { is_paused: true, ..concurrency(3) });
    assert!(!spare.take(), "a paused limit has none to spare");
    assert_eq!(advance(&mut gate), NOBODY);
    assert!(!spare.take());
    gate.configure(&"a".into(), concurrency(3));
    assert_eq!(advance(&mut gate), NOBODY);
    assert!(spare.take());
    gate.configure(&"a".into(), concurrency(2));
    assert_eq!(advance(&mut gate), NOBODY);
    assert_eq!(take_all(&spare), 1, "one of two is taken");
    let rate = Some(Rate { count: 1, per: Millis(1_000), burst: 1 });
    gate.configure(&"a".into(), LimitSetting { rate, ..concurrency(9) });
    assert_eq!(advance(&mut gate), NOBODY);
    assert!(!spare.take(), "a rate admits each one by itself");
}

#[test]
fn a_holder_that_nobody_admitted_leaves_no_more_to_spare_than_is_free() {
    let (mut gate, spare) = gate(2);
    tell(&mut gate, 1, Some(&demand(1, 1, &["a"], ClaimState::Holding)));
    assert_eq!(take_all(&spare), 0);
    assert_eq!(advance(&mut gate), NOBODY);
    assert_eq!(take_all(&spare), 1);
}

/// Takes one at random out of a list, which may be empty.
fn pick<T>(list: &mut Vec<T>, random: &mut Random) -> Option<T> {
    let index = random.below(u64::try_from(list.len()).ok()?.max(1));
    let index = usize::try_from(index).ok()?;
    (index < list.len()).then(|| list.swap_remove(index))
}

/// Jobs that take spare places or wait, commit late, and panic in between, while the bound changes
/// and the process is killed. At no time more jobs than allowed begin, and at the end nobody waits.
#[test]
#[allow(clippy::too_many_lines, reason = "one match over what may happen")]
fn whatever_happens_the_bound_holds_and_no_place_is_lost() {
    for seed in 1..=200_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut max, mut job) = (2, 0);
        let (mut gate, mut spare) = gate(max);
        // Those that hold a place by the journal, those whose decision to take one is not
        // committed, and those that wait.
        let (mut holders, mut undecided) = (Vec::new(), Vec::new());
        let mut waiting = BTreeMap::new();
        let mut is_paused = false;
        for _ in 0..300 {
            let begun = holders.len() + undecided.len();
            match random.below(12) {
                0..=3 => {
                    job += 1;
                    if spare.take() {
                        assert!(begun < max as usize, "seed {seed}: one too many");
                        assert!(!is_paused, "seed {seed}: nobody begins while it is paused");
                        assert!(waiting.is_empty(), "seed {seed}: who waits is overtaken");
                        undecided.push(job);
                    } else {
                        let claim = demand(1, job, &["a"], ClaimState::Waiting);
                        tell(&mut gate, job, Some(&claim));
                        waiting.insert(job, claim);
                    }
                }
                4..=6 => {
                    if let Some(job) = pick(&mut undecided, &mut random) {
                        hold_taken(&mut gate, job, "a");
                        holders.push(job);
                    }
                }
                // Its actor panics, or its step ends in the decision that began it.
                7 => {
                    if pick(&mut undecided, &mut random).is_some() {
                        gate.settle("a");
                    }
                }
                8..=9 => {
                    if let Some(job) = pick(&mut holders, &mut random) {
                        tell(&mut gate, job, None);
                    }
                }
                10 => {
                    // It is never lowered below what is taken: no holder is thrown out.
                    let least = u32::try_from(begun).unwrap_or(0).max(1);
                    max = least + u32::try_from(random.below(3)).unwrap_or(0);
                    is_paused = random.below(3) == 0;
                    gate.configure(&"a".into(), LimitSetting { is_paused, ..concurrency(max) });
                }
                _ => {
                    gate = Gate::default();
                    gate.configure(&"a".into(), LimitSetting { is_paused, ..concurrency(max) });
                    spare = gate.spare_places(&"a".into());
                    undecided.clear();
                    for job in &holders {
                        tell(&mut gate, *job, Some(&demand(2, *job, &["a"], ClaimState::Holding)));
                    }
                    waiting.values().for_each(|claim| {
                        let job = claim.claim.since.0;
                        tell(&mut gate, job, Some(claim));
                    });
                }
            }
            for admitted in advance(&mut gate) {
                waiting.remove(&admitted).expect("it waits");
                tell(&mut gate, admitted, Some(&demand(2, admitted, &["a"], ClaimState::Holding)));
                holders.push(admitted);
            }
            let begun = holders.len() + undecided.len();
            assert!(begun <= max as usize, "seed {seed}: {begun} of {max} places");
            assert_eq!(gate.count()[0].held, begun, "seed {seed}");
        }
        gate.configure(&"a".into(), concurrency(max));
        undecided.into_iter().for_each(|_| gate.settle("a"));
        holders.into_iter().for_each(|job| tell(&mut gate, job, None));
        loop {
            let admitted = advance(&mut gate);
            admitted.iter().for_each(|job| tell(&mut gate, *job, None));
            waiting.retain(|job, _| !admitted.contains(job));
            if admitted.is_empty() {
                break;
            }
        }
        assert!(waiting.is_empty() && gate.is_empty(), "seed {seed}: nobody waits for ever");
        assert_eq!(take_all(&spare), max as usize, "seed {seed}: no place is lost");
    }
}
