//! What stands between the socket and the AMQP library, so that a message costs that message at
//! most, whatever its bytes.
//!
//! The library parses nested values by recursion, and gives up its connection at any short text
//! that is not UTF-8, or at a frame that is too large. The broker passes both on: the message would
//! come again on the next connection, for ever. So the [`sieve`] reads frame by frame what comes
//! in, and puts a bearable header in the place of one that is not ([`header`]); whoever takes the
//! delivery finds the reason in it. [`guard`] puts the sieve into the library's connections, and
//! does not read them while what was read has no [`room`], nor write to them while a [`burst`] is
//! handed over.

pub(super) mod burst;
pub(super) mod guard;
mod header;
pub(in crate::bus) mod room;
mod sieve;

pub use header::{NESTING_MAX, ORIGINAL, REASON, Unbearable, VALUES_MAX, check};
pub(super) use header::{Property, property};
pub use sieve::{Sieve, TooLarge};
