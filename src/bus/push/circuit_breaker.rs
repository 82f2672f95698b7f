//! The circuit breaker of a web service. While it is closed, messages are delivered at once. A
//! failure opens it. While it is open, only one call at a time probes the service, after an
//! exponential backoff.

use crate::queue_status::EndpointFailure;
use base::{clock, http_client};
use engine::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// The backoff of a circuit breaker.
#[derive(Clone, Copy, Debug)]
pub struct BackoffSettings {
    /// The first delay.
    pub min: Duration,
    /// The longest delay, unless a service asks for a longer one.
    pub max: Duration,
    /// The longest delay that a service can ask for by `Retry-After`.
    pub retry_after_max: Duration,
}

/// The state of the circuit breaker of a service.
#[derive(Debug)]
pub(super) enum CircuitBreaker {
    /// The service may be called.
    Closed,
    /// The last call failed, so the service may only be probed.
    Open {
        /// The number of consecutive failures.
        failures: u32,
        /// When the next probe may begin.
        probe_at: Instant,
        /// The same time on the wall clock, for display.
        retry_at: Timestamp,
        /// Why the last call failed.
        reason: String,
        /// Whether the probe has begun.
        is_probing: bool,
    },
}

/// The kind of a call, by the state of the circuit breaker when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A call through the closed circuit breaker.
    Normal,
    /// The only call while the circuit breaker is open.
    Probe,
}

impl CircuitBreaker {
    /// Returns when the next call may begin; `None`: not before the active probe has ended.
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

    /// Records that a call delivered its message. Returns whether that closed the circuit breaker.
    /// A call that began before the circuit breaker opened does not close it.
    pub(super) fn record_delivery(&mut self, kind: CallKind) -> bool {
        let is_closing = kind == CallKind::Probe && matches!(self, CircuitBreaker::Open { .. });
        if is_closing {
            *self = CircuitBreaker::Closed;
        }
        is_closing
    }

    /// Records that a call was aborted: after a probe, another one may begin at once.
    pub(super) fn record_abort(&mut self, kind: CallKind) {
        if let (CircuitBreaker::Open { is_probing, .. }, CallKind::Probe) = (self, kind) {
            *is_probing = false;
        }
    }

    /// Records that a call did not deliver its message, and returns whether that opened the circuit
    /// breaker. A failed probe doubles the delay until the next one. A normal call that fails while
    /// the circuit breaker is open counts only with the delay that the service asked for.
    pub(super) fn record_failure(
        &mut self,
        kind: CallKind,
        reason: String,
        retry_after: Option<Duration>,
        backoff: &BackoffSettings,
    ) -> bool {
        let requested_delay =
            retry_after.map_or(Duration::ZERO, |delay| delay.min(backoff.retry_after_max));
        let failures_before = match self {
            CircuitBreaker::Closed => 0,
            // The call began before the circuit breaker opened.
            CircuitBreaker::Open { probe_at, retry_at, .. } if kind == CallKind::Normal => {
                let requested_at = clock::timer_now() + requested_delay;
                if requested_at > *probe_at {
                    (*probe_at, *retry_at) = (requested_at, timestamp_after(requested_delay));
                }
                return false;
            }
            CircuitBreaker::Open { failures, .. } => *failures,
        };
        let failures = failures_before.saturating_add(1);
        let delay = http_client::backoff(failures, (backoff.min, backoff.max)).max(requested_delay);
        *self = CircuitBreaker::Open {
            failures,
            probe_at: clock::timer_now() + delay,
            retry_at: timestamp_after(delay),
            reason,
            is_probing: false,
        };
        failures_before == 0
    }

    /// Returns the last failure, if the circuit breaker is open.
    pub(super) fn failure(&self) -> Option<EndpointFailure> {
        match self {
            CircuitBreaker::Closed => None,
            CircuitBreaker::Open { reason, retry_at, .. } => {
                Some(EndpointFailure { reason: reason.clone(), retry_at: Some(*retry_at) })
            }
        }
    }
}

/// Returns the wall-clock time after a delay from now.
fn timestamp_after(delay: Duration) -> Timestamp {
    let nanoseconds = i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX);
    Timestamp(clock::now().0.saturating_add(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: BackoffSettings = BackoffSettings {
        min: Duration::from_secs(1),
        max: Duration::from_secs(30),
        retry_after_max: Duration::from_secs(600),
    };

    /// Returns the seconds until the next call may begin.
    fn delay_s(breaker: &CircuitBreaker) -> Option<u64> {
        let delay = breaker.next_call_at()?.saturating_duration_since(clock::timer_now());
        Some(delay.as_secs_f64().round() as u64)
    }

    fn fail(breaker: &mut CircuitBreaker, kind: CallKind, retry_after_s: Option<u64>) -> bool {
        breaker.record_failure(
            kind,
            "no".to_owned(),
            retry_after_s.map(Duration::from_secs),
            &BACKOFF,
        )
    }

    #[test]
    fn delays_double_up_to_the_longest_and_a_delivery_closes_the_breaker() {
        let mut breaker = CircuitBreaker::Closed;
        let mut delays = Vec::new();
        for _ in 0..7 {
            let kind = breaker.begin_call();
            fail(&mut breaker, kind, None);
            delays.push(delay_s(&breaker));
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30].map(Some));
        assert!(breaker.failure().is_some());
        let probe = breaker.begin_call();
        assert!(breaker.record_delivery(probe) && breaker.failure().is_none());
        assert_eq!(delay_s(&breaker), Some(0));
    }

    #[test]
    fn only_one_probe_is_active_at_a_time() {
        let mut breaker = CircuitBreaker::Closed;
        let (first, second, third) =
            (breaker.begin_call(), breaker.begin_call(), breaker.begin_call());
        assert!(fail(&mut breaker, first, None));
        assert!(!fail(&mut breaker, second, None), "it is open already");
        assert_eq!(delay_s(&breaker), Some(1), "concurrent failures count once");
        let probe = breaker.begin_call();
        assert_eq!(breaker.next_call_at(), None, "the probe is active");
        assert!(!breaker.record_delivery(third), "the call began before the breaker opened");
        assert_eq!(breaker.next_call_at(), None);
        breaker.record_abort(probe);
        assert!(breaker.next_call_at().is_some());
    }

    #[test]
    fn a_service_may_request_a_longer_delay_up_to_a_maximum() {
        let mut breaker = CircuitBreaker::Closed;
        let (first, second) = (breaker.begin_call(), breaker.begin_call());
        fail(&mut breaker, first, Some(7));
        assert_eq!(delay_s(&breaker), Some(7));
        fail(&mut breaker, second, Some(20));
        assert_eq!(delay_s(&breaker), Some(20));
        let probe = breaker.begin_call();
        fail(&mut breaker, probe, Some(100_000));
        assert_eq!(delay_s(&breaker), Some(600));
    }
}
