//! The origin of a job, and the trace context of its messages that follows from it.

use super::definition::{Definition, GraphIndex};
use super::id::{JobId, StepIndex, hash_attempt, span_id};
use super::schedule::ScheduledSlot;
use super::time::Timestamp;
use super::trace::{TraceContext, TraceParent};
use std::sync::Arc;

/// The origin of a job: everything about it that never changes, except its message.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The job's id.
    pub id: JobId,
    /// The definition with which it was created.
    pub definition: Arc<Definition>,
    /// The graph that it runs: 0 for a root job, the graph of a task for a child job.
    pub graph: GraphIndex,
    /// The step and item of its parent; `None`: it is a root job.
    pub parent: Option<ParentItem>,
    /// The id of the root job, which for a root job is its own id.
    pub root: JobId,
    /// The depth in the tree of jobs and calls: 0 for a job that a client requested, one more for
    /// each level of child jobs and for each call by a step.
    pub depth: u16,
    /// When it was created.
    pub created: Timestamp,
    /// The trace context of the request for the root job; `None`: it had none.
    pub trace: Option<Arc<TraceContext>>,
    /// When the job was to begin, for a root job that was to begin later; `None`: at once.
    pub starts_at: Option<Timestamp>,
    /// The schedule and the slot for which it was started; `None`: no schedule started it.
    pub slot: Option<Arc<ScheduledSlot>>,
}

impl Origin {
    /// Creates the origin of a root job.
    pub fn for_root_job(id: JobId, definition: Arc<Definition>, created: Timestamp) -> Origin {
        Origin {
            id,
            definition,
            graph: 0,
            parent: None,
            root: id,
            depth: 0,
            created,
            trace: None,
            starts_at: None,
            slot: None,
        }
    }

    /// Returns whether the job was asked to begin later than it was created.
    pub fn begins_later(&self) -> bool {
        self.starts_at.is_some_and(|time| time > self.created)
    }

    /// Returns until when the limit of the workflow delays a root job that was not asked to begin
    /// later; `None`: it does not.
    pub fn delayed_until(&self) -> Option<Timestamp> {
        let limit = self.definition.limit.as_ref().filter(|_| self.parent.is_none());
        self.created.after(limit.and_then(|limit| limit.delay))
    }

    /// Returns the id of the trace that the job belongs to: that of the request for the root job,
    /// or else the root job's id. It is never zero.
    pub fn trace_id(&self) -> [u8; 16] {
        match &self.trace {
            Some(request_trace) => request_trace.parent.trace,
            None => self.root.0.as_u128().max(1).to_be_bytes(),
        }
    }

    /// Returns whether the trace is sampled: as the request for the root job demands, or else with
    /// the probability `sampling_ratio`, from 0 to 1. All jobs of a job tree have the same result.
    pub fn is_sampled(&self, sampling_ratio: f64) -> bool {
        match &self.trace {
            Some(request_trace) => request_trace.parent.is_sampled,
            // A hash, because clients can choose ids that are not evenly distributed.
            None => (hash_attempt(self.root, "", 0).0 as f64) < sampling_ratio * (u64::MAX as f64),
        }
    }

    /// Returns the `traceparent` of an attempt's message: the trace, and the span of the attempt.
    /// `sampling_ratio`: `None` if spans of jobs are not exported.
    ///
    /// Without export, the `traceparent` of the request for the root job, if there is one, is
    /// propagated unchanged. With the attempt's span, the spans of workers would have a parent that
    /// no collector receives.
    pub fn trace_parent(
        &self,
        step: &str,
        attempt: u32,
        sampling_ratio: Option<f64>,
    ) -> TraceParent {
        match (&self.trace, sampling_ratio) {
            (Some(request_trace), None) => request_trace.parent,
            (Some(_), Some(_)) | (None, _) => TraceParent {
                trace: self.trace_id(),
                span: span_id(self.id, step, attempt),
                is_sampled: self.is_sampled(sampling_ratio.unwrap_or(1.0)),
            },
        }
    }
}

/// The step and item of a parent for which a child job was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentItem {
    /// The parent's id.
    pub job: JobId,
    /// The parent's fan-out step.
    pub step: StepIndex,
    /// The item's index in the list.
    pub index: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn origin(root: u128) -> Origin {
        let definition = Arc::new(Definition::new("w", Vec::new()));
        Origin::for_root_job(JobId(Uuid::from_u128(root)), definition, Timestamp(0))
    }

    #[test]
    fn the_sampling_ratio_is_as_configured_whatever_the_ids() {
        for distance in [1, 1 << 64] {
            let count_sampled = |sampling_ratio| {
                let ids = (1..=10_000).map(|n| n * distance);
                ids.filter(|id| origin(*id).is_sampled(sampling_ratio)).count()
            };
            assert_eq!(count_sampled(0.0), 0);
            assert_eq!(count_sampled(1.0), 10_000);
            let sampled_count = count_sampled(0.1);
            assert!((850..1_150).contains(&sampled_count), "{sampled_count} of 10,000");
        }
    }

    #[test]
    fn a_trace_is_sampled_as_the_request_demands() {
        let parent: TraceParent = TEXT.parse().expect("well formed");
        let origin_with_trace = |is_sampled| {
            let trace = Some(Arc::new(TraceParent { is_sampled, ..parent }.into()));
            Origin { trace, ..origin(7) }
        };
        assert!(origin_with_trace(true).is_sampled(0.0));
        assert!(!origin_with_trace(false).is_sampled(1.0));
        assert_eq!(origin_with_trace(true).trace_id(), parent.trace);
        assert_eq!(origin(7).trace_id(), 7_u128.to_be_bytes());
        assert_ne!(origin(0).trace_id(), [0; 16], "zero is not a trace");
    }

    #[test]
    fn a_message_carries_the_span_of_its_attempt_unless_no_spans_are_exported() {
        let parent: TraceParent = TEXT.parse().expect("well formed");
        let traced = Origin { trace: Some(Arc::new(parent.into())), ..origin(7) };
        assert_eq!(traced.trace_parent("a", 1, None), parent);
        let attempt_parent = traced.trace_parent("a", 1, Some(0.0));
        assert_eq!(
            (attempt_parent.trace, attempt_parent.span),
            (parent.trace, span_id(traced.id, "a", 1))
        );
        let untraced = origin(7).trace_parent("a", 1, None);
        assert_eq!((untraced.trace, untraced.span), (7_u128.to_be_bytes(), attempt_parent.span));
        assert!(untraced.is_sampled);
        assert!(!origin(7).trace_parent("a", 1, Some(0.0)).is_sampled);
    }
}
