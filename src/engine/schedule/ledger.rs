//! The ledger of a schedule: up to where its slots are judged, and how the last ones were.
//!
//! The judging functions return a new ledger and the jobs to start. A round of one verdict is
//! stored after its job is started. After a crash in between, the slot is judged again, and its job
//! exists already: a job's id follows from its slot. A round of several verdicts might be judged
//! otherwise after a crash, for it is later then. So it is stored first, with the jobs that are
//! *starting*, and once more without them when they have been started.

use super::plan::{Missed, Overlap, Schedule};
use crate::id::JobId;
use crate::text::shorten;
use crate::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// How many missed slots start at most with `missed: all`: the last ones.
pub const MISSED_STARTS_MAX: usize = 100;

/// How many judgements are kept.
pub const JUDGEMENTS_MAX: usize = 20;

/// How late a slot may be judged and is not missed.
const ON_TIME: Millis = Millis(60_000);

/// How many slots are judged at once.
const DUE_MAX: usize = 2_000;

/// Why a slot is missed whose job did not start within the deadline of the schedule.
const DEADLINE_PASSED: &str = "its deadline has passed";

/// How far the mark may be ahead of the clock. If it is further, the clock was wrong when slots
/// were judged, and the mark returns to the clock.
const MARK_AHEAD_MAX: Millis = Millis(24 * 3_600_000);

/// What is known of a schedule's slots, as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// The timing that the mark belongs to.
    timing: String,
    /// All slots up to here are judged.
    mark: Timestamp,
    /// The pause; `None`: the schedule is not paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// The jobs that were started and had not ended when slots were last judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    jobs: Vec<JobId>,
    /// The slot that waits for the end of an earlier job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting: Option<Timestamp>,
    /// The jobs of the last round that may not have been started yet. Until they are, no slot is
    /// judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    starting: Vec<Start>,
    /// The last judgements, the newest last.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    judgements: VecDeque<Judgement>,
}

/// The pause of a schedule by a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// When it began.
    pub since: Timestamp,
    /// Why, if the client gave a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// The principal; `None`: no token was required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
}

/// How a slot, or several in a row, were judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// The slot; of several, the last.
    pub slot: Timestamp,
    /// When it was judged.
    pub at: Timestamp,
    /// The verdict.
    pub verdict: Verdict,
    /// The job that was started, or for which the slot was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// How many slots in a row it is about.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slots: u64,
}

/// What happened to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Its job was started.
    Started,
    /// It waits for the end of an earlier job.
    Waits,
    /// It was skipped: an earlier job ran, or the schedule was paused.
    Skipped,
    /// It passed while no manager ran or its job could not be started, or its deadline passed.
    Missed,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Verdict; 4] =
        [Verdict::Started, Verdict::Waits, Verdict::Skipped, Verdict::Missed];

    /// Returns the word for users.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Started => "started",
            Verdict::Waits => "waits",
            Verdict::Skipped => "skipped",
            Verdict::Missed => "missed",
        }
    }
}

/// A job to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The slot.
    pub slot: Timestamp,
    /// The job's id.
    pub id: JobId,
    /// The jobs that it replaces: they are cancelled first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<JobId>,
}

/// The outcome of judging what is due.
#[derive(Debug, PartialEq)]
pub struct Judged {
    /// The new ledger. If it has jobs that are [starting](Ledger::starting), it is stored first;
    /// otherwise after the jobs of `starts`, if there are any, are started.
    pub ledger: Ledger,
    /// The jobs to start, in order. Empty if they are those that are starting.
    pub starts: Vec<Start>,
    /// How many slots got which verdict.
    pub counts: Vec<(Verdict, u64)>,
}

fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(number: &u64) -> bool {
    *number == 1
}

impl Ledger {
    /// Creates the ledger of a new schedule: its slots count from now on.
    pub fn new(schedule: &Schedule, now: Timestamp) -> Ledger {
        Ledger {
            timing: schedule.timing.to_string(),
            mark: now,
            paused: None,
            jobs: Vec::new(),
            waiting: None,
            starting: Vec::new(),
            judgements: VecDeque::new(),
        }
    }

    /// Adapts a stored ledger to the schedule as it is loaded now. If its timing has changed, its
    /// slots count from now on. Returns whether anything has changed.
    pub fn adapt(&mut self, schedule: &Schedule, now: Timestamp) -> bool {
        let timing = schedule.timing.to_string();
        if self.timing != timing {
            self.timing = timing;
            self.mark = now;
            self.waiting = None;
            return true;
        }
        self.correct_mark(now)
    }

