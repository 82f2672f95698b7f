//! Limits in the simulation: which ones the workflows get, and what is looked at at each commit. No
//! concurrency and no window is exceeded, and nobody is overtaken by who began to wait later. That
//! no place is leaked shows in that everything comes to its end.

use super::oracle::{Pairs, patient};
use super::relays::relay;
use fastrand::Rng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use workflow_manager::actors::inputs::{JobDemands, JournalInput, RouterInput, TakenPlaces};
use workflow_manager::actors::mailboxes::Mailboxes;
use workflow_manager::engine::{
    ClaimState, Definition, Expression, Graph, Job, JobId, JobState, LimitDefinition, Millis, Rate,
    Step, StepDemand, StepIndex, StepState, Timestamp,
};
use workflow_manager::journal::{JobNumber, RecoveredJob};
use workflow_manager::telemetry::Metrics;

/// How long a job takes to decide what it was admitted to, at most.
const DECISION_LAG_NS: i64 = 250_000_000;

/// Who was overtaken is admitted by then: its admission was on its way.
const OVERTAKEN_MAX_NS: i64 = 3_000_000_000;

/// Of this key and the other one, jobs have one by whether their message has a list of items.
const KEY: &str = "has(job.items) ? \"with\" : \"without\"";
const FAIR: &str = "has(job.shared) ? 1 : 2";

/// The limit with a concurrency alone, whose free places are taken without waiting.
pub(super) const PLAIN: &str = "p";

/// Gives the workflows of one seed in three limits, which they share.
pub(super) fn add_limits(seed: u64, definitions: &mut [Arc<Definition>]) {
    // Other workflows are what they would be without this.
    let mut rng = Rng::with_seed(seed ^ 0x6c69_6d69_7473);
    if rng.u32(0..3) > 0 {
        return;
    }
    let parse = |text: &str| Some(Expression::parse(text).expect("an expression"));
    let mut limits: Vec<LimitDefinition> = ["a", "b", "r"]
        .into_iter()
        .map(|name| {
            let rate = Rate { count: rng.u32(1..=3), per: Millis(1_000), burst: rng.u32(1..=2) };
            let has_rate = name == "r" || rng.u32(0..8) == 0;
            LimitDefinition {
                name: name.into(),
                rate: has_rate.then_some(rate),
                concurrency: (name != "r").then(|| rng.u32(1..=2)),
                key: if rng.u32(0..3) == 0 { parse(KEY) } else { None },
                fair: if rng.u32(0..3) == 0 { parse(FAIR) } else { None },
            }
        })
        .collect();
    limits.push(LimitDefinition {
        name: PLAIN.into(),
        rate: None,
        concurrency: Some(rng.u32(1..=2)),
        key: None,
        fair: None,
    });
    for definition in definitions {
        let mut graphs = definition.graphs.to_vec();
        for graph in &mut graphs {
            let mut steps = graph.steps.clone();
            steps.iter_mut().for_each(|step| limit_step(step, &limits, &mut rng));
            *graph = Graph::new(graph.name.clone(), graph.fan_out.clone(), steps);
        }
        let is_used = |limit: &&LimitDefinition| {
            let mut steps = graphs.iter().flat_map(|graph| &graph.steps);
            steps.any(|step| step.limits.contains(&limit.name))
        };
        let used = limits.iter().filter(is_used).cloned().collect();
        *definition =
            Arc::new(Definition { graphs: graphs.into(), limits: used, ..(**definition).clone() });
    }
}

/// Gives a step limits, unless its attempts are few. It gets a timeout: what is lost gives its
/// place back.
fn limit_step(step: &mut Step, limits: &[LimitDefinition], rng: &mut Rng) {
    let is_limited = rng.u32(0..4) > 0;
    let has_few_attempts = step.retry.is_some_and(|retry| retry.attempts < 100);
    if step.task.is_some() || step.external || has_few_attempts || !is_limited {
        return;
    }
    if step.timeout.is_none() {
        patient(step, rng);
    }
    let mut names: Vec<Arc<str>> = limits.iter().map(|limit| limit.name.clone()).collect();
    rng.shuffle(&mut names);
    names.truncate(rng.usize(1..=2));
    step.limits = if rng.bool() { vec![PLAIN.into()] } else { names };
}

