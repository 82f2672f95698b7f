//! Prevents a race between declaring queues and setting the dead-letter policy.
//!
//! When a queue is declared, RabbitMQ 3.10 looks up its policy twice: for the queue's process, then
//! for the record of the queue. A policy that is set in between is in the record only, and the
//! broker does not notify the process. The queue is then listed with the policy, but dead-letters
//! no message until its policy changes.

use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Allows queues to be declared concurrently, but never while a policy is being set.
#[derive(Clone, Debug, Default)]
pub(super) struct PolicyLock(Arc<RwLock<()>>);

impl PolicyLock {
    /// Waits until no policy is being set. No policy can be set until the guard is dropped.
    pub(super) async fn lock_for_declare(&self) -> OwnedRwLockReadGuard<()> {
        self.0.clone().read_owned().await
    }

    /// Waits until no queue is being declared. No queue can be declared until the guard is dropped.
    pub(super) async fn lock_for_policy(&self) -> OwnedRwLockWriteGuard<()> {
        self.0.clone().write_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn queues_are_declared_concurrently_and_not_while_a_policy_is_set() {
        let policy_lock = PolicyLock::default();
        let try_declare = || policy_lock.lock_for_declare().now_or_never();
        let (first_guard, second_guard) = (try_declare(), try_declare());
        assert!(first_guard.is_some() && second_guard.is_some());
        assert!(
            policy_lock.lock_for_policy().now_or_never().is_none(),
            "queues are being declared"
        );
        drop((first_guard, second_guard));
        let policy_guard = policy_lock.lock_for_policy().now_or_never();
        assert!(policy_guard.is_some() && try_declare().is_none(), "a policy is being set");
        drop(policy_guard);
        assert!(try_declare().is_some());
    }
}
