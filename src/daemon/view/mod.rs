//! Views of jobs and workflows: plain data that serializes to JSON. The API returns them. The
//! command line prints them too, when it reads a journal file itself.

mod cells;
mod definition;
mod items;
mod job;
mod record;
mod step;

pub use cells::CellsView;
pub use definition::DefinitionView;
pub use items::{ItemMap, ItemTimes, ItemsView};
pub use job::{JobView, describe_failures};
pub use record::EntryView;
pub use step::{AttemptHistory, StepDetail};
