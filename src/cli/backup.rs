//! `backup` and `restore`: copy a journal's file, and restore a journal from a copy.

use super::arguments::{BackupArguments, RestoreArguments};
use super::error::ClientError;
use journal::BackupSummary;
use serde_json::json;
use std::io::Write;
use std::num::NonZero;

/// The number of bytes in one MiB.
const MIB: u64 = 1 << 20;

/// Runs `backup --db FILE TARGET [--rate MIB] [--vacuum]`: copies a journal's file.
pub(super) fn back_up(arguments: &BackupArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    // In bytes per second. A rate of 0 becomes `None`: no limit.
    let rate = NonZero::new(u64::from(arguments.rate) * MIB);
    let BackupArguments { db, target, vacuum, .. } = arguments;
    let summary = journal::back_up(db, target, rate, *vacuum)?;
    let subject = format!("{} is a copy of {}", arguments.target.display(), arguments.db.display());
    print_summary(&subject, summary, arguments.json, out)
}

/// Runs `restore BACKUP --db FILE`, which restores a journal from a copy, or
/// `restore BACKUP --check`, which checks whether that is possible.
pub(super) fn restore(
    arguments: &RestoreArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let backup = &arguments.backup;
    let (summary, subject) = match &arguments.db {
        Some(db) => {
            let summary = journal::restore(backup, db)?;
            (summary, format!("{} is restored from {}", db.display(), backup.display()))
        }
        None => {
            let summary = journal::inspect_backup(backup, &std::env::temp_dir())?;
            (summary, format!("{} can be restored", backup.display()))
        }
    };
    print_summary(&subject, summary, arguments.json, out)
}

fn print_summary(
    subject: &str,
    summary: BackupSummary,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let BackupSummary { bytes, open_jobs } = summary;
    if is_json {
        writeln!(out, "{}", json!({ "bytes": bytes, "openJobs": open_jobs }))?;
    } else {
        writeln!(out, "{subject}: {bytes} bytes, {open_jobs} jobs and child jobs to go on with")?;
    }
    Ok(())
}