    /// Takes in what was started before a crash, and what the stored ledger does not know of.
    /// Otherwise a slot whose job is deleted before it is judged again would start again. `exists`
    /// tells whether the journal has a job.
    ///
    /// # Errors
    ///
    /// Returns the error of `exists`.
    pub fn recover<E>(
        &mut self,
        schedule: &Schedule,
        now: Timestamp,
        exists: impl Fn(JobId) -> Result<bool, E>,
    ) -> Result<(), E> {
        if !self.starting.is_empty() {
            let mut remaining = Vec::new();
            for start in std::mem::take(&mut self.starting) {
                if !exists(start.id)? {
                    remaining.push(start);
                }
            }
            self.starting = remaining;
            return Ok(());
        }
        // A round that starts a job before it is stored has no other verdict.
        if let Some(slot) = self.waiting
            && exists(schedule.job_id(slot))?
        {
            self.waiting = None;
            self.add_started(slot, schedule.job_id(slot), now);
        } else if let Some(slot) = schedule.timing.next_after(self.mark).filter(|slot| *slot <= now)
            && exists(schedule.job_id(slot))?
        {
            self.mark = slot;
            self.add_started(slot, schedule.job_id(slot), now);
        }
        Ok(())
    }

    /// Moves a mark back that is too far ahead of the clock. Returns whether it was.
    fn correct_mark(&mut self, now: Timestamp) -> bool {
        let is_ahead = self.mark > now.plus(MARK_AHEAD_MAX);
        if is_ahead {
            self.mark = now;
        }
        is_ahead
    }

    /// Returns up to where slots are judged.
    pub fn mark(&self) -> Timestamp {
        self.mark
    }

    /// Returns the slot that waits for the end of an earlier job.
    pub fn waiting(&self) -> Option<Timestamp> {
        self.waiting
    }

    /// Returns the jobs of the last round that may not have been started yet, in order.
    pub fn starting(&self) -> &[Start] {
        &self.starting
    }

    /// Returns the ledger without the jobs that are starting and whose deadline has passed: their
    /// slots are missed. `None`: there are none.
    pub fn expire_starting(&self, schedule: &Schedule, now: Timestamp) -> Option<Judged> {
        let is_expired = |start: &Start| schedule.is_too_late(start.slot, now);
        let (mut ledger, mut count) = (self.clone(), 0);
        while let Some(position) = ledger.starting.iter().position(is_expired) {
            let Start { slot, id, replaces } = ledger.starting.remove(position);
            ledger.jobs.retain(|job| *job != id);
            // What it would have replaced is replaced by the job that would have replaced it, or
            // goes on.
            match ledger.starting.iter_mut().find(|start| start.replaces.contains(&id)) {
                Some(next) => next.replaces = replaces,
                None => ledger.jobs.extend(replaces),
            }
            ledger.judgements.retain(|judgement| judgement.job != Some(id));
            let missed = Judgement::new(slot, now, Verdict::Missed);
            ledger.add(Judgement { reason: Some(DEADLINE_PASSED.into()), ..missed });
            count += 1;
        }
        if count == 0 {
            return None;
        }
        let counts = vec![(Verdict::Missed, count)];
        Some(Judged { ledger, starts: Vec::new(), counts })
    }

    /// Starts the jobs that are starting.
    pub fn start_starting(&self) -> Judged {
        let counts =
            vec![(Verdict::Started, u64::try_from(self.starting.len()).unwrap_or(u64::MAX))];
        Judged { ledger: self.with_started(), starts: self.starting.clone(), counts }
    }

    /// Returns the ledger after the jobs that were starting have been started.
    pub fn with_started(&self) -> Ledger {
        Ledger { starting: Vec::new(), ..self.clone() }
    }

    /// Returns the last judgements, the newest first, without the jobs that are
    /// [starting](Self::starting).
    pub fn judgements(&self) -> impl Iterator<Item = &Judgement> {
        let is_starting = |job| self.starting.iter().any(|start| Some(start.id) == job);
        let is_done = move |judgement: &&Judgement| {
            judgement.verdict != Verdict::Started || !is_starting(judgement.job)
        };
        self.judgements.iter().rev().filter(is_done)
    }

