//! What the tests of limits share: a process that is killed again and again while work goes on.
//!
//! `LIMITS_KILLS` says how often it is killed.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{Daemon, when, within};
use crate::load::LONG;

/// How often the process is killed; `default`: unless `LIMITS_KILLS` says it.
pub(crate) fn kill_count(default: usize) -> usize {
    let parse = |text: String| text.parse().expect("LIMITS_KILLS is a number");
    std::env::var("LIMITS_KILLS").map_or(default, parse)
}

/// Waits until workers have sent so many replies.
pub(crate) fn await_replies(replies: &AtomicUsize, goal: usize) {
    within(LONG, "the work goes on", || {
        let count = replies.load(Ordering::SeqCst);
        when(count >= goal, format!("{count} of {goal} replies"))
    });
}

/// Kills the process, and starts it again, so often, spread over this many replies.
pub(crate) fn kill_again_and_again(
    daemon: &mut Daemon,
    kills: usize,
    replies: &AtomicUsize,
    reply_count: usize,
) {
    for kill in 1..=kills {
        await_replies(replies, reply_count * kill / (kills + 1));
        daemon.kill();
        daemon.start_again();
    }
}

/// How many jobs of a workflow are in a state.
pub(crate) fn count_jobs(daemon: &Daemon, workflow: &str, state: &str) -> u64 {
    let path = format!("/api/jobs/search?workflow={workflow}&state={state}&count=true");
    daemon.api.get(&path).expect(200).json()["count"].as_u64().expect("a count")
}
