use super::*;
use crate::json::Message;
use crate::schedule::calendar::Calendar;
use crate::schedule::plan::Timing;
use proptest::prelude::*;
use std::collections::BTreeSet;

const MINUTE: Millis = Millis(60_000);

fn schedule(missed: Missed, overlap: Overlap) -> Schedule {
    Schedule {
        name: "often".to_owned(),
        vhost: String::new(),
        workflow: "sync".to_owned(),
        timing: Timing::Every(Millis(10 * MINUTE.0)),
        message: Message::default(),
        missed,
        overlap,
        jitter: Millis(0),
        deadline: None,
    }
}

/// The time this many minutes after 1970.
fn minute(minutes: u64) -> Timestamp {
    Timestamp(0).plus(Millis(minutes * MINUTE.0))
}

/// Judges at a time, as the caller does: all starts are returned, and the ledger is kept.
fn judge(ledger: &mut Ledger, schedule: &Schedule, now: u64, running: &[JobId]) -> Vec<Start> {
    match ledger.judge(schedule, minute(now), |id| running.contains(&id), None) {
        Some(judged) => {
            let starts = judged.ledger.starting().to_vec();
            *ledger = judged.ledger.with_started();
            if starts.is_empty() { judged.starts } else { starts }
        }
        None => Vec::new(),
    }
}

fn slots(starts: &[Start]) -> Vec<Timestamp> {
    starts.iter().map(|start| start.slot).collect()
}

fn verdicts(ledger: &Ledger) -> Vec<(Timestamp, Verdict, u64)> {
    ledger.judgements().map(|judged| (judged.slot, judged.verdict, judged.slots)).collect()
}

#[test]
fn a_new_schedule_counts_from_now() {
    let schedule = schedule(Missed::All, Overlap::Allow);
    let mut ledger = Ledger::new(&schedule, minute(1_005));
    assert_eq!(ledger.next_due(&schedule), Some(minute(1_010)));
    assert_eq!(judge(&mut ledger, &schedule, 1_009, &[]), []);
    assert_eq!(slots(&judge(&mut ledger, &schedule, 1_010, &[])), [minute(1_010)]);
    assert_eq!(judge(&mut ledger, &schedule, 1_010, &[]), [], "a slot starts once");
    assert_eq!(judge(&mut ledger, &schedule, 1_000, &[]), [], "also when the clock is put back");
}

#[test]
fn missed_slots_start_as_the_schedule_says() {
    let after = |missed, now| {
        let schedule = schedule(missed, Overlap::Allow);
        let mut ledger = Ledger::new(&schedule, minute(5));
        let starts = slots(&judge(&mut ledger, &schedule, now, &[]));
        (starts, verdicts(&ledger))
    };
    // The slots at 10, 20 and 30 were missed.
    let missed = |slot, slots| (minute(slot), Verdict::Missed, slots);
    assert_eq!(after(Missed::None, 35), (vec![], vec![missed(30, 3)]));
    let started = (minute(30), Verdict::Started, 1);
    assert_eq!(after(Missed::Last, 35), (vec![minute(30)], vec![started, missed(20, 2)]));
    assert_eq!(after(Missed::All, 35).0, [minute(10), minute(20), minute(30)]);
    // The slot at 40 is on time.
    assert_eq!(after(Missed::None, 40).0, [minute(40)]);
    assert_eq!(after(Missed::Last, 40).0, [minute(40)]);
    // The last hundred, however many there were.
    let (starts, _) = after(Missed::All, 100_005);
    assert_eq!(starts, [] as [Timestamp; 0], "the first round only skips what is too old");
    let schedule = schedule(Missed::All, Overlap::Allow);
    let mut ledger = Ledger::new(&schedule, minute(5));
    let mut all = Vec::new();
    for _ in 0..20 {
        all.extend(slots(&judge(&mut ledger, &schedule, 100_005, &[])));
    }
    assert_eq!((all.len(), all.last()), (MISSED_STARTS_MAX, Some(&minute(100_000))));
}

