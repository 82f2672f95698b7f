//! Fault after fault under a load that does not end, for as long as `tests/soak` says; the ordinary
//! test runs one of them for a few seconds.

use std::{
    env,
    fmt::Write as _,
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use crate::{
    amqp::{PrivateNode, Vhost},
    harness::{Daemon, Setup, eventually, when, within},
    load::{Account, LONG, Load, StopOnDrop, WORKFLOWS},
    overload,
};

/// The most jobs under way, so that the test can wait for their ends.
const RUNNING_MAX: &str = "3000";
const MEBIBYTE: u64 = 1024 * 1024;

/// How long and how much; the numbers without `tests/soak` make an ordinary test.
struct Plan {
    /// Of each case.
    seconds: u64,
    broker_away: Duration,
    offered: usize,
    large_replies: u64,
    seed: u64,
    wanted: String,
}

impl Plan {
    fn from_environment() -> Plan {
        Plan {
            seconds: number("SOAK_SECONDS", 2),
            broker_away: Duration::from_secs(number("SOAK_BROKER_AWAY_SECONDS", 1)),
            offered: usize::try_from(number("SOAK_OFFERED", 0)).unwrap(),
            large_replies: number("SOAK_LARGE_REPLIES", 0),
            seed: number("SOAK_SEED", 1),
            wanted: env::var("SOAK_CASES").unwrap_or_else(|_| "SIGKILL".to_owned()),
        }
    }
}

/// A whole number of the environment.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    env::var(name).ok().map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, which is no whole number"))
    })
}

/// What comes next; the same for the same seed.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// Where a case plays.
struct Stage<'a> {
    node: &'a PrivateNode,
    vhost: &'a Vhost,
    daemon: Daemon,
    load: &'a Load,
    chance: &'a mut Chance,
    plan: &'a Plan,
    recoveries: Vec<Duration>,
}

impl Stage<'_> {
    /// Lets the load go on for a random while; a daemon that breaks by itself may end meanwhile.
    fn go_on(&mut self) {
        let (begun, more) = (self.load.seen_count(), 50 + self.chance.below(400));
        within(LONG, "the jobs go on", || {
            when(
                self.daemon.ended().is_some() || self.load.seen_count() >= begun + more,
                self.load.seen_count(),
            )
        });
    }

    /// The time to recover: from now until the daemon is ready and something has come through it.
    fn recover(&mut self) {
        let begun = Instant::now();
        self.daemon.await_ready();
        self.load.await_seen(self.load.seen_count() + 1);
        self.recoveries.push(begun.elapsed());
    }

    /// The daemon has ended by its fault, or is ended here; then it is started again.
    fn revive(&mut self) {
        self.daemon.spawn_again();
        self.recover();
    }

    fn kill_and_start(&mut self) {
        self.daemon.kill();
        self.revive();
    }

    fn stop_and_start(&mut self) {
        assert!(self.daemon.stop().success());
        self.revive();
    }

    fn close_connections(&mut self) {
        self.vhost.close_connections();
        self.recover();
    }

    fn stop_broker(&mut self) {
        // Thousands of messages are in the broker, not with a worker.
        self.load.rest();
        let accepted = self.load.accepted_count();
        let many = if self.plan.seconds > 10 { 2000 } else { 100 };
        let begun = Instant::now();
        within(LONG, "jobs are accepted", || {
            let count = self.load.accepted_count() - accepted;
            when(count >= many || begun.elapsed() > Duration::from_secs(20), count)
        });
        self.node.stop();
        // The length of the outage is what is tested.
        thread::sleep(self.plan.broker_away);
        self.node.start_again();
        self.load.work();
        self.recover();
    }

    fn kill_broker(&mut self) {
        self.node.kill();
        self.node.start_again();
        self.recover();
    }

    fn block(&mut self) {
        self.node.broker.ctl(&["set_vm_memory_high_watermark", "0.0000001"]);
        eventually("the daemon is blocked", || {
            let answer = self.daemon.api.get("/readyz?verbose");
            when(answer.text.contains("blocked"), &answer)
        });
        self.node.broker.ctl(&["set_vm_memory_high_watermark", "0.4"]);
        self.recover();
    }

    fn delete_queue(&mut self) {
        let queue = ["double", "split", "multiply"][self.chance.below(3)];
        self.load.rest();
        self.vhost.client().delete(queue);
        // Noticed when the connection is made anew; a worker that declared it before would hide the
        // loss.
        self.vhost.close_connections();
        let client = self.vhost.client();
        eventually("the daemon declares the queue again", || {
            client.count(queue).ok_or("it is missing")
        });
        self.load.work();
        self.recover();
    }

    fn revive_when_ended(&mut self) {
        within(LONG, "the fault ends the daemon", || {
            when(self.daemon.ended().is_some(), "it still runs")
        });
        let _status = self.daemon.await_end();
        let (begun, seen) = (Instant::now(), self.load.seen_count());
        self.daemon.spawn_again();
        // It may break again before it is ready.
        within(LONG, "something comes through", || {
            when(self.daemon.ended().is_some() || self.load.seen_count() > seen, "nothing")
        });
        self.recoveries.push(begun.elapsed());
    }
}

