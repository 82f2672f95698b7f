//! The gate of limits: who is admitted next, and that no history exceeds a window or a concurrency.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use workflow_manager::engine::{
    ClaimState, ClaimedPlace, Demand, EntranceId, Gate, JobId, LimitSetting, Millis, Rate,
    RateMark, StepClaim, StepIndex, Timestamp,
};

const SECOND: i64 = 1_000_000_000;
const STEP: StepIndex = StepIndex(0);
const NOBODY: [i64; 0] = [];

fn rate(count: u32, per_ms: u64, burst: u32) -> LimitSetting {
    let rate = Some(Rate { count, per: Millis(per_ms), burst });
    LimitSetting { rate, ..LimitSetting::default() }
}

fn concurrency(max: u32) -> LimitSetting {
    LimitSetting { concurrency: Some(max), ..LimitSetting::default() }
}

fn place(limit: &str, key: &str) -> ClaimedPlace {
    let key = (!key.is_empty()).then(|| key.into());
    ClaimedPlace { limit: limit.into(), key, fair: None }
}

fn fair_place(limit: &str, fair: &str) -> ClaimedPlace {
    ClaimedPlace { limit: limit.into(), key: None, fair: Some(fair.into()) }
}

fn id(job: i64) -> JobId {
    JobId(uuid::Uuid::from_u128(job.unsigned_abs().into()))
}

fn demand(ticket: u64, since: i64, places: &[ClaimedPlace], state: ClaimState) -> Demand {
    let since = Timestamp(since);
    let claim = StepClaim { ticket, since, places: places.into(), state };
    Demand { claim, made: since, priority: 0 }
}

/// A gate with these limits.
fn gate(limits: &[(&str, LimitSetting)]) -> Gate {
    configured(Gate::default(), limits)
}

/// A gate with these limits, each of which may have so many keys in use.
fn bounded_gate(keys_max: usize, limits: &[(&str, LimitSetting)]) -> Gate {
    configured(Gate::with_keys_max(keys_max), limits)
}

fn configured(mut gate: Gate, limits: &[(&str, LimitSetting)]) -> Gate {
    for (name, setting) in limits {
        gate.configure(&(*name).into(), *setting);
    }
    gate
}

fn tell(gate: &mut Gate, job: i64, demand: Option<&Demand>) {
    gate.demand((job, id(job), STEP), demand, Arc::clone);
}

fn has_no_places(gate: &Gate) -> bool {
    gate.view(usize::MAX, Timestamp(0)).iter().all(|limit| limit.places.is_empty())
}

fn wait(gate: &mut Gate, job: i64, places: &[ClaimedPlace]) {
    tell(gate, job, Some(&demand(1, job, places, ClaimState::Waiting)));
}

fn advance(gate: &mut Gate, now: i64) -> Vec<i64> {
    gate.advance(Timestamp(now)).into_iter().map(|admission| admission.job).collect()
}

/// The same, and the jobs that are admitted end at once.
fn advance_and_end(gate: &mut Gate, now: i64) -> Vec<i64> {
    let admitted = advance(gate, now);
    admitted.iter().for_each(|job| tell(gate, *job, None));
    assert_eq!(advance(gate, now), NOBODY);
    admitted
}

#[test]
fn a_place_is_free_again_when_its_holder_releases_it_and_the_longest_waiting_is_next() {
    let mut gate = gate(&[("a", concurrency(2))]);
    let places = [place("a", "")];
    for job in [3, 1, 4, 2] {
        wait(&mut gate, job, &places);
    }
    assert_eq!(advance(&mut gate, 0), [1, 2], "who began to wait first is first");
    assert_eq!(advance(&mut gate, SECOND), NOBODY);
    tell(&mut gate, 1, None);
    assert_eq!(advance(&mut gate, SECOND), [3]);
    gate.forget(2);
    gate.forget(3);
    assert_eq!(advance(&mut gate, SECOND), [4]);
    tell(&mut gate, 4, None);
    assert_eq!(advance(&mut gate, SECOND), NOBODY);
    assert!(gate.is_empty() && has_no_places(&gate), "nothing is left");
}

