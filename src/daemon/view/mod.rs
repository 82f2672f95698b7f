//! Views of jobs and workflows: plain data that serializes to JSON. The API answers with them; the
//! command line prints them when it reads a journal itself.

mod definition;
mod items;
mod job;
mod record;
mod step;

pub use definition::DefinitionView;
pub use items::{ItemMap, ItemTimes, ItemsView};
pub use job::{JobView, describe_failures};
pub use record::EntryView;
pub use step::{AttemptHistory, StepDetail};
