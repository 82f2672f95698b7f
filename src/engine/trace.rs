//! W3C Trace Context: parses and formats `traceparent` and `tracestate`, and derives the span ids
//! of jobs and steps.
//!
//! Span ids are derived from job ids, so that a message or a span that is sent again carries the
//! same ids.

use super::id::{JobId, span_id};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The content of a `traceparent` header: the trace and the parent span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace id, in big-endian order; never zero.
    pub trace: [u8; 16],
    /// The parent span id; never zero.
    pub span: u64,
    /// Whether the sender samples (records) the trace.
    pub is_sampled: bool,
}

/// The error for a text that is not a valid `traceparent`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed traceparent")]
pub struct MalformedTraceParent;

/// The content of a `tracestate` header: vendor-specific data that is propagated with a
/// `traceparent` and not interpreted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct TraceState(Arc<str>);

/// The error for a text that is not a valid `tracestate`, is too long, or is empty.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no tracestate that can be handed on")]
pub struct MalformedTraceState;

/// The trace context of a request for a job: its headers `traceparent` and `tracestate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace and the parent span.
    pub parent: TraceParent,
    /// The `tracestate` that is propagated with them; `None`: there was none, or an invalid one.
    pub state: Option<TraceState>,
}

/// The maximum length of a `tracestate` that is propagated, in bytes. W3C asks for at least 512
/// characters.
const STATE_BYTES_MAX: usize = 512;

/// The maximum number of members of a `tracestate` (W3C).
const STATE_MEMBERS_MAX: usize = 32;

/// The maximum length of a key, and of a value, of a `tracestate` member, in bytes (W3C).
const STATE_PART_BYTES_MAX: usize = 256;

/// The length of a `traceparent` of version 00, in bytes.
const PARENT_BYTES: usize = 55;

/// The bit of the `traceparent` flags that marks a sampled trace.
const SAMPLED_FLAG: u8 = 1;

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, flags) = (u128::from_be_bytes(self.trace), u8::from(self.is_sampled));
        write!(f, "00-{trace:032x}-{:016x}-{flags:02x}", self.span)
    }
}

impl FromStr for TraceParent {
    type Err = MalformedTraceParent;

    /// Parses version 00, and of later versions the fields that version 00 has too.
    fn from_str(text: &str) -> Result<TraceParent, MalformedTraceParent> {
        let parts: Vec<&str> = text.split('-').collect();
        let [version, trace, span, flags, later_fields @ ..] = &*parts else {
            return Err(MalformedTraceParent);
        };
        let is_hex = |part: &&str| {
            part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        };
        let is_valid_version = match *version {
            "00" => text.len() == PARENT_BYTES && later_fields.is_empty(),
            "ff" => false,
            _ => true,
        };
        let lengths = [version, trace, span, flags].map(|part| part.len());
        if !is_valid_version || lengths != [2, 32, 16, 2] || !parts.iter().take(4).all(is_hex) {
            return Err(MalformedTraceParent);
        }
        let trace = u128::from_str_radix(trace, 16).map_err(|_| MalformedTraceParent)?;
        let span = u64::from_str_radix(span, 16).map_err(|_| MalformedTraceParent)?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| MalformedTraceParent)?;
        if trace == 0 || span == 0 {
            return Err(MalformedTraceParent);
        }
        Ok(TraceParent { trace: trace.to_be_bytes(), span, is_sampled: flags & SAMPLED_FLAG != 0 })
    }
}

impl TraceContext {
    /// Parses the two headers; `None`: the `traceparent` is invalid. A `tracestate` that is invalid
    /// or too long is dropped.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<TraceContext> {
        let parent = parent.parse().ok()?;
        Some(TraceContext { parent, state: state.and_then(|text| text.parse().ok()) })
    }
}

impl From<TraceParent> for TraceContext {
    fn from(parent: TraceParent) -> TraceContext {
        TraceContext { parent, state: None }
    }
}

impl AsRef<str> for TraceState {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for TraceState {
    type Err = MalformedTraceState;

