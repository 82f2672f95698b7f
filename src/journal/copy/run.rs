//! The copy of one journal, whatever its storage.

use super::check;
use super::progress::CopyProgress;
use super::rows::{CopyReader, CopySummary, CopyWriter};
use super::transfer;
use crate::error::JournalError;

/// Copies everything, and compares the copy with its original. Returns what the copy has.
pub(crate) fn copy_and_check(
    source: &dyn CopyReader,
    target: &mut dyn CopyWriter,
    progress: &CopyProgress,
) -> Result<CopySummary, JournalError> {
    progress.set_total(source.count_jobs()?);
    let original = transfer::transfer(source, target, progress)?;
    check::check(source.journal(), &original, target, progress)?;
    Ok(original.summary)
}
