//! The simulation: the real actors, engine and journal on one thread; a simulated broker, workers,
//! clients, clock and disk around them. A seed decides everything: the workflows, who does what in
//! which order, and the faults: crashes at any write, commit, acknowledgement or publish, a full
//! disk, broken connections, lost confirms and acknowledgements, redelivery, duplicates,
//! reordering, forged replies, deleted queues, panics, a clock that jumps. A third of the
//! runs has limits of rate and concurrency. A third of the steps is
//! on a second bus, a real lease queue, whose workers die with messages in flight. In a third of
//! the runs replies lie in a log, which is read from positions in the journal.
//!
//! `tests/simulation --help` runs as many seeds as you like, or one, with its trace.

mod broker;
mod cluster;
mod job_limits;
mod limits;
mod log;
mod oracle;
mod planted;
pub(crate) mod relays;
mod workers;
mod world;

use broker::SimulatedBus;
use cluster::database::FencedJournal;
use cluster::scheduler::{Baton, Pause, Slice};
use oracle::EMBEDDED;
use planted::WrongRules;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;
use workers::{WorkerCall, send_call, take_all};
use workflow_manager::actors::bus_starter::{BusFactory, BusOptions, StartError};
use workflow_manager::actors::inputs::RouterInput;
use workflow_manager::actors::manager::{self, Manager, Parts, Threads};
use workflow_manager::bus::LeaseQueues;
use workflow_manager::bus::embedded::{EmbeddedBus, EmbeddedConfig, Workers};
use workflow_manager::bus::{Bus, BusKey, EventSink};
use workflow_manager::engine::{JobId, Message};
use workflow_manager::faults::set_hooks;
use workflow_manager::journal::Journal;
use workflow_manager::settings::Settings;
use world::invariants::WorldHooks;
use world::{ANOTHER_MESSAGE, Counts, Turn, World, lock};

/// Seeds in every test run.
const SEEDS: u64 = 1_000;

/// How often a world that waits looks whether there is something to do.
const WAIT_SLICE: Duration = Duration::from_secs(1);

/// The outcome of a seed.
struct Outcome {
    counts: Counts,
    trace: Vec<String>,
    /// The first invariant that was broken.
    violation: Option<String>,
}

thread_local! {
    /// What panicked on this thread while it simulates; none: it does not.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Keeps the panics of simulating threads from the terminal: most are meant to be.
fn listen_to_panics() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_kept = PANICS.try_with(|kept| {
                let mut kept = kept.borrow_mut();
                kept.as_mut().map(|kept| kept.push(panic.to_string())).is_some()
            });
            if !is_kept.unwrap_or(false) {
                usual(panic);
            }
        }));
    });
}

/// The first panic that nobody asked for.
fn find_stray_panic() -> Option<String> {
    PANICS.with(|kept| {
        kept.borrow().iter().flatten().find(|text| !text.contains("failpoint job::")).cloned()
    })
}

/// Runs one seed, with a planted bug or without.
fn simulate(seed: u64, bug: Option<&'static str>) -> Outcome {
    listen_to_panics();
    PANICS.with(|kept| *kept.borrow_mut() = Some(Vec::new()));
    let folder = temporary_folder();
    let world = Arc::new(Mutex::new(World::new(seed, folder.journal.path())));
    lock(&world).bug = bug;
    set_hooks(Some(WorldHooks::from_world(&world)));
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut is_done = false;
        while !is_done {
            is_done = matches!(run_process(&world, None), Pause::Ended(true));
            lock(&world).end();
        }
    }));
    if ran.is_ok() && lock(&world).violation.is_none() {
        lock(&world).check_end();
    }
    set_hooks(None);
    let mut world = lock(&world);
    if let Some(panic) = find_stray_panic() {
        world.violate(panic);
    }
    PANICS.with(|kept| *kept.borrow_mut() = None);
    take_outcome(&mut world)
}

/// The folder of a journal, and what has to live as long.
struct Folder {
    journal: tempfile::TempDir,
    _reserve: tempfile::TempDir,
}