fn wait_through(gate: &mut Gate, entrance: u32, job: i64, places: &[ClaimedPlace]) {
    let demand = demand(1, job, places, ClaimState::Waiting);
    let step = (job, id(job), STEP);
    gate.demand_through(EntranceId(entrance), step, Some(&demand), Arc::clone);
}

#[test]
fn a_paused_entrance_takes_its_steps_out_of_line_and_puts_them_back_where_they_were() {
    let mut gate = gate(&[("a", concurrency(1)), ("b", rate(1, 1_000, 1))]);
    let both = [place("a", ""), place("b", "")];
    for (job, entrance) in [(1, 1), (2, 2), (3, 1), (4, 2), (5, 2)] {
        wait_through(&mut gate, entrance, job, &both);
    }
    assert_eq!(advance_and_end(&mut gate, 0), [1]);
    gate.pause(BTreeSet::from([EntranceId(2)]));
    wait_through(&mut gate, 2, 6, &both);
    assert_eq!(advance_and_end(&mut gate, SECOND), [3], "nobody of the paused entrance");
    assert_eq!(gate.view_wait(2, STEP, Timestamp(SECOND)), None, "it waits for no limit");
    assert_eq!(gate.count_held_back(), BTreeMap::from([(EntranceId(2), 4)]));
    wait_through(&mut gate, 1, 7, &both);
    gate.forget(5);
    gate.pause(BTreeSet::new());
    assert_eq!(gate.count_held_back(), BTreeMap::new());
    for (second, job) in [(2, 2), (3, 4), (4, 6), (5, 7)] {
        assert_eq!(advance_and_end(&mut gate, second * SECOND), [job], "in the order of waiting");
    }
    assert_eq!(advance(&mut gate, 9 * SECOND), NOBODY);
    assert!(gate.is_empty() && has_no_places(&gate), "nothing is left");
}

#[test]
fn steps_without_limits_wait_only_while_their_entrance_is_paused() {
    let mut gate = gate(&[]);
    gate.pause(BTreeSet::from([EntranceId(1)]));
    wait_through(&mut gate, 1, 1, &[]);
    wait_through(&mut gate, 2, 2, &[]);
    assert_eq!(advance(&mut gate, 0), [2]);
    gate.pause(BTreeSet::from([EntranceId(2)]));
    assert_eq!(advance(&mut gate, 0), [1]);
    assert!(gate.view(9, Timestamp(0)).is_empty(), "no limit is shown");
}

#[test]
fn a_higher_priority_is_first_and_keys_do_not_know_each_other() {
    let mut gate = gate(&[("a", concurrency(1))]);
    let high = Demand { priority: 9, ..demand(1, 99, &[place("a", "x")], ClaimState::Waiting) };
    wait(&mut gate, 1, &[place("a", "x")]);
    tell(&mut gate, 2, Some(&high));
    wait(&mut gate, 3, &[place("a", "y")]);
    let mut admitted = advance(&mut gate, 0);
    admitted.sort_unstable();
    assert_eq!(admitted, [2, 3]);
}

#[test]
fn a_rate_lets_its_burst_through_and_then_one_message_in_each_interval() {
    let mut gate = gate(&[("a", rate(10, 1_000, 3))]);
    for job in 0..10 {
        wait(&mut gate, job, &[place("a", "")]);
    }
    assert_eq!(advance_and_end(&mut gate, 0), [0, 1, 2]);
    assert_eq!(gate.next_due(), Some(Timestamp(SECOND / 10)));
    assert_eq!(advance_and_end(&mut gate, SECOND / 10 - 1), NOBODY);
    assert_eq!(advance_and_end(&mut gate, SECOND / 10), [3]);
    let admitted = advance_and_end(&mut gate, SECOND / 2);
    assert_eq!(admitted, [4, 5, 6], "not more than the burst at once");
}

