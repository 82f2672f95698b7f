//! Inspects queues over a separate connection, so that inspections do not disturb the bus. Adds
//! what the management API reports, if it is configured.

use super::addresses::BrokerAddresses;
use super::connection::{BrokerAddress, close};
use super::management::ListedQueue;
use super::queues::{QueueCheck, QueueDeclarer};
use super::state::AmqpState;
use bus::{QueueDepth, QueueStatus};
use futures_util::future::join_all;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Returns the status of each of these queues, in the same order.
pub(super) async fn inspect(state: Rc<AmqpState>, queues: Vec<Arc<str>>) -> Vec<QueueStatus> {
    let (checks, unacknowledged_by_queue) = tokio::join!(
        check_queues(&state.addresses, &queues),
        fetch_unacknowledged(&state, &queues)
    );
    match checks {
        Err(reason) => vec![QueueStatus::Unknown(reason); queues.len()],
        Ok((address, checks)) => checks
            .into_iter()
            .zip(&queues)
            .map(|(check, queue)| match queue_status(&address, check) {
                QueueStatus::Exists { messages, consumers, .. } => {
                    let unacknowledged = unacknowledged_by_queue.get(&**queue).copied();
                    let is_full = state.full_queues.borrow().contains(queue);
                    QueueStatus::Exists { messages, unacknowledged, consumers, is_full }
                }
                status @ (QueueStatus::Endpoint { .. }
                | QueueStatus::Missing
                | QueueStatus::Unknown(_)) => status,
            })
            .collect(),
    }
}

/// Converts the result of a check to the status of the queue. A check reports neither how many
/// messages are unacknowledged nor whether the queue is full.
pub fn queue_status(address: &BrokerAddress, check: QueueCheck) -> QueueStatus {
    match check {
        QueueCheck::Exists { consumers, messages } => {
            QueueStatus::Exists { messages, unacknowledged: None, consumers, is_full: false }
        }
        QueueCheck::Missing => QueueStatus::Missing,
        QueueCheck::Exclusive => {
            QueueStatus::Unknown("it is an exclusive queue of another connection".to_owned())
        }
        QueueCheck::Unavailable(broker_text) | QueueCheck::Refused(broker_text) => {
            QueueStatus::Unknown(broker_text)
        }
        QueueCheck::Lost(error) => QueueStatus::Unknown(address.explain(&error)),
    }
}

/// Checks these queues over a separate connection.
///
/// # Errors
///
/// Returns the reason if the connection cannot be opened.
async fn check_queues(
    addresses: &BrokerAddresses,
    queues: &[Arc<str>],
) -> Result<(Arc<BrokerAddress>, Vec<QueueCheck>), String> {
    let (address, connection) = addresses.open("inspecting").await?;
    let connection = Rc::new(connection);
    let declarer = QueueDeclarer::new(connection.clone());
    let checks = join_all(queues.iter().map(|queue| declarer.check(queue))).await;
    close(&connection).await;
    Ok((address, checks))
}

/// Returns the number of unacknowledged messages by queue. The map is empty if the management API
/// is not configured or fails.
async fn fetch_unacknowledged(state: &AmqpState, queues: &[Arc<str>]) -> HashMap<String, u64> {
    let Some(management) = &state.management else { return HashMap::new() };
    let vhost = state.addresses.vhost();
    // One request is enough for any number of queues.
    let result = match queues {
        [queue] => management.find_queue(vhost, queue).await.map(|listed_queue| vec![listed_queue]),
        _ => management.list_queues(vhost).await,
    };
    let listed_queues = result.unwrap_or_default();
    state.record_properties(&listed_queues);
    let to_count = |queue: ListedQueue| Some((queue.name, queue.messages_unacknowledged?));
    listed_queues.into_iter().filter_map(to_count).collect()
}

/// Returns the depths of all queues of the virtual host.
///
/// # Errors
///
/// Returns an error if the management API is not configured or fails.
pub(super) async fn fetch_depths(state: Rc<AmqpState>) -> Result<Vec<QueueDepth>, String> {
    let management =
        state.management.as_ref().ok_or("there is no management API (setting amqp.management)")?;
    let listed_queues = management.list_queues(state.addresses.vhost()).await?;
    state.record_properties(&listed_queues);
    Ok(listed_queues
        .into_iter()
        .map(|ListedQueue { name, messages, .. }| QueueDepth { queue: name, messages })
        .collect())
}

/// Records the properties of the queues that the bus serves, if the management API reports them.
pub(super) async fn record_all_properties(state: Rc<AmqpState>) {
    let Some(management) = &state.management else { return };
    match management.list_queues(state.addresses.vhost()).await {
        Ok(listed_queues) => state.record_properties(&listed_queues),
        Err(reason) => tracing::warn!(
            reason,
            "the broker does not report how its queues are declared: a queue that disappears is \
             declared as the workflow file or the settings say"
        ),
    }
}
