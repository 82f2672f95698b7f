//! Filters what lapin reads from the socket, so that a malformed message cannot break the
//! connection.
//!
//! lapin parses nested values recursively, so deep nesting overflows its stack. It closes the
//! connection if a short string is not UTF-8 or a frame is too large. The broker checks none of
//! this, so it would redeliver the message on every new connection. The `frame_filter` therefore
//! parses the input frame by frame. It replaces a content header that lapin cannot handle by a
//! substitute (`header`) that carries the reason.
//!
//! The `filtered_stream` installs the filter in lapin's connections. It stops reading while the
//! `delivery_budget` is exhausted, and stops writing while a `burst` is being queued.

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
