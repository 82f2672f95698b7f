//! Inspects queues over its own connection, because inspections are rare and must not disturb the
//! bus. Adds what the management API, if there is one, knows of the queues.

use super::connection::{BrokerAddress, close};
use super::management::ListedQueue;
use super::queues::{QueueCheck, QueueDeclarer};
use super::state::AmqpState;
use bus::{QueueDepth, QueueStatus};
use futures_util::future::join_all;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

pub(super) async fn inspect(state: Rc<AmqpState>, queues: Vec<Arc<str>>) -> Vec<QueueStatus> {
    let (checks, unacknowledged) =
        tokio::join!(check_queues(&state, &queues), fetch_unacknowledged(&state, &queues));
    match checks {
        Err(reason) => vec![QueueStatus::Unknown(reason); queues.len()],
        Ok(found) => found
            .into_iter()
            .zip(&queues)
            .map(|(found, queue)| match queue_status(&state.address, found) {
                QueueStatus::Exists { messages, consumers, .. } => {
                    let unacknowledged = unacknowledged.get(&**queue).copied();
                    let is_full = state.full_queues.borrow().contains(queue);
                    QueueStatus::Exists { messages, unacknowledged, consumers, is_full }
                }
                other @ (QueueStatus::Endpoint { .. }
                | QueueStatus::Missing
                | QueueStatus::Unknown(_)) => other,
            })
            .collect(),
    }
}

/// Converts the check of a queue to its status, as far as the check knows it.
pub fn queue_status(address: &BrokerAddress, found: QueueCheck) -> QueueStatus {
    match found {
        QueueCheck::Exists { consumers, messages } => {
            QueueStatus::Exists { messages, unacknowledged: None, consumers, is_full: false }
        }
        QueueCheck::Missing => QueueStatus::Missing,
        QueueCheck::Exclusive => {
            QueueStatus::Unknown("it is an exclusive queue of another connection".to_owned())
        }
        QueueCheck::Refused(broker_text) => QueueStatus::Unknown(broker_text),
        QueueCheck::Lost(error) => QueueStatus::Unknown(address.explain(&error)),
    }
}

async fn check_queues(state: &AmqpState, queues: &[Arc<str>]) -> Result<Vec<QueueCheck>, String> {
    let connection = Rc::new(state.address.open("inspecting").await?);
    let declarer = QueueDeclarer::new(connection.clone());
    let found = join_all(queues.iter().map(|queue| declarer.check(queue))).await;
    close(&connection).await;
    Ok(found)
}

/// Returns the number of unacknowledged messages by queue. It is empty without the management API,
/// or while that does not answer.
async fn fetch_unacknowledged(state: &AmqpState, queues: &[Arc<str>]) -> HashMap<String, u64> {
    let Some(management) = &state.management else { return HashMap::new() };
    let vhost = state.address.vhost();
    let listed = match queues {
        [queue] => management.find_queue(vhost, queue).await.map(|found| vec![found]),
        _ => management.list_queues(vhost).await,
    };
    let known = listed.unwrap_or_default();
    state.remember_properties(&known);
    let counted = |counts: ListedQueue| Some((counts.name, counts.messages_unacknowledged?));
    known.into_iter().filter_map(counted).collect()
}

/// Returns the depths of all queues of the virtual host.
pub(super) async fn fetch_depths(state: Rc<AmqpState>) -> Result<Vec<QueueDepth>, String> {
    let management =
        state.management.as_ref().ok_or("there is no management API (setting amqp.management)")?;
    let listed = management.list_queues(state.address.vhost()).await?;
    state.remember_properties(&listed);
    Ok(listed
        .into_iter()
        .map(|ListedQueue { name, messages, .. }| QueueDepth { queue: name, messages })
        .collect())
}

/// Remembers how the queues of the virtual host are declared, if the management API reports it.
pub(super) async fn remember_all_properties(state: Rc<AmqpState>) {
    let Some(management) = &state.management else { return };
    match management.list_queues(state.address.vhost()).await {
        Ok(listed) => state.remember_properties(&listed),
        Err(reason) => tracing::warn!(
            reason,
            "the broker does not tell how its queues are declared: one that vanishes is declared \
             as the workflow file or the settings say"
        ),
    }
}
