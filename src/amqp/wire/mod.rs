//! Filters what the AMQP library reads from the socket, so that no message can cost more than
//! itself, whatever its bytes are.
//!
//! The library parses nested values by recursion. It gives up the connection at a short text that
//! is not UTF-8, or at a frame that is too large. The broker passes both on, so the message would
//! be delivered again on the next connection, without end. `frame_filter` therefore reads the input
//! frame by frame, and replaces a header that the library cannot handle by a substitute (`header`)
//! that carries the reason. `filtered_stream` puts the filter into the library's connections. It
//! stops reading while the `delivery_budget` is used up, and stops writing while a `burst` is
//! handed over.

pub(super) mod burst;
pub(crate) mod delivery_budget;
pub(super) mod filtered_stream;
mod frame_filter;
mod header;

pub use frame_filter::{FrameFilter, FrameTooLarge};
pub use header::{
    NESTING_MAX, ORIGINAL_HEADER, Property, REASON_HEADER, UnsupportedHeader, VALUES_MAX,
    check_header, read_property,
};
