//! Everything in a run of the simulation besides the manager: chance, time, the disk's condition,
//! the broker, the clients' memory.

mod clients;
mod cluster;
mod counts;
mod faults;
pub(crate) mod invariants;
mod journal_view;
mod odd;
mod queues;
mod times;

use super::broker::{Attempt, Broker, CALLERS, CallProperties, Link, NOWHERE};
use super::cluster::database::Cluster;
use super::job_limits::{JobLimitWatch, add_job_limits, refuses};
use super::limits::{LimitWatch, add_limits};
use super::log::Log;
use super::oracle;
use super::workers::{InFlightMessage, WorkerCall};
pub(crate) use cluster::ProcessState;
pub(crate) use counts::Counts;
use fastrand::Rng;
use journal_view::JournalView;
use odd::{call_message, caller_id};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use workflow_manager::bus::BusEvent;
use workflow_manager::bus::lease_queue::LeaseQueue;
use workflow_manager::engine::{Definition, Job, JobId, Operation};
use workflow_manager::journal::JobNumber;

pub(crate) const SECOND_NS: i64 = 1_000_000_000;

/// By then a reported confirm is in the journal: fifty times its lag, and as long as the pause of a
/// full disk.
pub(crate) const SURELY_JOURNALED_NS: i64 = SECOND_NS;

/// The message of whoever asks for another job under an id that is in use.
pub(crate) const ANOTHER_MESSAGE: &str = "{\"another\":1}";

/// A run that takes more turns goes in circles.
const TURNS_MAX: u32 = 10_000;

/// How many replies are delivered and not acknowledged, at most.
const PREFETCH: usize = 20;

/// One thing that the driver does for the world.
pub(crate) enum Turn {
    Report(Vec<BusEvent>),
    Wait(Duration),
    Create(JobId),
    /// Under an id that is in use: with the same message, or with another one.
    CreateAgain(JobId, bool),
    Operate(JobId, Operation),
    End(JobId),
    /// A worker over HTTP settles a message.
    Settle(Arc<str>, WorkerCall),
    Done,
}

/// A job that a client has asked for.
pub(crate) struct JobRequest {
    pub(crate) definition: Arc<Definition>,
    pub(crate) message: String,
    /// Asked for by a message on the workflow's queue, in place of a call of the API.
    call: Option<CallProperties>,
    is_answered: bool,
    pub(crate) ended_by_client: bool,
    /// How often its client will have it retried when it has failed.
    retries_left: u32,
    /// When a retry may be asked for again.
    retried_again_ns: i64,
    /// Whether its client has it retried as long as that helps.
    pub(crate) is_retried: bool,
    /// Whether its client has had it done once more.
    pub(crate) was_rerun: bool,
}

/// More than any job needs: each step that a retry helps needs one, in each of its nested child
/// jobs.
const RETRIES_MAX: u32 = 1_000;

