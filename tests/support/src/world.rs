//! A world around the pure engine: jobs in a map, effects done at once, step messages handed to the
//! test. After every decision each job is rebuilt from its entries, as the journal would hold them,
//! and compared with the live one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use workflow_manager::engine::{
    Context, Decision, Definition, Effect, Entry, Input, Job, JobId, Limits, Message, Origin,
    ParentItem, Recorded, Rejected, Reply, Sender, StepIndex, Timestamp,
};

/// Limits that no test of the engine meets by chance.
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
    /// Whose it is.
    pub job: JobId,
    /// Which step it asks for.
    pub step: StepIndex,
    /// The step's name.
    pub name: String,
    /// The attempt's number.
    pub attempt: u32,
    /// What the worker is given.
    pub input: Message,
}

struct Live {
    job: Job,
    rows: Vec<Recorded>,
}

/// Jobs without a manager.
pub struct World {
    jobs: HashMap<JobId, Live>,
    /// The step messages without a reply, oldest first.
    pub dispatched: VecDeque<Dispatched>,
    /// The ids of jobs that take input.
    live: HashSet<JobId>,
    now: i64,
    /// What each decision is given.
    pub limits: Limits,
    /// Compare with the rebuilt job after every decision (costs the square of the entries).
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
            live: HashSet::new(),
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

    /// Returns a job, which may have ended.
    pub fn job(&self, id: JobId) -> &Job {
        &self.jobs[&id].job
    }

    /// Returns all jobs, in any order.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|live| &live.job)
    }

    /// Gives a job the result of one of its step messages.
    pub fn reply(&mut self, to: &Dispatched, body: &str) -> Result<(), Rejected> {
        self.take(
            to.job,
            Input::Reply {
                step: to.name.clone(),
                attempt: None,
                reply: Reply::Result(body.to_owned().into()),
                from: Sender::Unknown,
            },
        )
    }

    /// Gives a job an input, and does what follows from it.
    pub fn take(&mut self, id: JobId, input: Input) -> Result<(), Rejected> {
        self.now += 1;
        let Some(live) = self.jobs.get_mut(&id) else { return Err(Rejected::Ended) };
        let context = Context { now: Timestamp(self.now), limits: &self.limits };
        let decision = live.job.handle_input(input, &context)?;
        self.apply(id, decision);
        Ok(())
    }

    fn start(&mut self, origin: Origin, message: Message) {
        self.now += 1;
        let id = origin.id;
        if !self.live.insert(id) {
            let ParentItem { job, step, index } = origin.parent.expect("clients choose other ids");
            self.take(job, Input::IdConflict { step, index, id })
                .expect("it is tried under another");
            return;
        }
        let context = Context { now: Timestamp(self.now), limits: &self.limits };
        let (job, decision) = Job::create(origin, message, &context);
        self.jobs.insert(id, Live { job, rows: Vec::new() });
        self.apply(id, decision);
    }

    fn apply(&mut self, id: JobId, decision: Decision) {
        let live = self.jobs.get_mut(&id).expect("a live job");
        live.job.assert_invariants();
        let Recorded { first, entries, .. } = &decision.recorded;
        assert_eq!(first + entries.len() as u64, live.job.entry_count());
        live.rows.push(decision.recorded);
        if self.compare {
            let stored = live.rows.iter().map(|row| {
                let text = serde_json::to_string(&row.entries).expect("entries serialise");
                let entries: Vec<Entry> = serde_json::from_str(&text).expect("entries parse");
                Recorded { entries, ..*row }
            });
            let rows: Vec<Recorded> = stored.collect();
            let message = live.job.origin().parent.map(|_| live.job.message().clone());
            let rebuilt = Job::recover(live.job.origin().clone(), message, rows);
            assert!(
                rebuilt == live.job,
                "the rebuilt job differs from the live one:\n{rebuilt:#?}\n{:#?}",
                live.job
            );
        }
        if decision.closed {
            self.live.remove(&id);
        }
        for effect in decision.effects {
            match effect {
                Effect::Dispatch { step, attempt, input } => {
                    let name = self.jobs[&id].job.graph().step(step).name.to_string();
                    self.dispatched.push_back(Dispatched { job: id, step, name, attempt, input });
                }
                Effect::StartChild { origin, message } => self.start(*origin, message),
                // A child that has ended already takes no more.
                Effect::OrderChild { child, order, .. } => {
                    let _ = self.take(child, Input::Order(order));
                }
                Effect::AnswerCaller { .. } => {}
                Effect::NotifyParent(parent, ended) => {
                    let _ = self.take(
                        parent.job,
                        Input::ChildEnded { step: parent.step, index: parent.index, ended },
                    );
                }
            }
        }
    }
}
