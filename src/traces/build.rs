//! Builds the spans of a root job: its own, those of its steps and their attempts, and the same of
//! its child jobs, up to a limit. They contain nothing of a message.

use super::EndedJob;
use super::life::{Attempt, End, Life, StepLife, Until};
use super::wire::{Event, KeyValue, Kind, Span, Status, StatusCode, number, text};
use crate::engine::id::span_id;
use crate::engine::trace::{job_span, step_span};
use crate::engine::{
    CorrelationId, JobId, JobState, Origin, Step, StepIndex, StepState, Timestamp,
};
use crate::journal::{ChildCursor, ChildFilter, ChildRow, JournalError, RecordHead, Records};
use crate::settings::{BusKind, Settings, web_address};
use prost::Message as _;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many child jobs are listed at once.
const PAGE_ROWS: u32 = 1_000;

/// The share of a job's spans that is reserved for other spans than those of attempts, as a
/// divisor, and its minimum: one for the job and one for a step.
const OTHERS_SHARE: usize = 8;
const OTHERS_MIN: usize = 2;

/// The most that the spans of a root job take, in bytes as they are sent.
const TRACE_BYTES_MAX: usize = 16 << 20;

/// The flags of a span: it is sampled; whether its parent is remote is known; its parent is remote,
/// that is, of another process.
const SAMPLED: u32 = 1;
const PARENT_KNOWN: u32 = 0x100;
const PARENT_ELSEWHERE: u32 = 0x200;

/// Builds spans, as the settings say.
pub(super) struct Builder {
    default_bus: Arc<str>,
    kinds: BTreeMap<Arc<str>, BusKind>,
    spans_max: usize,
}

/// The spans of a root job.
#[derive(Default)]
pub(super) struct Trace {
    pub(super) spans: Vec<Span>,
    /// How many further spans there would be of the jobs that were examined.
    pub(super) omitted: u64,
    bytes: usize,
    trace: [u8; 16],
    state: String,
}

/// A job whose child jobs are still to be examined.
struct ParentJob {
    id: JobId,
    head: RecordHead,
    life: Life,
}

/// What the spans of a job have in common.
struct Told<'a> {
    id: JobId,
    root: JobId,
    head: &'a RecordHead,
    /// The item's index, for a child job.
    item: Option<u32>,
    parent: Option<u64>,
    /// Whether the parent is a span of another process.
    is_asked: bool,
    until: Timestamp,
}

impl Builder {
    pub(super) fn new(settings: &Settings) -> Builder {
        let kinds = settings.bus_kinds().into_iter().map(|(name, kind)| (name.into(), kind));
        Builder {
            default_bus: settings.default_bus().into(),
            kinds: kinds.collect(),
            spans_max: settings.traces.job_spans_max,
        }
    }

    /// Builds the spans of an ended job. Returns `None` if it is not in the journal any more.
    pub(super) fn trace(
        &self,
        reader: &dyn Records,
        job: EndedJob,
    ) -> Result<Option<Trace>, JournalError> {
        let until = Until { entry: job.entry, at: job.at };
        let Some((head, life)) = self.life_of(reader, job.id, until)? else { return Ok(None) };
        if head.created != job.created {
            return Ok(None);
        }
        let origin = Origin {
            trace: life.trace.clone().map(Arc::new),
            ..Origin::top_level(job.id, head.definition.clone(), head.created)
        };
        let asked = life.trace.as_ref();
        let state = asked.and_then(|asked| asked.state.as_ref()).map(|state| state.as_ref());
        let state = state.unwrap_or_default().to_owned();
        let mut trace = Trace { trace: origin.trace(), state, ..Trace::default() };
        let told = Told {
            id: job.id,
            root: job.id,
            head: &head,
            item: None,
            // The span of a later run is a child of the first run's.
            parent: match life.run {
                0 => asked.map(|asked| asked.parent.span),
                _ => Some(job_span(job.id, 0)),
            },
            is_asked: life.run == 0,
            until: job.at,
        };
        self.add_job(&mut trace, &told, &life);
        let root = ParentJob { id: job.id, head, life };
        let omitted = self.add_children(reader, &mut trace, root, job)?;
        let top = &mut trace.spans[0].attributes;
        if omitted > 0 {
            top.push(number(
                "workflow.children.omitted",
                i64::try_from(omitted).unwrap_or(i64::MAX),
            ));
        }
        if trace.omitted > 0 {
            let spans = i64::try_from(trace.omitted).unwrap_or(i64::MAX);
            top.push(number("workflow.spans.omitted", spans));
        }
        Ok(Some(trace))
    }

