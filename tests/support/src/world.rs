//! A world around the engine alone, without a manager. Jobs are kept in a map, effects are carried
//! out at once, and step messages are handed to the test. After each decision, the job is rebuilt
//! from its entries as the journal would store them, and compared with the live one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use workflow_manager::engine::{
    Context, Decision, Definition, Demand, Effect, Entry, Input, Job, JobId, Limits, Message,
    Origin, ParentItem, Recorded, Rejected, Reply, Sender, StepIndex, Timestamp,
};

/// Limits that a test reaches only on purpose.
pub const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 20,
    reply_bytes_max: 1 << 20,
    depth_max: 32,
    window: 10_000,
    window_bytes: 1 << 26,
};

/// A step message that waits for a reply.
#[derive(Clone, Debug)]
pub struct Dispatched {
    /// The job that sent it.
    pub job: JobId,
    /// The step that it belongs to.
    pub step: StepIndex,
    /// The step's name.
    pub name: String,
    /// The attempt's number.
    pub attempt: u32,
    /// The input of the step.
    pub input: Message,
}

/// A live job, with the entries of all its decisions.
struct RecordedJob {
    job: Job,
    record: Vec<Recorded>,
}

impl RecordedJob {
    /// Checks that the job can be rebuilt from its entries, after they were serialized as in the
    /// journal. Panics if the result differs from the live job.
    fn assert_rebuilt_equal(&self) {
        let stored = self.record.iter().map(|recorded| {
            let text = serde_json::to_string(&recorded.entries).expect("entries serialize");
            let entries: Vec<Entry> = serde_json::from_str(&text).expect("entries parse");
            Recorded { entries, ..*recorded }
        });
        let stored: Vec<Recorded> = stored.collect();
        // The message of a root job is in its first entry. A child job's comes from its parent.
        let message = self.job.origin().parent.map(|_| self.job.message().clone());
        let rebuilt = Job::recover(self.job.origin().clone(), message, stored);
        assert!(
            rebuilt == self.job,
            "the rebuilt job differs from the live one:\n{rebuilt:#?}\n{:#?}",
            self.job
        );
    }
}

/// Jobs without a manager.
pub struct World {
    /// All jobs, including those that have ended.
    jobs: HashMap<JobId, RecordedJob>,
    /// The step messages that the test has not taken yet, oldest first.
    pub dispatched: VecDeque<Dispatched>,
    /// The ids of the jobs that are not closed.
    open_jobs: HashSet<JobId>,
    /// The time, which advances by a nanosecond with each input.
    now: i64,
    /// The limits of the decisions.
    pub limits: Limits,
    /// Whether the live job is compared with a rebuilt one after each decision. The cost is
    /// quadratic in the number of entries.
    pub compare: bool,
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl World {
    /// Makes a world without jobs.
    pub fn new() -> World {
        World {
            jobs: HashMap::new(),
            dispatched: VecDeque::new(),
            open_jobs: HashSet::new(),
            now: 1,
            limits: LIMITS,
            compare: true,
        }
    }

    /// Creates a root job.
    pub fn create(&mut self, definition: &Arc<Definition>, message: Message) -> JobId {
        let id = JobId(uuid::Uuid::from_u128(
            0xabcd_0000_0000_4000_8000_0000_0000_0000 + self.jobs.len() as u128,
        ));
        let origin = Origin::for_root_job(id, definition.clone(), Timestamp(self.now));
        self.start(origin, message);
        id
    }

    /// Returns a job, which may have ended. Panics if there is no such job.
    pub fn job(&self, id: JobId) -> &Job {
        &self.jobs[&id].job
    }

    /// Returns all jobs, in any order.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|recorded| &recorded.job)
    }

    /// Replies to a step message with a result.
    pub fn reply(&mut self, dispatched: &Dispatched, body: &str) -> Result<(), Rejected> {
        self.take(
            dispatched.job,
            Input::Reply {
                step: dispatched.name.clone(),
                attempt: None,
                reply: Reply::Result(body.to_owned().into()),
                from: Sender::Unknown,
            },
        )
    }

    /// Applies an input to a job, and carries out the effects.
    pub fn take(&mut self, id: JobId, input: Input) -> Result<(), Rejected> {
        self.now += 1;
        let Some(recorded) = self.jobs.get_mut(&id) else { return Err(Rejected::Ended) };
        let context =
            Context { now: Timestamp(self.now), limits: &self.limits, pauses: None, spare: None };
        let decision = recorded.job.handle_input(input, &context)?;
        self.apply(id, decision);
        Ok(())
    }

    /// Starts a job. If a job with its id is open, notifies the parent instead.
    fn start(&mut self, origin: Origin, message: Message) {
        self.now += 1;
        let id = origin.id;
        if !self.open_jobs.insert(id) {
            let ParentItem { job, step, index } = origin.parent.expect("clients choose other ids");
            self.take(job, Input::IdConflict { step, index, id })
                .expect("the parent tries another id");
            return;
        }
        let context =
            Context { now: Timestamp(self.now), limits: &self.limits, pauses: None, spare: None };
        let (job, decision) = Job::create(origin, message, &context);
        self.jobs.insert(id, RecordedJob { job, record: Vec::new() });
        self.apply(id, decision);
    }

    /// Records the entries of a decision, checks the job, and carries out the effects.
    fn apply(&mut self, id: JobId, decision: Decision) {
        let recorded = self.jobs.get_mut(&id).expect("a live job");
        recorded.job.assert_invariants();
        let Recorded { first, entries, .. } = &decision.recorded;
        assert_eq!(first + entries.len() as u64, recorded.job.entry_count());
        recorded.record.push(decision.recorded);
        if self.compare {
            recorded.assert_rebuilt_equal();
        }
        if decision.closed {
            self.open_jobs.remove(&id);
        }
        for effect in decision.effects {
            match effect {
                Effect::Dispatch { step, attempt, input } => {
                    let name = self.jobs[&id].job.graph().step(step).name.to_string();
                    self.dispatched.push_back(Dispatched { job: id, step, name, attempt, input });
                }
                Effect::StartChild { origin, message } => self.start(*origin, message),
                // A child job that has ended rejects the order.
                Effect::OrderChild { child, order, .. } => {
                    let _ = self.take(child, Input::Order(order));
                }
                // Nobody waits for the answer to a caller.
                Effect::AnswerCaller { .. } => {}
                // A parent that has ended rejects the input.
                Effect::NotifyParent(parent, ended) => {
                    let _ = self.take(
                        parent.job,
                        Input::ChildEnded { step: parent.step, index: parent.index, ended },
                    );
                }
            }
        }
        // Every claim is admitted at once.
        for (step, demand) in decision.demands {
            if let Some(demand) = demand.filter(Demand::waits) {
                let ticket = demand.claim.ticket;
                let _ = self.take(id, Input::Admitted { step, ticket, marks: Vec::new() });
            }
        }
    }
}
