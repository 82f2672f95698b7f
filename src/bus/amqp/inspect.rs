//! A look at some queues, on a connection of its own: looks are rare and must not disturb the
//! loops. Also what the management API, where there is one, knows about all queues.

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
            .map(|(found, queue)| told(&shared.address, found, held.get(&**queue).copied()))
            .collect(),
    }
}

/// What a look found, as others read it.
pub(super) fn told(
    address: &BrokerAddress,
    found: Found,
    unacknowledged: Option<u64>,
) -> QueueLook {
    match found {
        Found::There { consumers, messages } => {
            QueueLook::There { messages, unacknowledged, consumers }
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

/// What workers have and have not acknowledged. Nothing is known without the management API, and
/// while it does not answer.
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
    let counted = |counts: QueueCounts| Some((counts.name, counts.messages_unacknowledged?));
    held.into_iter().flatten().filter_map(counted).collect()
}

/// What all queues of the virtual host hold.
pub(super) async fn depths(shared: Rc<Shared>) -> Result<Vec<QueueDepth>, String> {
    let management =
        shared.management.clone().ok_or("there is no management API (setting amqp.management)")?;
    let vhost = shared.address.vhost().to_owned();
    let held = in_background(move || management.held(&vhost)).await?;
    Ok(held
        .into_iter()
        .map(|QueueCounts { name, messages, .. }| QueueDepth { queue: name, messages })
        .collect())
}

/// Does work that waits on a thread of its own.
pub(super) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    actix_rt::task::spawn_blocking(work).await.map_err(|error| error.to_string()).flatten()
}
