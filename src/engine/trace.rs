//! Traces (W3C Trace Context): which one a job belongs to, and the spans in it. All ids follow from
//! ids of jobs, so that a message that is sent again, and a span that is told again, carry the same.

use super::id::{JobId, span_id};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The place in a trace from which a job was asked for: what its `traceparent` said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace, as it is written; never zero.
    pub trace: [u8; 16],
    /// The span in it that asks; never zero.
    pub span: u64,
    /// Whether whoever asks records the trace.
    pub is_sampled: bool,
}

/// Text that is no `traceparent`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed traceparent")]
pub struct MalformedTraceParent;

/// The length of a `traceparent` of version 00.
const TEXT_LENGTH: usize = 55;

/// The bit of the flags that says that the trace is recorded.
const SAMPLED: u8 = 1;

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, flags) = (u128::from_be_bytes(self.trace), u8::from(self.is_sampled));
        write!(f, "00-{trace:032x}-{:016x}-{flags:02x}", self.span)
    }
}

impl FromStr for TraceParent {
    type Err = MalformedTraceParent;

    /// Reads version 00, and of later versions what they have in common with it.
    fn from_str(text: &str) -> Result<TraceParent, MalformedTraceParent> {
        let parts: Vec<&str> = text.split('-').collect();
        let [version, trace, span, flags, rest @ ..] = &*parts else {
            return Err(MalformedTraceParent);
        };
        let is_hex = |part: &&str| {
            part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        };
        let is_known = match *version {
            "00" => text.len() == TEXT_LENGTH && rest.is_empty(),
            "ff" => false,
            _ => true,
        };
        let lengths = [version, trace, span, flags].map(|part| part.len());
        if !is_known || lengths != [2, 32, 16, 2] || !parts.iter().take(4).all(is_hex) {
            return Err(MalformedTraceParent);
        }
        let trace = u128::from_str_radix(trace, 16).map_err(|_| MalformedTraceParent)?;
        let span = u64::from_str_radix(span, 16).map_err(|_| MalformedTraceParent)?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| MalformedTraceParent)?;
        if trace == 0 || span == 0 {
            return Err(MalformedTraceParent);
        }
        Ok(TraceParent { trace: trace.to_be_bytes(), span, is_sampled: flags & SAMPLED != 0 })
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceParent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The span of a job, which begins anew with each `run`: 0, then one more whenever it goes on after
/// an end. No step has an empty name.
pub fn job_span(job: JobId, run: u32) -> u64 {
    span_id(job, "", run)
}

/// The span of a step in a run of its job. No step has a name with a colon: it is not the span of
/// an attempt.
pub fn step_span(job: JobId, step: &str, run: u32) -> u64 {
    span_id(job, &format!("{step}:"), run)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_survives_its_text() {
        let parsed: TraceParent = TEXT.parse().expect("well formed");
        assert!(parsed.is_sampled);
        assert_eq!(parsed.to_string(), TEXT);
        let other = TEXT.replace("-01", "-02").parse::<TraceParent>().expect("other flags");
        assert!(!other.is_sampled);
        let later = format!("cc{}-what-comes", &TEXT[2..]);
        assert_eq!(later.parse(), Ok(parsed), "what later versions add is not read");
    }

    #[test]
    fn what_the_recommendation_calls_invalid_is_refused() {
        let wrong = [
            String::new(),
            TEXT.to_uppercase(),
            format!("{TEXT}-00"),
            format!("ff{}", &TEXT[2..]),
            TEXT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            TEXT.replace("b7ad6b7169203331", &"0".repeat(16)),
            TEXT.replace("b7ad6b7169203331", "b7ad6b716920333"),
            TEXT.replace("b7ad6b7169203331", "+7ad6b7169203331"),
            TEXT[..52].to_owned(),
        ];
        for text in wrong {
            assert_eq!(text.parse::<TraceParent>(), Err(MalformedTraceParent), "{text:?}");
        }
    }

    #[test]
    fn the_spans_of_a_job_its_steps_and_their_attempts_differ() {
        let job = JobId(uuid::Uuid::from_u128(7));
        let mut spans = vec![span_id(job, "a", 1), step_span(job, "a", 1), job_span(job, 1)];
        spans.extend([span_id(job, "a", 2), step_span(job, "a", 2), job_span(job, 2)]);
        spans.sort_unstable();
        spans.dedup();
        assert_eq!(spans.len(), 6);
    }
}