#[test]
fn overlaps_are_judged_as_the_schedule_says() {
    let second = |overlap, is_running: bool| {
        let schedule = schedule(Missed::Last, overlap);
        let mut ledger = Ledger::new(&schedule, minute(5));
        let first = judge(&mut ledger, &schedule, 10, &[])[0].id;
        let running: &[JobId] = if is_running { &[first] } else { &[] };
        let starts = judge(&mut ledger, &schedule, 20, running);
        (schedule, ledger, first, starts)
    };
    for overlap in [Overlap::Allow, Overlap::Skip, Overlap::Wait, Overlap::Replace] {
        let (_, _, _, starts) = second(overlap, false);
        assert_eq!((slots(&starts), starts[0].replaces.len()), (vec![minute(20)], 0));
    }
    let (_, _, _, starts) = second(Overlap::Allow, true);
    assert_eq!((slots(&starts), starts[0].replaces.len()), (vec![minute(20)], 0));
    let (_, ledger, first, starts) = second(Overlap::Skip, true);
    assert_eq!(starts, []);
    let skipped = ledger.judgements().next().expect("a judgement");
    assert_eq!((skipped.verdict, skipped.job), (Verdict::Skipped, Some(first)));
    let (_, _, first, starts) = second(Overlap::Replace, true);
    assert_eq!(starts[0].replaces, [first]);

    let (schedule, mut ledger, first, starts) = second(Overlap::Wait, true);
    assert_eq!((starts, ledger.waiting()), (vec![], Some(minute(20))));
    assert_eq!(judge(&mut ledger, &schedule, 30, &[first]), [], "one slot waits");
    assert_eq!(verdicts(&ledger)[0], (minute(30), Verdict::Skipped, 1));
    assert_eq!(slots(&judge(&mut ledger, &schedule, 31, &[])), [minute(20)]);
    assert_eq!(ledger.waiting(), None);
}

#[test]
fn a_slot_starts_within_its_deadline_or_not_at_all() {
    let schedule =
        Schedule { deadline: Some(Millis(8 * MINUTE.0)), ..schedule(Missed::Last, Overlap::Wait) };
    let mut ledger = Ledger::new(&schedule, minute(5));
    assert_eq!(judge(&mut ledger, &schedule, 19, &[]), []);
    assert_eq!(verdicts(&ledger)[0], (minute(10), Verdict::Missed, 1));
    let first = judge(&mut ledger, &schedule, 20, &[])[0].id;
    assert_eq!(judge(&mut ledger, &schedule, 30, &[first]), []);
    assert_eq!(judge(&mut ledger, &schedule, 39, &[]), []);
    assert_eq!(verdicts(&ledger)[0], (minute(30), Verdict::Missed, 1));
}

#[test]
fn a_paused_schedule_skips_its_slots() {
    let schedule = schedule(Missed::All, Overlap::Allow);
    let mut ledger = Ledger::new(&schedule, minute(5));
    ledger.paused = Some(Pause { since: minute(5), reason: None, by: None });
    assert_eq!(judge(&mut ledger, &schedule, 25, &[]), []);
    assert_eq!(verdicts(&ledger), [(minute(20), Verdict::Skipped, 2)]);
    ledger.paused = None;
    assert_eq!(slots(&judge(&mut ledger, &schedule, 30, &[])), [minute(30)]);
}

#[test]
fn a_changed_timing_counts_from_now() {
    let before = schedule(Missed::All, Overlap::Allow);
    let mut ledger = Ledger::new(&before, minute(5));
    assert!(!ledger.adapt(&before, minute(100)), "the same timing keeps its mark");
    let calendar = Calendar::parse("0 * * * *", "UTC").expect("valid");
    let after = Schedule { timing: Timing::Cron(Box::new(calendar)), ..before };
    assert!(ledger.adapt(&after, minute(100)));
    assert_eq!(ledger.next_due(&after), Some(minute(120)));
}

#[test]
fn a_mark_that_a_wrong_clock_has_left_far_ahead_returns_to_the_clock() {
    let schedule = schedule(Missed::Last, Overlap::Allow);
    let mut ledger = Ledger::new(&schedule, minute(5));
    judge(&mut ledger, &schedule, 60 * 24 * 365, &[]);
    assert!(ledger.adapt(&schedule, minute(100)));
    assert_eq!(ledger.next_due(&schedule), Some(minute(110)));
}

#[test]
fn jobs_that_were_started_before_a_crash_are_found_and_their_slots_judged() {
    let schedule = schedule(Missed::Last, Overlap::Wait);
    let mut stored = Ledger::new(&schedule, minute(5));
    let first = judge(&mut stored, &schedule, 10, &[])[0].id;
    assert_eq!(judge(&mut stored, &schedule, 20, &[first]), []);
    assert_eq!(stored.waiting(), Some(minute(20)));
    // The job of the slot at 20 was started, and the ledger was not stored.
    let mut started = vec![schedule.job_id(minute(20))];
    let recover = |stored: &Ledger, started: &[JobId], now| {
        let mut ledger = stored.clone();
        let exists = |id| Ok::<_, ()>(started.contains(&id));
        ledger.recover(&schedule, minute(now), exists).expect("reads");
        ledger
    };
    let begun = |slot| (minute(slot), Verdict::Started, 1);
    let mut ledger = recover(&stored, &started, 25);
    assert_eq!(
        (ledger.mark(), ledger.waiting(), verdicts(&ledger)[0]),
        (minute(20), None, begun(20))
    );
    assert_eq!(judge(&mut ledger, &schedule, 25, &started), [], "nothing starts again");
    // The same of the slot at 30, before which nothing waited.
    started.push(schedule.job_id(minute(30)));
    let mut ledger = recover(&ledger, &started, 35);
    assert_eq!((ledger.mark(), verdicts(&ledger)[0]), (minute(30), begun(30)));
    assert_eq!(judge(&mut ledger, &schedule, 35, &started), [], "nothing starts again");
    // It counts as an earlier job.
    assert_eq!(judge(&mut ledger, &schedule, 40, &started[1..]), []);
    assert_eq!(recover(&ledger, &started, 49), ledger, "the next slot has no job yet");
    let failing = |_| Err("the disk is broken");
    assert_eq!(stored.clone().recover(&schedule, minute(45), failing), Err("the disk is broken"));
}

