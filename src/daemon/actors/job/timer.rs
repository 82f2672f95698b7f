//! The timer of a job, for what is due next: a timeout, the next attempt, a deadline.

use super::JobActor;
use super::lifecycle::Lifecycle;
use actix::AsyncContext;
use engine::{Input, Timestamp};
use std::time::Duration;

/// The pause before a timeout is checked again that passed while a reply may have been unread, or
/// while the message may have been unsent because the disk was full.
const RECHECK_DELAY: Duration = Duration::from_secs(3);

/// The longest pause of a timer. For what is due later, the timer is set again.
const WAIT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

impl JobActor {
    /// Sets the timer for what is due next. The job's clock tells, once, how long to wait; the wait
    /// itself is monotonic.
    pub(super) fn set_timer(&mut self, ctx: &mut actix::Context<Self>) {
        let due = match &self.lifecycle {
            // The router waits for it while the job is passivated.
            Lifecycle::Running(_) if self.is_passivating() => None,
            Lifecycle::Running(job) => job.next_timer(),
            // Such a job waits for nothing.
            Lifecycle::Starting(_)
            | Lifecycle::Broken { .. }
            | Lifecycle::Stopping { .. }
            | Lifecycle::Stopped => None,
        };
        let Some(due) = self.timer.adjust(due, ctx) else { return };
        let (next, pause) = self.next_wait(due);
        let is_enough = self.time_left(next) <= pause;
        let wait = ctx.run_later(pause, move |actor, ctx| {
            actor.timer.clear();
            if is_enough {
                let unread = actor.unread_replies();
                actor.handle_engine_input(Input::Timer { due: next, unread }, Vec::new());
                actor.stop_or_resume();
                actor.passivate_if_memory_short();
            }
            actor.set_timer(ctx);
        });
        self.timer.set(due, wait);
    }

    /// Returns the time to wait for, and how long to pause now: a time that is far away is waited
    /// for in parts.
    fn next_wait(&self, due: Timestamp) -> (Timestamp, Duration) {
        let pause = self.time_left(due).min(WAIT_MAX);
        if !pause.is_zero() {
            return (due, pause);
        }
        let other = self.job().and_then(|job| job.next_timer_without(&self.unread_replies()));
        if other == Some(due) {
            return (due, pause);
        }
        // A reply that is not read yet may still make this timeout void, or the message is not sent
        // yet. Whatever else is due must not wait for that.
        match other {
            Some(other) if self.time_left(other) < RECHECK_DELAY => (other, self.time_left(other)),
            Some(_) | None => (due, RECHECK_DELAY),
        }
    }

    /// Returns how long it is until `due`.
    fn time_left(&self, due: Timestamp) -> Duration {
        self.clock.now().duration_until(due)
    }
}
