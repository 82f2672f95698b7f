//! The scheduler: which process runs, which stands still, and when a standby takes over.

use super::super::broker::Link;
use super::super::world::{ProcessState, SECOND_NS, World, lock};
use super::super::world::invariants::WorldHooks;
use super::super::{PANICS, Process, run_process};
use super::database::{Beat, FencedJournal, ProcessId};
use fastrand::Rng;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use workflow_manager::faults::set_hooks;
use workflow_manager::journal::{JournalOptions, SqliteJournal};

/// How long a beat may stand still.
const LEASE_NS: i64 = 10 * SECOND_NS;

/// How often a standby looks.
const LOOK_NS: i64 = SECOND_NS;

/// After so many looks without an active manager nobody will take over any more.
const LOOKS_MAX: u32 = 200;

/// Why a process hands the baton back.
pub(crate) enum Pause {
    /// Its turns are over.
    TurnsOver,
    /// It stands in the middle of a commit.
    InCommit,
    /// It has ended: by a kill or a dead fence (`false`), or since everything has (`true`).
    Ended(bool),
    /// It has ended in order.
    Left,
}

/// What a process may do with the baton.
pub(crate) struct Slice {
    pub(crate) turns: u32,
    /// How long it stood still.
    pub(crate) stood_still: Duration,
    /// Whether it is to leave in order.
    pub(crate) leaves: bool,
}

/// The end of the baton that a process has.
#[derive(Clone)]
pub(crate) struct Baton {
    slices: Arc<Mutex<Receiver<Slice>>>,
    pauses: Sender<Pause>,
}

impl Baton {
    /// Hands the baton back, and waits for it; none: the process is killed meanwhile.
    pub(crate) fn pass(&self, pause: Pause) -> Option<Slice> {
        // An error means that nobody waits any more.
        let _ = self.pauses.send(pause);
        self.slices.lock().ok()?.recv().ok()
    }

    fn first(&self) -> Option<Slice> {
        self.slices.lock().ok()?.recv().ok()
    }
}

/// A process, as the scheduler has it.
struct Running {
    id: ProcessId,
    slices: Sender<Slice>,
    pauses: Receiver<Pause>,
    thread: JoinHandle<()>,
    is_in_commit: bool,
}

/// A process that stands still, with what it has of the world.
struct Stopped {
    process: Running,
    state: ProcessState,
    since_ns: i64,
    /// Whether its successor is active.
    is_replaced: bool,
    /// Whether only its actors stand still.
    hangs: bool,
}

pub(crate) struct Scheduler {
    world: Arc<Mutex<World>>,
    server: Arc<Mutex<Option<SqliteJournal>>>,
    bug: Option<&'static str>,
    rng: Rng,
    active: Option<Running>,
    stopped: Vec<Stopped>,
    next_id: ProcessId,
    /// What a standby has seen: the owner, its beat, since when it stands still.
    seen: Option<(ProcessId, Beat, i64)>,
    last_look_ns: i64,
    /// By how much the standby's clock differs.
    skew_ns: i64,
    has_failed_to_take: bool,
    looks_without_active: u32,
}

impl Scheduler {
    pub(crate) fn new(seed: u64, folder: &Path, bug: Option<&'static str>) -> Scheduler {
        let mut world = World::new(seed, folder);
        world.bug = bug;
        world.is_cluster = true;
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let skew_ns = rng.i64(-30..=30) * SECOND_NS;
        Scheduler {
            world: Arc::new(Mutex::new(world)),
            server: Arc::default(),
            bug,
            rng,
            active: None,
            stopped: Vec::new(),
            next_id: 1,
            seen: None,
            last_look_ns: i64::MIN,
            skew_ns,
            has_failed_to_take: false,
            looks_without_active: 0,
        }
    }

    /// Runs processes until everything has ended, or an invariant is broken.
    pub(crate) fn run(&mut self) {
        while lock(&self.world).violation.is_none() {
            self.look_if_due();
            if self.active.is_none() {
                lock(&self.world).pass(Duration::from_secs(1));
                self.looks_without_active += 1;
                if self.looks_without_active > LOOKS_MAX {
                    lock(&self.world).violate("nobody takes over".to_owned());
                }
                continue;
            }
            self.looks_without_active = 0;
            let has_faults = lock(&self.world).has_cluster_faults();
            let leaves = has_faults && self.rng.u32(0..60) == 0;
            if self.run_active(leaves) {
                return;
            }
            if has_faults && self.active.is_some() && self.rng.u32(0..14) == 0 {
                self.stop_active();
            }
            if !self.stopped.is_empty() && self.rng.u32(0..3) == 0 {
                self.run_stopped();
            }
        }
    }

