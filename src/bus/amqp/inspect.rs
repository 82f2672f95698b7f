//! Inspects queues over its own connection, because inspections are rare and must not disturb the
//! bus. Adds what the management API, if there is one, knows of the queues.

use super::connection::{BrokerAddress, close};
use super::management::QueueCounts;
use super::queues::{Found, Queues};
use super::shared::Shared;
use crate::bus::{QueueDepth, QueueLook};
use futures_util::future::join_all;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

pub(super) async fn inspect(shared: Rc<Shared>, queues: Vec<Arc<str>>) -> Vec<QueueLook> {
    let (found, held) = tokio::join!(look(&shared, &queues), unacknowledged(&shared, &queues));
    match found {
        Err(reason) => vec![QueueLook::Unknown(reason); queues.len()],
        Ok(found) => found
            .into_iter()
            .zip(&queues)
            .map(|(found, queue)| {
                let look = queue_look(&shared.address, found, held.get(&**queue).copied());
                match look {
                    QueueLook::There { messages, unacknowledged, consumers, .. } => {
                        let is_full = shared.full.borrow().contains(queue);
                        QueueLook::There { messages, unacknowledged, consumers, is_full }
                    }
                    other @ (QueueLook::Service { .. }
                    | QueueLook::Missing
                    | QueueLook::Unknown(_)) => other,
                }
            })
            .collect(),
    }
}

/// Converts the check of a queue to its status.
pub(super) fn queue_look(
    address: &BrokerAddress,
    found: Found,
    unacknowledged: Option<u64>,
) -> QueueLook {
    match found {
        Found::There { consumers, messages } => {
            QueueLook::There { messages, unacknowledged, consumers, is_full: false }
        }
        Found::Missing => QueueLook::Missing,
        Found::Locked => {
            QueueLook::Unknown("it is an exclusive queue of another connection".to_owned())
        }
        Found::Refused(said) => QueueLook::Unknown(said),
        Found::Lost(error) => QueueLook::Unknown(address.explain(&error)),
    }
}

async fn look(shared: &Shared, queues: &[Arc<str>]) -> Result<Vec<Found>, String> {
    let connection = Rc::new(shared.address.open("inspecting").await?);
    let looks = Queues::new(connection.clone());
    let found = join_all(queues.iter().map(|queue| looks.look(queue))).await;
    close(&connection).await;
    Ok(found)
}

/// Returns the number of unacknowledged messages by queue. It is empty without the management API,
/// or while that does not answer.
async fn unacknowledged(shared: &Shared, queues: &[Arc<str>]) -> HashMap<String, u64> {
    let Some(management) = shared.management.clone() else { return HashMap::new() };
    let vhost = shared.address.vhost().to_owned();
    let held = match queues {
        [queue] => {
            let queue = queue.clone();
            in_background(move || management.held_by(&vhost, &queue).map(|held| vec![held])).await
        }
        _ => in_background(move || management.held(&vhost)).await,
    };
    let held = held.unwrap_or_default();
    shared.see(&held);
    let counted = |counts: QueueCounts| Some((counts.name, counts.messages_unacknowledged?));
    held.into_iter().filter_map(counted).collect()
}

/// Returns the depths of all queues of the virtual host.
pub(super) async fn depths(shared: Rc<Shared>) -> Result<Vec<QueueDepth>, String> {
    let management =
        shared.management.clone().ok_or("there is no management API (setting amqp.management)")?;
    let vhost = shared.address.vhost().to_owned();
    let held = in_background(move || management.held(&vhost)).await?;
    shared.see(&held);
    Ok(held
        .into_iter()
        .map(|QueueCounts { name, messages, .. }| QueueDepth { queue: name, messages })
        .collect())
}

/// Remembers how the queues of the virtual host are declared, if the management API reports it.
pub(super) async fn see_all(shared: Rc<Shared>) {
    let Some(management) = shared.management.clone() else { return };
    let vhost = shared.address.vhost().to_owned();
    match in_background(move || management.held(&vhost)).await {
        Ok(listed) => shared.see(&listed),
        Err(reason) => tracing::warn!(
            reason,
            "the broker does not tell how its queues are declared: one that vanishes is declared \
             as the workflow file or the settings say"
        ),
    }
}

/// Runs blocking work on a thread of its own.
pub(super) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    actix_rt::task::spawn_blocking(work).await.map_err(|error| error.to_string()).flatten()
}
