//! What all crates but the engine share: the clock, RFC 3339 times, types of settings, budgets, the
//! HTTP client, trusted certificate authorities, rules for addresses, signatures of requests, and
//! failpoints for tests.

pub mod budget;
pub mod clock;
pub mod faults;
pub mod http_client;
pub mod networks;
#[cfg(feature = "openapi")]
mod openapi;
pub mod signature;
pub mod times;
pub mod trust;
pub mod values;
pub mod web_address;
