//! A test of a schedule: what becomes of its slots, and of their jobs.

use super::script::{Expectation, ExpectedSlot, ScriptTime, TestCase};
use super::simulator::Simulator;
use base::times::format_rfc3339;
use engine::schedule::{Judgement, Verdict};
use engine::text::{did_you_mean, quote};
use engine::{Definition, Schedule};
use std::sync::Arc;

/// Finds a schedule by its full name, and the workflow that it starts.
pub(super) fn find_schedule(
    definitions: &[Arc<Definition>],
    name: &str,
) -> Result<(Arc<Schedule>, Arc<Definition>), String> {
    let schedules = || {
        let of_workflow = |definition: &'_ Arc<Definition>| {
            let definition = definition.clone();
            let schedules = definition.schedules.0.clone();
            schedules.into_iter().map(move |schedule| (schedule, definition.clone()))
        };
        definitions.iter().flat_map(of_workflow)
    };
    schedules().find(|(schedule, _)| schedule.full_name() == name).ok_or_else(|| {
        let names: Vec<String> = schedules().map(|(schedule, _)| schedule.full_name()).collect();
        let hint = did_you_mean(name, names.iter().map(String::as_str));
        let known = if names.is_empty() { "none is loaded" } else { &names.join(", ") };
        format!("there is no schedule {}{hint}; the schedules: {known}", quote(name))
    })
}

/// Checks that a test of a schedule says when it ends, and has nothing that is about one job.
pub(super) fn check_test(test: &TestCase) -> Result<(), String> {
    let Expectation { state, result, reason, states, statuses, attempts, inputs: _, took, slots } =
        &test.expect;
    let keys_of_one_job = [
        ("workflow", test.workflow.is_some()),
        ("message", test.message.is_some()),
        ("users", !test.users.is_empty()),
        ("expect.state", state.is_some()),
        ("expect.result", result.is_some()),
        ("expect.reason", reason.is_some()),
        ("expect.states", !states.is_empty()),
        ("expect.statuses", !statuses.is_empty()),
        ("expect.attempts", !attempts.is_empty()),
        ("expect.took", took.is_some()),
    ];
    if let Some((key, _)) = keys_of_one_job.into_iter().find(|(_, is_given)| *is_given) {
        return Err(format!(
            "{key} is about one job, and a schedule starts several: leave it out; expect.slots \
             and expect.inputs tell what is to come out"
        ));
    }
    if test.until.is_none() {
        return Err("a schedule goes on for ever: say with `until` when the test stops".to_owned());
    }
    let verdicts = Verdict::ALL.map(Verdict::as_str);
    let expected = slots.iter().flatten().filter_map(|slot| slot.verdict.as_deref());
    match expected.into_iter().find(|verdict| !verdicts.contains(verdict)) {
        None => Ok(()),
        Some(verdict) => Err(format!(
            "expect.slots: the verdict {}{}; expected one of {}",
            quote(verdict),
            did_you_mean(verdict, verdicts),
            verdicts.join(", ")
        )),
    }
}

/// Compares what became of the slots with the expectation. Returns the differences, one sentence
/// each.
pub(super) fn find_differences(
    simulator: &Simulator<'_>,
    expected: &[ExpectedSlot],
) -> Vec<String> {
    let judgements = simulator.judgements();
    let mut differences = Vec::new();
    for (number, expected) in expected.iter().enumerate() {
        let Some(judgement) = judgements.get(number) else {
            let slot = format_rfc3339(expected.slot.0);
            differences.push(format!("slot {slot}: expected, and no further slot was judged"));
            continue;
        };
        differences.extend(find_difference(simulator, expected, judgement));
    }
    for judgement in judgements.iter().skip(expected.len()) {
        let (slot, verdict) = (format_rfc3339(judgement.slot), judgement.verdict.as_str());
        differences.push(format!("slot {slot}: not expected, and it {verdict}"));
    }
    differences
}

/// Compares what became of one slot.
fn find_difference(
    simulator: &Simulator<'_>,
    expected: &ExpectedSlot,
    judgement: &Judgement,
) -> Option<String> {
    let job = judgement.job.and_then(|id| simulator.job(id));
    let state = job.map_or("", |job| job.state().as_str());
    let reason = judgement.reason.as_deref().unwrap_or_default();
    let time = |time: &Option<ScriptTime>| time.map(|time| format_rfc3339(time.0));
    let pairs = [
        ("time", Some(format_rfc3339(expected.slot.0)), format_rfc3339(judgement.slot)),
        (
            "verdict",
            Some(expected.verdict.clone().unwrap_or_else(|| Verdict::Started.as_str().to_owned())),
            judgement.verdict.as_str().to_owned(),
        ),
        ("at", time(&expected.at), format_rfc3339(judgement.at)),
        ("state of its job", expected.state.clone(), state.to_owned()),
    ];
    let slot = format_rfc3339(judgement.slot);
    let differs = |(subject, expected, actual): (&str, Option<String>, String)| {
        let expected = expected.filter(|expected| *expected != actual)?;
        Some(format!("{subject} of slot {slot}: expected {expected}, got {actual}"))
    };
    pairs.into_iter().find_map(differs).or_else(|| {
        let expected = expected.reason.as_ref().filter(|part| !reason.contains(part.as_str()))?;
        Some(format!("reason of slot {slot} (a part of it): expected {expected}, got {reason}"))
    })
}