#[test]
fn a_round_of_several_verdicts_is_not_judged_again_after_a_crash() {
    let schedule = schedule(Missed::Last, Overlap::Allow);
    let ledger = Ledger::new(&schedule, minute(5));
    let judged = ledger.judge(&schedule, minute(42), |_| false, None).expect("some are due");
    let stored = judged.ledger;
    let missed = (minute(30), Verdict::Missed, 3);
    let expected = [(minute(40), Verdict::Started, 1), missed];
    assert_eq!((slots(stored.starting()), verdicts(&stored)), (vec![minute(40)], vec![missed]));
    assert_eq!(judged.starts, [], "it is stored before its job starts");
    // Later, the slot at 50 is due too, but first the job has to be there.
    assert_eq!(stored.next_due(&schedule), Some(minute(40)));
    assert_eq!(stored.judge(&schedule, minute(52), |_| false, None), None);
    for exists in [false, true] {
        let mut recovered = stored.clone();
        recovered.recover(&schedule, minute(52), |_| Ok::<_, ()>(exists)).expect("reads");
        assert_eq!(recovered.starting().is_empty(), exists);
        let mut recovered = recovered.with_started();
        assert_eq!(verdicts(&recovered), expected, "nothing is judged otherwise");
        assert_eq!(slots(&judge(&mut recovered, &schedule, 52, &[])), [minute(50)]);
    }
    let text = serde_json::to_string(&stored).expect("texts and numbers");
    assert_eq!(serde_json::from_str::<Ledger>(&text).expect("the same"), stored);
}

#[test]
fn a_job_that_cannot_start_within_the_deadline_does_not_start_behind_a_later_slot() {
    let deadline = Some(Millis(25 * MINUTE.0));
    let schedule = Schedule { deadline, ..schedule(Missed::All, Overlap::Replace) };
    let mut ledger = Ledger::new(&schedule, minute(5));
    let first = judge(&mut ledger, &schedule, 10, &[])[0].id;
    // The job of the slot at 20 could not start. It is judged again beside the slot at 30.
    let judged = ledger.judge(&schedule, minute(30), |id| id == first, None).expect("two are due");
    assert_eq!(judged.counts, [], "what is to start counts once it has");
    let ledger = judged.ledger;
    assert_eq!(slots(ledger.starting()), [minute(20), minute(30)]);
    assert_eq!(ledger.expire_starting(&schedule, minute(45)), None);
    let Judged { ledger, starts, counts } =
        ledger.expire_starting(&schedule, minute(46)).expect("one is too late");
    assert_eq!((starts, counts), (vec![], vec![(Verdict::Missed, 1)]));
    assert_eq!(slots(ledger.starting()), [minute(30)]);
    assert_eq!(ledger.starting()[0].replaces, [first], "not the job that never started");
    assert_eq!(verdicts(&ledger)[0], (minute(20), Verdict::Missed, 1));
    let Judged { ledger, .. } =
        ledger.expire_starting(&schedule, minute(56)).expect("the other one is too late");
    assert_eq!(ledger.starting(), []);
    assert_eq!(ledger.jobs, [first], "the job that was to be replaced goes on");
    let missed = |slot| (minute(slot), Verdict::Missed, 1);
    assert_eq!(verdicts(&ledger)[..2], [missed(30), missed(20)]);
}

#[test]
fn slots_that_were_refused_are_not_said_to_have_met_no_manager() {
    let schedule = schedule(Missed::Last, Overlap::Allow);
    let ledger = Ledger::new(&schedule, minute(5));
    let reason = |refusal| {
        let judged = ledger.judge(&schedule, minute(25), |_| false, refusal).expect("two are due");
        let mut judgements = judged.ledger.judgements();
        judgements.find(|judgement| judgement.verdict == Verdict::Missed).cloned()
    };
    let missed = reason(Some("job 1 has the place")).expect("one is missed");
    let expected = "its job could not be started: job 1 has the place";
    assert_eq!((missed.slot, missed.reason.as_deref()), (minute(10), Some(expected)));
    let missed = reason(None).expect("one is missed");
    assert_eq!(missed.reason.as_deref(), Some("no manager ran then"));
    let missed = reason(Some(&"é".repeat(5_000))).expect("one is missed");
    assert!(missed.reason.is_some_and(|reason| reason.len() < 300), "it is bounded");
}

