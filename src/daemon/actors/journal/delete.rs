//! Deletes jobs that clients erase, and jobs past their retention. Both are deleted in batches.
//! Waiting records are committed before each batch, and other inputs are handled in the pause after
//! it.

use super::deletions::Sweep;
use super::{JournalActor, journal_lost_error};
use crate::actors::client_response::{ClientResponse, Erased, RequestError, ResponseSender};
use crate::actors::health::JournalWait;
use crate::actors::inputs::{Outgoing, RouterInput, StopRequest};
use actix::{AsyncContext, Context};
use base::clock;
use base::faults;
use engine::Millis;
use journal::{DeletedJob, Deletion, JobNumber};
use std::time::Duration;
use tokio::time::Instant;

/// How long retention waits after the wall clock was set. With a wrong clock, jobs would be deleted
/// too early. During this time, someone can correct it.
const CLOCK_SETTLE_TIME: Duration = Duration::from_secs(3600);

/// Returns whether the wall clock is reliable enough for retention: it was not set recently.
fn is_clock_steady() -> bool {
    // Reading the clock detects an adjustment.
    clock::now();
    has_settled(clock::since_adjustment())
}

/// Returns whether the last adjustment of the clock is long enough ago; `None`: there was none.
fn has_settled(since_adjustment: Option<Duration>) -> bool {
    since_adjustment.is_none_or(|elapsed| elapsed >= CLOCK_SETTLE_TIME)
}

impl JournalActor {
    /// Erases an ended job for a client. The response is sent after the last batch of its rows.
    pub(super) fn handle_erase(
        &mut self,
        number: JobNumber,
        sender: ResponseSender<Erased>,
        ctx: &mut Context<Self>,
    ) {
        let is_committed = self.commit(ctx);
        if !is_committed && self.commit_schedule.is_lost() {
            let response = ClientResponse::Erase(sender, Err(journal_lost_error(&self.env)));
            return Outgoing::Respond(response).send(&self.env.outbox);
        }
        // Records of the job may be committed without an answer: they would be written again.
        if !is_committed && self.env.health.journal_wait() == Some(JournalWait::Server) {
            let error = RequestError::Overloaded(JournalWait::Server.as_str().to_owned());
            return Outgoing::Respond(ClientResponse::Erase(sender, Err(error)))
                .send(&self.env.outbox);
        }
        self.erase_batch(number, sender);
        self.schedule_next_batch(ctx);
    }

    /// Deletes one batch of rows of a job, and responds to the client after the last one.
    fn erase_batch(&mut self, number: JobNumber, sender: ResponseSender<Erased>) {
        let started = clock::timer_now();
        let result = match self.store.delete_jobs(&[number], self.deletions.batch_sizer.rows()) {
            Ok(deletion) if deletion.skipped > 0 => Err(RequestError::Conflict(
                "the job has not ended, or goes on meanwhile: cancel it first, or ask again"
                    .to_owned(),
            )),
            Ok(deletion) => {
                self.report_deletion(&deletion, started, "client");
                if deletion.is_partial {
                    return self.deletions.erasures.push_back((number, sender));
                }
                Ok(Erased)
            }
            Err(error) if error.remedy().is_retryable() => {
                Err(RequestError::Overloaded(error.to_string()))
            }
            Err(error) => {
                self.handle_fatal(&error);
                Err(journal_lost_error(&self.env))
            }
        };
        Outgoing::Respond(ClientResponse::Erase(sender, result)).send(&self.env.outbox);
    }

    /// Starts the deletion of jobs past their retention, unless it is active or the clock is
    /// unreliable.
    pub(super) fn start_retention(&mut self, ctx: &mut Context<Self>) {
        self.update_clock_doubt();
        if self.deletions.sweep.is_none()
            && self.deletions.clock_doubt.is_none()
            && is_clock_steady()
        {
            self.deletions.sweep = Some(Sweep { started: clock::timer_now(), jobs: 0 });
            self.delete_batch(ctx);
        }
    }