#[test]
fn a_rate_admits_nobody_while_the_journal_keeps_what_it_admitted_from_being_sent() {
    let mut gate = gate(&[("a", rate(10, 1_000, 1)), ("b", rate(10, 1_000, 1))]);
    for job in 0..10 {
        wait(&mut gate, job, &[place("a", "")]);
    }
    for tenth in 0..3 {
        assert_eq!(advance(&mut gate, tenth * SECOND / 10), [tenth]);
    }
    assert_eq!(advance(&mut gate, 3 * SECOND / 10), NOBODY, "the first is not sent yet");
    assert_eq!(advance(&mut gate, 5 * SECOND), NOBODY);
    wait(&mut gate, 20, &[place("b", "")]);
    assert_eq!(advance_and_end(&mut gate, 5 * SECOND), [20], "another rate goes on");
    for job in 0..3 {
        let sent = demand(2, job, &[place("a", "")], ClaimState::Holding);
        tell(&mut gate, job, Some(&sent));
    }
    assert_eq!(advance_and_end(&mut gate, 5 * SECOND), NOBODY, "they were sent only now");
    assert_eq!(advance_and_end(&mut gate, 51 * SECOND / 10), [3]);
    assert_eq!(advance_and_end(&mut gate, 52 * SECOND / 10), [4]);
}

#[test]
fn a_rate_holds_over_a_restart_and_a_clock_that_was_set_back_does_not_stop_it() {
    let mut before = gate(&[("a", rate(1, 3_600_000, 1))]);
    wait(&mut before, 1, &[place("a", "x")]);
    let admissions = before.advance(Timestamp(0));
    let mark = admissions[0].marks[0].clone();
    assert_eq!((&*mark.limit, &*mark.key, mark.time), ("a", "x", Timestamp(3_600 * SECOND)));
    let mut after = gate(&[("a", rate(1, 3_600_000, 1))]);
    after.restore_rate(&mark, Timestamp(SECOND));
    wait(&mut after, 2, &[place("a", "x")]);
    wait(&mut after, 3, &[place("a", "y")]);
    assert_eq!(advance(&mut after, SECOND), [3], "another key");
    assert_eq!(after.next_due(), Some(mark.time));
    assert_eq!(advance(&mut after, mark.time.0), [2]);
    let mut back = gate(&[("a", rate(1, 3_600_000, 1))]);
    back.restore_rate(&mark, Timestamp(-24 * 3_600 * SECOND));
    wait(&mut back, 4, &[place("a", "x")]);
    assert_eq!(advance(&mut back, -24 * 3_600 * SECOND), NOBODY);
    assert_eq!(back.next_due(), Some(Timestamp(-23 * 3_600 * SECOND)));
}

#[test]
fn a_key_too_many_waits_until_another_is_free_and_all_who_claim_it_come_in_order() {
    let mut gate = bounded_gate(2, &[("a", concurrency(1))]);
    for (job, key) in (1..).zip(["x", "y", "z", "w", "z"]) {
        wait(&mut gate, job, &[place("a", key)]);
    }
    assert_eq!(advance(&mut gate, 0), [1, 2]);
    let view = gate.view(usize::MAX, Timestamp(0)).remove(0);
    assert_eq!((view.places.len(), view.held, view.waiting), (2, 2, 3));
    let outside = gate.view_wait(4, STEP, Timestamp(0)).expect("it waits");
    assert_eq!((&*outside.key, outside.keys_max, outside.before), ("w", Some(2), 1));
    assert!(gate.has_room_for_key("a", "x") && !gate.has_room_for_key("a", "v"));
    wait(&mut gate, 6, &[place("a", "x")]);
    tell(&mut gate, 1, None);
    assert_eq!(advance(&mut gate, 0), [6], "a key that is in use stays so");
    tell(&mut gate, 6, None);
    assert_eq!(advance(&mut gate, 0), [3]);
    wait(&mut gate, 7, &[place("a", "z")]);
    tell(&mut gate, 3, None);
    assert_eq!(advance(&mut gate, 0), [5], "it began to wait before 7, although outside");
    gate.forget(4);
    for (released, next) in [(2, None), (5, Some(7)), (7, None)] {
        tell(&mut gate, released, None);
        assert_eq!(advance(&mut gate, 0), Vec::from_iter(next));
    }
    assert!(gate.is_empty() && has_no_places(&gate), "nothing is left");
}

#[test]
fn a_pause_holds_back_who_is_outside_too() {
    let mut gate = bounded_gate(1, &[("a", concurrency(1))]);
    for (job, key) in [(1, "x"), (2, "y"), (3, "z")] {
        wait_through(&mut gate, u32::try_from(job).expect("small"), job, &[place("a", key)]);
    }
    gate.pause(BTreeSet::from([EntranceId(1), EntranceId(3)]));
    let each = BTreeMap::from([(EntranceId(1), 1), (EntranceId(3), 1)]);
    assert_eq!(gate.count_held_back(), each);
}

