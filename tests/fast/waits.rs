//! Waiting for what is to come, up to one deadline.

use std::time::Duration;

/// How long a condition is waited for before the test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks again and again until there is something to see.
pub(crate) async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let found = tokio::time::timeout(DEADLINE, async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"))
}