type Bad = fn(&mut Stage<'_>);

/// Name, why messages are repeated, failpoints, what is done again and again.
const CASES: [(&str, &str, Option<&str>, Bad); 10] = [
    (
        "SIGKILL",
        "not confirmed, or not yet journaled as confirmed, when it was killed",
        None,
        |stage| stage.kill_and_start(),
    ),
    ("SIGTERM", "none should be", None, |stage| stage.stop_and_start()),
    ("connections closed", "published, the confirm lost with the connection", None, |stage| {
        stage.close_connections()
    }),
    ("broker stopped", "published, the confirm lost with the connection", None, |stage| {
        stage.stop_broker()
    }),
    ("broker killed", "published, the confirm lost with the connection", None, |stage| {
        stage.kill_broker()
    }),
    ("memory alarm", "none should be", None, |stage| stage.block()),
    ("queues deleted", "lost with their queue", None, |stage| stage.delete_queue()),
    (
        "clock",
        "not confirmed when it was killed",
        Some("clock::now=30%return(86400)->30%return(-3600)"),
        |stage| stage.kill_and_start(),
    ),
    (
        "fsync fails",
        "not confirmed when it ended",
        Some("journal::commit=300*off->1%return(io)"),
        |stage| stage.revive_when_ended(),
    ),
    (
        "connections break at all points",
        "published, the confirm lost with the connection",
        Some(
            "amqp::publish=0.2%return;amqp::deliver=0.2%return;amqp::confirm=0.5%return;\
             amqp::ack=0.5%return;amqp::connect=10%return",
        ),
        |stage| stage.recover(),
    ),
];

#[test]
fn soak() {
    let plan = Plan::from_environment();
    let node = PrivateNode::start();
    let mut chance = Chance(plan.seed);
    let mut report = format!("seed {}\n", plan.seed);
    for (name, why, faults, bad) in CASES {
        if faults.is_some() && !cfg!(feature = "failpoints") || !name.contains(&plan.wanted) {
            continue;
        }
        eprintln!("---- {name}");
        let line = endure(&node, &plan, &mut chance, faults, bad);
        eprintln!("{line}");
        writeln!(report, "{name}: {line}\n    repeated: {why}").unwrap();
    }
    if plan.offered > 0 {
        let (accepted, peak) = overload::offer_to_a_worker_that_never_answers(plan.offered, 10_000);
        writeln!(
            report,
            "{} jobs offered at once: {accepted} accepted, memory at most {} MiB",
            plan.offered,
            peak / MEBIBYTE
        )
        .unwrap();
    }
    if plan.large_replies > 0 {
        let peak =
            overload::large_replies(plan.large_replies, usize::try_from(16 * MEBIBYTE).unwrap());
        writeln!(
            report,
            "{} replies of 16 MiB: memory at most {} MiB",
            plan.large_replies,
            peak / MEBIBYTE
        )
        .unwrap();
    }
    eprintln!("==== soak\n{report}");
}

fn endure(
    node: &PrivateNode,
    plan: &Plan,
    chance: &mut Chance,
    faults: Option<&str>,
    bad: Bad,
) -> String {
    let vhost = node.broker.vhost();
    let load = Load::new(&vhost.url);
    let setup = Setup::new(&vhost.url, WORKFLOWS).set("limits.jobs_running_max", RUNNING_MAX);
    let daemon = faults.into_iter().fold(setup, Setup::faults).start();
    let (stop, api) = (AtomicBool::new(false), daemon.api.clone());
    let mut stage =
        Stage { node, vhost: &vhost, daemon, load: &load, chance, plan, recoveries: Vec::new() };
    let begun = Instant::now();
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        scope.spawn(|| load.offer_until(&api, 3, &stop));
        while begun.elapsed() < Duration::from_secs(plan.seconds) {
            stage.go_on();
            bad(&mut stage);
        }
        if faults.is_some() {
            stage.daemon.set_faults(None);
            stage.daemon.kill_if_alive();
            stage.revive();
        }
        drop(stopping);
    });
    let account = load.settle(&stage.daemon, &vhost);
    let peak = stage.daemon.memory_peak();
    assert!(stage.daemon.stop().success());
    told(&account, &stage.recoveries, begun.elapsed(), peak)
}

fn told(account: &Account, recoveries: &[Duration], elapsed: Duration, peak: u64) -> String {
    let total: Duration = recoveries.iter().sum();
    let mean = total.as_secs_f64() / recoveries.len().max(1) as f64;
    let longest = recoveries.iter().max().copied().unwrap_or_default().as_secs_f64();
    format!(
        "{account}; {} faults in {:.0} s, recovered in {mean:.2} s on average, {longest:.2} s at \
         most; memory at most {} MiB",
        recoveries.len(),
        elapsed.as_secs_f64(),
        peak / MEBIBYTE
    )
}