/// A folder in memory if there is such a place: what a crash loses is decided here, not by the
/// disk. The reserve alone is on the disk, to which its space is only promised: in memory, to
/// allocate and free 16 MiB again and again would take half of the time.
fn temporary_folder() -> Folder {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let create = |place: &Path| {
        let prefix = "workflow-manager-simulation-";
        tempfile::Builder::new().prefix(prefix).tempdir_in(place).expect("a folder")
    };
    let (journal, reserve) = (create(&place), create(&std::env::temp_dir()));
    let target = reserve.path().join("reserve");
    File::create(&target).expect("a reserve");
    symlink(target, journal.path().join("journal.db.reserve")).expect("a link");
    Folder { journal, _reserve: reserve }
}

fn take_outcome(world: &mut World) -> Outcome {
    Outcome {
        counts: world.counts,
        trace: std::mem::take(&mut world.trace),
        violation: world.violation.take(),
    }
}

fn settings(world: &mut World) -> Settings {
    static DEFAULTS: OnceLock<Settings> = OnceLock::new();
    let mut settings = DEFAULTS.get_or_init(|| Settings::defaults().expect("the defaults")).clone();
    // The default bus is the simulated one.
    settings.amqp.server = "amqp://simulated".into();
    settings.journal.file = world.database.clone();
    settings.journal.cache_bytes = 1 << 20;
    settings.journal.retention.0 = Duration::from_secs(100_000 * 3600);
    settings.fanout.window = world.window();
    settings.limits.jobs_bytes_max = world.jobs_bytes_max();
    // Room for one child job, or two, or all that the window has places for.
    settings.fanout.window_bytes = [1, 200, u64::MAX][settings.fanout.window as usize % 3];
    settings
}

/// What a process of a cluster has.
struct Process {
    journal: Box<FencedJournal>,
    baton: Baton,
    slice: Slice,
}

/// The life of one process.
fn run_process(world: &Arc<Mutex<World>>, process: Option<Process>) -> Pause {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime")
    };
    let system = actix_rt::System::with_tokio_rt(runtime);
    let end = system.block_on(run_manager(world, process));
    if !matches!(end, Pause::Left) {
        // All actors go with their system; what they still do reaches nobody.
        lock(world).crashed = true;
    }
    drop(system);
    end
}

