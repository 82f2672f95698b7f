//! `backup` and `restore`: copies of a journal's file.

use super::arguments::{BackupArguments, RestoreArguments};
use super::error::ClientError;
use journal::BackupSummary;
use serde_json::json;
use std::io::Write;
use std::num::NonZero;

const MIB: u64 = 1 << 20;

/// Runs `backup --db FILE TARGET [--rate MIB] [--vacuum]`: copies a journal's file.
pub(super) fn back_up(arguments: &BackupArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let rate = NonZero::new(u64::from(arguments.rate) * MIB);
    let BackupArguments { db, target, vacuum, .. } = arguments;
    let copied = journal::back_up(db, target, rate, *vacuum)?;
    let subject = format!("{} is a copy of {}", arguments.target.display(), arguments.db.display());
    print_summary(&subject, copied, arguments.json, out)
}

/// Runs `restore BACKUP --db FILE` or `restore BACKUP --check`: restores a journal from a copy, or
/// checks whether that is possible.
pub(super) fn restore(
    arguments: &RestoreArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let backup = &arguments.backup;
    let (copied, subject) = match &arguments.db {
        Some(db) => {
            let copied = journal::restore(backup, db)?;
            (copied, format!("{} is restored from {}", db.display(), backup.display()))
        }
        None => {
            let copied = journal::inspect_backup(backup, &std::env::temp_dir())?;
            (copied, format!("{} can be restored", backup.display()))
        }
    };
    print_summary(&subject, copied, arguments.json, out)
}

fn print_summary(
    subject: &str,
    copied: BackupSummary,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let BackupSummary { bytes, open_jobs } = copied;
    if is_json {
        writeln!(out, "{}", json!({ "bytes": bytes, "openJobs": open_jobs }))?;
    } else {
        writeln!(out, "{subject}: {bytes} bytes, {open_jobs} jobs and child jobs to go on with")?;
    }
    Ok(())
}
