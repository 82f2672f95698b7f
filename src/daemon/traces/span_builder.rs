//! Builds the spans of a job tree: one for each job, step and attempt, up to a limit. Spans contain
//! no part of a message, since messages may hold secrets, but the label and the columns of a job,
//! which its workflow makes of them.

use super::ended_job::EndedJob;
use super::otlp::{
    Event, KeyValue, Kind, Span, Status, StatusCode, number_attribute, text_attribute,
};
use super::run_history::{Attempt, End, FoldLimit, RunHistory, SpanEvent, StepHistory};
use crate::settings::{BusKind, Settings};
use base::web_address::parse_web_address;
use engine::id::span_id;
use engine::trace::{job_span, step_span};
use engine::{
    CorrelationId, JobId, JobState, LABEL, NamedCell, Origin, Step, StepIndex, StepState, Timestamp,
};
use journal::{ChildCursor, ChildFilter, ChildRow, JournalError, RecordHead, Records};
use prost::Message as _;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many child jobs one query of the journal returns.
const PAGE_ROWS: u32 = 1_000;

/// This fraction of the limit of spans (one eighth) is reserved for jobs and steps, so that
/// attempts do not use up the limit.
const RESERVED_SPANS_DIVISOR: usize = 8;

/// How many spans are reserved at least: one for the job and one for a step.
const RESERVED_SPANS_MIN: usize = 2;

/// The size at which a trace is full, in bytes of encoded spans. The last span may exceed it.
const TRACE_BYTES_MAX: usize = 16 << 20;

// Bits of the OTLP field `flags`. The lowest byte holds the flags of the W3C trace context.

/// The flag of a sampled span.
const SAMPLED: u32 = 1;

/// The flag of a span for which it is known whether its parent is remote.
const HAS_IS_REMOTE: u32 = 0x100;

/// The flag of a span whose parent is remote: a span of another process.
const IS_REMOTE: u32 = 0x200;

/// Builds spans within the limits of the settings.
pub(super) struct SpanBuilder {
    /// The name of the bus of steps that name none.
    default_bus: Arc<str>,
    /// The kinds of the buses, by name.
    bus_kinds: BTreeMap<Arc<str>, BusKind>,
    /// The maximum number of spans of a trace.
    spans_max: usize,
}

/// Returns the attributes for the label and the columns of a root job, as lists show them now.
fn load_cells(
    reader: &dyn Records,
    job: EndedJob,
    head: &RecordHead,
) -> Result<Vec<KeyValue>, JournalError> {
    let columns = &head.definition.columns;
    if columns.is_empty() {
        return Ok(Vec::new());
    }
    let Some(number) = reader.find_job_number(job.id)? else { return Ok(Vec::new()) };
    let cells = reader.load_cells(&[number], columns)?.remove(&number).unwrap_or_default();
    let attribute = |(name, cell): NamedCell| {
        let name = if *name == *LABEL { LABEL.to_owned() } else { format!("column.{name}") };
        Some(text_attribute(&format!("workflow.{name}"), &*cell?.text))
    };
    Ok(cells.into_iter().filter_map(attribute).collect())
}

/// The spans of a job tree.
#[derive(Default)]
pub(super) struct Trace {
    pub(super) spans: Vec<Span>,
    /// How many spans of the examined jobs were left out because of limits.
    pub(super) omitted: u64,
    /// The size of the encoded spans.
    bytes: usize,
    trace_id: [u8; 16],
    /// The `tracestate` of the caller's trace context; empty if there is none.
    trace_state: String,
}

/// A job whose child jobs are still to be examined.
struct ParentJob {
    id: JobId,
    head: RecordHead,
    history: RunHistory,
}

/// What the spans of a job have in common.
struct JobContext<'a> {
    id: JobId,
    root: JobId,
    head: &'a RecordHead,
    /// The index of the item; `None` for the root job.
    item: Option<u32>,
    /// The id of the parent span.
    parent_span: Option<u64>,
    /// Whether the parent, if there is one, is a span of another process.
    has_remote_parent: bool,
    /// The end of the root job. Jobs that have not ended get it as the end of their spans.
    root_ended: Timestamp,
}

