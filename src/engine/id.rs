//! Ids of jobs and steps, the correlation ids of messages, and the span ids and jitter that are
//! derived from them.

use super::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// The id of a job: a UUID that a client chooses, that an item contains, or that the manager
/// creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub Uuid);

/// The UUID namespace of ids that are derived for child jobs and attempts. It must never change.
const CHILD_NAMESPACE: Uuid = Uuid::from_u128(0x6b1f_0a52_9c1e_4d0b_8f7a_3c55_d1e2_70a4);

/// The UUID namespace of job ids that are derived from calls. It must never change.
const CALL_NAMESPACE: Uuid = Uuid::from_u128(0x0f4d_6a39_71c2_4e58_9b1d_a2c6_40e7_5f13);

/// The UUID namespace of job ids that are derived from slots of schedules. It must never change.
const SLOT_NAMESPACE: Uuid = Uuid::from_u128(0x8d2e_5b17_04f9_4a6c_a3b8_61f0_9c7d_2e45);

/// The number of bytes of a child job's id that are a hash. The last four are the item's index.
const HASH_BYTES: usize = 12;

/// The length of a UUID in the form 8-4-4-4-12, in bytes.
const HYPHENATED_LENGTH: usize = 36;

/// Joins parts, each after its length, so that different parts never give the same name.
fn join_with_lengths(parts: &[&[u8]]) -> Vec<u8> {
    parts
        .iter()
        .flat_map(|part| (part.len() as u64).to_be_bytes().into_iter().chain(part.iter().copied()))
        .collect()
}

impl JobId {
    /// Derives the id of the job that a call requests if its `message_id` is not a UUID. It is
    /// derived from `parts`: the same parts always give the same id.
    pub fn from_call(parts: &[&[u8]]) -> JobId {
        JobId(Uuid::new_v5(&CALL_NAMESPACE, &join_with_lengths(parts)))
    }

    /// Derives the id of the job for a slot of a schedule, from the virtual host, the name of the
    /// schedule in it, and the slot.
    pub fn from_slot(vhost: &str, schedule: &str, slot: Timestamp) -> JobId {
        let parts = [vhost.as_bytes(), schedule.as_bytes(), &slot.0.to_be_bytes()];
        JobId(Uuid::new_v5(&SLOT_NAMESPACE, &join_with_lengths(&parts)))
    }

    /// Derives the id of the child job of `step` for the item at `index`
    /// (docs/reference/workflow-file.md). It is the same after a restart. Different salts give
    /// different ids, for reruns and when an id is taken.
    ///
    /// The result is a UUID of version 8: a hash of (job, step, salt), then the index. The ids of
    /// one fan-out are adjacent, so that inserts into the journal's index of ids are local.
    pub fn derive_child(self, step: &str, index: u32, salt: u32) -> JobId {
        let mut name = Vec::with_capacity(HASHED_BYTES_MIN + step.len());
        name.extend_from_slice(self.0.as_bytes());
        name.extend_from_slice(&salt.to_be_bytes());
        name.extend_from_slice(step.as_bytes());
        let mut bytes = Uuid::new_v5(&CHILD_NAMESPACE, &name).into_bytes();
        bytes[HASH_BYTES..].copy_from_slice(&index.to_be_bytes());
        JobId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// Parses only the form with hyphens, for ids that workers must repeat unchanged; `None`: the
    /// text is not such a UUID. Other forms would be different correlation ids of the same step.
    pub fn parse_hyphenated(text: &str) -> Option<JobId> {
        if text.len() == HYPHENATED_LENGTH { Uuid::try_parse(text).ok().map(JobId) } else { None }
    }
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

/// The prefix of a UUID as a URN, in any letter case (RFC 9562).
const URN_PREFIX: &str = "urn:uuid:";

impl FromStr for JobId {
    type Err = InvalidJobId;

    /// Parses a UUID in any form: with hyphens, as 32 digits, in braces, or as a URN. Whatever the
    /// form, the id is displayed with hyphens.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uuid_text = match text.split_at_checked(URN_PREFIX.len()) {
            Some((prefix, suffix)) if prefix.eq_ignore_ascii_case(URN_PREFIX) => {
                Some(suffix).filter(|suffix| suffix.len() == HYPHENATED_LENGTH)
            }
            Some(_) | None => Some(text),
        };
        let uuid = uuid_text.and_then(|uuid_text| Uuid::try_parse(uuid_text).ok());
        uuid.map(JobId).ok_or_else(|| InvalidJobId(shorten(text)))
    }
}

