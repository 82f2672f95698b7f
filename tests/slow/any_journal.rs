//! The rules of any journal, for a journal in PostgreSQL.

support::journal_rules!(in_a_database, support::journal_rules::InDatabase::create());
