//! Identities: jobs, steps within a job, and the correlation id that travels with each message.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// The identity of a job or child job: a UUID, chosen by the client, by the item, or by the
/// manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub Uuid);

/// The namespace under which the ids of child jobs are derived (a constant, chosen once).
const CHILD_NAMESPACE: Uuid = Uuid::from_u128(0x6b1f_0a52_9c1e_4d0b_8f7a_3c55_d1e2_70a4);

/// The namespace under which the ids of jobs are derived from the messages that ask for them.
const CALL_NAMESPACE: Uuid = Uuid::from_u128(0x0f4d_6a39_71c2_4e58_9b1d_a2c6_40e7_5f13);

impl JobId {
    /// Derives the id of the job that a message on a workflow's queue asks for, if its `message_id`
    /// is not a UUID. The same message always gives the same id.
    pub fn from_call(parts: &[&[u8]]) -> JobId {
        let name: Vec<u8> = parts
            .iter()
            .flat_map(|part| {
                (part.len() as u64).to_be_bytes().into_iter().chain(part.iter().copied())
            })
            .collect();
        JobId(Uuid::new_v5(&CALL_NAMESPACE, &name))
    }

    /// Derives the id of the child job of `step` for the item at `index`: the same after any
    /// restart (docs/workflow-file.md). `salt` is 0 unless that id is taken by a job that has not
    /// ended.
    ///
    /// The result is a UUID of version 8: a hash of (job, step, salt), then the index. So the ids
    /// of one fan-out are neighbours, and the journal's index of ids grows at one place instead of
    /// everywhere.
    pub fn derive_child(self, step: &str, index: u32, salt: u32) -> JobId {
        let mut name = Vec::with_capacity(16 + 4 + step.len());
        name.extend_from_slice(self.0.as_bytes());
        name.extend_from_slice(&salt.to_be_bytes());
        name.extend_from_slice(step.as_bytes());
        let mut bytes = Uuid::new_v5(&CHILD_NAMESPACE, &name).into_bytes();
        bytes[12..].copy_from_slice(&index.to_be_bytes());
        JobId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }
}

/// Returns the trace span of a dispatch. It follows from ids, so that a message that is sent again
/// carries the same span. Never zero.
pub fn span_id(job: JobId, step: &str, attempt: u32) -> u64 {
    hash_of_attempt(job, step, attempt).1
}

/// Returns the jitter of the pause after a failed attempt, as a share of 2^64: as good as chance,
/// and the same after any restart.
pub(super) fn retry_jitter(job: JobId, step: &str, attempt: u32) -> u64 {
    let (high, low) = hash_of_attempt(job, step, attempt);
    // A UUID's version and variant leave fixed bits in both halves; the product of both has none.
    (high ^ low.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(super) fn hash_of_attempt(job: JobId, step: &str, attempt: u32) -> (u64, u64) {
    let mut name = Vec::with_capacity(16 + 4 + step.len());
    name.extend_from_slice(job.0.as_bytes());
    name.extend_from_slice(&attempt.to_be_bytes());
    name.extend_from_slice(step.as_bytes());
    Uuid::new_v5(&CHILD_NAMESPACE, &name).as_u64_pair()
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The error for a text that is not a job id.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid uuid {0:?}: expected 32 hexadecimal digits as 8-4-4-4-12")]
pub struct InvalidJobId(pub String);

/// The prefix of an id that is written as a URN, in any case (RFC 9562).
const URN_PREFIX: &str = "urn:uuid:";

impl FromStr for JobId {
    type Err = InvalidJobId;

    /// Parses every spelling of a UUID: with hyphens, 32 digits, in braces, as a URN. It is always
    /// displayed with hyphens.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = match text.split_at_checked(URN_PREFIX.len()) {
            Some((prefix, bare)) if prefix.eq_ignore_ascii_case(URN_PREFIX) => {
                Some(bare).filter(|bare| bare.len() == HYPHENATED_LENGTH)
            }
            Some(_) | None => Some(text),
        };
        let parsed = bare.and_then(|bare| Uuid::try_parse(bare).ok());
        parsed.map(JobId).ok_or_else(|| InvalidJobId(shorten(text)))
    }
}

/// The length of a UUID as 8-4-4-4-12.
const HYPHENATED_LENGTH: usize = 36;

impl JobId {
    /// Parses only the form with hyphens. It is used for ids that are sent back as they came: other
    /// spellings would be other correlation ids of the same step.
    pub fn parse_hyphenated(text: &str) -> Option<JobId> {
        if text.len() == HYPHENATED_LENGTH { Uuid::try_parse(text).ok().map(JobId) } else { None }
    }
}

/// The position of a step in its graph, in the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepIndex(pub u16);

impl StepIndex {
    /// Returns the index as a subscript.
    pub fn as_usize(self) -> usize {
        usize::from(self.0)
    }
}

/// The correlation id that a worker sends back: `<job or child-job UUID>:<step name>`
/// (docs/worker-protocol.md).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CorrelationId {
    /// The job or child job.
    pub job: JobId,
    /// The step's name.
    pub step: String,
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.job, self.step)
    }
}

