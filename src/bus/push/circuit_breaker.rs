//! The circuit breaker: a web service may be called at once, or, while nothing can be delivered to
//! it, once after each pause.

use crate::queue_status::EndpointFailure;
use base::{clock, http_client};
use engine::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// The pauses of a circuit breaker.
#[derive(Clone, Copy, Debug)]
pub struct BackoffSettings {
    /// The first pause.
    pub min: Duration,
    /// The longest pause.
    pub max: Duration,
    /// The longest pause that a service can ask for.
    pub retry_after_max: Duration,
}

/// Whether a service may be called.
#[derive(Debug)]
pub(super) enum CircuitBreaker {
    /// It may be called.
    Closed,
    /// Nothing was delivered to it, so it is called only as a probe.
    Open {
        /// The number of failures in a row.
        failures: u32,
        /// When one probe may begin.
        probe_at: Instant,
        /// The same time by the wall clock, for display.
        retry_at: Timestamp,
        /// Why the last call failed.
        reason: String,
        /// Whether the probe has begun.
        is_probing: bool,
    },
}

/// Whether a call probes an open circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A call through the closed circuit breaker.
    Normal,
    /// The only call while the circuit breaker is open.
    Probe,
}

impl CircuitBreaker {
    /// Returns when the next call may begin; `None`: not before the probe has ended.
    pub(super) fn next_call_at(&self) -> Option<Instant> {
        match self {
            CircuitBreaker::Closed => Some(clock::timer_now()),
            CircuitBreaker::Open { is_probing: true, .. } => None,
            CircuitBreaker::Open { probe_at, .. } => Some(*probe_at),
        }
    }

    /// Records that a call begins, and returns its kind.
    pub(super) fn begin_call(&mut self) -> CallKind {
        match self {
            CircuitBreaker::Closed => CallKind::Normal,
            CircuitBreaker::Open { is_probing, .. } => {
                *is_probing = true;
                CallKind::Probe
            }
        }
    }

    /// Records that a call delivered its message. Returns whether that closed the circuit breaker;
    /// a call that began before it opened cannot do that.
    pub(super) fn record_delivery(&mut self, kind: CallKind) -> bool {
        let closes = kind == CallKind::Probe && matches!(self, CircuitBreaker::Open { .. });
        if closes {
            *self = CircuitBreaker::Closed;
        }
        closes
    }

    /// Records that a call was aborted.
    pub(super) fn record_abort(&mut self, kind: CallKind) {
        if let (CircuitBreaker::Open { is_probing, .. }, CallKind::Probe) = (self, kind) {
            *is_probing = false;
        }
    }

    /// Records that nothing was delivered, and returns whether that opened the circuit breaker.
    pub(super) fn record_failure(
        &mut self,
        kind: CallKind,
        reason: String,
        retry_after: Option<Duration>,
        backoff: &BackoffSettings,
    ) -> bool {
        let requested_pause =
            retry_after.map_or(Duration::ZERO, |pause| pause.min(backoff.retry_after_max));
        let failures_before = match self {
            CircuitBreaker::Closed => 0,
            // The call began before the circuit breaker opened.
            CircuitBreaker::Open { probe_at, retry_at, .. } if kind == CallKind::Normal => {
                let at = clock::timer_now() + requested_pause;
                if at > *probe_at {
                    (*probe_at, *retry_at) = (at, timestamp_after(requested_pause));
                }
                return false;
            }
            CircuitBreaker::Open { failures, .. } => *failures,
        };
        let failures = failures_before.saturating_add(1);
        let pause = http_client::backoff(failures, (backoff.min, backoff.max)).max(requested_pause);
        *self = CircuitBreaker::Open {
            failures,
            probe_at: clock::timer_now() + pause,
            retry_at: timestamp_after(pause),
            reason,
            is_probing: false,
        };
        failures_before == 0
    }

    /// Returns why nothing is delivered, if that is so.
    pub(super) fn failure(&self) -> Option<EndpointFailure> {
        match self {
            CircuitBreaker::Closed => None,
            CircuitBreaker::Open { reason: why, retry_at: next, .. } => {
                Some(EndpointFailure { reason: why.clone(), retry_at: Some(*next) })
            }
        }
    }
}

fn timestamp_after(pause: Duration) -> Timestamp {
    let nanoseconds = i64::try_from(pause.as_nanos()).unwrap_or(i64::MAX);
    Timestamp(clock::now().0.saturating_add(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: BackoffSettings = BackoffSettings {
        min: Duration::from_secs(1),
        max: Duration::from_secs(30),
        retry_after_max: Duration::from_secs(600),
    };

    fn pause(breaker: &CircuitBreaker) -> Option<u64> {
        let left = breaker.next_call_at()?.saturating_duration_since(clock::timer_now());
        Some(left.as_secs_f64().round() as u64)
    }

    fn fail(breaker: &mut CircuitBreaker, kind: CallKind, retry_after_s: Option<u64>) -> bool {
        breaker.record_failure(
            kind,
            "no".to_owned(),
            retry_after_s.map(Duration::from_secs),
            &PAUSES,
        )
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_a_delivery_closes_the_breaker() {
        let mut breaker = CircuitBreaker::Closed;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let kind = breaker.begin_call();
            fail(&mut breaker, kind, None);
            pauses.push(pause(&breaker));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30].map(Some));
        assert!(breaker.failure().is_some());
        let probe = breaker.begin_call();
        assert!(breaker.record_delivery(probe) && breaker.failure().is_none());
        assert_eq!(pause(&breaker), Some(0));
    }

    #[test]
    fn one_probe_is_made_at_a_time() {
        let mut breaker = CircuitBreaker::Closed;
        let (first, second, third) =
            (breaker.begin_call(), breaker.begin_call(), breaker.begin_call());
        assert!(fail(&mut breaker, first, None));
        assert!(!fail(&mut breaker, second, None), "it is shut already");
        assert_eq!(pause(&breaker), Some(1), "several that fail at once count once");
        let probe = breaker.begin_call();
        assert_eq!(breaker.next_call_at(), None, "the probe is under way");
        assert!(!breaker.record_delivery(third), "it began before");
        assert_eq!(breaker.next_call_at(), None);
        breaker.record_abort(probe);
        assert!(breaker.next_call_at().is_some());
    }

    #[test]
    fn a_service_may_request_a_longer_pause_up_to_a_maximum() {
        let mut breaker = CircuitBreaker::Closed;
        let (first, second) = (breaker.begin_call(), breaker.begin_call());
        fail(&mut breaker, first, Some(7));
        assert_eq!(pause(&breaker), Some(7));
        fail(&mut breaker, second, Some(20));
        assert_eq!(pause(&breaker), Some(20));
        let probe = breaker.begin_call();
        fail(&mut breaker, probe, Some(100_000));
        assert_eq!(pause(&breaker), Some(600));
    }
}
