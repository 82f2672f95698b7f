//! The journal: the durable, ordered record from which all state can be rebuilt.
//!
//! A job's *number* gives the order of creation and ties its rows together. Its UUID may be used
//! again once the job has ended. The traits [`Journal`] and [`Records`] describe any journal;
//! [`sqlite`] stores one in a file.

mod error;
mod query;
mod record;
mod recover;
pub mod sqlite;
mod traits;

pub use error::{JournalError, Loss, Remedy};
pub use query::{
    ChildCursor, ChildFilter, ChildRow, Creation, DefinitionUse, EndedCursor, Family, Filter, Hit,
    ItemRow, JobAt, KeptJob, NEWEST, ParentRow, RecordHead, RecordPage, SearchOrder, StatusFilter,
    StatusRow,
};
pub use record::{Deleted, JobNumber, NewJob, Notice, NoticeNumber, Open, Position, Record, Sizes};
pub use recover::Recovered;
pub use sqlite::{Copied, INDEXED_COLUMNS_MAX, Options, Reader, Store, back_up, check, restore};
pub use traits::{Journal, Records};
