//! Deletes jobs that clients erase, and jobs past their retention. Both go one batch at a time.
//! What is due is committed before each batch, and after it the thread is left to others for as
//! long.

use super::deletions::Sweep;
use super::{JournalActor, journal_lost_error};
use crate::actors::client_response::{ClientResponse, Erased, RequestError, ResponseSender};
use crate::actors::inputs::{Outgoing, RouterInput, StopRequest};
use actix::{AsyncContext, Context};
use base::clock;
use base::faults;
use engine::Millis;
use journal::{DeletedJob, Deletion, JobNumber, Remedy};
use std::time::Duration;
use tokio::time::Instant;

/// How long retention waits once the clock was set: a clock that is wrong must not delete what is
/// to be kept, and may be set right meanwhile.
const CLOCK_SETTLE_TIME: Duration = Duration::from_secs(3600);

/// Returns whether the clock can be relied on to tell how long ago jobs have ended.
fn is_clock_steady() -> bool {
    // Reading it shows whether it was set.
    clock::now();
    has_settled(clock::since_adjustment())
}

fn has_settled(set_ago: Option<Duration>) -> bool {
    set_ago.is_none_or(|ago| ago >= CLOCK_SETTLE_TIME)
}

impl JournalActor {
    /// Erases an ended job for a client.
    pub(super) fn handle_erase(
        &mut self,
        number: JobNumber,
        answer: ResponseSender<Erased>,
        ctx: &mut Context<Self>,
    ) {
        let is_behind = !self.commit(ctx);
        if is_behind && self.commit_schedule.is_lost() {
            let refused = ClientResponse::Erase(answer, Err(journal_lost_error(&self.env)));
            return Outgoing::Respond(refused).send(&self.env.outbox);
        }
        self.erase_batch(number, answer);
        self.schedule_next_batch(ctx);
    }

    fn erase_batch(&mut self, number: JobNumber, answer: ResponseSender<Erased>) {
        let begun = clock::timer_now();
        let deleted = self.store.delete_jobs(&[number], self.deletions.batch_sizer.rows());
        let outcome = match deleted {
            Ok(deleted) if deleted.skipped > 0 => Err(RequestError::Conflict(
                "the job has not ended, or goes on meanwhile: cancel it first, or ask again"
                    .to_owned(),
            )),
            Ok(deleted) => {
                self.report_deleted(&deleted, begun, "client");
                if deleted.is_partial {
                    return self.deletions.erasures.push_back((number, answer));
                }
                Ok(Erased)
            }
            Err(error) => match error.remedy() {
                Remedy::WaitForSpace | Remedy::WaitForLock => {
                    Err(RequestError::Overloaded(error.to_string()))
                }
                Remedy::Exit => {
                    self.handle_fatal(&error);
                    Err(journal_lost_error(&self.env))
                }
            },
        };
        Outgoing::Respond(ClientResponse::Erase(answer, outcome)).send(&self.env.outbox);
    }

    /// Starts to delete what is past its retention, unless that is under way.
    pub(super) fn start_retention(&mut self, ctx: &mut Context<Self>) {
        self.check_doubt();
        if self.deletions.sweep.is_none() && self.deletions.doubt.is_none() && is_clock_steady() {
            self.deletions.sweep = Some(Sweep { begun: clock::timer_now(), jobs: 0 });
            self.delete_batch(ctx);
        }
    }

    /// Says what retention would delete if the clock is right, where that is not certain; looks
    /// whether it has become so.
    fn check_doubt(&mut self) {
        let Some(doubt) = &mut self.deletions.doubt else { return };
        let now = clock::now();
        if doubt.is_over(now, CLOCK_SETTLE_TIME) {
            self.deletions.doubt = None;
            return;
        }
        if doubt.mark_reported() {
            return;
        }
        let jobs = self.store.count_ended(now, self.default_retention()).ok();
        if let Some(doubt) = &self.deletions.doubt {
            doubt.report(jobs);
        }
    }

    /// How long ended jobs are kept whose definitions do not say it.
    fn default_retention(&self) -> Millis {
        let retention = self.env.settings.retention.0;
        Millis(u64::try_from(retention.as_millis()).unwrap_or(u64::MAX))
    }

    /// Deletes one part of what is to be deleted, unless the thread is left to others now.
    fn delete_batch(&mut self, ctx: &mut Context<Self>) {
        if self.deletions.is_batch_scheduled || !self.check_files() {
            return;
        }
        if self.commit_schedule.is_requested() {
            self.commit(ctx);
        }
        match self.deletions.erasures.pop_front() {
            Some((number, answer)) => self.erase_batch(number, answer),
            None => self.sweep_batch(),
        }
        self.schedule_next_batch(ctx);
    }

    fn sweep_batch(&mut self) {
        let Some(mut sweep) = self.deletions.sweep.take() else { return };
        let begun = clock::timer_now();
        faults::hit("journal::sweep");
        let now = clock::now();
        if !is_clock_steady() {
            tracing::warn!(
                jobs = sweep.jobs,
                "retention stops: the clock was set while it deleted jobs"
            );
            return;
        }
        match self.store.delete_expired(
            now,
            self.default_retention(),
            self.deletions.batch_sizer.rows(),
        ) {
            Ok(deleted) => {
                sweep.jobs += deleted.roots;
                if deleted.is_partial {
                    self.deletions.sweep = Some(sweep);
                } else if sweep.jobs > 0 {
                    tracing::info!(
                        jobs = sweep.jobs,
                        elapsed_ms = Millis::from_duration(sweep.begun.elapsed()).0,
                        "deleted ended jobs past their retention"
                    );
                }
                self.report_deleted(&deleted, begun, "retention");
            }
            Err(error) if error.remedy().is_retryable() => {
                tracing::warn!(%error, "retention has to wait")
            }
            Err(error) => self.handle_fatal(&error),
        }
    }

    /// Stops the actors of deleted jobs, and updates metrics and the batch size. A failed job may
    /// have waited for late replies.
    fn report_deleted(&mut self, deleted: &Deletion, begun: Instant, why: &str) {
        let leave = |open: &DeletedJob| StopRequest {
            id: open.id,
            number: open.number,
            inputs_handled: None,
        };
        let leaving: Vec<StopRequest> = deleted.maybe_active.iter().map(leave).collect();
        if !leaving.is_empty() {
            self.env.router.send(RouterInput::StopJobs(leaving));
        }
        let span = begun.elapsed();
        if deleted.rows > 0 {
            let metrics = &self.env.metrics;
            metrics.deletion.observe(span.as_secs_f64());
            metrics.deleted.with_label_values(&[why]).inc_by(deleted.roots as u64);
        }
        self.deletions.batch_sizer.record(deleted.rows, span);
    }

    /// Leaves the thread to others, then goes on, if there is more to delete.
    fn schedule_next_batch(&mut self, ctx: &mut Context<Self>) {
        let is_more = self.deletions.sweep.is_some() || !self.deletions.erasures.is_empty();
        if is_more && !std::mem::replace(&mut self.deletions.is_batch_scheduled, true) {
            ctx.run_later(self.deletions.batch_sizer.pause(), |actor, ctx| {
                actor.deletions.is_batch_scheduled = false;
                actor.delete_batch(ctx);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_goes_on_once_the_clock_has_been_steady_for_long_enough() {
        assert!(has_settled(None), "it was never set");
        assert!(!has_settled(Some(Duration::ZERO)));
        assert!(!has_settled(Some(CLOCK_SETTLE_TIME - Duration::from_secs(1))));
        assert!(has_settled(Some(CLOCK_SETTLE_TIME)));
    }
}
