//! What an error of the server means for a transaction, and what the operator is told about it.

use super::options::with_causes;
use crate::error::{JournalError, Remedy};
use std::time::Duration;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// The SQLSTATE of a transaction that took longer than `transaction_timeout`.
const TRANSACTION_TIMEOUT: &str = "25P04";

/// What to do after a failed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The transaction was rolled back, and the same one may succeed: send it again.
    Conflict,
    /// The connection is broken, or its server does not write. Whether the transaction was
    /// committed is unknown: connect again, and send the same transaction.
    Connection,
    /// The transaction was rolled back, because a day of its jobs does not exist.
    NoDay,
    /// The transaction was rolled back, because a statement has refused it: a row that should be
    /// new is there, or one that should be there is missing or another.
    Refused,
    /// The transaction was rolled back, because the server's disk is full.
    DiskFull,
    /// The transaction was rolled back, and would be again.
    Permanent,
}

impl Fault {
    /// Classifies an error by its SQLSTATE. An error without one is of the connection.
    pub(super) fn of_error(error: &Error) -> Fault {
        let Some(code) = error.code() else { return Fault::Connection };
        let class = &code.code()[..2];
        match *code {
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
                Fault::Conflict
            }
            SqlState::CHECK_VIOLATION => Fault::NoDay,
            SqlState::UNIQUE_VIOLATION
            | SqlState::DIVISION_BY_ZERO
            | SqlState::CARDINALITY_VIOLATION => Fault::Refused,
            SqlState::DISK_FULL => Fault::DiskFull,
            // A server that has become a standby, or that refuses more sessions for now.
            SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
            | SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
            | SqlState::QUERY_CANCELED => Fault::Connection,
            // The server has ended a transaction that took too long (since version 17).
            _ if code.code() == TRANSACTION_TIMEOUT => Fault::Connection,
            // Connection exceptions, lack of resources, and interventions of an operator.
            _ if ["08", "53", "57"].contains(&class) => Fault::Connection,
            _ => Fault::Permanent,
        }
    }
}

/// Converts an error of the server, and adds advice and a remedy. `journal` is the address.
pub(super) fn to_journal_error(journal: &str, error: &Error) -> JournalError {
    let remedy = match Fault::of_error(error) {
        Fault::Connection | Fault::Conflict | Fault::NoDay => Remedy::WaitForServer,
        Fault::DiskFull => Remedy::WaitForSpace,
        Fault::Refused | Fault::Permanent => Remedy::Exit,
    };
    let code = error.code().map_or_else(String::new, |code| format!(" (SQLSTATE {})", code.code()));
    let what = format!("{}{code}{}", with_causes(error), advice(error));
    JournalError::Failed { file: journal.to_owned(), problem: what, remedy }
}

/// Creates the error of a server that has not answered for some time.
pub(super) fn no_answer(journal: &str, time: Duration) -> JournalError {
    JournalError::Failed {
        file: journal.to_owned(),
        problem: format!(
            "it has not answered for {} s. Check that the server runs, that its synchronous \
             standby does, and that nobody has locked its tables",
            time.as_secs()
        ),
        remedy: Remedy::WaitForServer,
    }
}

/// Returns what the operator can do about an error, as a sentence; empty if there is no advice.
fn advice(error: &Error) -> &'static str {
    let Some(code) = error.code() else {
        return ". Check that the server runs, that journal.url names its host and port, and that \
                nothing between them blocks connections";
    };
    match *code {
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            ". Check the user and the password of journal.url, and pg_hba.conf of the server"
        }
        SqlState::INVALID_CATALOG_NAME => {
            ". Create it: createdb --template template0 --encoding UTF8 NAME"
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            ". The manager's user needs the right to create tables: GRANT CREATE, USAGE ON SCHEMA \
             public TO its user, or make it the owner of the database"
        }
        SqlState::DISK_FULL => ". The server's disk needs free space",
        SqlState::TOO_MANY_CONNECTIONS => {
            ". Raise max_connections of the server, or end other sessions"
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => {
            ". The server is a standby, or was set to read only: journal.url must lead to the \
             primary, or name all servers"
        }
        _ => "",
    }
}
