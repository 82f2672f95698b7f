//! Waiting for what is to come, up to one deadline.

use std::time::Duration;

/// How long a condition is waited for before the test fails.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// What a look gives: whether a condition holds, or what was to come.
pub trait Condition {
    /// What whoever has waited gets.
    type Value;

    /// Returns what was found; none: not yet.
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

/// Looks again and again until there is something to see.
pub async fn until<C: Condition>(what: &str, mut look: impl FnMut() -> C) -> C::Value {
    until_async(what, async || look()).await
}

/// Looks again and again until there is something to see; to look may take its time.
pub async fn until_async<C: Condition>(what: &str, look: impl AsyncFnMut() -> C) -> C::Value {
    within(what, poll_async(look)).await
}

/// Looks again and again, without a deadline: for measurements.
pub async fn poll<C: Condition>(mut look: impl FnMut() -> C) -> C::Value {
    poll_async(async || look()).await
}

async fn poll_async<C: Condition>(mut look: impl AsyncFnMut() -> C) -> C::Value {
    loop {
        if let Some(found) = look().await.value() {
            return found;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for a future, which must end within the deadline.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(DEADLINE, future).await;
    ended.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"))
}
