//! Conversions of values to SQL, the same for any database.

/// Quotes a name as an SQL identifier.
pub(crate) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Converts the number of an entry to a database's integer type. A number that is too large becomes
/// the largest integer.
pub(crate) fn to_sql_number(entry_number: u64) -> i64 {
    i64::try_from(entry_number).unwrap_or(i64::MAX)
}