#[test]
fn the_jitter_is_the_same_each_time_and_within_its_bound() {
    let jitter = Millis(5 * MINUTE.0);
    let schedule = Schedule { jitter, ..schedule(Missed::Last, Overlap::Skip) };
    let delays: BTreeSet<i64> = (1..200)
        .map(|slot| {
            let slot = minute(slot * 10);
            let start = schedule.start_time(slot);
            assert_eq!(start, schedule.start_time(slot));
            assert!(start >= slot && start < slot.plus(jitter), "{start:?}");
            start.0 - slot.0
        })
        .collect();
    assert!(delays.len() > 190, "the delays differ: {}", delays.len());
}

#[test]
fn judgements_and_the_text_of_a_ledger_are_bounded() {
    let schedule = schedule(Missed::Last, Overlap::Allow);
    let mut ledger = Ledger::new(&schedule, minute(0));
    for round in 1..1_000 {
        judge(&mut ledger, &schedule, round * 10, &[]);
    }
    assert_eq!(ledger.judgements().count(), JUDGEMENTS_MAX);
    let text = serde_json::to_string(&ledger).expect("texts and numbers");
    assert!(text.len() < 8_192, "{} bytes", text.len());
    assert_eq!(serde_json::from_str::<Ledger>(&text).expect("the same"), ledger);
}

proptest! {
    /// Whatever happens, no slot starts twice, the mark never moves back, and with `allow` and
    /// `all` no slot is forgotten. A crash forgets the ledger of a round whose job has started, and
    /// finds that of several verdicts with its jobs that are starting.
    #[test]
    fn a_slot_starts_once_over_crashes_and_clock_steps(
        rounds in prop::collection::vec((0_i64..90, any::<bool>(), any::<bool>()), 1..60),
        missed in prop::sample::select(vec![Missed::None, Missed::Last, Missed::All]),
        overlap in prop::sample::select(
            vec![Overlap::Allow, Overlap::Skip, Overlap::Wait, Overlap::Replace]
        ),
    ) {
        let schedule = schedule(missed, overlap);
        let mut now = 100_000_i64;
        let mut ledger = Ledger::new(&schedule, minute(100_000));
        let (mut started, mut last): (BTreeSet<JobId>, Option<JobId>) = (BTreeSet::new(), None);
        let mut is_crashed = false;
        let mut newest = now;
        for (step, is_crash, is_running) in rounds {
            // Most steps are forward, some are back.
            now += step - 20;
            newest = newest.max(now);
            let at = minute(u64::try_from(now).expect("after 1970"));
            let is_active = |id| is_running && Some(id) == last;
            if is_crashed {
                let exists = |id| Ok::<_, ()>(started.contains(&id));
                ledger.recover(&schedule, at, exists).expect("reads");
            }
            let Some(judged) = ledger.judge(&schedule, at, is_active, None) else { continue };
            prop_assert!(judged.ledger.mark() >= ledger.mark());
            let is_stored_first = !judged.ledger.starting().is_empty();
            prop_assert!(!is_stored_first || judged.starts.is_empty());
            prop_assert!(is_stored_first || judged.starts.len() <= 1);
            for start in judged.starts.iter().chain(judged.ledger.starting()) {
                prop_assert_eq!(start.id, schedule.job_id(start.slot));
                prop_assert!(started.insert(start.id), "{:?} started twice", start.slot);
                last = Some(start.id);
            }
            is_crashed = is_crash && !is_stored_first;
            if !is_crashed {
                ledger = judged.ledger.with_started();
            }
        }
        if missed == Missed::All && overlap == Overlap::Allow {
            let at = minute(u64::try_from(newest).expect("after 1970"));
            let exists = |id| Ok::<_, ()>(started.contains(&id));
            ledger.recover(&schedule, at, exists).expect("reads");
            if let Some(judged) = ledger.judge(&schedule, at, |_| false, None) {
                let starts = judged.starts.iter().chain(judged.ledger.starting());
                started.extend(starts.map(|start| start.id));
            }
            let mut slot = minute(100_000);
            while let Some(next) = schedule.timing.next_after(slot).filter(|next| *next <= at) {
                prop_assert!(started.contains(&schedule.job_id(next)), "{next:?} was forgotten");
                slot = next;
            }
        }
    }
}