pub(crate) struct World {
    pub(crate) rng: Rng,
    /// The bug that is planted in this run.
    pub(crate) bug: Option<&'static str>,
    pub(crate) trace: Vec<String>,
    pub(crate) violation: Option<String>,
    pub(crate) counts: Counts,
    pub(crate) crashed: bool,
    pub(crate) link: Option<Link>,
    /// Where workers over HTTP take their messages; of this process.
    pub(crate) lease_queue: Option<Arc<LeaseQueue>>,
    /// What they have.
    pub(super) in_flight: Vec<InFlightMessage>,
    pub(crate) requests: BTreeMap<JobId, JobRequest>,
    pub(crate) database: PathBuf,
    pub(super) journal: JournalView,
    pub(super) broker: Broker,
    with_faults: bool,
    /// Turns until the faults stop; then everything must come to its end.
    faults_left: u32,
    to_create: Vec<JobId>,
    /// Refused for want of room: their clients ask again after a while.
    refused: Vec<JobId>,
    idle_turns: u32,
    turns: u32,
    crash_in: u64,
    pub(super) disk_full: bool,
    disk_full_until: i64,
    /// This process has seen the disk full.
    pub(super) was_full: bool,
    pub(crate) crashed_ns: i64,
    panics_left: u32,
    now_ns: i64,
    pub(crate) ran_ns: i64,
    /// How often the wall clock has jumped.
    pub(crate) jumps: u32,
    /// When the process began, by the clock of timers.
    pub(crate) started: Instant,
    /// What each job was after each of its decisions that are not committed yet, with their times.
    live: BTreeMap<JobNumber, VecDeque<(i64, Job)>>,
    /// What processes that ended had decided and were not told to be committed.
    untold: Vec<(JobNumber, VecDeque<(i64, Job)>)>,
    limits: LimitWatch,
    job_limits: JobLimitWatch,
    /// Jobs as they were committed last, whose rows of statuses are to be compared.
    uncompared: BTreeMap<JobNumber, Job>,
    published: BTreeMap<(JobNumber, u16, u32), u32>,
    confirmed: BTreeMap<Attempt, i64>,
    /// Confirms that were told long before a crash.
    surely_confirmed: BTreeSet<Attempt>,
    /// Attempts that the broker has ever confirmed to the manager.
    ever_confirmed: BTreeSet<Attempt>,
    lost_queues: BTreeSet<Arc<str>>,
    /// Steps whose messages clients have had sent once more.
    pub(crate) redispatched: BTreeSet<(JobId, u16)>,
    /// The correlation ids of calls that must be refused.
    odd_calls: Vec<String>,
    /// Whether several managers run on one database, and what it knows of them.
    pub(crate) is_cluster: bool,
    pub(crate) cluster: Cluster,
    /// Whether the process that runs was replaced while it stood still.
    pub(crate) is_zombie: bool,
}

/// Idle turns until a run has gone in circles: with pauses that double, more than the clock is ever
/// set back.
const IDLE_TURNS_MAX: u32 = 80;

/// A client that was refused asks again after so many turns in which nothing else happened.
const IDLE_TURNS_BEFORE_RETRY: u32 = 4;