    /// Clears the doubt about the clock once it is over. Until then, reports it once, with the
    /// number of jobs that retention would delete.
    fn update_clock_doubt(&mut self) {
        let Some(doubt) = &mut self.deletions.clock_doubt else { return };
        let now = clock::now();
        if doubt.is_over(now, CLOCK_SETTLE_TIME) {
            self.deletions.clock_doubt = None;
            return;
        }
        if doubt.mark_reported() {
            return;
        }
        let jobs = self.store.count_expired(now, self.default_retention()).ok();
        if let Some(doubt) = &self.deletions.clock_doubt {
            doubt.report(jobs);
        }
    }

    /// Returns how long an ended job is kept if its definition has no retention.
    fn default_retention(&self) -> Millis {
        let retention = self.env.settings.retention.0;
        Millis(u64::try_from(retention.as_millis()).unwrap_or(u64::MAX))
    }

    /// Deletes one batch, unless the pause after the last one still lasts. Erasures by clients have
    /// priority over retention.
    fn delete_batch(&mut self, ctx: &mut Context<Self>) {
        if self.deletions.is_batch_scheduled || self.detect_loss() {
            return;
        }
        if self.commit_schedule.is_requested() {
            self.commit(ctx);
        }
        match self.deletions.erasures.pop_front() {
            Some((number, sender)) => self.erase_batch(number, sender),
            None => self.sweep_batch(),
        }
        self.schedule_next_batch(ctx);
    }

    /// Deletes one batch of rows of jobs past their retention.
    fn sweep_batch(&mut self) {
        let Some(mut sweep) = self.deletions.sweep.take() else { return };
        let started = clock::timer_now();
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
            Ok(deletion) => {
                sweep.jobs += deletion.roots;
                if deletion.is_partial {
                    self.deletions.sweep = Some(sweep);
                } else if sweep.jobs > 0 {
                    tracing::info!(
                        jobs = sweep.jobs,
                        elapsed_ms = Millis::from_duration(sweep.started.elapsed()).0,
                        "deleted ended jobs past their retention"
                    );
                }
                self.report_deletion(&deletion, started, "retention");
            }
            Err(error) if error.remedy().is_retryable() => {
                tracing::warn!(%error, "retention has to wait")
            }
            Err(error) => self.handle_fatal(&error),
        }
    }

    /// Stops the actors of deleted jobs, and updates metrics and the batch size. A deleted job can
    /// have an actor if it has failed and waits for late replies.
    fn report_deletion(&mut self, deletion: &Deletion, started: Instant, cause: &str) {
        let stop_request =
            |job: &DeletedJob| StopRequest { id: job.id, number: job.number, inputs_handled: None };
        let stop_requests: Vec<StopRequest> =
            deletion.maybe_active.iter().map(stop_request).collect();
        if !stop_requests.is_empty() {
            self.env.router.send(RouterInput::StopJobs(stop_requests));
        }
        let elapsed = started.elapsed();
        if deletion.rows > 0 {
            let metrics = &self.env.metrics;
            metrics.deletion.observe(elapsed.as_secs_f64());
            metrics.deleted.with_label_values(&[cause]).inc_by(deletion.roots as u64);
        }
        self.deletions.batch_sizer.record(deletion.rows, elapsed);
    }

    /// Schedules the next batch after a pause, if there is more to delete.
    fn schedule_next_batch(&mut self, ctx: &mut Context<Self>) {
        let has_more = self.deletions.sweep.is_some() || !self.deletions.erasures.is_empty();
        if has_more && !std::mem::replace(&mut self.deletions.is_batch_scheduled, true) {
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
    fn the_clock_has_settled_an_hour_after_its_last_adjustment() {
        assert!(has_settled(None), "the clock was never set");
        assert!(!has_settled(Some(Duration::ZERO)));
        assert!(!has_settled(Some(CLOCK_SETTLE_TIME - Duration::from_secs(1))));
        assert!(has_settled(Some(CLOCK_SETTLE_TIME)));
    }
}