#[allow(clippy::too_many_lines, reason = "one life of a manager")]
async fn run_manager(world: &Arc<Mutex<World>>, process: Option<Process>) -> Pause {
    let (journal, mut turns) = match process {
        Some(Process { journal, baton, slice }) => {
            (Some(journal as Box<dyn Journal>), Some((baton, slice)))
        }
        None => (None, None),
    };
    let (settings, definitions, bug) = {
        let mut world = lock(world);
        world.begin();
        let definitions = planted::wrong_definitions(world.bug, world.definitions());
        (settings(&mut world), definitions, world.bug)
    };
    let lease_queues: Arc<LeaseQueues> = Arc::default();
    let (of_bus, bus_lease_queues) = (world.clone(), lease_queues.clone());
    let bus_provider =
        move |_: &Settings, key: &BusKey, opening: BusOptions| -> Result<BusFactory, StartError> {
            if &*key.name == EMBEDDED {
                let made_of = EmbeddedConfig {
                    key: key.clone(),
                    workers: Workers::new(),
                    policy: planted::lease_policy(bug),
                    lease_queues: bus_lease_queues.clone(),
                };
                return Ok(Box::new(move |sink: EventSink| -> Box<dyn Bus> {
                    Box::new(EmbeddedBus::new(made_of, opening.served, sink))
                }));
            }
            let (world, bus) = (of_bus.clone(), key.name.clone());
            Ok(Box::new(move |sink: EventSink| -> Box<dyn Bus> {
                let BusOptions { served, offsets: positions, .. } = opening;
                Box::new(SimulatedBus::open(world, bus, (served, &positions), sink))
            }))
        };
    let parts = Parts {
        bus_provider: Arc::new(bus_provider),
        rules: Arc::new(WrongRules(bug)),
        wiring: Box::new(move |mailboxes, core| relays::wrong_wiring(bug, mailboxes, core)),
        lease_queues: lease_queues.clone(),
        journal,
        metrics: workflow_manager::telemetry::Metrics::new(),
    };
    let mut manager = match manager::start_on(Threads::Current, settings, definitions, parts) {
        Ok(manager) => Rc::new(manager),
        Err(error) => {
            let mut world = lock(world);
            if !world.crashed {
                world.violate(format!("the manager does not start: {error}"));
            }
            return Pause::Ended(!world.is_cluster);
        }
    };
    let activated = manager.core().metrics.jobs_activated.clone();
    let mut counted = 0;
    loop {
        if let Some((baton, slice)) = &mut turns {
            if slice.turns == 0 {
                match baton.pass(Pause::TurnsOver) {
                    Some(next) => *slice = next,
                    None => return Pause::Ended(false),
                }
                tokio::time::advance(slice.stood_still).await;
            }
            slice.turns -= 1;
            if std::mem::take(&mut slice.leaves) {
                manager = match leave(world, manager).await {
                    Some(manager) => manager,
                    None => return Pause::Left,
                };
            }
        }
        lock(world).counts.activated += activated.get() - counted;
        counted = activated.get();
        // Sometimes much happens before anyone acts on it, sometimes everyone is idle.
        let pauses = lock(world).rng.u32(0..4);
        for _ in 0..pauses {
            tokio::task::yield_now().await;
        }
        let panicked = find_stray_panic().is_some();
        // Now and then everything committed is derived and compared.
        let derives = lock(world).rng.u32(0..4) == 0;
        let is_derived = derives && manager.core().reader.count_running_root_jobs().is_ok();
        if lock(world).lease_queue.is_none()
            && let Some(lease_queue) =
                lease_queues.find(&BusKey { name: EMBEDDED.into(), vhost: "".into() })
        {
            let mut world_now = lock(world);
            world_now.lease_queue = Some(lease_queue.clone());
            for queue in world_now.leased_queues() {
                actix_rt::spawn(take_all(world.clone(), lease_queue.clone(), queue));
            }
        }
        let (turn, sink) = {
            let mut world = lock(world);
            if is_derived && !world.crashed && !world.disk_is_full() {
                world.compare_statuses();
                world.compare_position();
            }
            if world.crashed {
                return Pause::Ended(false);
            }
            if panicked && world.is_cluster {
                let text = find_stray_panic().unwrap_or_default();
                world.violate(text);
            }
            if panicked || world.violation.is_some() {
                return Pause::Ended(true);
            }
            (world.turn(), world.link.as_ref().map(|link| link.sink.clone()))
        };
        match turn {
            Turn::Report(events) => {
                if let Some(sink) = sink {
                    let reported =
                        events.into_iter().filter(|event| !planted::is_dropped(bug, event));
                    reported.for_each(|event| sink(event));
                }
            }
            Turn::Wait(time) => wait(world, time).await,
            Turn::Create(id) => create_job(world, &manager, id, None),
            Turn::CreateAgain(id, same) => create_job(world, &manager, id, Some(same)),
            // Nobody waits for the answer, and nobody keeps it back while nothing is accepted.
            Turn::Operate(id, operation) => {
                let operate = RouterInput::Operate(id, operation.into(), oneshot::channel().0);
                manager.mailboxes().router.send(operate);
            }
            // A client that sees that it has ended has it erased.
            Turn::End(id) if lock(world).has_ended(id) => drop(manager.handle().erase(id)),
            Turn::End(id) => drop(manager.handle().cancel(id, None)),
            Turn::Settle(id, call) => settle(world, id, call),
            Turn::Done => return Pause::Ended(true),
        }
    }
}

/// Stops the manager in order, unless a client still waits for its answer: then it goes on.
async fn leave(world: &Arc<Mutex<World>>, manager: Rc<Manager>) -> Option<Rc<Manager>> {
    match Rc::try_unwrap(manager) {
        Ok(manager) => {
            // Workers over HTTP ask no more.
            lock(world).lease_queue = None;
            manager.stop().await;
            None
        }
        Err(manager) => {
            lock(world).note(|| "it does not leave yet".to_owned());
            Some(manager)
        }
    }
}

/// Waits, as long as nothing comes that workers could do: steps that time out while nobody works
/// would use up their attempts.
async fn wait(world: &Arc<Mutex<World>>, time: Duration) {
    let mut left = time;
    while !left.is_zero() {
        let slice = left.min(WAIT_SLICE);
        tokio::time::sleep(slice).await;
        left -= slice;
        let mut world = lock(world);
        world.pass(slice);
        if world.link.as_ref().is_some_and(|link| !link.outbox.is_empty()) {
            return;
        }
    }
}