#[test]
fn who_holds_a_key_is_never_kept_out_and_lets_others_of_it_in() {
    let mut gate = bounded_gate(1, &[("a", concurrency(1))]);
    let hold = |job: i64, key: &str| demand(1, job, &[place("a", key)], ClaimState::Holding);
    wait(&mut gate, 2, &[place("a", "y")]);
    wait(&mut gate, 3, &[place("a", "z")]);
    tell(&mut gate, 4, Some(&hold(4, "z")));
    tell(&mut gate, 5, Some(&hold(5, "x")));
    assert_eq!(advance(&mut gate, 0), [2]);
    tell(&mut gate, 4, None);
    assert_eq!(advance(&mut gate, 0), [3], "its key was in use");
    // It claims another key, and the job is told once more.
    let other = demand(3, 9, &[place("a", "w")], ClaimState::Waiting);
    tell(&mut gate, 3, Some(&other));
    tell(&mut gate, 3, Some(&other));
    tell(&mut gate, 2, None);
    assert_eq!(advance(&mut gate, 0), NOBODY, "x is in use");
    tell(&mut gate, 5, None);
    assert_eq!(advance(&mut gate, 0), [3]);
    tell(&mut gate, 3, None);
    assert_eq!(advance(&mut gate, 0), NOBODY);
    assert!(gate.is_empty() && has_no_places(&gate), "nothing is left");
}

#[test]
fn who_claims_keys_of_two_limits_waits_for_each_and_keeps_nobody_out_meanwhile() {
    let mut gate = bounded_gate(1, &[("a", concurrency(1)), ("b", concurrency(1))]);
    wait(&mut gate, 1, &[place("a", "x")]);
    wait(&mut gate, 2, &[place("b", "x")]);
    wait(&mut gate, 3, &[place("a", "z"), place("b", "z")]);
    assert_eq!(advance(&mut gate, 0), [1, 2]);
    tell(&mut gate, 1, None);
    assert_eq!(advance(&mut gate, 0), NOBODY);
    wait(&mut gate, 4, &[place("a", "w")]);
    assert_eq!(advance(&mut gate, 0), [4]);
    tell(&mut gate, 2, None);
    assert_eq!(advance(&mut gate, 0), NOBODY, "the limit a has no room for it now");
    tell(&mut gate, 4, None);
    assert_eq!(advance(&mut gate, 0), [3]);
    gate.forget(3);
    assert_eq!(advance(&mut gate, 0), NOBODY);
    assert!(gate.is_empty() && has_no_places(&gate), "nothing is left");
}

#[test]
fn several_limits_give_all_places_or_none() {
    let mut gate = gate(&[("a", concurrency(1)), ("b", concurrency(1))]);
    wait(&mut gate, 1, &[place("a", "")]);
    wait(&mut gate, 2, &[place("a", ""), place("b", "")]);
    wait(&mut gate, 3, &[place("b", "")]);
    assert_eq!(advance(&mut gate, 0), [1, 3], "2 holds nothing that it cannot use");
    tell(&mut gate, 3, None);
    assert_eq!(advance(&mut gate, 0), NOBODY);
    tell(&mut gate, 1, None);
    assert_eq!(advance(&mut gate, 0), [2]);
}

#[test]
fn who_claims_two_places_is_not_overtaken_for_ever() {
    let mut gate = gate(&[("a", concurrency(1)), ("b", concurrency(1))]);
    let (a, b) = ([place("a", "")], [place("b", "")]);
    let both = [place("a", ""), place("b", "")];
    // One place is always taken when the other becomes free.
    wait(&mut gate, 1, &a);
    wait(&mut gate, 2, &b);
    assert_eq!(advance(&mut gate, 0), [1, 2]);
    wait(&mut gate, 3, &both);
    let (mut holders, mut next) = (vec![1, 2], 10);
    for round in 0..100 {
        wait(&mut gate, next, if round % 2 == 0 { &a } else { &b });
        next += 1;
        tell(&mut gate, holders.remove(0), None);
        let admitted = advance(&mut gate, 0);
        if admitted.contains(&3) {
            return;
        }
        holders.extend(admitted);
        if holders.is_empty() {
            break;
        }
    }
    panic!("it was overtaken for ever");
}

