//! What stands between the socket and the AMQP library, so that a message costs at most itself,
//! whatever its bytes.
//!
//! The library parses nested values by recursion, and gives up its connection at any short text
//! that is not UTF-8, or at a frame that is too large. The broker passes both on: the message would
//! come again on the next connection, for ever. So `sieve` reads what comes in frame by frame, and
//! replaces a header that the library cannot bear with a stand-in (`header`), which tells the
//! reason to whoever takes the delivery. `guard` puts the sieve into the library's connections. It
//! does not read them while there is no `room` for what was read, nor write to them while a `burst`
//! is handed over.

pub(super) mod burst;
pub(super) mod guard;
mod header;
pub(in crate::bus) mod room;
mod sieve;

pub use header::{NESTING_MAX, ORIGINAL, REASON, Unbearable, VALUES_MAX, check};
pub(super) use header::{Property, property};
pub use sieve::{Sieve, TooLarge};