    /// Adds the child jobs, level by level. Returns how many were not examined.
    fn add_children(
        &self,
        reader: &dyn Records,
        trace: &mut Trace,
        root: ParentJob,
        job: EndedJob,
    ) -> Result<u64, JournalError> {
        let mut omitted = 0;
        let mut parents = VecDeque::from([root]);
        while let Some(parent) = parents.pop_front() {
            let started: u64 = parent.life.children.values().sum();
            if started == 0 {
                continue;
            }
            let Some(family) = reader.family(parent.id)? else { continue };
            let mut seen = 0;
            // Failed child jobs are of most interest, so they come first.
            for is_failed in [true, false] {
                let state = is_failed.then_some(JobState::Failed);
                let filter = ChildFilter { state, step: None };
                let mut after = ChildCursor::START;
                while !trace.is_full(self.spans_max) {
                    let page = reader.children(&family, filter, after, PAGE_ROWS)?;
                    let Some(last) = page.last() else { break };
                    after = last.cursor;
                    for row in page {
                        if trace.is_full(self.spans_max) {
                            break;
                        }
                        if !is_failed && row.state == JobState::Failed.word() {
                            continue;
                        }
                        seen += 1;
                        parents.extend(self.child(reader, trace, &parent, &row, job)?);
                    }
                }
            }
            omitted += started.saturating_sub(seen);
        }
        Ok(omitted)
    }

    /// Adds a child job. Returns it if it may have child jobs itself.
    fn child(
        &self,
        reader: &dyn Records,
        trace: &mut Trace,
        parent: &ParentJob,
        row: &ChildRow,
        job: EndedJob,
    ) -> Result<Option<ParentJob>, JournalError> {
        // It was exported when its parent ended before.
        if row.ended.is_some_and(|ended| ended < parent.life.started) {
            return Ok(None);
        }
        let until = Until { entry: u64::MAX, at: job.at };
        let Some((head, life)) = self.life_of(reader, row.id, until)? else { return Ok(None) };
        let name = &parent.head.graph().step(row.step).name;
        let parent_span = match parent.life.steps.contains_key(&row.step) {
            true => step_span(parent.id, name, parent.life.run),
            false => job_span(parent.id, parent.life.run),
        };
        let told = Told {
            id: row.id,
            root: job.id,
            head: &head,
            item: Some(row.item),
            parent: Some(parent_span),
            is_asked: false,
            until: job.at,
        };
        self.add_job(trace, &told, &life);
        let has_children = !life.children.is_empty();
        Ok(has_children.then_some(ParentJob { id: row.id, head, life }))
    }

