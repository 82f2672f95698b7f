//! How a job is shown: plain data that serialises to JSON. The API answers with it; the command
//! line prints it where it reads a journal itself.

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