    /// Returns when the next slot is due, or jobs are to be started; `None`: no slot is left.
    pub fn next_due(&self, schedule: &Schedule) -> Option<Timestamp> {
        if !self.starting.is_empty() {
            return Some(self.mark);
        }
        schedule.timing.next_after(self.mark).map(|slot| schedule.start_time(slot))
    }

    /// Judges what is due; `None`: nothing is, or jobs are [starting](Self::starting). `is_running`
    /// tells whether a job has not ended. `refusal`: why the first slot that is due could not start
    /// its job before; `None`: nobody tried.
    pub fn judge(
        &self,
        schedule: &Schedule,
        now: Timestamp,
        is_running: impl Fn(JobId) -> bool,
        refusal: Option<&str>,
    ) -> Option<Judged> {
        if !self.starting.is_empty() {
            return None;
        }
        let (starts, counts) = (Vec::new(), Vec::new());
        let mut round = Round { schedule, now, refusal, ledger: self.clone(), starts, counts };
        round.ledger.correct_mark(now);
        round.ledger.jobs.retain(|job| is_running(*job));
        round.judge_waiting();
        round.judge_due();
        let Round { mut ledger, mut starts, mut counts, .. } = round;
        let is_changed = ledger.mark != self.mark || ledger.waiting != self.waiting;
        if counts.len() > 1 {
            ledger.starting = std::mem::take(&mut starts);
            // They count once they are started.
            counts.retain(|(verdict, _)| *verdict != Verdict::Started);
        }
        is_changed.then_some(Judged { ledger, starts, counts })
    }

    /// Ends the pause. The slots that passed meanwhile are skipped.
    pub fn resume(&mut self, now: Timestamp) {
        self.paused = None;
        self.mark = self.mark.max(now);
    }

    /// Returns the ledger after a job was started by hand, by this principal and for this reason.
    pub fn with_trigger(
        &self,
        id: JobId,
        now: Timestamp,
        by: Option<&str>,
        reason: Option<&str>,
    ) -> Ledger {
        let mut ledger = self.clone();
        ledger.jobs.push(id);
        ledger.add(Judgement {
            job: Some(id),
            reason: Some(by_hand("by hand", by, reason)),
            ..Judgement::new(now, now, Verdict::Started)
        });
        ledger
    }

    /// Returns the ledger after the jobs of slots that have passed were started by hand.
    pub fn with_backfill(
        &self,
        slots: &[Timestamp],
        now: Timestamp,
        by: Option<&str>,
        reason: Option<&str>,
    ) -> Ledger {
        let mut ledger = self.clone();
        let Some(last) = slots.last() else { return ledger };
        ledger.add(Judgement {
            slots: u64::try_from(slots.len()).unwrap_or(u64::MAX),
            reason: Some(by_hand("backfill", by, reason)),
            ..Judgement::new(*last, now, Verdict::Started)
        });
        ledger
    }

    fn add_started(&mut self, slot: Timestamp, id: JobId, now: Timestamp) {
        self.jobs.push(id);
        self.add(Judgement { job: Some(id), ..Judgement::new(slot, now, Verdict::Started) });
    }

    fn add(&mut self, judgement: Judgement) {
        if self.judgements.len() >= JUDGEMENTS_MAX {
            self.judgements.pop_front();
        }
        self.judgements.push_back(judgement);
    }
}

/// Describes what a client has asked for: `by hand, by NAME: reason`.
fn by_hand(what: &str, by: Option<&str>, reason: Option<&str>) -> Arc<str> {
    let by = by.map_or_else(String::new, |name| format!(", by {name}"));
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{what}{by}{reason}").into()
}

impl Judgement {
    fn new(slot: Timestamp, at: Timestamp, verdict: Verdict) -> Judgement {
        Judgement { slot, at, verdict, job: None, reason: None, slots: 1 }
    }
}

/// One round of judging.
struct Round<'a> {
    schedule: &'a Schedule,
    now: Timestamp,
    refusal: Option<&'a str>,
    ledger: Ledger,
    starts: Vec<Start>,
    counts: Vec<(Verdict, u64)>,
}