/// The span of a job, as the parent of its steps' spans.
#[derive(Clone, Copy)]
struct JobSpan {
    id: u64,
    run_number: u32,
    ended: Timestamp,
}

impl SpanBuilder {
    pub(super) fn new(settings: &Settings) -> SpanBuilder {
        let bus_kinds = settings.bus_kinds().into_iter().map(|(name, kind)| (name.into(), kind));
        SpanBuilder {
            default_bus: settings.default_bus().into(),
            bus_kinds: bus_kinds.collect(),
            spans_max: settings.traces.job_spans_max,
        }
    }

    /// Builds the trace of an ended job. Returns `None` if the journal no longer has the job.
    pub(super) fn build_trace(
        &self,
        reader: &dyn Records,
        job: EndedJob,
    ) -> Result<Option<Trace>, JournalError> {
        let limit = FoldLimit { last_entry_number: job.entry, run_start_max: job.at };
        let Some((head, history)) = self.load_last_run(reader, job.id, limit)? else {
            return Ok(None);
        };
        // A later job has the same id.
        if head.created != job.created {
            return Ok(None);
        }
        let origin = Origin {
            trace: history.trace_context.clone().map(Arc::new),
            starts_at: None,
            slot: None,
            ..Origin::for_root_job(job.id, head.definition.clone(), head.created)
        };
        let parent_context = history.trace_context.as_ref();
        let trace_state = parent_context.and_then(|remote| remote.state.as_ref());
        let mut trace = Trace {
            trace_id: origin.trace_id(),
            trace_state: trace_state.map_or_else(String::new, |state| state.as_ref().to_owned()),
            ..Trace::default()
        };
        let context = JobContext {
            id: job.id,
            root: job.id,
            head: &head,
            item: None,
            // The span of a later run is a child of the span of the first run.
            parent_span: match history.run_number {
                0 => parent_context.map(|remote| remote.parent.span),
                _ => Some(job_span(job.id, 0)),
            },
            has_remote_parent: history.run_number == 0,
            root_ended: job.at,
        };
        self.add_job(&mut trace, &context, &history);
        let root = ParentJob { id: job.id, head, history };
        let cells = load_cells(reader, job, &root.head)?;
        let omitted_children = self.add_children(reader, &mut trace, root, job)?;
        let root_attributes = &mut trace.spans[0].attributes;
        root_attributes.extend(cells);
        if omitted_children > 0 {
            let omitted_children = i64::try_from(omitted_children).unwrap_or(i64::MAX);
            root_attributes.push(number_attribute("workflow.children.omitted", omitted_children));
        }
        if trace.omitted > 0 {
            let omitted_spans = i64::try_from(trace.omitted).unwrap_or(i64::MAX);
            root_attributes.push(number_attribute("workflow.spans.omitted", omitted_spans));
        }
        Ok(Some(trace))
    }

    /// Adds the jobs below the root job, level by level (breadth-first). Returns how many child
    /// jobs were not examined because the trace was full.
    fn add_children(
        &self,
        reader: &dyn Records,
        trace: &mut Trace,
        root: ParentJob,
        job: EndedJob,
    ) -> Result<u64, JournalError> {
        let mut omitted_count = 0;
        let mut parents = VecDeque::from([root]);
        while let Some(parent) = parents.pop_front() {
            let started_count: u64 = parent.history.children_started.values().sum();
            if started_count == 0 {
                continue;
            }
            let Some(parent_job) = reader.find_parent_job(parent.id)? else { continue };
            let mut examined_count = 0;
            // Failed child jobs are the most interesting, so they are added first.
            for is_failed in [true, false] {
                let state = is_failed.then_some(JobState::Failed);
                let filter = ChildFilter { state, step: None };
                let mut cursor = ChildCursor::START;
                while !trace.is_full(self.spans_max) {
                    let page = reader.load_children(&parent_job, filter, cursor, PAGE_ROWS)?;
                    let Some(last_row) = page.last() else { break };
                    cursor = last_row.cursor;
                    for row in page {
                        if trace.is_full(self.spans_max) {
                            break;
                        }
                        if !is_failed && row.state == JobState::Failed.as_str() {
                            continue;
                        }
                        examined_count += 1;
                        parents.extend(self.add_child(reader, trace, &parent, &row, job)?);
                    }
                }
            }
            omitted_count += started_count.saturating_sub(examined_count);
        }
        Ok(omitted_count)
    }