/// The error for a text that is not a correlation id.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed correlation id {0:?}: expected <job UUID>:<step name>")]
pub struct MalformedCorrelationId(pub String);

impl FromStr for CorrelationId {
    type Err = MalformedCorrelationId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || MalformedCorrelationId(shorten(text));
        let (job, step) = text.split_once(':').ok_or_else(malformed)?;
        if !is_valid_name(step) {
            return Err(malformed());
        }
        Ok(CorrelationId {
            job: JobId::parse_hyphenated(job).ok_or_else(malformed)?,
            step: step.to_owned(),
        })
    }
}

/// Returns whether `text` is a name of a workflow, task, step or queue: `[A-Za-z][A-Za-z0-9_-]*`
/// (docs/workflow-file.md).
pub fn is_valid_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The most characters of a text from outside that an error repeats.
const EXCERPT_CHARACTERS_MAX: usize = 100;

fn shorten(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bb";

    #[test]
    fn a_correlation_id_survives_its_text() {
        let text = format!("{ID}:book-split");
        let parsed: CorrelationId = text.parse().expect("well formed");
        assert_eq!(parsed.to_string(), text);
        assert_eq!(parsed.step, "book-split");
    }

    #[test]
    fn malformed_correlation_ids_are_refused() {
        for text in [
            "",
            ":",
            ID,
            &format!("{ID}:"),
            &format!("{ID}:a b"),
            "x:step",
            &format!("{ID}:a:b"),
            &format!("{}:a", ID.replace('-', "")),
        ] {
            assert!(text.parse::<CorrelationId>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn an_id_is_parsed_in_every_spelling_and_rendered_in_one() {
        let digits = ID.replace('-', "");
        let upper = ID.to_uppercase();
        for text in [
            ID,
            &upper,
            &digits,
            &format!("{{{ID}}}"),
            &format!("urn:uuid:{ID}"),
            &format!("URN:UUID:{upper}"),
        ] {
            assert_eq!(
                text.parse::<JobId>().map(|id| id.to_string()).as_deref(),
                Ok(ID),
                "{text:?}"
            );
            assert!(
                text == ID
                    || text == upper
                    || format!("{text}:step").parse::<CorrelationId>().is_err(),
                "{text:?}"
            );
        }
        let wrong = [
            "",
            "urn:uuid:",
            "{}",
            "nonsense",
            &digits[1..],
            &format!("{ID} "),
            &format!("{{{digits}"),
            &format!("urn:uuid:{{{ID}}}"),
        ];
        for text in wrong.into_iter().chain([format!("{ID}{ID}").as_str(), "ü".repeat(20).as_str()])
        {
            assert!(text.parse::<JobId>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn ids_of_calls_follow_from_every_part_and_its_bounds() {
        let first = JobId::from_call(&[b"w", b"ab", b"c"]);
        assert_eq!(first, JobId::from_call(&[b"w", b"ab", b"c"]));
        for other in [
            JobId::from_call(&[b"w", b"a", b"bc"]),
            JobId::from_call(&[b"v", b"ab", b"c"]),
            JobId::from_call(&[b"w", b"ab"]),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn derived_ids_differ_by_step_index_and_salt_and_stay_the_same() {
        let job: JobId = ID.parse().expect("a uuid");
        let first = job.derive_child("each", 0, 0);
        assert_eq!(first, job.derive_child("each", 0, 0));
        for other in [
            job.derive_child("each", 1, 0),
            job.derive_child("other", 0, 0),
            job.derive_child("each", 0, 1),
        ] {
            assert_ne!(first, other);
        }
    }
}