    /// Lets the active process run. Returns whether everything has ended.
    fn run_active(&mut self, leaves: bool) -> bool {
        let Some(active) = &mut self.active else { return false };
        let turns = self.rng.u32(1..=25);
        if leaves {
            let id = active.id;
            lock(&self.world).note(|| format!("manager {id} is asked to leave"));
            if self.bug == Some("release before the last commit") {
                lock(&self.world).cluster.owner = None;
            }
        }
        let pause = active.run(Slice { turns, stood_still: Duration::ZERO, leaves });
        active.is_in_commit = matches!(pause, Pause::InCommit);
        match pause {
            Pause::TurnsOver => {
                let id = active.id;
                self.beat(id);
                false
            }
            Pause::InCommit => {
                if self.rng.u32(0..2) == 0 || lock(&self.world).cluster.owner.is_none() {
                    self.stop_active();
                }
                false
            }
            Pause::Ended(is_done) => {
                self.end_active();
                is_done
            }
            Pause::Left => {
                self.end_active();
                false
            }
        }
    }

    fn end_active(&mut self) {
        if let Some(active) = self.active.take() {
            drop(active.slices);
            // A panic of the thread was noted by its loop.
            let _ = active.thread.join();
        }
        lock(&self.world).end();
    }

    fn beat(&self, id: ProcessId) {
        let mut world = lock(&self.world);
        let written_ns = world.wall_ns();
        if let Some(beat) = world.cluster.beats.get_mut(&id) {
            *beat = Beat { count: beat.count + 1, written_ns };
        }
    }

    /// The active process stands still: its connections to the broker break.
    fn stop_active(&mut self) {
        let Some(process) = self.active.take() else { return };
        let hangs = self.rng.u32(0..4) == 0;
        let (id, since_ns) = (process.id, lock(&self.world).ran_ns);
        let state = {
            let mut world = lock(&self.world);
            world.note(|| format!("manager {id} stands still; hangs: {hangs}"));
            world.suspend()
        };
        let is_short = !hangs && self.rng.u32(0..3) == 0;
        let stopped = Stopped { process, state, since_ns, is_replaced: false, hangs };
        if is_short {
            lock(&self.world).pass(Duration::from_secs(self.rng.u64(1..=8)));
            self.resume_as_active(stopped);
        } else {
            self.stopped.push(stopped);
        }
    }

    /// A process that stood still for less than the lease goes on.
    fn resume_as_active(&mut self, stopped: Stopped) {
        let Stopped { process, state, .. } = stopped;
        lock(&self.world).resume(state);
        self.active = Some(process);
    }

    /// A process that was replaced goes on for a few turns beside its successor.
    fn run_stopped(&mut self) {
        let at = self.rng.usize(0..self.stopped.len());
        if !self.stopped[at].is_replaced {
            return;
        }
        let Stopped { mut process, state, since_ns, .. } = self.stopped.swap_remove(at);
        let (id, turns) = (process.id, self.rng.u32(1..=20));
        let (of_active, stood_still) = {
            let mut world = lock(&self.world);
            world.note(|| format!("manager {id} goes on beside its successor"));
            let of_active = world.exchange_process(state);
            world.is_zombie = true;
            let stood_still = u64::try_from(world.ran_ns - since_ns).unwrap_or_default();
            (of_active, Duration::from_nanos(stood_still))
        };
        let pause = process.run(Slice { turns, stood_still, leaves: false });
        let mut world = lock(&self.world);
        let is_over = match pause {
            Pause::TurnsOver | Pause::InCommit => false,
            Pause::Ended(_) | Pause::Left => true,
        };
        world.disconnect_zombie();
        let state = world.exchange_process(of_active);
        world.is_zombie = false;
        world.note(|| format!("manager {id} stands still again; over: {is_over}"));
        let since_ns = world.ran_ns;
        drop(world);
        if is_over {
            drop(process.slices);
            let _ = process.thread.join();
        } else {
            let hangs = false;
            let is_replaced = true;
            self.stopped.push(Stopped { process, state, since_ns, is_replaced, hangs });
        }
    }

