//! The causes that the API names for a job that waits.

use serde::Serialize;
use utoipa::ToSchema;

/// Why a job waits, the most specific cause first. If several steps run, the response names the
/// first of their causes in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WaitCause {
    JournalFull,
    Paused,
    StartsLater,
    BrokerGone,
    BrokerBlocked,
    QueueFull,
    Lost,
    NoConsumer,
    NotDelivered,
    BackOff,
    Limit,
    Person,
    WindowFull,
    AllBusy,
    Sending,
    Working,
    Unknown,
    Waiting,
    Condition,
    Ended,
}