    /// Adds a child job. Returns it if it has started child jobs.
    fn add_child(
        &self,
        reader: &dyn Records,
        trace: &mut Trace,
        parent: &ParentJob,
        row: &ChildRow,
        job: EndedJob,
    ) -> Result<Option<ParentJob>, JournalError> {
        // The child job ended before this run of its parent, so it was exported with an earlier
        // run.
        if row.ended.is_some_and(|ended| ended < parent.history.started) {
            return Ok(None);
        }
        let limit = FoldLimit { last_entry_number: u64::MAX, run_start_max: job.at };
        let Some((head, history)) = self.load_last_run(reader, row.id, limit)? else {
            return Ok(None);
        };
        let name = &parent.head.graph().step(row.step).name;
        let run_number = parent.history.run_number;
        let parent_span = if parent.history.steps.contains_key(&row.step) {
            step_span(parent.id, name, run_number)
        } else {
            job_span(parent.id, run_number)
        };
        let context = JobContext {
            id: row.id,
            root: job.id,
            head: &head,
            item: Some(row.item),
            parent_span: Some(parent_span),
            has_remote_parent: false,
            root_ended: job.at,
        };
        self.add_job(trace, &context, &history);
        let has_children = !history.children_started.is_empty();
        Ok(has_children.then_some(ParentJob { id: row.id, head, history }))
    }

    /// Adds the spans of a job, its steps and their attempts. The order matters if the trace gets
    /// full: an outer span is added before the inner ones.
    fn add_job(&self, trace: &mut Trace, context: &JobContext<'_>, history: &RunHistory) {
        let end = history.ended.clone().unwrap_or(End {
            time: context.root_ended,
            state: JobState::Running,
            reason: None,
        });
        let span = JobSpan {
            id: job_span(context.id, history.run_number),
            run_number: history.run_number,
            ended: end.time,
        };
        let mut attributes = vec![
            text_attribute("workflow.name", context.head.definition.full_name()),
            text_attribute("workflow.job.id", context.id.to_string()),
            text_attribute("workflow.job.state", end.state.as_str()),
        ];
        if let Some(item) = context.item {
            attributes.push(text_attribute("workflow.root.id", context.root.to_string()));
            attributes
                .push(text_attribute("workflow.task.name", context.head.graph().name.clone()));
            attributes.push(number_attribute("workflow.item.index", item));
        }
        if history.run_number > 0 {
            attributes.push(number_attribute("workflow.job.run", history.run_number));
        }
        let name = match context.item {
            None => context.head.definition.full_name(),
            Some(_) => context.head.graph().name.clone(),
        };
        let flags = if context.has_remote_parent { IS_REMOTE } else { 0 };
        trace.add(self.spans_max, || SpanDraft {
            span: span.id,
            parent: context.parent_span,
            name,
            kind: Kind::Internal,
            started: history.started,
            ended: end.time,
            attributes,
            events: &history.events,
            is_failed: end.state == JobState::Failed,
            reason: end.reason.clone(),
            flags,
        });
        trace.omitted += history.omitted;
        for (step, step_history) in &history.steps {
            self.add_step(trace, context, span, *step, step_history);
        }
    }

