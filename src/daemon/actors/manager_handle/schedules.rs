//! Requests of clients about schedules.

use super::{ManagerHandle, not_accepting};
use crate::actors::client_response::RequestError;
use crate::actors::inputs::SchedulerInput;
use crate::actors::schedule_requests::{
    Backfill, BackfilledSlot, ScheduleOperation, ScheduleStatus,
};
use tokio::sync::oneshot;

impl ManagerHandle {
    /// Returns all schedules, ordered by their full names.
    ///
    /// # Errors
    ///
    /// Returns an error if the manager is stopping.
    pub async fn schedules(&self) -> Result<Vec<ScheduleStatus>, RequestError> {
        let (sender, receiver) = oneshot::channel();
        self.0.scheduler.send(SchedulerInput::List(sender));
        receiver.await.map_err(|_| RequestError::Overloaded("the manager is stopping".to_owned()))
    }

    /// Carries out an operation on the schedule of this full name. Returns once it is stored.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such schedule, or the operation is not possible now.
    pub async fn operate_schedule(
        &self,
        name: &str,
        operation: ScheduleOperation,
    ) -> Result<ScheduleStatus, RequestError> {
        if !self.0.health.can_accept() {
            return Err(not_accepting());
        }
        let (sender, receiver) = oneshot::channel();
        self.0.scheduler.send(SchedulerInput::Operate(name.to_owned(), operation, sender));
        receiver
            .await
            .unwrap_or_else(|_| Err(RequestError::Overloaded("the manager is stopping".to_owned())))
    }

    /// Starts the jobs of slots that have passed, unless they exist. Returns once that is stored.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such schedule, or a job could not be started.
    pub async fn backfill_schedule(
        &self,
        name: &str,
        backfill: Backfill,
    ) -> Result<Vec<BackfilledSlot>, RequestError> {
        if !self.0.health.can_accept() {
            return Err(not_accepting());
        }
        let (sender, receiver) = oneshot::channel();
        self.0.scheduler.send(SchedulerInput::Backfill(name.to_owned(), backfill, sender));
        receiver
            .await
            .unwrap_or_else(|_| Err(RequestError::Overloaded("the manager is stopping".to_owned())))
    }
}