/// The position of a step in its graph, in the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepIndex(pub u16);

impl StepIndex {
    /// Stands for the job itself, where jobs and steps claim places of limits.
    pub const JOB: StepIndex = StepIndex(u16::MAX);

    /// Returns the index as a subscript of a slice.
    pub fn as_usize(self) -> usize {
        usize::from(self.0)
    }
}

/// The correlation id of a step message, which the worker repeats in its replies: `<job UUID>:<step
/// name>` (docs/reference/worker-protocol.md).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CorrelationId {
    /// The job, which may be a child job.
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

/// The size of a UUID and a number, which are hashed with a step's name, in bytes.
const HASHED_BYTES_MIN: usize = 16 + 4;

/// Returns the span id of an attempt. It is derived, so that a message that is sent again carries
/// the same one. It is never zero: it contains the variant bits of a UUID, which are not zero.
pub fn span_id(job: JobId, step: &str, attempt: u32) -> u64 {
    hash_attempt(job, step, attempt).1
}

/// 2^64 divided by the golden ratio, made odd.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the jitter of the backoff after a failed attempt, in units of 2^-64: pseudorandom, and
/// the same after a restart.
pub(super) fn retry_jitter(job: JobId, step: &str, attempt: u32) -> u64 {
    let (high, low) = hash_attempt(job, step, attempt);
    // The UUID's version and variant are fixed bits in both halves. Mixing the halves, and
    // multiplying (Fibonacci hashing), leaves no fixed bits.
    (high ^ low.rotate_left(32)).wrapping_mul(GOLDEN_RATIO)
}

/// Returns a hash of an attempt, as the two halves of a UUID of version 5.
pub(super) fn hash_attempt(job: JobId, step: &str, attempt: u32) -> (u64, u64) {
    let mut name = Vec::with_capacity(HASHED_BYTES_MIN + step.len());
    name.extend_from_slice(job.0.as_bytes());
    name.extend_from_slice(&attempt.to_be_bytes());
    name.extend_from_slice(step.as_bytes());
    Uuid::new_v5(&CHILD_NAMESPACE, &name).as_u64_pair()
}

/// Returns whether `text` is a valid name of a workflow, task, step or queue:
/// `[A-Za-z][A-Za-z0-9_-]*` (docs/reference/workflow-file.md).
pub fn is_valid_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// The maximum length of an untrusted text in an error, in characters.
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
    fn a_correlation_id_is_parsed_as_it_is_displayed() {
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
            assert!(text.parse::<CorrelationId>().is_err(), "{text:?} is accepted");
        }
    }

    #[test]
    fn an_id_is_parsed_in_every_form_and_displayed_in_one() {
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
            let is_hyphenated = text == ID || text == upper;
            let is_correlation_id = format!("{text}:step").parse::<CorrelationId>().is_ok();
            assert_eq!(is_correlation_id, is_hyphenated, "{text:?}");
        }
        let malformed = [
            "",
            "urn:uuid:",
            "{}",
            "nonsense",
            &digits[1..],
            &format!("{ID} "),
            &format!("{{{digits}"),
            &format!("urn:uuid:{{{ID}}}"),
        ];
        let too_long = format!("{ID}{ID}");
        let not_ascii = "ü".repeat(20);
        for text in malformed.into_iter().chain([too_long.as_str(), not_ascii.as_str()]) {
            assert!(text.parse::<JobId>().is_err(), "{text:?} is accepted");
        }
    }

    #[test]
    fn ids_of_calls_depend_on_every_part_and_its_boundaries() {
        let id = JobId::from_call(&[b"w", b"ab", b"c"]);
        assert_eq!(id, JobId::from_call(&[b"w", b"ab", b"c"]));
        for other in [
            JobId::from_call(&[b"w", b"a", b"bc"]),
            JobId::from_call(&[b"v", b"ab", b"c"]),
            JobId::from_call(&[b"w", b"ab"]),
        ] {
            assert_ne!(id, other);
        }
    }

    #[test]
    fn ids_of_child_jobs_depend_on_step_index_and_salt_and_are_repeatable() {
        let job: JobId = ID.parse().expect("a uuid");
        let id = job.derive_child("each", 0, 0);
        assert_eq!(id, job.derive_child("each", 0, 0));
        for other in [
            job.derive_child("each", 1, 0),
            job.derive_child("other", 0, 0),
            job.derive_child("each", 0, 1),
        ] {
            assert_ne!(id, other);
        }
    }
}
