//! Limits of rate and concurrency: their definitions, and what steps claim of them. The
//! [gate](super::gate) decides when a claim is admitted.

use super::expression::Expression;
use super::id::StepIndex;
use super::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A limit, as a workflow file defines it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitDefinition {
    /// The name, unique in a virtual host.
    pub name: Arc<str>,
    /// How often messages may be sent; `None`: any number of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// How many attempts may be under way at once; `None`: any number of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Gives the key: the limit counts for each key by itself. `None`: there is one key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Expression>,
    /// Gives the value whose holders take turns; `None`: who waits longest is first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair: Option<Expression>,
}

/// What a limit allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitSetting {
    /// How often messages may be sent, for each key; `None`: any number of them.
    pub rate: Option<Rate>,
    /// How many steps may hold a place of each key at once; `None`: any number of them.
    pub concurrency: Option<u32>,
    /// Whether nobody is admitted.
    pub is_paused: bool,
}

impl LimitDefinition {
    /// Returns what the limit allows.
    pub fn setting(&self) -> LimitSetting {
        LimitSetting { rate: self.rate, concurrency: self.concurrency, is_paused: false }
    }
}

/// A rate: at most `burst + count × W / per` messages are sent in any window `W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// How many messages may be sent in each period.
    pub count: u32,
    /// The period.
    pub per: Millis,
    /// How many messages may be sent at once after a pause; at least 1.
    pub burst: u32,
}

/// Nanoseconds in a millisecond.
const NS_PER_MS: u64 = 1_000_000;

impl Rate {
    /// Returns the time between two messages, in nanoseconds.
    pub fn interval_ns(&self) -> i64 {
        let per_ns = self.per.0.saturating_mul(NS_PER_MS);
        i64::try_from(per_ns.div_ceil(u64::from(self.count.max(1)))).unwrap_or(i64::MAX)
    }

    /// Returns how far the theoretical arrival time may be ahead when a message is sent (GCRA), in
    /// nanoseconds.
    pub fn tolerance_ns(&self) -> i64 {
        self.interval_ns().saturating_mul(i64::from(self.burst.max(1)) - 1)
    }
}

/// Writes a rate as workflow files do, such as `100/s`, without its burst.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = self.per.to_string();
        let unit = per.strip_prefix('1').filter(|unit| unit.chars().all(char::is_alphabetic));
        write!(f, "{}/{}", self.count, unit.unwrap_or(&per))
    }
}

/// A place of a limit that a step claims: the limit, with the values of its key and of its `fair`
/// for the step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimedPlace {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// The key; `None`: the limit has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    /// The value of `fair`; `None`: the limit has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair: Option<Arc<str>>,
}

/// Returns places that a step claims, without a copy of what its claims can share. `keyless`: the
/// places of its limits without keys. `limits`: the names of its limits.
pub(super) fn share_places(
    keyless: &Arc<[ClaimedPlace]>,
    limits: &[Arc<str>],
    places: &Arc<[ClaimedPlace]>,
) -> Arc<[ClaimedPlace]> {
    if Arc::ptr_eq(keyless, places) || keyless == places {
        return keyless.clone();
    }
    let share = |place: &ClaimedPlace| {
        let name = limits.iter().find(|name| **name == place.limit);
        ClaimedPlace { limit: name.unwrap_or(&place.limit).clone(), ..place.clone() }
    };
    places.iter().map(share).collect()
}

/// What an attempt of a step, or a job, claims or holds of limits.
#[derive(Clone, Debug, PartialEq)]
pub struct StepClaim {
    /// The number of the entry that claimed the places, or that sent the message or began the job
    /// under them. It identifies what the gate admits.
    pub ticket: u64,
    /// When the attempt or the job began to wait.
    pub since: Timestamp,
    /// The places.
    pub places: Arc<[ClaimedPlace]>,
    /// What the claim is about.
    pub state: ClaimState,
}

impl StepClaim {
    /// The number of the entry with which a new job claims its place: the second one.
    pub const TICKET_OF_NEW_JOB: u64 = 2;
}

/// What a job claims of the limit of its workflow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JobClaim {
    /// When it was made: of two jobs the one with the later claim is the newer one. The end of a
    /// delay does not change it.
    pub(crate) made: Timestamp,
    /// The claim.
    pub(crate) claim: StepClaim,
}

/// The state of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// The job begins later, and waits for no place until then.
    Delayed,
    /// The attempt or the job waits for its places. Its message is not sent, the job has not begun.
    Waiting,
    /// The attempt's message is sent, or the job has begun: it holds its places.
    Holding,
    /// The attempt holds its places, and its message waits to be sent once more.
    Resending,
}

/// What a step or a job wants of the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// The claim.
    pub claim: StepClaim,
    /// When the claim was made. It may wait since later: from the end of a delay.
    pub made: Timestamp,
    /// The priority of the step: a higher one is first.
    pub priority: u8,
}

impl Demand {
    /// Returns whether the gate must admit something.
    pub fn waits(&self) -> bool {
        matches!(self.claim.state, ClaimState::Waiting | ClaimState::Resending)
    }

    /// Returns the demand of a step whose messages are with this process until a worker has them:
    /// what a restart puts back into their queue is not sent once more.
    pub fn without_resending(mut self) -> Demand {
        if self.holds() {
            self.claim.state = ClaimState::Holding;
        }
        self
    }

    /// Returns whether the step or the job holds places already.
    pub fn holds(&self) -> bool {
        matches!(self.claim.state, ClaimState::Holding | ClaimState::Resending)
    }
}

/// What a step, or the job ([`StepIndex::JOB`]), wants of the gate from now on; `None`: nothing.
pub type StepDemand = (StepIndex, Option<Demand>);

/// What a decision wants of the gate: mostly that one step ends, and the next one begins.
pub type StepDemands = SmallVec<[StepDemand; 2]>;

/// How far the sending of messages has used up a rate, for the journal: the theoretical arrival
/// time of the next message under a limit and key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateMark {
    /// The full name of the limit.
    pub limit: Arc<str>,
    /// The key; empty if the limit has none.
    pub key: Arc<str>,
    /// The theoretical arrival time.
    pub time: Timestamp,
}