#[test]
fn with_fair_the_values_take_turns() {
    let mut gate = gate(&[("a", concurrency(1))]);
    for (job, fair) in (1..).zip(["x", "x", "x", "x", "y", "y", "z"]) {
        wait(&mut gate, job, &[fair_place("a", fair)]);
    }
    let mut order = Vec::new();
    while let [job] = advance(&mut gate, 0)[..] {
        order.push(job);
        tell(&mut gate, job, None);
    }
    assert_eq!(order, [1, 5, 7, 2, 6, 3, 4]);
}

#[test]
fn a_job_that_states_its_claim_again_does_not_give_its_place_away() {
    let mut gate = gate(&[("a", concurrency(1))]);
    wait(&mut gate, 1, &[place("a", "")]);
    wait(&mut gate, 2, &[place("a", "")]);
    assert_eq!(advance(&mut gate, 0), [1]);
    // Its actor panicked before it took the admission.
    wait(&mut gate, 1, &[place("a", "")]);
    assert_eq!(advance(&mut gate, 0), [1], "it is told again, and nobody else");
    tell(&mut gate, 1, Some(&demand(5, 1, &[place("a", "")], ClaimState::Holding)));
    // A claim that was on its way when the job had sent its message.
    wait(&mut gate, 1, &[place("a", "")]);
    assert_eq!(advance(&mut gate, 0), NOBODY);
    tell(&mut gate, 1, None);
    assert_eq!(advance(&mut gate, 0), [2]);
}

#[test]
fn a_message_that_is_sent_again_keeps_its_place_and_waits_for_the_rate() {
    let both = LimitSetting { concurrency: Some(1), ..rate(1, 1_000, 1) };
    let mut gate = gate(&[("a", both)]);
    wait(&mut gate, 1, &[place("a", "")]);
    wait(&mut gate, 2, &[place("a", "")]);
    assert_eq!(advance(&mut gate, 0), [1]);
    tell(&mut gate, 1, Some(&demand(5, 1, &[place("a", "")], ClaimState::Resending)));
    assert_eq!(advance(&mut gate, 0), NOBODY);
    assert_eq!(advance(&mut gate, SECOND / 2), NOBODY);
    assert_eq!(advance(&mut gate, SECOND), [1]);
    tell(&mut gate, 1, None);
    assert_eq!(advance(&mut gate, SECOND), NOBODY);
    assert_eq!(advance(&mut gate, 2 * SECOND), [2]);
}

#[test]
fn who_holds_a_place_and_sends_again_is_not_behind_those_who_wait_for_the_place() {
    let both = LimitSetting { concurrency: Some(1), ..rate(1, 1_000, 1) };
    let mut gate = gate(&[("a", both)]);
    // After a restart: the message of the first to begin is not known to be sent.
    wait(&mut gate, 1, &[place("a", "")]);
    tell(&mut gate, 2, Some(&demand(1, 2, &[place("a", "")], ClaimState::Resending)));
    assert_eq!(advance_and_end(&mut gate, 0), [2]);
    assert_eq!(advance_and_end(&mut gate, SECOND), [1]);
}

#[test]
fn a_reserved_place_goes_to_whom_it_is_reserved_for_also_behind_a_higher_priority() {
    let mut gate = gate(&[("a", concurrency(1)), ("b", concurrency(1))]);
    become_impatient(&mut gate, 3);
    tell(&mut gate, 15, None);
    assert_eq!(advance(&mut gate, 0), NOBODY, "b is reserved for the third, and a is taken");
    let urgent = Demand { priority: 9, ..demand(1, 30, &[place("a", "")], ClaimState::Waiting) };
    tell(&mut gate, 30, Some(&urgent));
    assert_eq!(advance(&mut gate, 0), NOBODY);
    tell(&mut gate, 16, None);
    assert_eq!(advance(&mut gate, 0), [3]);
}