pub(crate) fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    #[allow(clippy::too_many_lines, reason = "one list of what the seed decides")]
    pub(crate) fn new(seed: u64, folder: &Path) -> World {
        let mut rng = Rng::with_seed(seed);
        let database = folder.join("journal.db");
        let mut definitions = [0, 1].map(|at| oracle::definition(&mut rng, &format!("w{at}")));
        add_limits(seed, &mut definitions);
        add_job_limits(seed, &mut definitions);
        // One run in four has no fault at all: then nothing may be sent twice.
        let with_faults = rng.u32(0..4) > 0;
        let faults_left = if with_faults { rng.u32(30..=300) } else { 0 };
        let mut requests = BTreeMap::new();
        let mut to_create = Vec::new();
        for _ in 0..rng.usize(2..=6) {
            let mut id =
                JobId(uuid::Builder::from_random_bytes(rng.u128(..).to_be_bytes()).into_uuid());
            let definition = definitions[rng.usize(0..definitions.len())].clone();
            let reply_to =
                [Some(CALLERS), Some(CALLERS), Some(CALLERS), Some(NOWHERE), None][rng.usize(0..5)];
            let call = rng.bool().then(|| CallProperties {
                queue: Definition::workflow_queue(&definition.name).into(),
                message_id: format!("{}{id}", if rng.bool() { "" } else { "not a UUID " }),
                reply_to: reply_to.map(str::to_owned),
            });
            // A message that is refused is not sent again.
            let call = call.filter(|_| !refuses(&definition));
            if let Some(call) = call.as_ref().filter(|call| call.message_id.len() > 36) {
                let reply_to = call.reply_to.clone().unwrap_or_default();
                let parts = [&*definition.name, &call.message_id, &caller_id(call), &reply_to, ""];
                id = JobId::from_call(&parts.map(str::as_bytes));
            }
            let message = oracle::message(&mut rng, !with_faults);
            let is_retried = rng.bool();
            let retries_left = if is_retried { RETRIES_MAX } else { 0 };
            requests.insert(
                id,
                JobRequest {
                    definition,
                    message,
                    call,
                    is_answered: false,
                    ended_by_client: false,
                    retries_left,
                    retried_again_ns: 0,
                    is_retried,
                    was_rerun: false,
                },
            );
            to_create.push(id);
        }
        let trace = definitions
            .iter()
            .map(|definition| serde_json::to_string(definition).expect("serialises"))
            .collect();
        World {
            bug: None,
            trace,
            violation: None,
            counts: Counts { jobs: requests.len() as u64, ..Counts::default() },
            crashed: false,
            link: None,
            lease_queue: None,
            in_flight: Vec::new(),
            requests,
            journal: JournalView::new(&database),
            database,
            broker: Broker { log: seed.is_multiple_of(3).then(Log::default), ..Broker::default() },
            with_faults,
            faults_left,
            to_create,
            refused: Vec::new(),
            idle_turns: 0,
            turns: 0,
            crash_in: u64::MAX,
            disk_full: false,
            disk_full_until: i64::MIN,
            was_full: false,
            crashed_ns: 0,
            panics_left: 3,
            now_ns: 1_800_000_000 * SECOND_NS,
            ran_ns: 0,
            jumps: 0,
            started: Instant::now(),
            live: BTreeMap::new(),
            untold: Vec::new(),
            limits: LimitWatch::new(&definitions),
            job_limits: JobLimitWatch::default(),
            uncompared: BTreeMap::new(),
            published: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            surely_confirmed: BTreeSet::new(),
            ever_confirmed: BTreeSet::new(),
            lost_queues: BTreeSet::new(),
            redispatched: BTreeSet::new(),
            odd_calls: Vec::new(),
            is_cluster: false,
            cluster: Cluster::default(),
            is_zombie: false,
            rng,
        }
    }

    pub(crate) fn definitions(&self) -> Vec<Arc<Definition>> {
        let by_name: BTreeMap<String, Arc<Definition>> = self
            .requests
            .values()
            .map(|request| (request.definition.name.clone(), request.definition.clone()))
            .collect();
        by_name.into_values().collect()
    }

    /// The number of child jobs under way at once, in this incarnation.
    pub(crate) fn window(&mut self) -> u32 {
        self.rng.u32(1..=3)
    }

    /// Once full, the disk has no room again for this process, as for one that does not try.
    fn is_full_for_ever(&self) -> bool {
        self.was_full && self.bug == Some("no retry after a full disk")
    }

    /// What jobs may hold in memory, in this incarnation: those that only wait rest at once, those
    /// of a few jobs do, or none does.
    pub(crate) fn jobs_bytes_max(&mut self) -> usize {
        [1, 10_000, 1 << 30][self.rng.usize(0..3)]
    }

    /// Whether nothing can be written.
    pub(crate) fn disk_is_full(&self) -> bool {
        self.disk_full || self.is_full_for_ever()
    }

    /// A process begins.
    pub(crate) fn begin(&mut self) {
        self.crashed = false;
        self.faults_left = self.faults_left.saturating_sub(1);
        if self.faults_left == 0 {
            self.empty_disk();
        }
        self.crash_in = if self.faults_left > 0 { self.rng.u64(1..=400) } else { u64::MAX };
        self.limits.begin();
        self.journal = JournalView::new(&self.database);
        self.started = Instant::now();
        self.note(|| "the manager starts".to_owned());
        self.take_untold();
    }

    /// The process is gone, and with it what it and its bus had in memory.
    pub(crate) fn end(&mut self) {
        if let Some(mut link) = self.link.take() {
            link.requeue_all(&mut self.broker);
        }
        self.lease_queue = None;
        self.reset_settling(|_| true);
        self.untold.extend(std::mem::take(&mut self.live));
        self.was_full = false;
        self.uncompared.clear();
        // With a full disk everything waits, and goes on waiting for a while after it.
        // A commit can be unanswered, or given up, in which it would be.
        let is_flowing = !self.is_cluster
            && !self.disk_full
            && self.disk_full_until.saturating_add(2 * SURELY_JOURNALED_NS) < self.crashed_ns;
        let reported = self
            .confirmed
            .iter()
            .filter(|(_, at)| is_flowing && **at + SURELY_JOURNALED_NS < self.crashed_ns);
        self.surely_confirmed.extend(reported.map(|(key, _)| *key));
        self.confirmed.clear();
        self.keep_leases(is_flowing);
        self.counts.crashes += 1;
        // Whoever got no answer may ask again.
        let unanswered: Vec<JobId> = self
            .requests
            .iter()
            .filter(|(id, request)| {
                !request.is_answered && !self.to_create.contains(id) && !self.refused.contains(id)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in unanswered {
            if self.rng.bool() {
                self.to_create.push(id);
            }
        }
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        let at = self.ran_ns / 1_000_000;
        self.trace.push(format!("{at:>7} ms  {}", text()));
    }

    pub(crate) fn violate(&mut self, what: String) {
        self.note(|| format!("VIOLATION: {what}"));
        self.violation.get_or_insert(what);
    }

    /// Time has passed.
    pub(crate) fn pass(&mut self, time: Duration) {
        let time = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        self.ran_ns += time;
        self.now_ns += time;
    }

    // ---- what the world does next

    pub(crate) fn turn(&mut self) -> Turn {
        if self.is_zombie {
            return self.zombie_turn();
        }
        self.turns += 1;
        if self.turns == TURNS_MAX {
            self.violate(format!("no end after {TURNS_MAX} turns"));
        }
        self.handle_dispositions();
        self.pass(Duration::from_millis(1));
        if let (Some(link), false) = (&mut self.link, self.crashed) {
            let declared = link.declare(&mut self.broker);
            declared.iter().for_each(|queue| self.check_declared(queue));
        }
        if self.faults_left > 0 {
            self.faults_left -= 1;
            if self.faults_left == 0 {
                return self.stop_faults();
            }
            if self.rng.u32(0..5) == 0
                && let Some(turn) = self.inject_fault()
            {
                return turn;
            }
        }
        self.work()
    }

    /// From here on everything works; the last reconnection finds what is missing.
    fn stop_faults(&mut self) -> Turn {
        self.note(|| "the faults stop".to_owned());
        self.crash_in = u64::MAX;
        self.empty_disk();
        self.idle_turns = 0;
        let Some(link) = &mut self.link else { return Turn::Wait(Duration::from_millis(1)) };
        let mut events = link.disconnect(&mut self.broker);
        events.extend(link.connect(&self.broker));
        Turn::Report(events)
    }

    fn empty_disk(&mut self) {
        if std::mem::take(&mut self.disk_full) {
            self.disk_full_until = self.ran_ns;
        }
    }

    #[allow(clippy::too_many_lines, reason = "one match over what a worker may do")]
    fn work(&mut self) -> Turn {
        let can_settle = self.can_settle();
        let Some(link) = &mut self.link else { return self.wait(1) };
        if !link.is_connected && (self.faults_left == 0 || self.rng.u32(0..4) == 0) {
            return Turn::Report(link.connect(&self.broker));
        }
        let can_publish = link.is_connected && !link.is_blocked;
        let mut choices: Vec<u8> = Vec::new();
        let mut offer = |is_possible: bool, weight: usize, choice: u8| {
            choices.extend(std::iter::repeat_n(choice, if is_possible { weight } else { 0 }))
        };
        offer(can_publish && !link.outbox.is_empty(), 4, 0);
        offer(link.is_connected && !link.sent.is_empty(), 3, 1);
        offer(self.broker.queues.values().any(|queue| !queue.is_empty()), 4, 2);
        offer(!self.broker.working.is_empty(), 4, 3);
        offer(
            link.is_connected && !self.broker.replies.is_empty() && link.unacked.len() < PREFETCH,
            4,
            4,
        );
        offer(link.is_connected && !link.acks.is_empty(), 2, 5);
        offer(!self.to_create.is_empty(), 2, 6);
        offer(can_publish && !link.answers.is_empty(), 4, 8);
        offer(link.is_connected && !link.answers_sent.is_empty(), 3, 9);
        offer(can_settle, 4, 10);
        if let Some(log) = &self.broker.log {
            let has_room = link.is_connected && link.unacked.len() < PREFETCH;
            offer(has_room && link.log_reader.has_more(log), 4, 11);
            offer(link.log_reader.has_redeliveries(), 4, 12);
            offer(link.log_reader.has_new_position(self.bug), 2, 13);
        }
        if choices.is_empty() {
            return self.idle();
        }
        self.idle_turns = 0;
        choices.extend([7]);
        let choice = choices[self.rng.usize(0..choices.len())];
        let Some(link) = &mut self.link else { return self.wait(1) };
        match choice {
            0 => Turn::Report(link.send(&mut self.broker)),
            1 => {
                let message = link.sent.remove(self.rng.usize(0..link.sent.len()));
                self.confirmed.insert(message.attempt_key(), self.ran_ns);
                self.ever_confirmed.insert(message.attempt_key());
                Turn::Report(vec![message.to_confirm()])
            }
            2 => {
                let full: Vec<&Arc<str>> = self
                    .broker
                    .queues
                    .iter()
                    .filter(|(_, queue)| !queue.is_empty())
                    .map(|(name, _)| name)
                    .collect();
                let name = full[self.rng.usize(0..full.len())].clone();
                self.broker
                    .working
                    .extend(self.broker.queues.get_mut(&name).and_then(VecDeque::pop_front));
                self.wait(0)
            }
            3 => {
                let held =
                    self.broker.working.swap_remove(self.rng.usize(0..self.broker.working.len()));
                Broker::reply(&held).into_iter().for_each(|reply| self.broker.take(reply));
                self.wait(0)
            }
            4 => self.broker.replies.pop_front().map_or(Turn::Wait(Duration::ZERO), |reply| {
                Turn::Report(vec![link.deliver(reply)])
            }),
            5 => {
                let tag = link.acks.swap_remove(self.rng.usize(0..link.acks.len()));
                link.unacked.remove(&tag);
                self.wait(0)
            }
            6 => self.to_create.pop().map_or(Turn::Wait(Duration::ZERO), |id| self.request_job(id)),
            8 => {
                link.answer(&mut self.broker);
                self.wait(0)
            }
            9 => {
                let at = self.rng.usize(0..link.answers_sent.len());
                Turn::Report(vec![link.confirm_answer(at)])
            }
            10 => self.settle(),
            11 => {
                let reply = self.broker.log.as_ref().and_then(|log| link.log_reader.read(log));
                Turn::Report(reply.map(|reply| link.deliver(reply)).into_iter().collect())
            }
            12 => Turn::Report(link.deliver_again().into_iter().collect()),
            13 => Turn::Report(vec![link.log_reader.report_position(self.bug)]),
            _ => {
                let time = self.rng.u64(0..=40);
                self.wait(time)
            }
        }
    }

    /// A client asks for its job, by the API or by a message.
    fn request_job(&mut self, id: JobId) -> Turn {
        let Some(JobRequest { message, call: Some(call), .. }) = self.requests.get(&id) else {
            return Turn::Create(id);
        };
        let (body, call) = (message.clone().into_bytes(), call.clone());
        self.broker.replies.push_back(call_message(caller_id(&call), body, call));
        self.note(|| format!("a message asks for {id}"));
        self.wait(0)
    }

    fn wait(&self, milliseconds: u64) -> Turn {
        Turn::Wait(Duration::from_millis(milliseconds))
    }

    /// The broker has nothing to do: people act, timers run out. A job that has not ended after
    /// that never will.
    fn idle(&mut self) -> Turn {
        self.idle_turns += 1;
        if self.idle_turns.is_multiple_of(IDLE_TURNS_BEFORE_RETRY)
            && let Some(id) = self.refused.pop()
        {
            self.to_create.push(id);
            return self.wait(500);
        }
        if self.rng.bool()
            && let Some(turn) = self.act_as_person()
        {
            self.idle_turns = 0;
            return turn;
        }
        if self.faults_left > 0 || self.idle_turns < 5 {
            return self.wait(500);
        }
        let is_idle = self.broker.is_idle()
            && self.link.as_ref().is_some_and(|link| link.is_idle(&self.broker));
        let all_ended = self
            .requests
            .keys()
            .all(|id| self.find_committed(*id).is_none_or(|found| found.job.state().is_ended()));
        if is_idle && all_ended && !self.requests.keys().any(|id| self.is_to_be_retried(*id)) {
            return Turn::Done;
        }
        if self.idle_turns < IDLE_TURNS_MAX {
            // The clock may have been set while something was waited for.
            return self.wait(500 << (self.idle_turns / 8));
        }
        let running: Vec<String> = self
            .requests
            .keys()
            .filter(|id| {
                self.find_committed(**id).is_some_and(|found| !found.job.state().is_ended())
            })
            .map(JobId::to_string)
            .collect();
        self.violate(format!(
            "nothing goes on; jobs still running: {running:?}; the broker and the bus are \
             idle: {is_idle}"
        ));
        Turn::Done
    }
}