    fn add_job(&self, trace: &mut Trace, told: &Told<'_>, life: &Life) {
        let span = job_span(told.id, life.run);
        let end = life.ended.clone().unwrap_or(End {
            at: told.until,
            state: JobState::Running,
            reason: None,
        });
        let mut attributes = vec![
            text("workflow.name", told.head.definition.full_name()),
            text("workflow.job.id", told.id.to_string()),
            text("workflow.job.state", end.state.word()),
        ];
        if let Some(item) = told.item {
            attributes.push(text("workflow.root.id", told.root.to_string()));
            attributes.push(text("workflow.task.name", told.head.graph().name.clone()));
            attributes.push(number("workflow.item.index", item));
        }
        if life.run > 0 {
            attributes.push(number("workflow.job.run", life.run));
        }
        let name = match told.item {
            None => told.head.definition.full_name(),
            Some(_) => told.head.graph().name.clone(),
        };
        let elsewhere = if told.is_asked { PARENT_ELSEWHERE } else { 0 };
        trace.add(self.spans_max, || Draft {
            span,
            parent: told.parent,
            name,
            kind: Kind::Internal,
            started: life.started,
            ended: end.at,
            attributes,
            events: &life.events,
            is_failed: end.state == JobState::Failed,
            reason: end.reason.clone(),
            flags: elsewhere,
        });
        trace.omitted += life.omitted;
        for (step, life_of_step) in &life.steps {
            self.add_step(trace, told, (*step, life_of_step), (span, life.run, end.at));
        }
    }

    fn add_step(
        &self,
        trace: &mut Trace,
        told: &Told<'_>,
        (step, life): (StepIndex, &StepLife),
        (job, run, job_ended): (u64, u32, Timestamp),
    ) {
        let Some(step) = told.head.graph().steps.get(step.at()) else { return };
        let span = step_span(told.id, &step.name, run);
        // A step that was running when the job ended was cut off by that.
        let cut_off = || End { at: job_ended, state: StepState::Running, reason: None };
        let end = life.ended.clone().unwrap_or_else(cut_off);
        let mut attributes = of_step(told, step);
        attributes.push(text("workflow.step.state", end.state.word()));
        attributes.extend(life.items.map(|items| number("workflow.items", items)));
        trace.add(self.spans_max, || Draft {
            span,
            parent: Some(job),
            name: step.name.to_string(),
            kind: Kind::Internal,
            started: life.started,
            ended: end.at,
            attributes,
            events: &[],
            is_failed: end.state == StepState::Failed,
            reason: end.reason.clone(),
            flags: 0,
        });
        for attempt in &life.attempts {
            trace.add(self.spans_max, || self.attempt(told, step, attempt, span, &end));
        }
    }

    fn attempt<'a>(
        &self,
        told: &Told<'_>,
        step: &Step,
        attempt: &'a Attempt,
        parent: u64,
        end_of_step: &End<StepState>,
    ) -> Draft<'a> {
        let end = attempt.ended.clone().unwrap_or(End {
            at: end_of_step.at,
            state: StepState::Running,
            reason: None,
        });
        let mut attributes = of_step(told, step);
        attributes.push(number("workflow.attempt", attempt.number));
        let (kind, name) = if step.has_queue() {
            self.of_message(told, step, attempt.number, &mut attributes)
        } else {
            (Kind::Internal, "wait".to_owned())
        };
        Draft {
            span: span_id(told.id, &step.name, attempt.number),
            parent: Some(parent),
            name,
            kind,
            started: attempt.started,
            ended: end.at,
            attributes,
            events: &attempt.events,
            is_failed: end.state == StepState::Failed,
            reason: end.reason,
            flags: 0,
        }
    }

    /// Adds the attributes of an attempt's message, as the semantic conventions have them. Returns
    /// the kind and the name of the attempt's span.
    fn of_message(
        &self,
        told: &Told<'_>,
        step: &Step,
        attempt: u32,
        attributes: &mut Vec<KeyValue>,
    ) -> (Kind, String) {
        let bus = step.bus.as_ref().unwrap_or(&self.default_bus);
        let correlation = CorrelationId { job: told.id, step: step.name.to_string() }.to_string();
        attributes.push(text("workflow.bus", &**bus));
        attributes.push(text("messaging.message.id", format!("{correlation}:{attempt}")));
        attributes.push(text("messaging.message.conversation_id", correlation));
        let system = match self.kinds.get(bus) {
            Some(BusKind::Amqp) => "rabbitmq",
            Some(BusKind::Kafka) => "kafka",
            Some(BusKind::Embedded) | None => "workflow_manager",
            Some(BusKind::Push) => {
                // The path of a URL may be a secret.
                let host = web_address(&step.queue).ok();
                let host = host.as_ref().and_then(|url| url.host_str());
                let service = host.unwrap_or(&step.queue).to_owned();
                attributes.push(text("http.request.method", "POST"));
                attributes.push(text("server.address", service.clone()));
                return (Kind::Client, format!("POST {service}"));
            }
        };
        attributes.push(text("messaging.system", system));
        attributes.push(text("messaging.operation.type", "send"));
        attributes.push(text("messaging.operation.name", "send"));
        attributes.push(text("messaging.destination.name", &*step.queue));
        (Kind::Producer, format!("send {}", step.queue))
    }

    /// Loads the last run of a job, up to a point of its record.
    fn life_of(
        &self,
        reader: &dyn Records,
        id: JobId,
        until: Until,
    ) -> Result<Option<(RecordHead, Life)>, JournalError> {
        // The other spans are for the job and its steps, so that the last attempt fits as well.
        let of_others = (self.spans_max / OTHERS_SHARE).max(OTHERS_MIN);
        let mut life = Life::new(self.spans_max.saturating_sub(of_others));
        let head = reader.each_row(id, &mut |row| life.take(&row, until))?;
        Ok(head.map(|head| {
            if life.run == 0 {
                life.started = head.created;
            }
            (head, life)
        }))
    }
}

