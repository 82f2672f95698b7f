//! Deletes jobs that clients erase, and jobs past their retention. Both go one batch at a time.
//! What is due is committed before each batch, and after it the thread is left to others for as
//! long.

use super::deletions::Sweep;
use super::{Flush, JournalActor, refusal};
use crate::actors::answer::{Answer, Client, Erased, Refusal};
use crate::actors::mail::{Leave, Outgoing, RouterInput};
use crate::clock;
use crate::engine::Millis;
use crate::faults;
use crate::journal::{Deleted, JobNumber, Open, Remedy};
use actix::{AsyncContext, Context};
use std::time::Duration;
use tokio::time::Instant;

/// How long retention waits once the clock was set: a clock that is wrong must not delete what is
/// to be kept, and may be set right meanwhile.
const STEADY_FOR: Duration = Duration::from_secs(3600);

/// Returns whether the clock can be relied on to tell how long ago jobs have ended.
fn is_steady() -> bool {
    // Reading it shows whether it was set.
    clock::now();
    is_steady_since(clock::set_ago())
}

fn is_steady_since(set_ago: Option<Duration>) -> bool {
    set_ago.is_none_or(|ago| ago >= STEADY_FOR)
}

impl JournalActor {
    /// Erases an ended job for a client.
    pub(super) fn erase(
        &mut self,
        number: JobNumber,
        answer: Client<Erased>,
        ctx: &mut Context<Self>,
    ) {
        let is_behind = !self.commit(ctx);
        if is_behind && self.flush == Flush::Lost {
            let refused = Answer::Erased(answer, Err(refusal(&self.ways)));
            return Outgoing::Answer(refused).release(&self.ways);
        }
        self.erase_part(number, answer);
        self.rest(ctx);
    }

    fn erase_part(&mut self, number: JobNumber, answer: Client<Erased>) {
        let begun = clock::ticks();
        let deleted = self.store.delete(&[number], self.deletions.pace.rows());
        let outcome = match deleted {
            Ok(deleted) if deleted.left > 0 => Err(Refusal::Conflict(
                "the job has not ended, or goes on meanwhile: cancel it first, or ask again"
                    .to_owned(),
            )),
            Ok(deleted) => {
                self.note(&deleted, begun, "client");
                if deleted.is_part {
                    return self.deletions.erasures.push_back((number, answer));
                }
                Ok(Erased)
            }
            Err(error) => match error.remedy() {
                Remedy::WaitForRoom | Remedy::WaitForLock => {
                    Err(Refusal::Overloaded(error.to_string()))
                }
                Remedy::Exit => {
                    self.broken(&error);
                    Err(refusal(&self.ways))
                }
            },
        };
        Outgoing::Answer(Answer::Erased(answer, outcome)).release(&self.ways);
    }

    /// Starts to delete what is past its retention, unless that is under way.
    pub(super) fn retain(&mut self, ctx: &mut Context<Self>) {
        self.doubt();
        if self.deletions.sweep.is_none() && self.deletions.doubt.is_none() && is_steady() {
            self.deletions.sweep = Some(Sweep { begun: clock::ticks(), jobs: 0 });
            self.delete_part(ctx);
        }
    }

    /// Says what retention would delete if the clock is right, where that is not certain; looks
    /// whether it has become so.
    fn doubt(&mut self) {
        let Some(doubt) = &mut self.deletions.doubt else { return };
        let now = clock::now();
        if doubt.is_over(now, STEADY_FOR) {
            self.deletions.doubt = None;
            return;
        }
        if doubt.is_told() {
            return;
        }
        let jobs = self.store.count_ended(now, self.kept()).ok();
        if let Some(doubt) = &self.deletions.doubt {
            doubt.tell(jobs);
        }
    }

    /// How long ended jobs are kept whose definitions do not say it.
    fn kept(&self) -> Millis {
        let retention = self.ways.common.settings.journal.retention.0;
        Millis(u64::try_from(retention.as_millis()).unwrap_or(u64::MAX))
    }

    /// Deletes one part of what is to be deleted, unless the thread is left to others now.
    fn delete_part(&mut self, ctx: &mut Context<Self>) {
        if self.deletions.is_resting || !self.check_files() {
            return;
        }
        if matches!(self.flush, Flush::Due | Flush::Lagging) {
            self.commit(ctx);
        }
        match self.deletions.erasures.pop_front() {
            Some((number, answer)) => self.erase_part(number, answer),
            None => self.sweep_part(),
        }
        self.rest(ctx);
    }

    fn sweep_part(&mut self) {
        let Some(mut sweep) = self.deletions.sweep.take() else { return };
        let begun = clock::ticks();
        faults::hit("journal::sweep");
        let now = clock::now();
        if !is_steady() {
            tracing::warn!(
                jobs = sweep.jobs,
                "retention stops: the clock was set while it deleted jobs"
            );
            return;
        }
        match self.store.delete_ended(now, self.kept(), self.deletions.pace.rows()) {
            Ok(deleted) => {
                sweep.jobs += deleted.roots;
                if deleted.is_part {
                    self.deletions.sweep = Some(sweep);
                } else if sweep.jobs > 0 {
                    tracing::info!(
                        jobs = sweep.jobs,
                        elapsed_ms = Millis::of(sweep.begun.elapsed()).0,
                        "deleted ended jobs past their retention"
                    );
                }
                self.note(&deleted, begun, "retention");
            }
            Err(error) if error.remedy().is_wait() => {
                tracing::warn!(%error, "retention has to wait")
            }
            Err(error) => self.broken(&error),
        }
    }

    /// Stops the actors of deleted jobs, and updates metrics and the batch size. A failed job may
    /// have waited for late replies.
    fn note(&mut self, deleted: &Deleted, begun: Instant, why: &str) {
        let leave = |open: &Open| Leave { id: open.id, number: open.number, heard: None };
        let leaving: Vec<Leave> = deleted.open.iter().map(leave).collect();
        if !leaving.is_empty() {
            self.ways.mailboxes().router.post(RouterInput::Leave(leaving));
        }
        let span = begun.elapsed();
        if deleted.rows > 0 {
            let metrics = &self.ways.common.metrics;
            metrics.deletion.observe(span.as_secs_f64());
            metrics.deleted.with_label_values(&[why]).inc_by(deleted.roots as u64);
        }
        self.deletions.pace.took(deleted.rows, span);
    }

    /// Leaves the thread to others, then goes on, if there is more to delete.
    fn rest(&mut self, ctx: &mut Context<Self>) {
        let is_more = self.deletions.sweep.is_some() || !self.deletions.erasures.is_empty();
        if is_more && !std::mem::replace(&mut self.deletions.is_resting, true) {
            ctx.run_later(self.deletions.pace.rest(), |actor, ctx| {
                actor.deletions.is_resting = false;
                actor.delete_part(ctx);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_goes_on_once_the_clock_has_been_steady_for_long_enough() {
        assert!(is_steady_since(None), "it was never set");
        assert!(!is_steady_since(Some(Duration::ZERO)));
        assert!(!is_steady_since(Some(STEADY_FOR - Duration::from_secs(1))));
        assert!(is_steady_since(Some(STEADY_FOR)));
    }
}
