//! Whose turn it is at the broker: those who declare queues, or whoever sets the dead-letter
//! policy.
//!
//! RabbitMQ 3.10 looks twice for the policy of a queue that is declared: for the queue's process,
//! then for the record of the queue. A policy that is set in between is in the record alone, and
//! the broker sees nothing to tell the process. The queue is listed with the policy and sends no
//! dead letters, until its policy changes.

use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Lets queues be declared side by side, and never while a policy is set.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<RwLock<()>>);

impl Turns {
    /// Waits while a policy is set. None is set before this is dropped.
    pub(super) async fn to_declare(&self) -> OwnedRwLockReadGuard<()> {
        self.0.clone().read_owned().await
    }

    /// Waits for the queues that are being declared. None is declared before this is dropped.
    pub(super) async fn to_set_policy(&self) -> OwnedRwLockWriteGuard<()> {
        self.0.clone().write_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn queues_are_declared_side_by_side_and_not_while_a_policy_is_set() {
        let turns = Turns::default();
        let declares = |turns: &Turns| turns.to_declare().now_or_never();
        let (first, second) = (declares(&turns), declares(&turns));
        assert!(first.is_some() && second.is_some());
        assert!(turns.to_set_policy().now_or_never().is_none(), "queues are being declared");
        drop((first, second));
        let policy = turns.to_set_policy().now_or_never();
        assert!(policy.is_some() && declares(&turns).is_none(), "a policy is being set");
        drop(policy);
        assert!(declares(&turns).is_some());
    }
}
