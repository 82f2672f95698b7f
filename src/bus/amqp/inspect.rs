//! A look at one queue, on a connection of its own: it is rare, and must not disturb the loops.

use super::Common;
use super::connection::close;
use super::queues::{Found, Queues};
use crate::bus::QueueLook;
use std::rc::Rc;
use std::sync::Arc;

pub(super) async fn inspect(common: Rc<Common>, queue: Arc<str>) -> QueueLook {
    let connection = match common.address.open("inspecting").await {
        Ok(connection) => Rc::new(connection),
        Err(reason) => return QueueLook::Unknown(reason),
    };
    let found = Queues::new(connection.clone()).look(&queue).await;
    close(&connection).await;
    match found {
        Found::There { consumers, messages } => QueueLook::There { messages, consumers },
        Found::Missing => QueueLook::Missing,
        Found::Locked => QueueLook::Unknown("it is an exclusive queue of another connection".to_owned()),
        Found::Refused(said) => QueueLook::Unknown(said),
        Found::Lost(error) => QueueLook::Unknown(common.address.explain(&error)),
    }
}