    /// Parses the members and keeps their order. Empty members, and whitespace around members, are
    /// dropped.
    fn from_str(text: &str) -> Result<TraceState, MalformedTraceState> {
        if text.len() > STATE_BYTES_MAX {
            return Err(MalformedTraceState);
        }
        let members = text.split(',').map(|member| member.trim_matches([' ', '\t']));
        let members: Vec<&str> = members.filter(|member| !member.is_empty()).collect();
        let keys: BTreeSet<&str> = members.iter().copied().filter_map(parse_state_key).collect();
        // If the counts are equal, each member is valid and no key is duplicated.
        if !(1..=STATE_MEMBERS_MAX).contains(&members.len()) || keys.len() != members.len() {
            return Err(MalformedTraceState);
        }
        Ok(TraceState(members.join(",").into()))
    }
}

/// Parses a member `key=value`, and returns its key if the member is valid.
fn parse_state_key(member: &str) -> Option<&str> {
    let (key, value) = member.split_once('=')?;
    (is_state_key(key) && is_state_value(value)).then_some(key)
}

fn is_state_key(key: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    key.len() <= STATE_PART_BYTES_MAX
        && key.bytes().next().is_some_and(is_alphanumeric)
        && key.bytes().all(|byte| is_alphanumeric(byte) || b"_-*/@".contains(&byte))
}

fn is_state_value(value: &str) -> bool {
    (1..=STATE_PART_BYTES_MAX).contains(&value.len())
        && value.bytes().all(|byte| matches!(byte, b' '..=b'~') && !b",=".contains(&byte))
        && !value.ends_with(' ')
}

impl<'de> Deserialize<'de> for TraceState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
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

/// Returns the span id of one run of a job. `run`: how often the job was reopened after an end. The
/// id differs from those of attempts: no step has an empty name.
pub fn job_span(job: JobId, run: u32) -> u64 {
    span_id(job, "", run)
}

/// Returns the span id of a step in one run of its job. The id differs from those of attempts: no
/// step has a colon in its name.
pub fn step_span(job: JobId, step: &str, run: u32) -> u64 {
    span_id(job, &format!("{step}:"), run)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_parsed_as_it_is_displayed() {
        let parsed: TraceParent = TEXT.parse().expect("well formed");
        assert!(parsed.is_sampled);
        assert_eq!(parsed.to_string(), TEXT);
        let unsampled = TEXT.replace("-01", "-02").parse::<TraceParent>().expect("well formed");
        assert!(!unsampled.is_sampled);
        let later_version = format!("cc{}-new-fields", &TEXT[2..]);
        assert_eq!(later_version.parse(), Ok(parsed), "fields of later versions are ignored");
    }

    #[test]
    fn an_invalid_traceparent_is_refused() {
        let invalid_texts = [
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
        for text in invalid_texts {
            assert_eq!(text.parse::<TraceParent>(), Err(MalformedTraceParent), "{text:?}");
        }
    }

    #[test]
    fn a_tracestate_is_propagated_unchanged_unless_it_is_invalid_or_too_long() {
        let parse = |text: &str| text.parse::<TraceState>().map(|state| state.as_ref().to_owned());
        for (text, canonical) in [
            ("congo=t61rcWkgMzE", "congo=t61rcWkgMzE"),
            ("rojo=00f067aa0ba902b7,congo=t6 1!\\\"", "rojo=00f067aa0ba902b7,congo=t6 1!\\\""),
            (" a=1 ,\t, t1@s-y/s*t_=2,", "a=1,t1@s-y/s*t_=2"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(canonical), "{text:?}");
        }
        let members = |count: usize| (0..count).map(|n| format!("k{n}=v,")).collect::<String>();
        // Two keys and values whose text has this number of bytes in all.
        let with_length =
            |bytes: usize| format!("a={},b={}", "x".repeat(256), "y".repeat(bytes - 261));
        assert!(parse(&members(32)).is_ok() && parse(&with_length(512)).is_ok());
        let mut invalid_texts: Vec<String> = vec![members(33), with_length(513)];
        let malformed = [
            "", " , ", "a", "a=", "=1", "A=1", "a=1,a=2", "a=b=c", "ü=1", "a=ü", "a=\u{1b}",
            "a=1\n",
        ];
        invalid_texts.extend(malformed.map(str::to_owned));
        invalid_texts.push(format!("a={}", "x".repeat(257)));
        invalid_texts.push(format!("{}=1", "k".repeat(257)));
        for text in invalid_texts {
            assert_eq!(parse(&text), Err(MalformedTraceState), "{text:?}");
        }
    }

    #[test]
    fn a_tracestate_counts_only_with_a_valid_traceparent() {
        let parse = |parent, state| TraceContext::parse(parent, state);
        assert_eq!(parse("nothing", Some("a=1")), None);
        let parent: TraceParent = TEXT.parse().expect("well formed");
        assert_eq!(parse(TEXT, Some("nothing")), Some(parent.into()));
        let context = parse(TEXT, Some("a=1")).expect("both are valid");
        assert_eq!((context.parent, context.state.expect("a state").as_ref()), (parent, "a=1"));
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
