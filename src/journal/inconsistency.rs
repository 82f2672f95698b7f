//! Turns panics over rows that contradict each other into errors.

use engine::Definition;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a part of the rebuilding of a job. A panic becomes an error: the entries are inconsistent.
pub(crate) fn catch_inconsistency<T>(fold: impl FnOnce() -> T) -> Result<T, String> {
    catch_panic(fold)
        .map_err(|reason| format!("its entries do not follow from one another: {reason}"))
}

/// Parses the JSON of a definition. A panic, such as one over an invalid graph, becomes an error.
pub(crate) fn parse_definition(body: &str) -> Result<Definition, String> {
    let parse = || serde_json::from_str::<Definition>(body).map_err(|error| error.to_string());
    catch_panic(parse).map_err(|reason| format!("its graphs are wrong: {reason}")).flatten()
}

/// Runs `operation`, and turns a panic into an error. The engine asserts its invariants. Rows that
/// a faulty program wrote can break them in spite of valid checksums. Such damage must be reported,
/// and must not end the process at startup.
fn catch_panic<T>(operation: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(operation)).map_err(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        message.unwrap_or("a panic without a text").to_owned()
    })
}
