//! The circuit breaker: a web service may be called at once, or, while nothing can be delivered to
//! it, once after each pause.

use crate::bus::Trouble;
use crate::clock;
use crate::engine::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// The pauses of a circuit breaker.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The first pause.
    pub min: Duration,
    /// The longest pause.
    pub max: Duration,
    /// The longest pause that a service can ask for.
    pub asked_max: Duration,
}

/// Whether a service may be called.
#[derive(Debug)]
pub(super) enum Gate {
    /// It may be called.
    Open,
    /// Nothing was delivered to it, so it is called only as a probe.
    Shut {
        /// The number of failures in a row.
        failures: u32,
        /// When one probe may begin.
        until: Instant,
        /// The same time by the wall clock, for display.
        next: Timestamp,
        /// Why the last call failed.
        why: String,
        /// Whether the probe has begun.
        is_probed: bool,
    },
}

/// Whether a call probes an open circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// A call through the closed circuit breaker.
    Usual,
    /// The only call while the circuit breaker is open.
    Probe,
}

impl Gate {
    /// Returns when the next call may begin; `None`: not before the probe has ended.
    pub(super) fn opens(&self) -> Option<Instant> {
        match self {
            Gate::Open => Some(clock::ticks()),
            Gate::Shut { is_probed: true, .. } => None,
            Gate::Shut { until, .. } => Some(*until),
        }
    }

    /// Records that a call begins, and returns its kind.
    pub(super) fn pass(&mut self) -> Pass {
        match self {
            Gate::Open => Pass::Usual,
            Gate::Shut { is_probed, .. } => {
                *is_probed = true;
                Pass::Probe
            }
        }
    }

    /// Records that a call delivered its message. Returns whether that closed the circuit breaker;
    /// a call that began before it opened cannot do that.
    pub(super) fn arrived(&mut self, pass: Pass) -> bool {
        let opens = pass == Pass::Probe && matches!(self, Gate::Shut { .. });
        if opens {
            *self = Gate::Open;
        }
        opens
    }

    /// Records that a call was aborted.
    pub(super) fn broken_off(&mut self, of: Pass) {
        if let (Gate::Shut { is_probed, .. }, Pass::Probe) = (self, of) {
            *is_probed = false;
        }
    }

    /// Records that nothing was delivered, and returns whether that opened the circuit breaker.
    pub(super) fn failed(
        &mut self,
        of: Pass,
        reason: String,
        asked: Option<Duration>,
        pauses: &Pauses,
    ) -> bool {
        let asked = asked.unwrap_or_default().min(pauses.asked_max);
        let before = match self {
            Gate::Open => 0,
            // The call began before the circuit breaker opened.
            Gate::Shut { until, next, .. } if of == Pass::Usual => {
                let at = clock::ticks() + asked;
                if at > *until {
                    (*until, *next) = (at, after(asked));
                }
                return false;
            }
            Gate::Shut { failures, .. } => *failures,
        };
        let doubled = pauses.min.saturating_mul(2_u32.saturating_pow(before));
        let pause = doubled.min(pauses.max).max(asked);
        *self = Gate::Shut {
            failures: before.saturating_add(1),
            until: clock::ticks() + pause,
            next: after(pause),
            why: reason,
            is_probed: false,
        };
        before == 0
    }

    /// Returns why nothing is delivered, if that is so.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        match self {
            Gate::Open => None,
            Gate::Shut { why, next, .. } => Some(Trouble { why: why.clone(), next: Some(*next) }),
        }
    }
}

fn after(pause: Duration) -> Timestamp {
    let nanoseconds = i64::try_from(pause.as_nanos()).unwrap_or(i64::MAX);
    Timestamp(clock::now().0.saturating_add(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Pauses = Pauses {
        min: Duration::from_secs(1),
        max: Duration::from_secs(30),
        asked_max: Duration::from_secs(600),
    };

    fn pause(gate: &Gate) -> Option<u64> {
        let left = gate.opens()?.saturating_duration_since(clock::ticks());
        Some(left.as_secs_f64().round() as u64)
    }

    fn fail(gate: &mut Gate, of: Pass, asked_s: Option<u64>) -> bool {
        gate.failed(of, "no".to_owned(), asked_s.map(Duration::from_secs), &PAUSES)
    }

    #[test]
    fn pauses_are_doubled_up_to_the_longest_and_a_delivery_ends_them() {
        let mut gate = Gate::Open;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let pass = gate.pass();
            fail(&mut gate, pass, None);
            pauses.push(pause(&gate));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30].map(Some));
        assert!(gate.trouble().is_some());
        let probe = gate.pass();
        assert!(gate.arrived(probe) && gate.trouble().is_none());
        assert_eq!(pause(&gate), Some(0));
    }

    #[test]
    fn one_call_at_a_time_finds_out() {
        let mut gate = Gate::Open;
        let (first, second, third) = (gate.pass(), gate.pass(), gate.pass());
        assert!(fail(&mut gate, first, None));
        assert!(!fail(&mut gate, second, None), "it is shut already");
        assert_eq!(pause(&gate), Some(1), "several that fail at once count once");
        let probe = gate.pass();
        assert_eq!(gate.opens(), None, "the probe is under way");
        assert!(!gate.arrived(third), "it began before");
        assert_eq!(gate.opens(), None);
        gate.broken_off(probe);
        assert!(gate.opens().is_some());
    }

    #[test]
    fn a_service_asks_for_a_longer_pause_but_not_for_any() {
        let mut gate = Gate::Open;
        let (first, second) = (gate.pass(), gate.pass());
        fail(&mut gate, first, Some(7));
        assert_eq!(pause(&gate), Some(7));
        fail(&mut gate, second, Some(20));
        assert_eq!(pause(&gate), Some(20));
        let probe = gate.pass();
        fail(&mut gate, probe, Some(100_000));
        assert_eq!(pause(&gate), Some(600));
    }
}