    /// The look of a standby, once a second.
    fn look_if_due(&mut self) {
        let (now_ns, wall_ns, owner, beat) = {
            let mut world = lock(&self.world);
            if world.ran_ns < self.last_look_ns.saturating_add(LOOK_NS) {
                return;
            }
            let hanging = self.stopped.iter().filter(|stopped| stopped.hangs);
            if self.bug == Some("beat of a process that hangs") {
                hanging.for_each(|stopped| {
                    if let Some(beat) = world.cluster.beats.get_mut(&stopped.process.id) {
                        beat.count += 1;
                    }
                });
            }
            let owner = world.cluster.owner;
            let beat = owner.and_then(|owner| world.cluster.beats.get(&owner).copied());
            (world.ran_ns, world.wall_ns(), owner, beat.unwrap_or_default())
        };
        self.last_look_ns = now_ns;
        let Some(owner) = owner else { return self.take_over() };
        let since_ns = match self.seen {
            Some((seen, seen_beat, since_ns)) if (seen, seen_beat) == (owner, beat) => since_ns,
            Some(_) | None => now_ns,
        };
        self.seen = Some((owner, beat, since_ns));
        let silent_ns = match self.bug {
            Some("beats by timestamps") if beat.written_ns > 0 => {
                wall_ns + self.skew_ns - beat.written_ns
            }
            Some(_) | None => now_ns - since_ns,
        };
        if silent_ns < LEASE_NS {
            return;
        }
        if self.active.as_ref().is_some_and(|active| active.id == owner) {
            let text = format!("manager {owner} was declared dead, and it beats");
            return lock(&self.world).violate(text);
        }
        self.take_over();
    }

    /// A standby takes the name. Some die in the middle of it: then nothing has happened.
    fn take_over(&mut self) {
        if self.has_failed_to_take && self.bug == Some("takeover tried once") {
            return;
        }
        if lock(&self.world).has_cluster_faults() && self.rng.u32(0..5) == 0 {
            lock(&self.world).note(|| "a standby dies while it takes over".to_owned());
            self.has_failed_to_take = true;
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        if let Some(process) = self.active.take() {
            // It has released the name before its end.
            let (since_ns, state) = {
                let mut world = lock(&self.world);
                (world.ran_ns, world.suspend())
            };
            let hangs = false;
            self.stopped.push(Stopped { process, state, since_ns, is_replaced: true, hangs });
        }
        self.stopped.iter_mut().for_each(|stopped| stopped.is_replaced = true);
        {
            let mut world = lock(&self.world);
            world.counts.takeovers += 1;
            world.note(|| format!("manager {id} takes over"));
            let bug = self.bug;
            world.cluster.take_over(id, bug);
        }
        self.seen = None;
        self.open_journal();
        self.active = Some(self.start(id));
    }

    /// The server reads what is committed anew, as for a new client.
    fn open_journal(&self) {
        let options = JournalOptions {
            file: lock(&self.world).database.clone(),
            cache_bytes: 1 << 20,
            verify_bytes_max: 1 << 30,
            pages_max: 0,
        };
        let Ok(mut server) = self.server.lock() else { return };
        drop(server.take());
        match SqliteJournal::open(&options) {
            Ok(journal) => *server = Some(journal),
            Err(error) => lock(&self.world).violate(format!("the journal is unusable: {error}")),
        }
    }

    fn start(&self, id: ProcessId) -> Running {
        let (slices, of_process) = channel();
        let (to_scheduler, pauses) = channel();
        let baton = Baton { slices: Arc::new(Mutex::new(of_process)), pauses: to_scheduler };
        let journal = FencedJournal {
            process: id,
            server: self.server.clone(),
            world: self.world.clone(),
            baton: baton.clone(),
            unanswered: false,
        };
        let world = self.world.clone();
        let thread = std::thread::spawn(move || {
            let Some(slice) = baton.first() else { return };
            PANICS.with(|kept| *kept.borrow_mut() = Some(Vec::new()));
            set_hooks(Some(WorldHooks::from_world(&world)));
            let pauses = baton.pauses.clone();
            let process = Process { journal: Box::new(journal), baton, slice };
            let pause = run_process(&world, Some(process));
            set_hooks(None);
            let _ = pauses.send(pause);
        });
        Running { id, slices, pauses, thread, is_in_commit: false }
    }

    /// Ends all processes, and checks what has come of everything.
    pub(crate) fn finish(mut self) -> Arc<Mutex<World>> {
        let left: Vec<Running> = self
            .active
            .take()
            .into_iter()
            .chain(self.stopped.drain(..).map(|stopped| stopped.process))
            .collect();
        for process in left {
            let mut world = lock(&self.world);
            world.crashed = true;
            world.link = None::<Link>;
            drop(world);
            drop(process.slices);
            let _ = process.thread.join();
        }
        if let Ok(mut server) = self.server.lock() {
            drop(server.take());
        }
        let mut world = lock(&self.world);
        if world.violation.is_none() {
            world.crashed = false;
            world.check_end();
        }
        drop(world);
        self.world
    }
}

impl Running {
    /// Hands the baton to the process, and waits until it comes back.
    fn run(&mut self, slice: Slice) -> Pause {
        if self.slices.send(slice).is_err() {
            return Pause::Ended(false);
        }
        self.pauses.recv().unwrap_or(Pause::Ended(false))
    }
}