fn of_step(told: &Told<'_>, step: &Step) -> Vec<KeyValue> {
    vec![
        text("workflow.name", told.head.definition.full_name()),
        text("workflow.job.id", told.id.to_string()),
        text("workflow.step.name", step.name.to_string()),
    ]
}

/// The parts of a span that is not built yet.
struct Draft<'a> {
    span: u64,
    parent: Option<u64>,
    name: String,
    kind: Kind,
    started: Timestamp,
    ended: Timestamp,
    attributes: Vec<KeyValue>,
    events: &'a [(Timestamp, &'static str)],
    is_failed: bool,
    /// Why it ended as it did, if that is known.
    reason: Option<Arc<str>>,
    flags: u32,
}

impl Trace {
    fn is_full(&self, spans_max: usize) -> bool {
        self.spans.len() >= spans_max || self.bytes >= TRACE_BYTES_MAX
    }

    fn add<'a>(&mut self, spans_max: usize, draft: impl FnOnce() -> Draft<'a>) {
        if self.is_full(spans_max) {
            self.omitted += 1;
            return;
        }
        let draft = draft();
        let mut attributes = draft.attributes;
        let reason = draft.reason;
        attributes.extend(reason.as_deref().map(|reason| text("workflow.reason", reason)));
        let events = draft.events.iter().map(|(at, name)| Event {
            time_unix_nano: nanoseconds(*at),
            name: (*name).to_owned(),
            attributes: Vec::new(),
        });
        let parent = draft.parent.map(|parent| parent.to_be_bytes().to_vec());
        let span = Span {
            trace_id: self.trace.to_vec(),
            trace_state: self.state.clone(),
            span_id: draft.span.to_be_bytes().to_vec(),
            parent_span_id: parent.unwrap_or_default(),
            name: draft.name,
            kind: draft.kind.into(),
            start_time_unix_nano: nanoseconds(draft.started),
            end_time_unix_nano: nanoseconds(draft.ended.max(draft.started)),
            attributes,
            events: events.collect(),
            status: draft.is_failed.then(|| Status {
                message: reason.as_deref().unwrap_or_default().to_owned(),
                code: StatusCode::Error.into(),
            }),
            flags: SAMPLED | PARENT_KNOWN | draft.flags,
        };
        self.bytes += span.encoded_len();
        self.spans.push(span);
    }
}

fn nanoseconds(at: Timestamp) -> u64 {
    u64::try_from(at.0).unwrap_or_default()
}