    /// Adds the spans of a step and its attempts.
    fn add_step(
        &self,
        trace: &mut Trace,
        context: &JobContext<'_>,
        parent: JobSpan,
        step_index: StepIndex,
        history: &StepHistory,
    ) {
        let Some(step) = context.head.graph().steps.get(step_index.as_usize()) else { return };
        let span = step_span(context.id, &step.name, parent.run_number);
        // A step without an end was running when the job ended.
        let end_of_job = || End { time: parent.ended, state: StepState::Running, reason: None };
        let end = history.ended.clone().unwrap_or_else(end_of_job);
        let mut attributes = step_attributes(context, step);
        attributes.push(text_attribute("workflow.step.state", end.state.as_str()));
        attributes.extend(history.items.map(|items| number_attribute("workflow.items", items)));
        trace.add(self.spans_max, || SpanDraft {
            span,
            parent: Some(parent.id),
            name: step.name.to_string(),
            kind: Kind::Internal,
            started: history.started,
            ended: end.time,
            attributes,
            events: &[],
            is_failed: end.state == StepState::Failed,
            reason: end.reason.clone(),
            flags: 0,
        });
        for attempt in &history.attempts {
            trace.add(self.spans_max, || self.attempt_span(context, step, attempt, span, &end));
        }
    }

    /// Returns the span of an attempt, whose parent is the span of the step. An attempt without an
    /// end ends with its step.
    fn attempt_span<'a>(
        &self,
        context: &JobContext<'_>,
        step: &Step,
        attempt: &'a Attempt,
        parent: u64,
        end_of_step: &End<StepState>,
    ) -> SpanDraft<'a> {
        let end = attempt.ended.clone().unwrap_or(End {
            time: end_of_step.time,
            state: StepState::Running,
            reason: None,
        });
        let mut attributes = step_attributes(context, step);
        attributes.push(number_attribute("workflow.attempt", attempt.number));
        let (kind, name) = if step.has_queue() {
            self.add_message_attributes(context, step, attempt.number, &mut attributes)
        } else {
            // A step without a queue waits for a time.
            (Kind::Internal, "wait".to_owned())
        };
        SpanDraft {
            span: span_id(context.id, &step.name, attempt.number),
            parent: Some(parent),
            name,
            kind,
            started: attempt.started,
            ended: end.time,
            attributes,
            events: &attempt.events,
            is_failed: end.state == StepState::Failed,
            reason: end.reason,
            flags: 0,
        }
    }

    /// Adds the attributes of an attempt's message, following OpenTelemetry's semantic conventions.
    /// Returns the kind and the name of the attempt's span.
    fn add_message_attributes(
        &self,
        context: &JobContext<'_>,
        step: &Step,
        attempt: u32,
        attributes: &mut Vec<KeyValue>,
    ) -> (Kind, String) {
        let bus = step.bus.as_ref().unwrap_or(&self.default_bus);
        let correlation_id =
            CorrelationId { job: context.id, step: step.name.to_string() }.to_string();
        attributes.push(text_attribute("workflow.bus", &**bus));
        attributes
            .push(text_attribute("messaging.message.id", format!("{correlation_id}:{attempt}")));
        attributes.push(text_attribute("messaging.message.conversation_id", correlation_id));
        let system = match self.bus_kinds.get(bus) {
            Some(BusKind::Amqp) => "rabbitmq",
            Some(BusKind::Kafka) => "kafka",
            Some(BusKind::Embedded) | None => "workflow_manager",
            Some(BusKind::Push) => {
                // The path of a URL may be a secret, so the attributes contain the host alone.
                let url = parse_web_address(&step.queue).ok();
                let host = url.as_ref().and_then(|url| url.host_str());
                let service = host.unwrap_or(&step.queue).to_owned();
                attributes.push(text_attribute("http.request.method", "POST"));
                attributes.push(text_attribute("server.address", service.clone()));
                return (Kind::Client, format!("POST {service}"));
            }
        };
        attributes.push(text_attribute("messaging.system", system));
        attributes.push(text_attribute("messaging.operation.type", "send"));
        attributes.push(text_attribute("messaging.operation.name", "send"));
        attributes.push(text_attribute("messaging.destination.name", &*step.queue));
        (Kind::Producer, format!("send {}", step.queue))
    }

    /// Loads the last run of a job, up to a limit. Returns `None` if the journal does not have the
    /// job.
    fn load_last_run(
        &self,
        reader: &dyn Records,
        id: JobId,
        limit: FoldLimit,
    ) -> Result<Option<(RecordHead, RunHistory)>, JournalError> {
        // The job and its steps need spans too. Their number is reserved, so that the last attempts
        // still fit into the limit.
        let reserved = (self.spans_max / RESERVED_SPANS_DIVISOR).max(RESERVED_SPANS_MIN);
        let mut history = RunHistory::new(self.spans_max.saturating_sub(reserved));
        let head = reader.for_each_row(id, &mut |row| history.apply(&row, limit))?;
        Ok(head.map(|head| {
            if history.run_number == 0 {
                history.started = head.created;
            }
            (head, history)
        }))
    }
}