/// A client asks for its job; `again`: once more, for the same (true) or for another one under the
/// same id.
fn create_job(world: &Arc<Mutex<World>>, manager: &Rc<Manager>, id: JobId, again: Option<bool>) {
    let (world, manager) = (world.clone(), manager.clone());
    let (workflow, text) = {
        let world = lock(&world);
        let request = &world.requests[&id];
        (request.definition.name.clone(), request.message.clone())
    };
    let text = if again == Some(false) { ANOTHER_MESSAGE.to_owned() } else { text };
    actix_rt::spawn(async move {
        let message = Message::parse(text.as_bytes()).expect("an object");
        let answer = manager.handle().create(&workflow, Some(id), message).await;
        let mut world = lock(&world);
        if !world.crashed {
            world.handle_create_response(id, again, &answer);
        }
    });
}

/// Sends the call of a worker over HTTP, which then has its answer.
fn settle(world: &Arc<Mutex<World>>, id: Arc<str>, call: WorkerCall) {
    let world = world.clone();
    let Some(lease_queue) = lock(&world).lease_queue.clone() else { return };
    actix_rt::spawn(async move {
        let is_done = send_call(&lease_queue, call).await;
        let mut world = lock(&world);
        if !world.crashed {
            world.handle_settled(&id, is_done);
        }
    });
}

/// Runs seeds on all cores until one is bad; tells how many were good, what they saw, and the bad
/// one.
fn simulate_all(
    seeds: std::ops::Range<u64>,
    bug: Option<&'static str>,
) -> (Counts, Option<(u64, Outcome)>) {
    simulate_seeds(seeds, |seed| simulate(seed, bug))
}

/// Does the same with any simulation of a seed.
fn simulate_seeds(
    seeds: std::ops::Range<u64>,
    simulate: impl Fn(u64) -> Outcome + Sync,
) -> (Counts, Option<(u64, Outcome)>) {
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new((Counts::default(), None::<(u64, Outcome)>));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let outcome = simulate(seed);
                    let mut total = total.lock().expect("no panic");
                    total.0.add(&outcome.counts);
                    if outcome.violation.is_some()
                        && total.1.as_ref().is_none_or(|(earlier, _)| seed < *earlier)
                    {
                        next.store(seeds.end, Ordering::Relaxed);
                        total.1 = Some((seed, outcome));
                    }
                }
            });
        }
    });
    total.into_inner().expect("no panic")
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// `SIMULATION_SEEDS` and `SIMULATION_FIRST` say which; `SIMULATION_SEED` runs one, with the bug
/// `SIMULATION_BUG` if there is one, and prints its trace.
#[test]
fn nothing_is_lost_whatever_the_seed() {
    if let Some(seed) = number("SIMULATION_SEED") {
        let outcome = simulate(seed, planted::bug_from_env());
        eprintln!("{}\n{:?}", outcome.trace.join("\n"), outcome.counts);
        assert!(outcome.violation.is_none(), "seed {seed}: {:?}", outcome.violation);
        return;
    }
    let first = number("SIMULATION_FIRST").unwrap_or_default();
    let seeds = first..first + number("SIMULATION_SEEDS").unwrap_or(SEEDS);
    let (counts, bad) = simulate_all(seeds.clone(), None);
    eprintln!("seeds {seeds:?}: {counts:?}");
    if let Some((seed, Outcome { trace, violation, .. })) = bad {
        let end = &trace[trace.len().saturating_sub(60)..];
        panic!(
            "seed {seed}: {}\n{}\nagain, with all of its trace: tests/simulation --seed {seed}",
            violation.unwrap_or_default(),
            end.join("\n")
        );
    }
    assert!(
        counts.crashes > counts.jobs / 10
            && counts.repeated > 0
            && counts.panics > 0
            && counts.leased > counts.jobs
            && counts.activated > counts.jobs / 3
            && counts.admitted > counts.jobs / 2
            && counts.displaced > counts.jobs / 100
            && counts.turned_away > counts.jobs / 1_000
            && counts.taken > counts.jobs / 20,
        "the faults did not come to pass: {counts:?}"
    );
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..20 {
        let (once, again) = (simulate(seed, None), simulate(seed, None));
        assert_eq!(once.trace, again.trace, "seed {seed}");
    }
}
