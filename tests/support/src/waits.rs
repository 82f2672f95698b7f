//! Waiting for conditions, with one deadline for all tests.

use std::time::Duration;

/// How long to wait for a condition before the test fails.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The interval at which a condition is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The result of a probe: a `bool` that says whether a condition is met, or an `Option` that is
/// `Some` once it is.
pub trait Condition {
    /// What waiting returns.
    type Value;

    /// Returns the value if the condition is met.
    fn value(self) -> Option<Self::Value>;
}

impl Condition for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Value = T;

    fn value(self) -> Option<T> {
        self
    }
}

/// Polls `probe` until its condition is met, and returns the value. Panics with `description` after
/// the deadline.
pub async fn until<C: Condition>(description: &str, mut probe: impl FnMut() -> C) -> C::Value {
    until_async(description, async || probe()).await
}

/// Like [`until`], with an asynchronous probe.
pub async fn until_async<C: Condition>(
    description: &str,
    probe: impl AsyncFnMut() -> C,
) -> C::Value {
    within(description, poll_async(probe)).await
}

/// Polls `probe` until its condition is met, without a deadline. For measurements.
pub async fn poll<C: Condition>(mut probe: impl FnMut() -> C) -> C::Value {
    poll_async(async || probe()).await
}

async fn poll_async<C: Condition>(mut probe: impl AsyncFnMut() -> C) -> C::Value {
    loop {
        if let Some(value) = probe().await.value() {
            return value;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits for a future. Panics with `description` after the deadline.
pub async fn within<T>(description: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(DEADLINE, future).await;
    result.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {description}"))
}