#[test]
fn a_paused_limit_admits_nobody_until_it_is_resumed() {
    let mut gate = gate(&[("a", LimitSetting { is_paused: true, ..concurrency(1) })]);
    wait(&mut gate, 1, &[place("a", "")]);
    assert_eq!(advance(&mut gate, SECOND), NOBODY);
    gate.configure(&"a".into(), concurrency(1));
    assert_eq!(advance(&mut gate, SECOND), [1]);
}

/// A small generator of pseudorandom numbers, so that a failure is repeatable.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What the jobs of the random test know: all that a restart keeps.
#[derive(Default)]
struct Jobs {
    claims: BTreeMap<i64, Demand>,
    marks: BTreeMap<(Arc<str>, Arc<str>), RateMark>,
    sent: BTreeMap<(Arc<str>, Arc<str>), Vec<i64>>,
}

#[test]
fn no_window_and_no_concurrency_is_exceeded_whatever_happens() {
    let settings = [
        ("r", rate(7, 1_000, 3)),
        ("c", concurrency(2)),
        ("rc", LimitSetting { concurrency: Some(3), ..rate(20, 1_000, 1) }),
    ];
    for seed in 1..=60_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Half of the gates have room for one key of each limit only.
        let keys_max = if seed % 2 == 0 { 1 } else { usize::MAX };
        let new_gate = || bounded_gate(keys_max, &settings);
        let (mut gate, mut jobs) = (new_gate(), Jobs::default());
        let (mut now, mut next_job, mut ticket) = (0, 0, 0);
        for _ in 0..400 {
            now += i64::try_from(random.below(80)).unwrap_or(0) * 1_000_000;
            match random.below(10) {
                0..=4 => {
                    (next_job, ticket) = (next_job + 1, ticket + 1);
                    let key = ["x", "y"][usize::from(random.below(2) == 0)];
                    let mut places = BTreeSet::new();
                    for _ in 0..=random.below(2) {
                        let name = settings[usize::try_from(random.below(3)).unwrap_or(0)].0;
                        places.insert(place(name, key));
                    }
                    let places: Vec<ClaimedPlace> = places.into_iter().collect();
                    let claim = demand(ticket, now, &places, ClaimState::Waiting);
                    tell(&mut gate, next_job, Some(&claim));
                    jobs.claims.insert(next_job, claim);
                }
                5..=8 => {
                    let count = u64::try_from(jobs.claims.len()).unwrap_or(0).max(1);
                    let index = usize::try_from(random.below(count)).unwrap_or(0);
                    if let Some(job) = jobs.claims.keys().nth(index).copied() {
                        jobs.claims.remove(&job);
                        tell(&mut gate, job, None);
                    }
                }
                _ => {
                    // The process is killed: all that is known comes from the jobs and the marks.
                    gate = new_gate();
                    for mark in jobs.marks.values() {
                        gate.restore_rate(mark, Timestamp(now));
                    }
                    for (job, claim) in &jobs.claims {
                        tell(&mut gate, *job, Some(claim));
                    }
                }
            }
            for admission in gate.advance(Timestamp(now)) {
                let Some(claim) = jobs.claims.get_mut(&admission.job) else {
                    panic!("seed {seed}: {} wants nothing any more", admission.job)
                };
                assert_eq!(claim.claim.ticket, admission.ticket, "seed {seed}");
                if random.below(20) == 0 {
                    // The admission is lost with the process before its commit.
                    continue;
                }
                ticket += 1;
                (claim.claim.ticket, claim.claim.state) = (ticket, ClaimState::Holding);
                tell(&mut gate, admission.job, Some(claim));
                for mark in admission.marks {
                    let key = (mark.limit.clone(), mark.key.clone());
                    jobs.sent.entry(key.clone()).or_default().push(now);
                    jobs.marks.insert(key, mark);
                }
            }
            check_holders(&jobs, &settings, seed);
        }
        check_windows(&jobs, &settings, seed);
        // A last kill.
        check_everybody_has_a_turn(new_gate(), &jobs, now, seed);
    }
}

