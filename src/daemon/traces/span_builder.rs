//! Builds the spans of a root job: its own, those of its steps and their attempts, and the same of
//! its child jobs, up to a limit. They contain nothing of a message.

use super::ended_job::EndedJob;
use super::otlp::{
    Event, KeyValue, Kind, Span, Status, StatusCode, number_attribute, text_attribute,
};
use super::run_history::{Attempt, End, FoldLimit, RunHistory, StepHistory};
use crate::settings::{BusKind, Settings};
use base::web_address::parse_web_address;
use engine::id::span_id;
use engine::trace::{job_span, step_span};
use engine::{CorrelationId, JobId, JobState, Origin, Step, StepIndex, StepState, Timestamp};
use journal::{ChildCursor, ChildFilter, ChildRow, JournalError, RecordHead, Records};
use prost::Message as _;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many child jobs are listed at once.
const PAGE_ROWS: u32 = 1_000;

/// The share of a job's spans that is reserved for other spans than those of attempts, as a
/// divisor, and its minimum: one for the job and one for a step.
const NON_ATTEMPT_SHARE: usize = 8;
const NON_ATTEMPT_MIN: usize = 2;

/// The most that the spans of a root job take, in bytes as they are sent.
const TRACE_BYTES_MAX: usize = 16 << 20;

/// The flags of a span: it is sampled; whether its parent is remote is known; its parent is remote,
/// that is, of another process.
const SAMPLED: u32 = 1;
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// Builds spans, as the settings say.
pub(super) struct SpanBuilder {
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
    trace_id: [u8; 16],
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
    /// The item's index, for a child job.
    item: Option<u32>,
    parent: Option<u64>,
    /// Whether the parent is a span of another process.
    has_remote_parent: bool,
    until: Timestamp,
}

impl SpanBuilder {
    pub(super) fn new(settings: &Settings) -> SpanBuilder {
        let kinds = settings.bus_kinds().into_iter().map(|(name, kind)| (name.into(), kind));
        SpanBuilder {
            default_bus: settings.default_bus().into(),
            kinds: kinds.collect(),
            spans_max: settings.traces.job_spans_max,
        }
    }

    /// Builds the spans of an ended job. Returns `None` if it is not in the journal any more.
    pub(super) fn build_trace(
        &self,
        reader: &dyn Records,
        job: EndedJob,
    ) -> Result<Option<Trace>, JournalError> {
        let until = FoldLimit { entry: job.entry, at: job.at };
        let Some((head, history)) = self.load_last_run(reader, job.id, until)? else {
            return Ok(None);
        };
        if head.created != job.created {
            return Ok(None);
        }
        let origin = Origin {
            trace: history.trace_context.clone().map(Arc::new),
            ..Origin::for_root_job(job.id, head.definition.clone(), head.created)
        };
        let parent_context = history.trace_context.as_ref();
        let state = parent_context.and_then(|remote| remote.state.as_ref());
        let mut trace = Trace {
            trace_id: origin.trace_id(),
            trace_state: state.map_or_else(String::new, |state| state.as_ref().to_owned()),
            ..Trace::default()
        };
        let context = JobContext {
            id: job.id,
            root: job.id,
            head: &head,
            item: None,
            // The span of a later run is a child of the first run's.
            parent: match history.run_number {
                0 => parent_context.map(|remote| remote.parent.span),
                _ => Some(job_span(job.id, 0)),
            },
            has_remote_parent: history.run_number == 0,
            until: job.at,
        };
        self.add_job(&mut trace, &context, &history);
        let root = ParentJob { id: job.id, head, history };
        let omitted = self.add_children(reader, &mut trace, root, job)?;
        let top = &mut trace.spans[0].attributes;
        if omitted > 0 {
            top.push(number_attribute(
                "workflow.children.omitted",
                i64::try_from(omitted).unwrap_or(i64::MAX),
            ));
        }
        if trace.omitted > 0 {
            let spans = i64::try_from(trace.omitted).unwrap_or(i64::MAX);
            top.push(number_attribute("workflow.spans.omitted", spans));
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
            let started: u64 = parent.history.children_started.values().sum();
            if started == 0 {
                continue;
            }
            let Some(tree) = reader.find_parent_job(parent.id)? else { continue };
            let mut seen = 0;
            // Failed child jobs are of most interest, so they come first.
            for is_failed in [true, false] {
                let state = is_failed.then_some(JobState::Failed);
                let filter = ChildFilter { state, step: None };
                let mut after = ChildCursor::START;
                while !trace.is_full(self.spans_max) {
                    let page = reader.load_children(&tree, filter, after, PAGE_ROWS)?;
                    let Some(last) = page.last() else { break };
                    after = last.cursor;
                    for row in page {
                        if trace.is_full(self.spans_max) {
                            break;
                        }
                        if !is_failed && row.state == JobState::Failed.as_str() {
                            continue;
                        }
                        seen += 1;
                        parents.extend(self.add_child(reader, trace, &parent, &row, job)?);
                    }
                }
            }
            omitted += started.saturating_sub(seen);
        }
        Ok(omitted)
    }

