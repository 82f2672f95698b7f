//! The timer of a job for what is due next, such as a timeout, the next attempt or the deadline.

use super::JobActor;
use super::lifecycle::Lifecycle;
use actix::AsyncContext;
use engine::{Input, Timestamp};
use std::time::Duration;

/// The delay before a suspended timeout is checked again. A timeout is suspended while the reply
/// may be unread or the message may be unsent.
const RECHECK_DELAY: Duration = Duration::from_secs(3);

/// The longest delay of a timer. For what is due later, the timer is set again when it fires.
const TIMER_DELAY_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

impl JobActor {
    /// Sets the timer for what is due next, unless it is set for that already. The delay is
    /// computed once, by the job's clock; the timer itself is monotonic.
    pub(super) fn set_timer(&mut self, ctx: &mut actix::Context<Self>) {
        let due = match &self.lifecycle {
            // While the job is passivated, the router has the timer.
            Lifecycle::Running(_) if self.is_passivating() => None,
            Lifecycle::Running(job) => job.next_timer(),
            // In these states nothing is due.
            Lifecycle::Starting(_)
            | Lifecycle::Broken { .. }
            | Lifecycle::Stopping { .. }
            | Lifecycle::Stopped => None,
        };
        let Some(due) = self.timer.adjust(due, ctx) else { return };
        let (target, delay) = self.timer_target(due);
        let reaches_target = self.time_until(target) <= delay;
        let handle = ctx.run_later(delay, move |actor, ctx| {
            actor.timer.clear();
            if reaches_target {
                let input = Input::Timer { due: target, unread: actor.unread_replies() };
                actor.handle_engine_input(input, Vec::new());
                actor.stop_or_resume();
                actor.passivate_if_memory_short();
            }
            actor.set_timer(ctx);
        });
        self.timer.set(due, handle);
    }

    /// Returns the time that the timer is for, and the delay after which it fires. The delay can
    /// end before that time: then the timer is set again.
    fn timer_target(&self, due: Timestamp) -> (Timestamp, Duration) {
        let delay = self.time_until(due).min(TIMER_DELAY_MAX);
        if !delay.is_zero() {
            return (due, delay);
        }
        let unsuspended = self.job().and_then(|job| job.next_timer_without(&self.unread_replies()));
        if unsuspended == Some(due) {
            return (due, delay);
        }
        // What is due is a suspended timeout. What is due before its next check comes first.
        match unsuspended {
            Some(unsuspended_due) if self.time_until(unsuspended_due) < RECHECK_DELAY => {
                (unsuspended_due, self.time_until(unsuspended_due))
            }
            Some(_) | None => (due, RECHECK_DELAY),
        }
    }

    /// Returns the time until `due` by the job's clock; zero if it has passed.
    fn time_until(&self, due: Timestamp) -> Duration {
        self.clock.now().duration_until(due)
    }
}
