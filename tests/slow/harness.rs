//! What every test stands on: the daemon as a process, its HTTP API, and waiting for a condition.

mod api;
mod daemon;
mod process;
mod view;

use std::{
    fmt::Display,
    thread,
    time::{Duration, Instant},
};

pub(crate) use api::{Answer, Api};
pub(crate) use daemon::{Daemon, Setup};
pub(crate) use process::{
    Ran, Running, command, command_at_terminal, free_port, must_succeed, run, variable,
};
pub(crate) use view::{JobView, StepView};

/// How long a condition may take to hold. Brokers and disks that others keep busy take a while.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Asks `probe` until it answers `Ok`; its last `Err` says what was seen instead when the deadline
/// passes.
#[track_caller]
pub(crate) fn eventually<T, E: Display>(what: &str, probe: impl FnMut() -> Result<T, E>) -> T {
    within(DEADLINE, what, probe)
}

/// As [`eventually`], with a deadline of its own.
#[track_caller]
pub(crate) fn within<T, E: Display>(
    deadline: Duration,
    what: &str,
    mut probe: impl FnMut() -> Result<T, E>,
) -> T {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        match probe() {
            Ok(found) => return found,
            Err(seen) if begun.elapsed() > deadline => {
                panic!("not within {deadline:?}: {what}; seen last: {seen}")
            }
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// For probes: `Ok` when the condition holds, else what was seen.
pub(crate) fn when(condition: bool, seen: impl Display) -> Result<(), String> {
    if condition { Ok(()) } else { Err(seen.to_string()) }
}
