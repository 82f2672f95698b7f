//! The slots of a schedule in virtual time: they are judged as by a manager that has run from the
//! beginning of the test on, and their jobs are started.

use super::{Firing, ScheduledEvent, Simulator};
use base::times::format_rfc3339;
use engine::schedule::{Judgement, Ledger, Start};
use engine::{Definition, Input, Operation, Origin, Schedule, ScheduledSlot, Timestamp};
use std::sync::Arc;

impl Simulator<'_> {
    /// Lets a schedule start jobs of a workflow, from now on.
    pub(in super::super) fn fire(&mut self, schedule: Arc<Schedule>, definition: Arc<Definition>) {
        let ledger = Ledger::new(&schedule, self.now);
        let judgements = Vec::new();
        self.firing = Some(Firing { schedule, definition, ledger, judgements, due: None });
        self.schedule_slots();
    }

    /// Returns how the slots of the schedule were judged, in order.
    pub(in super::super) fn judgements(&self) -> &[Judgement] {
        self.firing.as_ref().map_or(&[], |firing| &firing.judgements)
    }

    /// Judges the slot that waits for the end of an earlier job, if there is one.
    pub(super) fn judge_waiting(&mut self) {
        if self.firing.as_ref().is_some_and(|firing| firing.ledger.waiting().is_some()) {
            self.judge_slots();
        }
    }

    /// Judges slots at the scheduled time `due`, unless another time was scheduled instead.
    pub(super) fn judge_due(&mut self, due: Timestamp) {
        if let Some(firing) = self.firing.as_mut().filter(|firing| firing.due == Some(due)) {
            firing.due = None;
            self.judge_slots();
        }
    }

    /// Judges the slots that are due, and starts their jobs.
    fn judge_slots(&mut self) {
        let Some(Firing { schedule, definition, ledger, .. }) = &self.firing else { return };
        let (schedule, definition) = (schedule.clone(), definition.clone());
        let last = ledger.judgements().next().cloned();
        let judged = ledger.judge(&schedule, self.now, |id| self.open_jobs.contains(&id), None);
        if let Some(judged) = judged {
            // Of a round of several slots, the jobs to start are in the ledger.
            let starting = judged.ledger.starting().to_vec();
            let starts = if starting.is_empty() { judged.starts } else { starting };
            let ledger = judged.ledger.with_started();
            let is_new = |judgement: &&Judgement| Some(*judgement) != last.as_ref();
            let mut new: Vec<Judgement> = ledger.judgements().take_while(is_new).cloned().collect();
            new.reverse();
            for judgement in &new {
                let slot = format_rfc3339(judgement.slot);
                let reason = judgement.reason.as_deref().map(|reason| format!(": {reason}"));
                let (verdict, reason) = (judgement.verdict.as_str(), reason.unwrap_or_default());
                self.add_line(format!("slot {slot} {verdict}{reason}"));
            }
            if let Some(firing) = &mut self.firing {
                firing.ledger = ledger;
                firing.judgements.extend(new);
            }
            for Start { slot, id, replaces } in starts {
                for replaced in replaces {
                    let reason = format!("replaced by the next slot of schedule {}", schedule.name);
                    let cancel = Operation::Cancel { reason: reason.into() };
                    self.apply_input(replaced, Input::from_request(cancel));
                }
                let slot = ScheduledSlot { schedule: schedule.full_name().into(), slot };
                let root = Origin::for_root_job(id, definition.clone(), self.now);
                let origin = Origin { slot: Some(Arc::new(slot)), ..root };
                self.start_job(origin, schedule.message.clone());
            }
        }
        self.schedule_slots();
    }

    /// Schedules when slots are judged next.
    fn schedule_slots(&mut self) {
        let Some(firing) = &mut self.firing else { return };
        let due = firing.ledger.next_due(&firing.schedule);
        if let Some(due) = due.filter(|_| firing.due != due) {
            firing.due = Some(due);
            self.scheduled_count += 1;
            let key = (due.max(self.now), self.scheduled_count);
            self.scheduled.insert(key, ScheduledEvent::Slots(due));
        }
    }
}