/// Returns the attributes that the spans of a step and its attempts have in common.
fn step_attributes(context: &JobContext<'_>, step: &Step) -> Vec<KeyValue> {
    vec![
        text_attribute("workflow.name", context.head.definition.full_name()),
        text_attribute("workflow.job.id", context.id.to_string()),
        text_attribute("workflow.step.name", step.name.to_string()),
    ]
}

/// The parts of a span that is still to be encoded.
struct SpanDraft<'a> {
    /// The id of the span.
    span: u64,
    /// The id of the parent span.
    parent: Option<u64>,
    name: String,
    kind: Kind,
    started: Timestamp,
    ended: Timestamp,
    attributes: Vec<KeyValue>,
    events: &'a [SpanEvent],
    is_failed: bool,
    /// Why the job, step or attempt ended as it did, if that is known.
    reason: Option<Arc<str>>,
    /// OTLP flags beyond those of every span: `IS_REMOTE` or none.
    flags: u32,
}

impl Trace {
    /// Returns whether a limit is reached. Then no further span is added.
    fn is_full(&self, spans_max: usize) -> bool {
        self.spans.len() >= spans_max || self.bytes >= TRACE_BYTES_MAX
    }

    /// Adds a span, or counts it as omitted if the trace is full.
    fn add<'a>(&mut self, spans_max: usize, draft: impl FnOnce() -> SpanDraft<'a>) {
        if self.is_full(spans_max) {
            self.omitted += 1;
            return;
        }
        let draft = draft();
        let mut attributes = draft.attributes;
        let reason = draft.reason;
        attributes
            .extend(reason.as_deref().map(|reason| text_attribute("workflow.reason", reason)));
        let events = draft.events.iter().map(|event| Event {
            time_unix_nano: to_unix_nanos(event.time),
            name: event.name.to_owned(),
            attributes: Vec::new(),
        });
        let parent = draft.parent.map(|parent| parent.to_be_bytes().to_vec());
        let span = Span {
            trace_id: self.trace_id.to_vec(),
            trace_state: self.trace_state.clone(),
            span_id: draft.span.to_be_bytes().to_vec(),
            parent_span_id: parent.unwrap_or_default(),
            name: draft.name,
            kind: draft.kind.into(),
            start_time_unix_nano: to_unix_nanos(draft.started),
            end_time_unix_nano: to_unix_nanos(draft.ended.max(draft.started)),
            attributes,
            events: events.collect(),
            status: draft.is_failed.then(|| Status {
                message: reason.as_deref().unwrap_or_default().to_owned(),
                code: StatusCode::Error.into(),
            }),
            flags: SAMPLED | HAS_IS_REMOTE | draft.flags,
        };
        self.bytes += span.encoded_len();
        self.spans.push(span);
    }
}

/// Converts a time to nanoseconds since 1970. An earlier time becomes 0.
fn to_unix_nanos(time: Timestamp) -> u64 {
    u64::try_from(time.0).unwrap_or_default()
}
