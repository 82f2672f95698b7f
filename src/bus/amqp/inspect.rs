//! A look at one queue, on a connection of its own: looks are rare and must not disturb the loops.
//! Also what the management API, where there is one, knows about all queues.

use super::connection::close;
use super::management::QueueCounts;
use super::queues::{Found, Queues};
use super::shared::Shared;
use crate::bus::{QueueDepth, QueueLook};
use std::rc::Rc;
use std::sync::Arc;

pub(super) async fn inspect(shared: Rc<Shared>, queue: Arc<str>) -> QueueLook {
    let (found, unacknowledged) =
        tokio::join!(look(&shared, &queue), unacknowledged(&shared, &queue));
    match found {
        Ok(Found::There { consumers, messages }) => {
            QueueLook::There { messages, unacknowledged, consumers }
        }
        Ok(Found::Missing) => QueueLook::Missing,
        Ok(Found::Locked) => {
            QueueLook::Unknown("it is an exclusive queue of another connection".to_owned())
        }
        Ok(Found::Refused(said)) => QueueLook::Unknown(said),
        Ok(Found::Lost(error)) => QueueLook::Unknown(shared.address.explain(&error)),
        Err(reason) => QueueLook::Unknown(reason),
    }
}

async fn look(shared: &Shared, queue: &str) -> Result<Found, String> {
    let connection = Rc::new(shared.address.open("inspecting").await?);
    let found = Queues::new(connection.clone()).look(queue).await;
    close(&connection).await;
    Ok(found)
}

/// Unknown without the management API, and while it does not answer.
async fn unacknowledged(shared: &Shared, queue: &Arc<str>) -> Option<u64> {
    let (management, vhost, queue) =
        (shared.management.clone()?, shared.address.vhost().to_owned(), queue.clone());
    in_background(move || management.held_by(&vhost, &queue)).await.ok()?.messages_unacknowledged
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

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    actix_rt::task::spawn_blocking(work).await.map_err(|error| error.to_string()).flatten()
}
