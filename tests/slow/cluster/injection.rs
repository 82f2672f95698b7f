//! What all soaks of managers on a database share: how faults are chosen, played and reported.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use support::tcp_proxy::{Action, COMMIT_ANSWER, COMMIT_REQUEST, Direction, TcpProxy};

use super::TAKEN_OVER;
use super::load::LONG;
use crate::harness::{Daemon, when, within};
use crate::soak::Chance;

/// How many faults come between two looks at the journal.
const FAULTS_PER_CHECK: u64 = 25;

/// The exit code of a start at which the server could not be reached.
const START_FAILED: i32 = 1;

/// The least and the most of a pause that is shorter than the lease, in milliseconds.
const SHORT_MS: (usize, usize) = (100, 2_500);

/// Ends all sessions of managers.
pub(super) const TERMINATE_ALL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE application_name = 'workflow-manager'";

/// Where a soak plays.
pub(super) trait Stage {
    fn chance(&mut self) -> &mut Chance;

    /// Waits until the load goes on.
    fn recover(&mut self);

    /// The load stops for a moment, and the journal is asked.
    fn check(&mut self);
}

/// A fault: its name, how often of a thousand it is chosen, what is done.
pub(super) type Fault<S> = (&'static str, usize, fn(&mut S));

/// Plays so many faults, chosen by chance, and looks at the journal now and then and at the end.
/// Returns what was seen, a line for each kind of fault.
pub(super) fn inject<S: Stage>(stage: &mut S, faults: &[Fault<S>], count: u64) -> String {
    let begun = Instant::now();
    stage.recover();
    let mut seen: BTreeMap<&str, Recoveries> = BTreeMap::new();
    for index in 1..=count {
        let (name, fault) = choose_weighted(faults, stage.chance());
        eprintln!("{index} {name} ({:.0} s)", begun.elapsed().as_secs_f64());
        let fault_begun = Instant::now();
        fault(stage);
        stage.recover();
        seen.entry(name).or_default().add(fault_begun.elapsed());
        if index % FAULTS_PER_CHECK == 0 {
            stage.check();
        }
    }
    stage.check();
    report(&seen)
}

/// Starts those again that have ended by themselves, as a service manager does. `exits`: how often
/// a process did, by its exit code.
pub(super) fn revive<'a>(
    managers: impl IntoIterator<Item = &'a mut Daemon>,
    exits: &mut BTreeMap<i32, u64>,
) {
    for manager in managers {
        let Some(status) = manager.ended() else { continue };
        let code = status.code().unwrap_or(-1);
        assert!(
            [TAKEN_OVER, START_FAILED].contains(&code),
            "a manager ended with {status}:\n{}",
            manager.log()
        );
        *exits.entry(code).or_default() += 1;
        let log = manager.log();
        eprintln!("  ended with {code}: {}", log.lines().last().unwrap_or_default());
        manager.await_end();
        manager.spawn_again();
    }
}

/// A pause whose length is a part of the fault.
pub(super) fn short_pause(chance: &mut Chance) {
    let (least, most) = SHORT_MS;
    let millis = least + chance.below(most - least);
    thread::sleep(Duration::from_millis(u64::try_from(millis).unwrap()));
}

/// One direction, the other one, or both.
pub(super) fn directions(chance: &mut Chance) -> Vec<Direction> {
    let all = [Direction::ToServer, Direction::ToClient];
    match chance.below(3) {
        0 => all[..1].to_vec(),
        1 => all[1..].to_vec(),
        _ => all.to_vec(),
    }
}

/// Something is done to the next commits of a manager, whose connections lead through `proxy`.
pub(super) fn trap_commits(
    (proxy, manager): (&TcpProxy, &mut Daemon),
    chance: &mut Chance,
    action: Action,
    times: u32,
) {
    let (direction, message) = match chance.below(2) {
        0 => (Direction::ToServer, COMMIT_REQUEST),
        _ => (Direction::ToClient, COMMIT_ANSWER),
    };
    let trap = proxy.trap(direction, message, action, times);
    within(LONG, "commits are caught", || {
        // Others may have taken over meanwhile, after an earlier fault.
        when(trap.caught() == times || manager.ended().is_some(), trap.caught())
    });
    if action == Action::Hold {
        // The process ends while its commit is under way.
        manager.kill_if_alive();
        manager.spawn_again();
    }
}

/// Returns a fault by chance, with its name.
fn choose_weighted<F: Copy>(
    faults: &[(&'static str, usize, F)],
    chance: &mut Chance,
) -> (&'static str, F) {
    let total: usize = faults.iter().map(|(_, weight, _)| weight).sum();
    let mut left = chance.below(total);
    for (name, weight, fault) in faults {
        if left < *weight {
            return (name, *fault);
        }
        left -= weight;
    }
    unreachable!("the weights are those of the total")
}

/// What was seen of one kind of fault.
#[derive(Default)]
struct Recoveries {
    count: u32,
    total: Duration,
    longest: Duration,
}

impl Recoveries {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        self.longest = self.longest.max(time);
    }
}

/// A line for each kind of fault.
fn report(seen: &BTreeMap<&str, Recoveries>) -> String {
    let mut report = String::new();
    for (name, Recoveries { count, total, longest }) in seen {
        let mean = total.as_secs_f64() / f64::from(*count);
        let longest = longest.as_secs_f64();
        writeln!(report, "{count:5} {name}: {mean:.1} s on average, {longest:.1} s at most")
            .unwrap();
    }
    report
}