/// A limit and the value of its key.
type Place = (Arc<str>, &'static str);

/// A step of a job.
type Holder = (JobNumber, u16);

/// A step that waits for its places.
#[derive(Clone)]
struct Waiter {
    id: JobId,
    /// The places, and whose turn it is among them.
    class: (Vec<Place>, u8),
    since: Timestamp,
    /// How often the clock had jumped when it began.
    jumps: u32,
}

/// What is known of the limits from what is committed.
#[derive(Default)]
pub(super) struct LimitWatch {
    limits: BTreeMap<Arc<str>, LimitDefinition>,
    holders: BTreeMap<Holder, Vec<Place>>,
    waiting: BTreeMap<Holder, Waiter>,
    /// The last dispatch of each step, and of which attempt it was.
    dispatches: BTreeMap<Holder, (u64, u32)>,
    sent: BTreeMap<Place, Vec<i64>>,
    /// Who was overtaken, and when.
    overtaken: BTreeMap<Holder, (JobId, i64)>,
    /// Since when the times of messages are known.
    known_since_ns: i64,
    /// How many messages limits let through.
    pub(super) admitted: u64,
}

impl LimitWatch {
    pub(super) fn new(definitions: &[Arc<Definition>]) -> LimitWatch {
        let all = definitions.iter().flat_map(|definition| &definition.limits);
        let limits = all.map(|limit| (limit.name.clone(), limit.clone())).collect();
        LimitWatch { limits, ..LimitWatch::default() }
    }

    /// A process begins: what was on its way is gone.
    pub(super) fn begin(&mut self) {
        self.overtaken.clear();
    }

    /// The clock jumps, and with it the times of the rates.
    pub(super) fn forget_times(&mut self, now_ns: i64) {
        self.known_since_ns = now_ns;
        self.sent.clear();
    }

    /// Takes what a job is after a commit. `decided_ns`: when that was decided.
    ///
    /// # Errors
    ///
    /// Says which limit is exceeded.
    pub(super) fn take(
        &mut self,
        number: JobNumber,
        job: &Job,
        jumps: u32,
        decided_ns: i64,
    ) -> Result<(), String> {
        if self.limits.is_empty() {
            return Ok(());
        }
        let message = Pairs::parse(job.message().to_text().as_bytes());
        let fair = if message.get("shared").is_some() { 1 } else { 2 };
        for step in job.graph().indices() {
            let definition = job.graph().step(step);
            if definition.limits.is_empty() {
                continue;
            }
            let places: Vec<Place> = definition
                .limits
                .iter()
                .map(|name| {
                    let is_keyed = self.limits.get(name).is_some_and(|limit| limit.key.is_some());
                    let has_items = message.get("items").is_some();
                    let key = match (is_keyed, has_items) {
                        (false, _) => "",
                        (true, true) => "with",
                        (true, false) => "without",
                    };
                    (name.clone(), key)
                })
                .collect();
            let run = job.step(step);
            let holder = (number, step.0);
            let is_alive = matches!(job.state(), JobState::Running | JobState::Paused);
            let sent = (run.dispatch, run.attempt);
            let known = self.dispatches.insert(holder, sent).unwrap_or_default();
            // Of a step that is rerun nothing was sent yet.
            if known.0 != run.dispatch && run.dispatch > 0 {
                self.admitted += 1;
                let class = (places.clone(), fair);
                let since = Timestamp(decided_ns);
                let sender = Waiter { id: job.id(), class, since, jumps };
                self.note_sent(&sender)?;
                // What is sent again waits for no place, and who took a spare one has not waited.
                if known.1 != run.attempt {
                    let admitted = self.waiting.get(&holder).cloned().unwrap_or(sender);
                    self.note_overtaken(&admitted, decided_ns);
                }
            }
            self.holders.remove(&holder);
            if is_alive && run.state == StepState::Running && run.has_active_attempt() {
                self.holders.insert(holder, places.clone());
            }
            let claim = run.claim().filter(|claim| claim.state == ClaimState::Waiting);
            match claim.filter(|_| job.state() == JobState::Running) {
                Some(claim) => {
                    let (id, since) = (job.id(), claim.since);
                    let waiter = Waiter { id, class: (places.clone(), fair), since, jumps };
                    let known = self.waiting.get(&holder).filter(|known| known.since == since);
                    if known.is_none() {
                        self.waiting.insert(holder, waiter);
                    }
                }
                None => {
                    self.waiting.remove(&holder);
                    self.overtaken.remove(&holder);
                }
            }
            for place in &places {
                self.check_holders(place)?;
            }
        }
        Ok(())
    }

    fn check_holders(&self, place: &Place) -> Result<(), String> {
        let Some(max) = self.limits.get(&place.0).and_then(|limit| limit.concurrency) else {
            return Ok(());
        };
        let of_place = self.holders.iter().filter(|(_, places)| places.contains(place));
        let held: Vec<Holder> = of_place.map(|(holder, _)| *holder).collect();
        if held.len() > max as usize {
            return Err(format!("{held:?} hold limit {place:?}, which has {max} places"));
        }
        Ok(())
    }

    /// Takes that a message is sent. `sender`: as if it had begun to wait when that was decided.
    fn note_sent(&mut self, sender: &Waiter) -> Result<(), String> {
        let now_ns = sender.since.0;
        // What was admitted before that time may be decided after it.
        let known_since_ns = self.known_since_ns;
        let is_counted = known_since_ns == 0 || now_ns > known_since_ns + DECISION_LAG_NS;
        for place in sender.class.0.iter().filter(|_| is_counted) {
            let Some(rate) = self.limits.get(&place.0).and_then(|limit| limit.rate) else {
                continue;
            };
            let sent = self.sent.entry(place.clone()).or_default();
            sent.push(now_ns);
            for (first, since_ns) in sent.iter().enumerate() {
                let count = i64::try_from(sent.len() - first).unwrap_or(i64::MAX);
                let room = now_ns - since_ns + DECISION_LAG_NS;
                if (count - i64::from(rate.burst)) * rate.interval_ns() > room {
                    let window_ms = (now_ns - since_ns) / 1_000_000;
                    return Err(format!("{count} messages in {window_ms} ms under {place:?}"));
                }
            }
        }
        Ok(())
    }

    /// Takes that an attempt begins: whoever began to wait before it is overtaken.
    fn note_overtaken(&mut self, admitted: &Waiter, now_ns: i64) {
        let before = self.waiting.iter().filter(|(_, other)| {
            other.class == admitted.class
                && other.jumps == admitted.jumps
                && other.since < admitted.since
        });
        let before: Vec<(Holder, JobId)> =
            before.map(|(holder, waiter)| (*holder, waiter.id)).collect();
        for (other, id) in before {
            self.overtaken.entry(other).or_insert((id, now_ns));
        }
    }

    /// Returns who was overtaken long ago and still waits. `waits`: whether a step of a job does,
    /// by the journal.
    pub(super) fn find_overtaken(
        &mut self,
        now_ns: i64,
        waits: impl Fn(JobId, StepIndex) -> bool,
    ) -> Option<String> {
        let is_due = |at_ns: i64| at_ns + OVERTAKEN_MAX_NS < now_ns;
        let due: Vec<(Holder, JobId)> = self
            .overtaken
            .iter()
            .filter(|(_, (_, at_ns))| is_due(*at_ns))
            .map(|(holder, (id, _))| (*holder, *id))
            .collect();
        for (holder, id) in due {
            self.overtaken.remove(&holder);
            if waits(id, StepIndex(holder.1)) {
                return Some(format!("step {} of {id} was overtaken and waits on", holder.1));
            }
            self.waiting.remove(&holder);
        }
        None
    }
}

// ---- planted bugs

thread_local! {
    /// What the jobs of a start hold, once more.
    static COUNTED_TWICE: RefCell<Vec<JobDemands>> = const { RefCell::new(Vec::new()) };
}

/// Has what a job from the journal holds counted once more, under steps that nobody has.
pub(super) fn count_twice(recovered: &RecoveredJob) {
    let job = &recovered.job;
    let held = job.demands_at_start().into_iter().filter(|(_, demand)| demand.holds());
    for (step, demand) in held {
        let counted = (StepIndex(step.0 + 1_000), Some(demand.without_resending()));
        let counted = JobDemands {
            id: job.id(),
            number: recovered.number,
            definition: job.definition().clone(),
            graph: job.origin().graph,
            demands: [counted].into_iter().collect(),
            taken: TakenPlaces::new(),
        };
        COUNTED_TWICE.with(|all| all.borrow_mut().push(counted));
    }
}

/// Relays that have the gate know something else than the jobs want; `None`: the bug is of
/// something else.
pub(super) fn wrong_gate(bug: &str, mailboxes: &Mailboxes, metrics: &Metrics) -> Option<Mailboxes> {
    let mailboxes = mailboxes.clone();
    if bug == "the rate forgotten at a restart" {
        let journal = relay(mailboxes.journal, metrics, |mut input| {
            if let JournalInput::Append(append) = &mut input
                && let Some(record) = &mut append.record
            {
                record.marks.clear();
            }
            Some(input)
        });
        return Some(Mailboxes { journal, ..mailboxes });
    }
    if bug == "a taken place leaked by a panic" {
        let is_kept = |input: &RouterInput| !matches!(input, RouterInput::PlaceUnused(_));
        let router = relay(mailboxes.router, metrics, move |input| Some(input).filter(is_kept));
        return Some(Mailboxes { router, ..mailboxes });
    }
    let change: fn(&mut StepDemand) -> bool = match bug {
        "a place counted twice after a restart" => |_| true,
        "the newest waiter first" => |(_, demand)| {
            if let Some(wanted) = demand {
                wanted.claim.since = Timestamp(i64::MAX - wanted.claim.since.0);
            }
            true
        },
        "a key that starves" => |(_, demand)| {
            let claimed = demand.iter().flat_map(|wanted| wanted.claim.places.iter());
            !claimed.into_iter().any(|place| place.key.as_deref() == Some("without"))
        },
        "half of several places held" => |(_, demand)| {
            if let Some(wanted) = demand {
                wanted.claim.places = wanted.claim.places.iter().take(1).cloned().collect();
            }
            true
        },
        _ => return None,
    };
    let gate = mailboxes.router.clone();
    let router = relay(mailboxes.router, metrics, move |mut input| {
        for counted in COUNTED_TWICE.with(RefCell::take) {
            gate.send(RouterInput::Demands(vec![counted]));
        }
        if let RouterInput::Demands(all) = &mut input {
            all.iter_mut().for_each(|told| told.demands.retain_mut(change));
        }
        Some(input)
    });
    Some(Mailboxes { router, ..mailboxes })
}