    /// Adds a child job. Returns it if it may have child jobs itself.
    fn add_child(
        &self,
        reader: &dyn Records,
        trace: &mut Trace,
        parent: &ParentJob,
        row: &ChildRow,
        job: EndedJob,
    ) -> Result<Option<ParentJob>, JournalError> {
        // It was exported when its parent ended before.
        if row.ended.is_some_and(|ended| ended < parent.history.started) {
            return Ok(None);
        }
        let until = FoldLimit { entry: u64::MAX, at: job.at };
        let Some((head, history)) = self.load_last_run(reader, row.id, until)? else {
            return Ok(None);
        };
        let name = &parent.head.graph().step(row.step).name;
        let parent_span = match parent.history.steps.contains_key(&row.step) {
            true => step_span(parent.id, name, parent.history.run_number),
            false => job_span(parent.id, parent.history.run_number),
        };
        let context = JobContext {
            id: row.id,
            root: job.id,
            head: &head,
            item: Some(row.item),
            parent: Some(parent_span),
            has_remote_parent: false,
            until: job.at,
        };
        self.add_job(trace, &context, &history);
        let has_children = !history.children_started.is_empty();
        Ok(has_children.then_some(ParentJob { id: row.id, head, history }))
    }

    fn add_job(&self, trace: &mut Trace, context: &JobContext<'_>, history: &RunHistory) {
        let span = job_span(context.id, history.run_number);
        let end = history.ended.clone().unwrap_or(End {
            at: context.until,
            state: JobState::Running,
            reason: None,
        });
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
            span,
            parent: context.parent,
            name,
            kind: Kind::Internal,
            started: history.started,
            ended: end.at,
            attributes,
            events: &history.events,
            is_failed: end.state == JobState::Failed,
            reason: end.reason.clone(),
            flags,
        });
        trace.omitted += history.omitted;
        for (step, step_history) in &history.steps {
            self.add_step(
                trace,
                context,
                (*step, step_history),
                (span, history.run_number, end.at),
            );
        }
    }

    fn add_step(
        &self,
        trace: &mut Trace,
        context: &JobContext<'_>,
        (step, history): (StepIndex, &StepHistory),
        (job, run, job_ended): (u64, u32, Timestamp),
    ) {
        let Some(step) = context.head.graph().steps.get(step.as_usize()) else { return };
        let span = step_span(context.id, &step.name, run);
        // A step that was running when the job ended was cut off by that.
        let cut_off = || End { at: job_ended, state: StepState::Running, reason: None };
        let end = history.ended.clone().unwrap_or_else(cut_off);
        let mut attributes = step_attributes(context, step);
        attributes.push(text_attribute("workflow.step.state", end.state.as_str()));
        attributes.extend(history.items.map(|items| number_attribute("workflow.items", items)));
        trace.add(self.spans_max, || SpanDraft {
            span,
            parent: Some(job),
            name: step.name.to_string(),
            kind: Kind::Internal,
            started: history.started,
            ended: end.at,
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

    fn attempt_span<'a>(
        &self,
        context: &JobContext<'_>,
        step: &Step,
        attempt: &'a Attempt,
        parent: u64,
        end_of_step: &End<StepState>,
    ) -> SpanDraft<'a> {
        let end = attempt.ended.clone().unwrap_or(End {
            at: end_of_step.at,
            state: StepState::Running,
            reason: None,
        });
        let mut attributes = step_attributes(context, step);
        attributes.push(number_attribute("workflow.attempt", attempt.number));
        let (kind, name) = if step.has_queue() {
            self.add_message_attributes(context, step, attempt.number, &mut attributes)
        } else {
            (Kind::Internal, "wait".to_owned())
        };
        SpanDraft {
            span: span_id(context.id, &step.name, attempt.number),
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
    fn add_message_attributes(
        &self,
        context: &JobContext<'_>,
        step: &Step,
        attempt: u32,
        attributes: &mut Vec<KeyValue>,
    ) -> (Kind, String) {
        let bus = step.bus.as_ref().unwrap_or(&self.default_bus);
        let correlation =
            CorrelationId { job: context.id, step: step.name.to_string() }.to_string();
        attributes.push(text_attribute("workflow.bus", &**bus));
        attributes.push(text_attribute("messaging.message.id", format!("{correlation}:{attempt}")));
        attributes.push(text_attribute("messaging.message.conversation_id", correlation));
        let system = match self.kinds.get(bus) {
            Some(BusKind::Amqp) => "rabbitmq",
            Some(BusKind::Kafka) => "kafka",
            Some(BusKind::Embedded) | None => "workflow_manager",
            Some(BusKind::Push) => {
                // The path of a URL may be a secret.
                let host = parse_web_address(&step.queue).ok();
                let host = host.as_ref().and_then(|url| url.host_str());
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

    /// Loads the last run of a job, up to a point of its record.
    fn load_last_run(
        &self,
        reader: &dyn Records,
        id: JobId,
        until: FoldLimit,
    ) -> Result<Option<(RecordHead, RunHistory)>, JournalError> {
        // The other spans are for the job and its steps, so that the last attempt fits as well.
        let reserved = (self.spans_max / NON_ATTEMPT_SHARE).max(NON_ATTEMPT_MIN);
        let mut history = RunHistory::new(self.spans_max.saturating_sub(reserved));
        let head = reader.for_each_row(id, &mut |row| history.apply(&row, until))?;
        Ok(head.map(|head| {
            if history.run_number == 0 {
                history.started = head.created;
            }
            (head, history)
        }))
    }
}

fn step_attributes(context: &JobContext<'_>, step: &Step) -> Vec<KeyValue> {
    vec![
        text_attribute("workflow.name", context.head.definition.full_name()),
        text_attribute("workflow.job.id", context.id.to_string()),
        text_attribute("workflow.step.name", step.name.to_string()),
    ]
}

/// The parts of a span that is not built yet.
struct SpanDraft<'a> {
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
        let events = draft.events.iter().map(|(at, name)| Event {
            time_unix_nano: to_unix_nanos(*at),
            name: (*name).to_owned(),
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

fn to_unix_nanos(at: Timestamp) -> u64 {
    u64::try_from(at.0).unwrap_or_default()
}
