//! `backup` and `restore`: copies of a journal's file.

use super::arguments::{BackupArguments, RestoreArguments};
use super::error::ClientError;
use crate::journal::{self, Copied, JournalError};
use serde_json::json;
use std::io::Write;
use std::num::NonZero;

const MIB: u64 = 1 << 20;

/// Runs `backup --db FILE TARGET [--rate MIB] [--vacuum]`.
pub(super) fn back_up(arguments: &BackupArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let rate = NonZero::new(u64::from(arguments.rate) * MIB);
    let BackupArguments { db, target, vacuum, .. } = arguments;
    let copied = journal::back_up(db, target, rate, *vacuum).map_err(refused)?;
    let what = format!("{} is a copy of {}", arguments.target.display(), arguments.db.display());
    tell(&what, copied, arguments.json, out)
}

/// Runs `restore BACKUP --db FILE` or `restore BACKUP --check`.
pub(super) fn restore(
    arguments: &RestoreArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let backup = &arguments.backup;
    let (copied, what) = match &arguments.db {
        Some(db) => {
            let copied = journal::restore(backup, db).map_err(refused)?;
            (copied, format!("{} is restored from {}", db.display(), backup.display()))
        }
        None => {
            let copied = journal::check(backup, &std::env::temp_dir()).map_err(refused)?;
            (copied, format!("{} can be restored", backup.display()))
        }
    };
    tell(&what, copied, arguments.json, out)
}

fn refused(error: JournalError) -> ClientError {
    ClientError::Refused(error.to_string())
}

fn tell(what: &str, copied: Copied, is_json: bool, out: &mut dyn Write) -> Result<(), ClientError> {
    let Copied { bytes, open_jobs } = copied;
    if is_json {
        writeln!(out, "{}", json!({ "bytes": bytes, "openJobs": open_jobs }))?;
    } else {
        writeln!(out, "{what}: {bytes} bytes, {open_jobs} jobs and child jobs to go on with")?;
    }
    Ok(())
}