/// Checks that all who wait are admitted once those who hold places have ended, and that then
/// nothing is left at the gate.
fn check_everybody_has_a_turn(mut gate: Gate, jobs: &Jobs, mut now: i64, seed: u64) {
    for (job, claim) in &jobs.claims {
        tell(&mut gate, *job, Some(claim));
    }
    for (job, claim) in &jobs.claims {
        if claim.holds() {
            tell(&mut gate, *job, None);
        }
    }
    let mut left = jobs.claims.values().filter(|claim| !claim.holds()).count();
    for _ in 0..1_000 {
        now += SECOND;
        let admitted = gate.advance(Timestamp(now));
        left -= admitted.len();
        admitted.iter().for_each(|admission| tell(&mut gate, admission.job, None));
    }
    assert_eq!(left, 0, "seed {seed}: nobody waits for ever");
    assert_eq!(gate.advance(Timestamp(now)), Vec::new(), "seed {seed}");
    assert_eq!(gate.advance(Timestamp(now + 3_600 * SECOND)), Vec::new(), "seed {seed}");
    assert!(gate.is_empty(), "seed {seed}: nothing leaks");
    assert!(has_no_places(&gate), "seed {seed}: no place leaks");
}

fn check_holders(jobs: &Jobs, settings: &[(&str, LimitSetting)], seed: u64) {
    let mut held: BTreeMap<(&str, Option<&str>), u32> = BTreeMap::new();
    let holders = jobs.claims.values().filter(|demand| demand.holds());
    for place in holders.flat_map(|demand| demand.claim.places.iter()) {
        *held.entry((&place.limit, place.key.as_deref())).or_default() += 1;
    }
    for ((limit, key), count) in held {
        let setting = settings.iter().find(|(name, _)| *name == limit).expect("a limit").1;
        if let Some(max) = setting.concurrency {
            assert!(count <= max, "seed {seed}: {count} hold {limit} {key:?}");
        }
    }
}

/// Checks that in no window `W` more than `burst + rate × W` messages were sent.
fn check_windows(jobs: &Jobs, settings: &[(&str, LimitSetting)], seed: u64) {
    for ((limit, key), times) in &jobs.sent {
        let setting = settings.iter().find(|(name, _)| *name == &**limit).expect("a limit").1;
        let Some(rate) = setting.rate else { continue };
        for first in 0..times.len() {
            for last in first..times.len() {
                let allowed =
                    i64::from(rate.burst) * rate.interval_ns() + times[last] - times[first];
                let sent = i64::try_from(last - first + 1).unwrap_or(i64::MAX) * rate.interval_ns();
                assert!(sent <= allowed, "seed {seed}: {limit} {key} sends too often");
            }
        }
    }
}

/// Has a job find one of its places, a and b, taken again and again, until they are reserved for
/// it. Then 16 holds a, and 15 holds b.
fn become_impatient(gate: &mut Gate, job: i64) {
    wait(gate, 1, &[place("a", "")]);
    wait(gate, 2, &[place("b", "")]);
    assert_eq!(advance(gate, 0), [1, 2]);
    wait(gate, job, &[place("a", ""), place("b", "")]);
    for turn in 0..7 {
        let (freed, next) = (if turn % 2 == 0 { "a" } else { "b" }, 10 + turn);
        let holder = if turn < 2 { turn + 1 } else { 8 + turn };
        wait(gate, next, &[place(freed, "")]);
        tell(gate, holder, None);
        assert_eq!(advance(gate, 0), [next]);
    }
}

#[test]
fn who_waits_for_the_end_of_a_pause_reserves_no_place_of_another_limit() {
    let mut gate = gate(&[("a", concurrency(1)), ("b", concurrency(1))]);
    become_impatient(&mut gate, 3);
    tell(&mut gate, 15, None);
    wait(&mut gate, 30, &[place("b", "")]);
    assert_eq!(advance(&mut gate, 0), NOBODY, "b is reserved for the third");
    tell(&mut gate, 30, None);
    let paused = LimitSetting { is_paused: true, ..concurrency(1) };
    gate.configure(&"b".into(), paused);
    tell(&mut gate, 16, None);
    assert_eq!(advance(&mut gate, 0), NOBODY);
    wait(&mut gate, 40, &[place("a", "")]);
    assert_eq!(advance(&mut gate, 0), [40], "the pause of b does not stop those who want a alone");
    gate.configure(&"b".into(), concurrency(1));
    assert_eq!(advance(&mut gate, 0), NOBODY);
    tell(&mut gate, 40, None);
    assert_eq!(advance(&mut gate, 0), [3]);
}
