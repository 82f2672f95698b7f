//! What all other crates but the engine stand on: the clock, times as text, values of settings,
//! budgets, who is trusted, how calls are signed, and the points where tests break the daemon.

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