impl Round<'_> {
    /// Starts the slot that waits, if the earlier jobs have ended.
    fn judge_waiting(&mut self) {
        let Some(slot) = self.ledger.waiting.filter(|_| self.ledger.jobs.is_empty()) else {
            return;
        };
        self.ledger.waiting = None;
        if self.ledger.paused.is_some() {
            self.add(slot, Verdict::Skipped, None, "the schedule is paused");
        } else {
            self.start_or_miss(slot, Vec::new());
        }
    }

    /// Judges the slots that are due.
    fn judge_due(&mut self) {
        let first = self.schedule.timing.next_after(self.ledger.mark);
        let mut due: Vec<Timestamp> =
            std::iter::successors(first, |slot| self.schedule.timing.next_after(*slot))
                .take_while(|slot| self.schedule.start_time(*slot) <= self.now)
                .take(DUE_MAX)
                .collect();
        // Of more slots than are judged at once, the last ones are for the next round. All others
        // are missed: slots that are on time are fewer than those.
        let has_more = due.len() == DUE_MAX;
        if has_more {
            due.truncate(DUE_MAX - MISSED_STARTS_MAX);
        }
        let Some(last) = due.last().copied() else { return };
        self.ledger.mark = last;
        if self.ledger.paused.is_some() {
            return self.add_row(&due, Verdict::Skipped, "the schedule is paused");
        }
        let is_late =
            |slot: &Timestamp| has_more || self.schedule.start_time(*slot).plus(ON_TIME) < self.now;
        let (late, on_time) = due.split_at(due.iter().take_while(|slot| is_late(slot)).count());
        let starts_late = match self.schedule.missed {
            Missed::Last | Missed::All if has_more => 0,
            Missed::None => 0,
            Missed::Last => usize::from(on_time.is_empty()),
            Missed::All => MISSED_STARTS_MAX,
        };
        let (missed, started_late) = late.split_at(late.len().saturating_sub(starts_late));
        match self.refusal {
            Some(refusal) => {
                let reason = format!("its job could not be started: {}", shorten(refusal));
                self.add_row(missed, Verdict::Missed, &reason);
            }
            None => self.add_row(missed, Verdict::Missed, "no manager ran then"),
        }
        for slot in started_late.iter().chain(on_time) {
            self.judge_overlap(*slot);
        }
    }

    /// Judges a slot that is to start, beside the earlier jobs.
    fn judge_overlap(&mut self, slot: Timestamp) {
        let running = self.ledger.jobs.last().copied();
        match (self.schedule.overlap, running) {
            (Overlap::Allow, _) => self.start_or_miss(slot, Vec::new()),
            (_, None) if self.ledger.waiting.is_none() => self.start_or_miss(slot, Vec::new()),
            (Overlap::Replace, _) => {
                let replaced = std::mem::take(&mut self.ledger.jobs);
                self.start_or_miss(slot, replaced);
            }
            (Overlap::Wait, _) if self.ledger.waiting.is_none() => {
                self.ledger.waiting = Some(slot);
                self.add(slot, Verdict::Waits, running, "an earlier job runs");
            }
            (Overlap::Wait, _) => {
                self.add(slot, Verdict::Skipped, running, "an earlier slot waits already")
            }
            (Overlap::Skip, _) => self.add(slot, Verdict::Skipped, running, "an earlier job runs"),
        }
    }

    /// Starts the job of a slot, unless its deadline has passed.
    fn start_or_miss(&mut self, slot: Timestamp, replaces: Vec<JobId>) {
        if self.schedule.is_too_late(slot, self.now) {
            // The jobs that it would have replaced go on.
            self.ledger.jobs.extend(replaces);
            return self.add(slot, Verdict::Missed, None, DEADLINE_PASSED);
        }
        let id = self.schedule.job_id(slot);
        self.starts.push(Start { slot, id, replaces });
        self.counts.push((Verdict::Started, 1));
        self.ledger.add_started(slot, id, self.now);
    }

    fn add(&mut self, slot: Timestamp, verdict: Verdict, job: Option<JobId>, reason: &str) {
        self.counts.push((verdict, 1));
        let judgement = Judgement::new(slot, self.now, verdict);
        self.ledger.add(Judgement { job, reason: Some(reason.into()), ..judgement });
    }

    /// Adds one judgement about slots in a row, if there are any.
    fn add_row(&mut self, slots: &[Timestamp], verdict: Verdict, reason: &str) {
        let Some(last) = slots.last() else { return };
        let slots = u64::try_from(slots.len()).unwrap_or(u64::MAX);
        self.counts.push((verdict, slots));
        let judgement = Judgement::new(*last, self.now, verdict);
        self.ledger.add(Judgement { slots, reason: Some(reason.into()), ..judgement });
    }
}

#[cfg(test)]
mod tests;
